"""`Env`: where commands are carried out."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from ontologia.commands.bus import CommandBus
from ontologia.commands.command import Command
from ontologia.commands.recordset import Records
from ontologia.commands.registry import Registry
from ontologia.commands.replies import dispatch_once
from ontologia.commands.work import Work
from ontologia.errors import ConfigTypeError
from ontologia.queues import EventQueue, open_queue
from ontologia.queues.current import get_current_tenant_id
from ontologia.runtime.session import Session, core_of
from ontologia.store.events.log import fire_time

if TYPE_CHECKING:
    from ontologia.commands.outbox import Outbox

log = logging.getLogger(__name__)


class Env:
    """An application's models and handlers, over one store and one queue.

    `datastore` is a path, a URI or a `Session`; a session that is given stays open when the env
    is closed. `modules` are those with the models and event handlers, by name or as themselves.
    `queue` is where events go: a queue, the name of a provider (`store`, `inmemory`, `kafka`, or
    `none` to announce nothing), and without it the setting `default_message_broker_provider`. `tenant_id`
    is the tenant where nothing else says one.

    Any thread may use it. One command is one unit of work: what it writes and announces is there
    when `dispatch` has returned, and nothing of it is there if `dispatch` raises.
    """

    def __init__(
        self,
        datastore: str | os.PathLike[str] | Session,
        *,
        modules: Iterable[str | ModuleType] = (),
        queue: EventQueue | str | None = None,
        tenant_id: str | None = None,
    ) -> None:
        if isinstance(modules, str | ModuleType):
            raise ConfigTypeError(f"modules takes a list; write [{modules!r}]")
        self.registry = Registry()
        for module in modules:
            self.registry.load_module(module)
        for key, method in self.registry.idle_hooks():
            log.warning("the hook %s waits for %s, and there is no such command", method, key)
        models = list(self.registry.models.values())
        self._own_session = not isinstance(datastore, Session)
        if isinstance(datastore, Session):
            self.session = datastore
            for model in models:
                core_of(self.session).registry.add(model, "entity")
        else:
            self.session = Session(os.fspath(datastore), entity_types=list(models))
        self.commands = CommandBus(self.registry)
        self.models = Models(self)
        self._tenant_id = tenant_id
        self._work = Work(self)
        self._own_queue = queue is None or isinstance(queue, str)
        try:
            self.queue = self._opened(queue)
            self.outbox = self._opened_outbox()
        except BaseException:
            self._close_session()
            raise

    def _opened(self, queue: EventQueue | str | None) -> EventQueue | None:
        provider = self.session.config.default_message_broker_provider if queue is None else queue
        if not isinstance(provider, str):
            return provider
        if provider == "none":
            return None
        return open_queue(provider, session=self.session)

    def _opened_outbox(self) -> Outbox | None:
        """What carries events to the queue, where it can be no part of a transaction of the store."""
        if getattr(self.queue, "provider_key", "") != "kafka":
            return None
        from ontologia.commands.outbox import Outbox
        from ontologia.queues.kafka import KafkaEventQueue

        return Outbox(self.session, self.queue) if isinstance(self.queue, KafkaEventQueue) else None

    def __repr__(self) -> str:
        queue = "no queue" if self.queue is None else self.queue.describe()
        return f"<Env {self.session!r}, {len(self.registry.models)} models, {queue}>"

    # -- commands -------------------------------------------------------------------------------

    def dispatch(self, cmd: Command, *, idempotency_key: str | None = None) -> Any:
        """Carry out a command now, in one unit of work; what its handler returns.

        Whatever its handler or a hook raises comes out of here, and then nothing was written or
        announced. StateConflictError if a record that it read was changed by somebody else before
        it could commit: threads of one process wait for each other, processes do not.

        With an `idempotency_key` the command is carried out once: asked for again under the same
        key, the first answer (as JSON) is given and nothing is done.

        One durable transaction, and one read for each record or search that was not yet read.
        """
        if self.outbox is not None:
            self.outbox.start()
        if idempotency_key is not None:
            return dispatch_once(self, cmd, idempotency_key)
        return self.commands.dispatch(cmd, self)

    # -- events ---------------------------------------------------------------------------------

    def emit(
        self,
        name: str,
        payload: dict[str, Any],
        *,
        tenant_id: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        dedup_key: str | None = None,
    ) -> None:
        """Announce that something happened. Its handlers run later, in a worker.

        Within a command it is announced when, and only if, the command succeeds: in the same
        transaction where the queue is the store. With Kafka it is stored in that transaction, and
        carried to the topic soon after, by this process or another on the store; with another queue
        it is announced right after the transaction. Elsewhere it is in the queue when this returns. Tenant, correlation and causation come from what is going
        on: the tenant that is set, the event that is being handled, the command.

        `delay` (seconds or a timedelta) or `at` defers it from now on. With a `dedup_key` that a
        retained event of its name has, it is not stored again. A queue outside of the store can do
        neither, but for what a command emits with Kafka: ConfigError.
        """
        work = self._work
        work.check_open()
        unit = work.unit()
        now = work.core.clock.now()
        fire_at = fire_time(now, delay=delay, at=at)
        event = work.announcing.event(
            name,
            payload,
            unit,
            fire_at=fire_at,
            now=now,
            tenant_id=tenant_id,
            correlation_id=correlation_id,
            causation_id=causation_id,
        )
        emitted = work.announcing.emitted(event, unit, fire_at, dedup_key)
        if unit is not None:
            unit.events.append(emitted)
        else:
            work.announcing.after([emitted])

    # -- the rest -------------------------------------------------------------------------------

    @property
    def tenant_id(self) -> str | None:
        """The tenant that is set here (`set_current_tenant_id`), else the env's own."""
        return get_current_tenant_id() or self._tenant_id

    def close(self) -> None:
        """Give up what was opened here: the queue, then the session. Closing again is nothing.

        Commands are carried out no more, also where the session was given and stays open.
        """
        self._work.closed = True
        if self.outbox is not None:
            self.outbox.close()
        close = getattr(self.queue, "close", None)
        if self._own_queue and close is not None:
            close()
        self._close_session()

    def _close_session(self) -> None:
        if self._own_session:
            self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Models(Mapping[str, Records]):
    """The models of an env, by their keys."""

    def __init__(self, env: Env) -> None:
        self._env = env

    def __getitem__(self, key: str) -> Records:
        return Records(self._env, self._env.registry.model(key))

    def get(self, key: str, default: Any = None) -> Any:
        """The same, or `default` if there is none."""
        found = self._env.registry.models.get(key)
        return default if found is None else Records(self._env, found)

    def __contains__(self, key: object) -> bool:
        return key in self._env.registry.models

    def __iter__(self) -> Iterator[str]:
        return iter(self._env.registry.models)

    def __len__(self) -> int:
        return len(self._env.registry.models)
