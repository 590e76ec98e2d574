"""`Relay`: carries the events of a namespace to another system, once they are committed."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ontologia.clock import from_text
from ontologia.delivery.retry import Backoff, RetryPolicy
from ontologia.engine.background import Interrupted
from ontologia.engine.consumer import Consumer, InOrder
from ontologia.engine.engine import Engine, store_engine
from ontologia.engine.outage import Outage
from ontologia.engine.runner import GivenUp
from ontologia.errors import ConfigTypeError, ConnectionLostError, ConsumerBusyError
from ontologia.queues.cloudevents import Message
from ontologia.queues.worker import Health
from ontologia.relay.endpoints import Target, open_target
from ontologia.runtime.core import Core
from ontologia.runtime.session import core_of
from ontologia.store.events import checks
from ontologia.store.events.claims import ALL_TYPES
from ontologia.store.events.leases import Done
from ontologia.store.rows import Claim, EventRow

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

log = logging.getLogger(__name__)
_BATCH = 1_000
_FIRST_BATCH = 100
_BATCH_BYTES = 16_000_000  # about: of payloads that are in memory at a time
_NEVER = 2**31 - 1
# A crash is no word of the event's: it is sent again however often relays end before it is acked.
_POLICY = RetryPolicy(1, _NEVER, Backoff(0, 0, 0))
_LOOK = 0.2  # seconds between two looks whether another relay has got the rest through


def intake_mark(uri: str) -> str:
    """What the events that an intake has stored have for their source."""
    return f"intake:{uri}"


def origin_of(core: Core) -> str:
    """What messages of a store's namespace have for their source: a URI."""
    return f"/ontologia/{quote(core.namespace, safe='')}/{core.store.store_id}"


