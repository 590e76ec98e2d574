"""A real broker of Kafka: relay, intake and queue beside the least that a program can do there."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import apsw

from bench.goals.figures import Figure, Note, Ratio, Speed
from bench.goals.queues import Env
from bench.measure import progress, same, seconds
from bench.orders import build, nothing, open_orders, placed, unlimited
from bench.stores import copied
from bench.workload import NOTHING
from ontologia.queues import EventWorker, open_queue
from ontologia.relay import Intake, Relay

_EVENTS = 20_000
_ROUNDS = 3
_TENS = 10
_PORTION = 500
_SAMPLES = 200
_WARM = 20
_JOIN = {"group.protocol": "consumer"}  # joins a group in less than a second
_names = count(1)


def figures() -> Iterator[Figure]:
    from ontologia_conformance.kafka_servers import Kafka

    try:
        with progress("starting a broker"):
            broker = Kafka()
            broker.start()
    except FileNotFoundError as error:
        yield Note(f"Kafka was not measured: {error}")
        return
    try:
        with tempfile.TemporaryDirectory(prefix="ontologia-bench-") as name:
            folder = Path(name)
            with progress(f"building a store with {_EVENTS:,} events that wait"):
                backlog = build(folder / "backlog.db", _EVENTS, handler=NOTHING)
            topic = _topic(broker.servers)
            yield _relay(backlog, broker.servers, topic)
            yield _intake(folder, broker.servers, topic)
            yield _queue(broker.servers, topic)
            yield _visible(folder, broker.servers)
    finally:
        broker.stop()


def _topic(servers: str) -> str:
    """A new topic of four partitions."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    name = f"bench{next(_names)}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, 4, 1)])[name].result()
    return name


# -- relay ----------------------------------------------------------------------------------------


def _relay(backlog: Path, servers: str, topic: str) -> Ratio:
    figure = Speed(f"relay, {_EVENTS:,} events (bare: a no-op handler)", 0.8, per=_EVENTS)
    for number in range(_ROUNDS + 1):
        with progress(f"relay, round {number} of {_ROUNDS}"):
            handled = _handled(backlog)
            place = _topic(servers) if number else topic
            relayed = _relayed(backlog, f"kafka://{servers}/{place}")
        if number:  # the first is to warm up
            figure.bare.append(handled)
            figure.ours.append(relayed)
    return figure


def _handled(backlog: Path) -> float:
    with open_orders(copied(backlog, "handled.db"), unlimited()) as session:
        return seconds(lambda: session.run([nothing], max_iterations=1))


def _relayed(backlog: Path, uri: str) -> float:
    with open_orders(copied(backlog, "relayed.db"), unlimited()) as session:
        relay = Relay(session, uri)
        elapsed = seconds(relay.run_until_empty)
        same("events that the topic has", _EVENTS, relay.done)
    return elapsed


# -- intake ---------------------------------------------------------------------------------------


def _intake(folder: Path, servers: str, topic: str) -> Ratio:
    """Bare keeps key and value, and the offsets, in one durable transaction for every 500."""
    title = f"intake of {_EVENTS:,} (bare: consume 500, insert them)"
    figure = Speed(title, 0.3, per=_EVENTS)
    for number in range(_ROUNDS + 1):
        with progress(f"intake, round {number} of {_ROUNDS}"):
            inserted = _inserted(folder / f"bare{number}.db", servers, topic)
            taken = _taken(folder / f"taken{number}.db", f"kafka://{servers}/{topic}")
        if number:
            figure.bare.append(inserted)
            figure.ours.append(taken)
    return figure


