"""The mirror: events of the store, told to the actors that subscribed to them.

A loop of some name is a consumer of the store, `actors:<name>`: each event is told once to the
loops of a name, and acknowledged when the loop has routed it. What an actor makes of it is the
actor's; an event whose routing was cut off by a crash is told again.

`order.placed` is `Order.Placed` for actors, `order.line.added` is `Order.LineAdded`; its metadata
has the id of the stored event as `id`, and its type as `eventType`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import re
from collections.abc import Sequence
from typing import Any, Literal

from ontologia.actors.actor import Actor
from ontologia.actors.capability import Capability
from ontologia.actors.message import Message, is_type
from ontologia.delivery.retry import Backoff, RetryPolicy
from ontologia.engine.background import EngineThread, Interrupted, result_from
from ontologia.engine.consumer import Consumer
from ontologia.engine.engine import Engine, store_engine
from ontologia.queues.protocol import DomainEvent
from ontologia.queues.stored import event_of
from ontologia.runtime.session import Session, core_of
from ontologia.store.events.claims import ALL_TYPES
from ontologia.store.events.leases import Done
from ontologia.store.rows import Claim

_PASSED = "Mirror.Passed"
_PAUSE = 1.0  # seconds before a store that failed is tried again
_POLICY = RetryPolicy(5, 5, Backoff(250, 10_000, jitter_ms=0, first_exponent=0))
_BETWEEN = re.compile(r"[\W_]+")


def mirrored_type(stored: str) -> str | None:
    """How actors call the events of a stored type; None if they cannot."""
    found = stored
    if not is_type(stored):
        words = [each[0].upper() + each[1:] for each in _BETWEEN.split(stored) if each]
        domain = words.pop(0) if len(words) > 1 else "Event"
        found = f"{domain}.{''.join(words)}"
    return found if is_type(found) and not found.startswith("Sys.") else None


class Passed(Message):
    """Comes behind a mirrored event in the same lane: when it is here, that one was routed."""

    kind: Literal["event"]
    type: Literal["Mirror.Passed"]


class MirrorActor(Actor):
    """Takes events from the store in a thread, and tells the loop."""

    def __init__(self, session: Session, name: str, wanted: frozenset[str]) -> None:
        self._session, self._name, self._wanted = session, name, wanted
        self._routing: dict[str, concurrent.futures.Future[None]] = {}
        self._thread: EngineThread | None = None

    @property
    def pending(self) -> int:
        """One more while it listens: events may come, and the loop is alive for them."""
        return super().pending + self._listens

    @property
    def _listens(self) -> bool:
        return self._thread is not None and not self._thread.stopping

    async def start(self) -> None:
        """Listen. Raises what keeps it from the store."""
        self._host = asyncio.get_running_loop()
        thread = EngineThread("mirror", self._build, self._host, pause=_PAUSE)
        await asyncio.to_thread(thread.open)
        self._thread = thread
        thread.start()

    async def stop(self) -> None:
        """Claim no more events; one that was not routed is released."""
        if self._thread is not None:
            self._thread.stop()
            for each in list(self._routing.values()):
                each.cancel()
            await asyncio.to_thread(self._thread.join)
        await super().stop()

    def _build(self) -> Engine:
        core = core_of(self._session)
        consumer = Consumer(
            f"actors:{self._name}",
            [ALL_TYPES],
            self._deliver,
            _POLICY,
            core.config.event_claim_lease_ms,
            timeout_ms=math.inf,  # it waits for the event loop, which another thread would do, too
        )
        return store_engine(core, consumer)

    async def handle(self, message: Passed) -> None:
        """An event was routed."""
        future = self._routing.pop(message.data["eventId"], None)
        if future is not None and not future.done():
            future.set_result(None)

    def _tell(self, event: DomainEvent, type: str, routed: concurrent.futures.Future[None]) -> None:
        if not self._listens:
            routed.cancel()
            return
        self._routing[event.event_id] = routed
        try:
            self.emit(_message(event, type))
            self.emit(_PASSED, {"eventId": event.event_id})
        except Exception as error:  # noqa: BLE001 - the worker is told, and tries again later
            self._routing.pop(event.event_id, None)
            routed.set_exception(error)

    # -- in the thread ----------------------------------------------------------------------------

    def _deliver(self, claim: Claim) -> Done:
        """Have the loop route an event, if an actor subscribed to it."""
        type = mirrored_type(claim.event.type)
        if type in self._wanted:
            routed: concurrent.futures.Future[None] = concurrent.futures.Future()
            try:
                self._host.call_soon_threadsafe(self._tell, event_of(claim.event), type, routed)
            except RuntimeError as error:
                raise Interrupted from error
            result_from(self._host, routed)
        return Done(claim)


def _message(event: DomainEvent, type: str) -> Message:
    metadata: dict[str, Any] = {
        "id": event.event_id,
        "timestamp": int(event.occurred_at.timestamp() * 1000),
        "eventType": event.name,
    }
    if event.correlation_id is not None:
        metadata["correlation"] = event.correlation_id
    if event.causation_id is not None:
        metadata["causation"] = event.causation_id
    return Message.from_data(
        {"kind": "event", "type": type, "data": event.payload, "metadata": metadata}
    )


def mirror(session: Session, name: str, others: Sequence[Capability]) -> Capability:
    """The capability; what the others subscribed to is what it tells."""

    def spawn() -> MirrorActor:  # by then the loop has looked at what is wrong with the others
        return MirrorActor(session, name, frozenset(t for each in others for t in each.subscribes))

    return Capability(
        "mirror",
        "Tells actors of the events of the store",
        inbound=Passed,
        outbound=Message,
        subscribes=[_PASSED],
        spawn=spawn,
    )