class Relay:
    """Sends the committed events of a session's namespace to a target, each at least once.

    `target` is a URI, `kafka://broker:9092/topic` or `s3://bucket/prefix`; `types` are the events to
    send, all without it. A relay is a consumer of the store, `relay:<target>`, which is given all
    retained events when it is new. An event is acked when the target has it, so none is lost when a
    process dies; some are sent again then, under the same id. Events of one root are sent in the
    order in which they were stored. Several relays of one target take turns: one that dies is
    replaced when its leases have ended.

    `formerly` has the names of consumers whose work it takes over, `relay:<target>` for a target that had
    another URI: what waits for them, what is done, and a pause are its own then, and they are
    removed. While a live session runs one of them, the relay waits.

    What an intake has stored from the same target is not sent back. An event that the target
    refuses for good, since it is too large, becomes a dead letter.
    """

    def __init__(
        self,
        session: Session,
        target: str | Target,
        types: Sequence[str] | None = None,
        *,
        formerly: Sequence[str] = (),
    ) -> None:
        for option, given in (("types", types), ("formerly", formerly)):
            if isinstance(given, str):
                raise ConfigTypeError(f"{option} takes a list; write [{given!r}]")
        self._session = session
        self._core = core_of(session)
        self._target = open_target(target, session) if isinstance(target, str) else target
        self._own_target = isinstance(target, str)
        listed = [ALL_TYPES] if types is None else list(dict.fromkeys(types))
        for each in listed:
            checks.name("an event's type", each)
        self.name = f"relay:{self._target.uri}"
        """The name of the consumer."""
        self._formerly = tuple(formerly)
        self._mark = intake_mark(self._target.uri)
        self._origin = origin_of(self._core)
        self._types = listed
        self._health = Health()
        self._in_order = InOrder(min(_FIRST_BATCH, _BATCH), self._send)
        self._refused: dict[str, str] = {}
        self._outage = Outage(f"target {self._target.uri}")
        self._stopped = False
        self._engine: Engine | None = None
        self._running = threading.Lock()

    @property
    def session(self) -> Session:
        """The session whose events it sends."""
        return self._session

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        engine = self._engine
        return self._stopped or (engine is not None and engine.stopping)

    @property
    def done(self) -> int:
        """Events that the target has."""
        return self._health.succeeded

    @property
    def failed(self) -> int:
        """Events that it refused."""
        return self._health.dead_lettered

    def stop(self) -> None:
        """Let the batch at hand come to its end, and send no other. Any thread may, and a signal.

        A target that cannot be reached is not waited for. A relay that was stopped runs no more.
        """
        self._stopped = True
        if self._engine is not None:
            self._engine.stop()

    def run(self) -> None:
        """Send events until stopped: by `stop()` or, in the main thread, SIGINT or SIGTERM.

        A target or database that is away is waited for; before anything was sent it is an error.
        Raises as `Target.open` says, and if the target refuses to take anything more.
        """
        self._run(until_empty=False)

    def run_until_empty(self) -> None:
        """Send all that is committed, and wait for what other relays of the target have claimed.

        Signals, `stop()` and errors as in `run`.
        """
        self._run(until_empty=True)

    def lag(self) -> int:
        """The number of stored events that the target does not have. Costs what waits.

        ConsumerBusyError while a live session runs what the relay was called formerly.
        """
        core = self._core
        core.store.events.consumers.register(
            core.namespace, self.name, self._types, formerly=self._formerly
        )
        return sum(
            each["waiting"] + each["claimed"] + each["backoff"]
            for each in core.store.events.activity.waiting(core.namespace)
            if each["handler"] == self.name and self._wants(each["type"])
        )

    def health_snapshot(self) -> dict[str, Any]:
        """What became of events so far, as `EventWorker.health_snapshot`, and the `lag`."""
        running = self._running.locked()
        return self._health.snapshot(running=running) | {
            "target": self._target.uri,
            "lag": self.lag(),
        }

    def _wants(self, event_type: str) -> bool:
        return event_type in self._types or ALL_TYPES in self._types

    # -- the run ----------------------------------------------------------------------------------

    def _run(self, *, until_empty: bool) -> None:
        if not self._running.acquire(blocking=False):
            raise RuntimeError("this relay is running already; make another one")
        try:
            core = self._core
            if self.name in [each.name for each in core.running]:
                sessions = [core.session_id]
                raise ConsumerBusyError(self.name, core.namespace, sessions, "nothing was sent")
            self._target.open()
            log.info("events of namespace %r are sent to %s", core.namespace, self._target.uri)
            while not self._stopped:
                self._run_engine(1 if until_empty else None)
                if not until_empty or self._stopped or self._is_done():
                    break
                core.clock.sleep(_LOOK)
        finally:
            self._engine = None
            if self._own_target:
                self._target.close()
            self._running.release()

    def _run_engine(self, iterations: int | None) -> None:
        core = self._core
        consumer = Consumer(
            self.name,
            self._types,
            self._end,
            _POLICY,
            core.config.event_claim_lease_ms,
            timeout_ms=math.inf,
            formerly=self._formerly,
            in_order=self._in_order,
        )
        engine = self._engine = store_engine(core, consumer, observe=self._health.observe)
        if self._stopped:
            engine.stop()
        try:
            engine.run(iterations)
        except Interrupted:  # it was stopped while the target was away
            self._stopped = True
        self._stopped = self._stopped or engine.told

    def _is_done(self) -> bool:
        """Whether nothing is left, or an operator holds it back."""
        consumers = self._core.store.events.list_consumers(self._core.namespace)
        paused = any(each["paused_at"] for each in consumers if each["name"] == self.name)
        return paused or not self.lag()

    # -- a batch ----------------------------------------------------------------------------------

    def _send(self, batch: Sequence[Claim]) -> None:
        """Send the events of a batch, however long the target is away."""
        size = sum(len(claim.event.payload) for claim in batch)
        self._in_order.most = max(1, min(_BATCH, _BATCH_BYTES * len(batch) // (size or 1)))
        messages: list[Message] = []
        for claim in batch:
            if claim.event.source != self._mark:
                try:
                    messages.append(self._message(claim.event))
                except ValueError as error:
                    self._refused[claim.event.id] = f"it cannot be read: {error}"
        while messages:
            try:
                refused = self._target.send(messages, self._is_stopping)
            except ConnectionLostError as error:
                if self.stopping:
                    raise Interrupted from error
                self._outage.wait(error, self._is_stopping)
            else:
                self._outage.over(wrote=True)
                self._refused |= {messages[at].id: why for at, why in refused.items()}
                return

    def _is_stopping(self) -> bool:
        return self.stopping

    def _end(self, claim: Claim) -> Done:
        """The target has an event, or does not want it."""
        if (why := self._refused.pop(claim.event.id, None)) is not None:
            raise GivenUp(f"{self._target.uri} will not take it: {why}")
        return Done(claim)

    def _message(self, row: EventRow) -> Message:
        payload = row.payload if isinstance(row.payload, str) else row.payload.decode()
        return Message(
            row.id,
            row.type,
            self._origin,
            from_text(row.occurred_at or row.created_at),
            payload,
            None if row.root_event_id == row.id else row.root_event_id,
            row.chain_depth,
            row.correlation_id,
            row.causation_id,
            row.tenant_id,
            row.namespace,
            row.priority,
        )
