"""The queues under test, and short ways to say what the tests do with them.

Another provider is added by its name in `PROVIDERS` and a fixture of that name, which gives a
`Provider`; no test has to change. Its queues keep time by the clock of the test. The provider
`store` is tested on each backend.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.queues import (
    CarefulQueue,
    DomainEvent,
    EventDelivery,
    EventWorker,
    InMemoryEventQueue,
    RetryPolicy,
    StoreEventQueue,
)
from ontologia.testing import ManualClock

if TYPE_CHECKING:
    from ontologia.queues.kafka import KafkaEventQueue
    from ontologia_conformance.kafka_servers import Kafka

PROVIDERS = ["inmemory", "kafka", "real_broker", "classic_broker"]
"""The providers that are no store: each is a fixture of this name."""
Order: TypeAlias = Literal["total", "per key"]
DEAD = "event.dead_letter"
PATIENCE = 60.0  # seconds; only a hang takes that long
NEWER: dict[str, Any] = {"group.protocol": "consumer"}
"""The group protocol of Kafka 4: members join at once."""
CLASSIC: dict[str, Any] = {"heartbeat.interval.ms": 200}
"""The one that is taken without an option; members learn by their heartbeats that others joined."""


class Provider(Protocol):
    """One provider of queues, with nothing in it yet."""

    @property
    def order(self) -> Order:
        """Whether all events come in order, or those of one chain."""
        ...

    @property
    def key(self) -> str:
        """Its `provider_key`."""
        ...

    def open(self) -> CarefulQueue:
        """A queue over the same events each time, as another process would have it."""
        ...

    def dead_letters(self) -> list[tuple[str, str]]:
        """The events that failed for good, with the reasons."""
        ...


class InMemory:
    """One queue: other processes have their own, and know nothing of this one."""

    key = "inmemory"
    order: Order = "total"

    def __init__(self, clock: ManualClock) -> None:
        self._queue = InMemoryEventQueue(clock)

    def open(self) -> CarefulQueue:
        return self._queue

    def dead_letters(self) -> list[tuple[str, str]]:
        return [(letter.event.event_id, letter.reason) for letter in self._queue.dead_letters]

    def close(self) -> None:
        self._queue.close()


class OnKafka:
    """Queues of one group on a topic of their own, each with a session for its clock."""

    key = "kafka"
    order: Order = "per key"

    def __init__(
        self,
        servers: str,
        clock: ManualClock,
        protocol: dict[str, Any] = NEWER,
        group: str = "default",
    ) -> None:
        self.servers, self.topic = servers, f"t-{secrets.token_hex(8)}"
        self.group = group
        self._clock = clock
        self._options = {"fetch.wait.max.ms": 5, **protocol}
        self._sessions: list[Session] = []

    @property
    def topics(self) -> list[str]:
        """All that its queues use."""
        retries = [f"{self.topic}.retry.{self.group}.{level}" for level in ("1m", "1h", "long")]
        return [self.topic, *retries, f"{self.topic}.dlq"]

    def open(self, **options: Any) -> KafkaEventQueue:
        from ontologia.queues.kafka import KafkaEventQueue

        session = Session(":memory:", config=OntologiaConfig(clock=self._clock))
        self._sessions.append(session)
        return KafkaEventQueue(
            *(self.servers, self.topic, self.group),
            session=session,
            options=self._options | options,
        )

    def dead_letters(self) -> list[tuple[str, str]]:
        return [
            (headers["ce_id"], headers["reason"])
            for _, headers in messages(self.servers, f"{self.topic}.dlq")
        ]

    def close(self) -> None:
        for session in self._sessions:
            session.close()


def messages(servers: str, topic: str) -> list[tuple[Any, dict[str, str]]]:
    """All messages of a topic, in the order of each partition: the message, and its headers."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    reader = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 5,
            "log_level": 0,
        }
    )
    found, ended = [], 0
    try:
        numbers = reader.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        reader.assign([TopicPartition(topic, number, 0) for number in numbers])
        while ended < len(numbers):
            message = reader.poll(PATIENCE)
            assert message is not None, f"{topic} cannot be read"
            if message.error() is None:
                given = {k: (v or b"").decode("utf-8", "replace") for k, v in message.headers()}
                found.append((message, given))
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended += 1
    finally:
        reader.close()
    return found


def real_kafka(**options: Any) -> Kafka:
    """A real Kafka, to be entered; the test is skipped where it cannot be had, with the reason."""
    from ontologia_conformance.kafka_servers import Kafka

    try:
        import confluent_kafka  # noqa: F401

        return Kafka(**options)
    except (ImportError, FileNotFoundError) as error:
        pytest.skip(f"no Kafka: {error}")


