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
import logging
import re
import threading
from collections.abc import Sequence
from typing import Any, Literal

from ontologia.actors.actor import Actor
from ontologia.actors.capability import Capability
from ontologia.actors.message import Message, is_type
from ontologia.errors import SessionClosedError
from ontologia.queues.dispatch import EventHandler
from ontologia.queues.protocol import DomainEvent, RetryPolicy
from ontologia.queues.store import StoreEventQueue
from ontologia.queues.worker import EventWorker
from ontologia.runtime.session import Session

log = logging.getLogger("ontologia.actors")
_PASSED = "Mirror.Passed"
_LOOK = 1.0  # seconds between two looks whether the loop is still there
_PAUSE = 1.0  # seconds before a store that failed is tried again
_BETWEEN = re.compile(r"[\W_]+")


def mirrored_type(stored: str) -> str | None:
    """How actors call the events of a stored type; None if they cannot."""
    found = stored
    if not is_type(stored):
        words = [each[0].upper() + each[1:] for each in _BETWEEN.split(stored) if each]
        domain = words.pop(0) if len(words) > 1 else "Event"
        found = f"{domain}.{''.join(words)}"
    return found if is_type(found) and not found.startswith("Sys.") else None


class MirrorQueue(StoreEventQueue):
    """The events of the store, for the loops of one name."""

    _kind = "actors"

    def begin(self) -> None:
        """Make sure that the consumer is known, so that from now on nothing passes it by."""
        self._begun()

    def describe(self) -> str:
        """Which loops, and where."""
        return f"actors {self.group!r} in {self._session._store.uri}, {self._session.namespace!r}"


class Passed(Message):
    """Comes behind a mirrored event in the same lane: when it is here, that one was routed."""

    kind: Literal["event"]
    type: Literal["Mirror.Passed"]


class _Interrupted(KeyboardInterrupt):
    """The event at hand is given back as if nobody had tried it."""


class MirrorActor(Actor):
    """Takes events from the store in a thread, and tells the loop."""

    def __init__(self, session: Session, name: str, wanted: frozenset[str]) -> None:
        self._session, self._name, self._wanted = session, name, wanted
        self._routing: dict[str, concurrent.futures.Future[None]] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.registry = self  # a worker asks it for its handlers

    @property
    def pending(self) -> int:
        """One more while it listens: events may come, and the loop is alive for them."""
        return super().pending + (self._thread is not None and not self._stop.is_set())

    async def start(self) -> None:
        """Listen. Raises what keeps it from the store."""
        self._host = asyncio.get_running_loop()
        self.queue = MirrorQueue(self._session, self._name)
        await asyncio.to_thread(self.queue.begin)
        self._taker = EventWorker(self, retry_policy=RetryPolicy())
        self._thread = threading.Thread(target=self._run, name="ontologia-mirror", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Take no more events; one that was not routed is given back."""
        self._stop.set()
        if self._thread is not None:
            self._taker.stop()
            self.queue.wake()
            for each in list(self._routing.values()):
                each.cancel()
            await asyncio.to_thread(self._thread.join)
        await super().stop()

    async def handle(self, message: Passed) -> None:
        """An event was routed."""
        future = self._routing.pop(message.data["eventId"], None)
        if future is not None and not future.done():
            future.set_result(None)

    def _tell(self, event: DomainEvent, type: str, routed: concurrent.futures.Future[None]) -> None:
        if self._stop.is_set():
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

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._take()
        finally:
            self.queue.close()

    def _take(self) -> None:
        try:
            self._taker.run_forever()
        except (_Interrupted, SessionClosedError):
            self._stop.set()
        except Exception:
            log.exception("the mirror: the store failed; tried again in %g s", _PAUSE)
            self._stop.wait(_PAUSE)
        if not self._stop.is_set():
            self._taker = EventWorker(self, retry_policy=RetryPolicy())
            if self._stop.is_set():
                self._taker.stop()  # it came in between, and met the other worker

    def get_event_handlers(self, name: str) -> Sequence[EventHandler]:
        """How to handle an event: not at all, if no actor subscribed to it."""
        return (self._deliver,) if mirrored_type(name) in self._wanted else ()

    def _deliver(self, event: DomainEvent, env: Any) -> None:
        type = mirrored_type(event.name)
        assert type is not None  # noqa: S101 - it is one of those that are wanted
        routed: concurrent.futures.Future[None] = concurrent.futures.Future()
        try:
            self._host.call_soon_threadsafe(self._tell, event, type, routed)
        except RuntimeError as error:
            raise _Interrupted from error
        while True:
            try:
                return routed.result(_LOOK)
            except concurrent.futures.CancelledError:
                raise _Interrupted from None
            except TimeoutError:
                if self._host.is_closed():
                    raise _Interrupted from None


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