def _inserted(path: Path, servers: str, topic: str) -> float:
    database = apsw.Connection(str(path))
    database.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL")
    database.execute(
        "CREATE TABLE events(key, value); CREATE TABLE offsets(part PRIMARY KEY, next)"
    )
    consumer = _consumer(servers, topic)

    def work() -> None:
        left = _EVENTS
        while left:
            messages = consumer.consume(_PORTION, 0.5)
            with database:
                database.executemany(
                    "INSERT INTO events VALUES (?, ?)", [(m.key(), m.value()) for m in messages]
                )
                database.executemany(
                    "INSERT OR REPLACE INTO offsets VALUES (?, ?)",
                    list({m.partition(): m.offset() + 1 for m in messages}.items()),
                )
            left -= len(messages)

    elapsed = seconds(work)
    consumer.close()
    database.close()
    return elapsed


def _taken(path: Path, uri: str) -> float:
    with open_orders(path) as session:
        intake = Intake(session, uri)
        elapsed = seconds(intake.run_until_empty)
        same("events that the store has", _EVENTS, intake.stored)
    return elapsed


# -- queue ----------------------------------------------------------------------------------------


def _queue(servers: str, topic: str) -> Ratio:
    title = f"a worker on Kafka, {_EVENTS:,} (bare: consume 10, commit)"
    figure = Speed(title, 0.4, per=_EVENTS)
    for number in range(_ROUNDS + 1):
        with progress(f"a worker on Kafka, round {number} of {_ROUNDS}"):
            consumed, worked = _consumed(servers, topic), _worked(servers, topic)
        if number:
            figure.bare.append(consumed)
            figure.ours.append(worked)
    return figure


def _consumed(servers: str, topic: str) -> float:
    consumer = _consumer(servers, topic)

    def work() -> None:
        left = _EVENTS
        while left > 0:
            if messages := consumer.consume(_TENS, 0.5):
                consumer.commit(asynchronous=False)
                left -= len(messages)

    elapsed = seconds(work)
    consumer.close()
    return elapsed


def _worked(servers: str, topic: str) -> float:
    """Joining the group is part of it, as it is for bare."""
    queue = open_queue(
        "kafka", bootstrap_servers=servers, topic=topic, group=uuid4().hex, options=_JOIN
    )
    env = Env(_EVENTS)
    worker = EventWorker(env, queue=queue)
    env.done = worker.stop
    elapsed = seconds(worker.run_forever)
    queue.close()
    return elapsed


def _consumer(servers: str, topic: str) -> Any:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid4().hex,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **_JOIN,
        }
    )
    consumer.subscribe([topic])
    return consumer


# -- how soon it is there -------------------------------------------------------------------------


def _visible(folder: Path, servers: str) -> Ratio:
    """From the call to the moment at which a consumer in another thread has the message."""
    from confluent_kafka import Producer

    topic = _topic(servers)
    figure = Ratio("commit to visible (bare: produce to visible)", 2, slack=0.005)
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True})
    with open_orders(folder / "visible.db") as session:
        relay = Relay(session, f"kafka://{servers}/{topic}")
        running = threading.Thread(target=relay.run)
        session.commit(event=placed(0))
        running.start()
        with _Seen(servers, topic) as seen:
            seen.wait()
            for number in range(_SAMPLES + _WARM):
                at = time.perf_counter()
                producer.produce(topic, b"{}")
                producer.flush()
                plain = seen.wait() - at
                at = time.perf_counter()
                session.commit(event=placed(number + 1))
                ours = seen.wait() - at
                if number >= _WARM:
                    figure.bare.append(plain)
                    figure.ours.append(ours)
        relay.stop()
        running.join()
    return figure


class _Seen:
    """When each message of a topic has arrived."""

    def __init__(self, servers: str, topic: str) -> None:
        self._consumer = _consumer(servers, topic)
        self._ends = threading.Event()
        self._times: list[float] = []
        self._came = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self._consumer.close()

    def wait(self) -> float:
        """The time at which the next message arrived."""
        self._came.acquire()
        return self._times.pop(0)

    def _look(self) -> None:
        while not self._ends.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self._times.append(time.perf_counter())
                self._came.release()