class InStore:
    """Queues of one group, each with a session of its own."""

    key = "store"
    order: Order = "total"

    def __init__(self, uri: str, clock: ManualClock) -> None:
        self._uri, self._clock = uri, clock
        self._sessions: list[Session] = []

    def open(self) -> CarefulQueue:
        self._sessions.append(Session(self._uri, config=OntologiaConfig(clock=self._clock)))
        return StoreEventQueue(self._sessions[-1])

    def dead_letters(self) -> list[tuple[str, str]]:
        store = self._sessions[0].event_store
        letters = store.list_dead_letters(self._sessions[0].namespace)
        return [(letter["event_id"], letter["last_error"]) for letter in letters]

    def close(self) -> None:
        """Afterwards what is stored must keep every rule of delivery."""
        try:
            broken = self._sessions[0].event_store.check() if self._sessions else []
        finally:
            for session in self._sessions:
                session.close()
        assert broken == []


# -- short ways to say what a test does -----------------------------------------------------------


def event(number: int = 1, name: str = "parcel.posted", **more: Any) -> DomainEvent:
    return DomainEvent.build(name=name, payload={"number": number}, **more)


def chain(events: Sequence[DomainEvent]) -> list[DomainEvent]:
    """Events of one chain, so that every provider delivers them in order."""
    return [events[0], *(replace(each, root_event_id=events[0].event_id) for each in events[1:])]


def fill(queue: CarefulQueue, *numbers: int) -> list[DomainEvent]:
    """Enqueue events of one chain."""
    events = chain([event(number) for number in numbers])
    for each in events:
        queue.enqueue(each)
    return events


def take(queue: CarefulQueue, most: int = 10, timeout: float = 0) -> list[EventDelivery]:
    """What the queue gives, but for the announcements of dead letters that some providers make."""
    while batch := queue.dequeue(most, timeout):
        ours = []
        for delivery in batch:
            if delivery.event.name == DEAD:
                queue.ack(delivery.receipt_handle)
            else:
                ours.append(delivery)
        if ours:
            return ours
    return []


def take_all(queue: CarefulQueue) -> list[EventDelivery]:
    """All there is at this moment, however it is portioned."""
    found: list[EventDelivery] = []
    while batch := take(queue):
        found += batch
    return found


@contextmanager
def somebody_waits(queue: CarefulQueue) -> Iterator[Future[list[EventDelivery]]]:
    """A thread that waits for events, for far longer than a test does; what it is given."""
    given: Future[list[EventDelivery]] = Future()

    def wait() -> None:
        try:
            given.set_result(queue.dequeue(10, 60 * PATIENCE))
        except BaseException as error:  # noqa: BLE001 - raised by result()
            given.set_exception(error)

    threading.Thread(target=wait, daemon=True).start()
    with suppress(TimeoutError):
        given.result(0.05)  # it is most likely waiting by then; if not, the test shows less
    yield given


def numbers(deliveries: Sequence[EventDelivery]) -> list[int]:
    return [delivery.event.payload["number"] for delivery in deliveries]


class Env:
    """As much of an environment as a worker needs."""

    def __init__(self, queue: CarefulQueue, handlers: dict[str, list[Callable[..., Any]]]) -> None:
        self.queue = queue
        self.registry = self
        self._handlers = handlers

    def get_event_handlers(self, name: str) -> list[Callable[..., Any]]:
        return self._handlers.get(name, [])


def work(
    queue: CarefulQueue,
    *handlers: Callable[..., Any],
    clock: ManualClock,
    until: Callable[[dict[str, Any]], bool],
    policy: RetryPolicy | None = None,
) -> dict[str, Any]:
    """Run a worker until its snapshot is as wanted; the last one.

    The clock runs fast, but not while the worker has claims of a store: their leases last.
    """
    worker = EventWorker(Env(queue, {"parcel.posted": list(handlers)}), retry_policy=policy)
    thread = threading.Thread(target=worker.run_forever)
    thread.start()
    try:
        pause = threading.Event()
        for _ in range(int(PATIENCE / 0.005)):
            if until(worker.health_snapshot()) or not thread.is_alive():
                break
            if not _has_claims(queue):
                clock.advance(seconds=0.05)
            pause.wait(0.005)
    finally:
        worker.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    return worker.health_snapshot()


def _has_claims(queue: CarefulQueue) -> bool:
    if not isinstance(queue, StoreEventQueue):
        return False  # it has no leases by this clock
    consumers = queue.session.event_store.list_consumers(queue.session.namespace)
    return any(each["claimed"] for each in consumers)
