"""`Env`: where commands are carried out."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from types import ModuleType, TracebackType
from typing import Any, Self

from ontologia.commands.announcing import Announcing
from ontologia.commands.bus import CommandBus
from ontologia.commands.command import Command
from ontologia.commands.recordset import Records
from ontologia.commands.registry import Registry
from ontologia.commands.replies import dispatch_once
from ontologia.commands.turns import Turns
from ontologia.commands.unit import CommandUnit, Emitted, Frame
from ontologia.errors import ConfigTypeError, SessionClosedError
from ontologia.ids import Ids
from ontologia.queues import EventQueue, open_queue
from ontologia.queues.current import get_current_tenant_id
from ontologia.runtime.commits import WriteRequest
from ontologia.runtime.session import Session
from ontologia.store.events.log import fire_time
from ontologia.store.rows import Announcement, Claim, RawChange

log = logging.getLogger(__name__)
_units: ContextVar[tuple[tuple[Env, CommandUnit], ...]] = ContextVar("ontologia_units", default=())


class Env:
    """An application's models and handlers, over one store and one queue.

    `datastore` is a path, a URI or a `Session`; a session that is given stays open when the env
    is closed. `modules` are those with the models and event handlers, by name or as themselves.
    `queue` is where events go: a queue, the name of a provider (`store`, `inmemory`, or `none` to
    announce nothing), and without it the setting `default_message_broker_provider`. `tenant_id`
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
                self.session._registry.add(model, "entity")
        else:
            self.session = Session(os.fspath(datastore), entity_types=list(models))
        self.commands = CommandBus(self.registry)
        self.models = Models(self)
        self._tenant_id = tenant_id
        self._ids = Ids(self.session._clock, self.session._random)
        self._turns = Turns()
        self._announcing = Announcing(self)
        self._closed = False
        self._own_queue = queue is None or isinstance(queue, str)
        try:
            self.queue = self._opened(queue)
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
        if idempotency_key is not None:
            return dispatch_once(self, cmd, idempotency_key)
        return self.commands.dispatch(cmd, self)

    def _dispatch_all(self, commands: Sequence[Command]) -> list[Any]:
        """Carry out several commands as one unit of work."""
        if len(commands) == 1:
            return [self.dispatch(commands[0])]
        with self._working():
            return [self.dispatch(each) for each in commands]

    def _frame_of(self, cmd: Command) -> Frame | None:
        unit = self._unit()
        frames = [] if unit is None else reversed(unit.frames)
        return next((frame for frame in frames if frame.command is cmd), None)

    # -- units of work --------------------------------------------------------------------------

    def _unit(self) -> CommandUnit | None:
        """The unit of work that is going on here."""
        for env, unit in _units.get():
            if env is self and unit.is_going_on():
                return unit
        return None

    def _reading(self) -> CommandUnit:
        """Through what to read: the unit of work, or one that lasts for this one question."""
        self._check_open()
        return self._unit() or CommandUnit(self.session, "")

    @contextmanager
    def _working(self, cmd: Command | None = None) -> Generator[CommandUnit]:
        """A unit of work, or a part of the one that is going on."""
        unit = self._unit()
        if unit is not None:
            mark = unit.mark()
            try:
                yield unit
            except BaseException:
                unit.roll_back(mark)
                raise
        elif cmd is None or cmd.model_id is None:
            with self._beginning() as unit:
                yield unit
        else:
            place = (cmd.model_key, cmd.model_id)
            with (
                self._turns.taken(place, self.session.config.lock_timeout_ms),
                self._beginning() as unit,
            ):
                yield unit

    @contextmanager
    def _beginning(self) -> Generator[CommandUnit]:
        self._check_open()
        unit = CommandUnit(self.session, self._id())
        token = _units.set(((self, unit), *_units.get()))
        try:
            yield unit
        finally:
            unit.end()
            _units.reset(token)
        self._commit(unit)

    def _commit(self, unit: CommandUnit) -> None:
        queue, reads = unit.intents.snapshot(), unit.reads()
        if not (queue or unit.events or unit.also):
            return
        announcing = self._announcing
        claim = announcing.claim()
        queued = announcing.within(unit.events, claim)
        tracked: list[Emitted] = []

        def announce(changes: Sequence[RawChange]) -> list[Announcement]:
            tracked[:] = announcing.field_changes(unit, changes)  # it may be tried more than once
            made = queued + announcing.within(tracked, claim)
            return made if changes else announcing.by_command(made, unit)

        touches_state = bool(queue or reads)  # then only the transaction knows what changes
        self.session._commits.write(
            WriteRequest(
                queue,
                self._metadata(unit, claim),
                () if touches_state else announce(()),
                claim,
                reads=reads,
                announce=announce,
                also=unit.also,
            )
        )
        announcing.after([*unit.events, *tracked], unit)

    def _metadata(self, unit: CommandUnit, claim: Claim | None) -> dict[str, Any]:
        metadata = self.session._metadata() | {"command": unit.name, "command_id": unit.id}
        if self.tenant_id is not None:
            metadata["tenant_id"] = self.tenant_id
        if claim is not None:
            metadata["event_id"] = claim.event.id
            metadata["handler_id"] = claim.handler_id
            metadata["attempt"] = claim.attempts + 1
        return metadata

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
        transaction where the queue is the store, right after it with another one. Elsewhere it is
        in the queue when this returns. Tenant, correlation and causation come from what is going
        on: the tenant that is set, the event that is being handled, the command.

        `delay` (seconds or a timedelta) or `at` defers it from now on. With a `dedup_key` that a
        retained event of its name has, it is not stored again. A queue outside of the store can do
        neither: ConfigError.
        """
        self._check_open()
        unit = self._unit()
        now = self.session._clock.now()
        fire_at = fire_time(now, delay=delay, at=at)
        event = self._announcing.event(
            name,
            payload,
            unit,
            fire_at=fire_at,
            now=now,
            tenant_id=tenant_id,
            correlation_id=correlation_id,
            causation_id=causation_id,
        )
        emitted = self._announcing.emitted(event, fire_at, dedup_key)
        if unit is not None:
            unit.events.append(emitted)
        else:
            self._announcing.after([emitted])

    # -- the rest -------------------------------------------------------------------------------

    @property
    def tenant_id(self) -> str | None:
        """The tenant that is set here (`set_current_tenant_id`), else the env's own."""
        return get_current_tenant_id() or self._tenant_id

    def _id(self) -> str:
        return self._ids.new()

    def close(self) -> None:
        """Give up what was opened here: the queue, then the session. Closing again is nothing.

        Commands are carried out no more, also where the session was given and stays open.
        """
        self._closed = True
        close = getattr(self.queue, "close", None)
        if self._own_queue and close is not None:
            close()
        self._close_session()

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosedError("the env is closed", hint="Make another Env.")
        self.session._check_open()

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
