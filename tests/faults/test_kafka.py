"""Workers on a real Kafka: killed, stopped and added, and a broker that is killed and restarted."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ontologia.errors import BrokerError, ConnectionLostError, UnknownReceiptError
from ontologia.queues import DomainEvent, EventWorker, RetryPolicy, open_queue
from ontologia.queues.kafka import KafkaEventQueue
from ontologia.testing import ManualClock
from ontologia_conformance.kafka_servers import Kafka
from ontologia_conformance.queue_world import Env, OnKafka, chain, event, fill, numbers, take
from ontologia_conformance.tiers import samples
from tests.integration.processes import Process
from tests.integration.running import until
from tests.kafka_servers import committed, messages, real_kafka

pytestmark = [pytest.mark.thorough, pytest.mark.req("EDE-049")]
OPTIONS = {"group.protocol": "consumer", "fetch.wait.max.ms": 20}

WORK = """
import os, time
from ontologia.queues import EventWorker, RetryPolicy, open_queue
from ontologia.queues.current import delivered

class Env:
    def __init__(self, queue):
        self.queue, self.registry = queue, self
    def get_event_handlers(self, name):
        return [handle]

notes = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def handle(event, env):
    number, kind = event.payload["number"], event.payload["kind"]
    attempt = delivered.get().attempt
    os.write(notes, f"{number} {kind} {attempt} {event.root_event_id}\\n".encode())
    if kind == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "bad" or (kind == "flaky" and attempt == 1):
        raise ValueError("no such street")

queue = open_queue("kafka", bootstrap_servers=sys.argv[1], topic=sys.argv[2],
                   options={"group.protocol": "consumer", "fetch.wait.max.ms": 20})
worker = EventWorker(Env(queue), retry_policy=RetryPolicy(max_attempts=3, base_delay_seconds=0.05))
say("ready")
worker.run_forever()
queue.close()
report(worker.health_snapshot())
"""


KILLED = """
from ontologia.queues import kafka
conclude = kafka.KafkaEventQueue._conclude

def killed(self, producer):
    producer.flush(10)  # the retry is in its topic, and the offset on its way
    if sys.argv[4] == "after":
        conclude(self, producer)
    os.kill(os.getpid(), signal.SIGKILL)

kafka.KafkaEventQueue._conclude = killed
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Kafka]:
    """A broker of this module's own, which its tests may kill."""
    # A member that is killed is missed within seconds.
    with real_kafka(settings={"group.consumer.session.timeout.ms": "3000"}) as started:
        yield started


@pytest.fixture
def provider(broker: Kafka, clock: ManualClock) -> Iterator[OnKafka]:
    made = OnKafka(broker.servers, clock)
    yield made
    made.close()


def opened(provider: OnKafka, **options: object) -> KafkaEventQueue:
    """A queue by the system's clock."""
    queue = open_queue(
        "kafka",
        bootstrap_servers=provider.servers,
        topic=provider.topic,
        options=OPTIONS | options,
    )
    assert isinstance(queue, KafkaEventQueue)
    return queue


def give(queue: KafkaEventQueue, first: int, kinds: list[str]) -> list[DomainEvent]:
    events = [
        DomainEvent.build(name="parcel.posted", payload={"number": number, "kind": kind})
        for number, kind in enumerate(kinds, first)
    ]
    for each in events:
        queue.enqueue(each)
    return events


def noted(notes: Path) -> list[tuple[int, str, int, str]]:
    lines = notes.read_text().splitlines() if notes.exists() else []
    found = [line.split(" ") for line in lines]
    return [(int(n), kind, int(attempt), root) for n, kind, attempt, root in found]


def letters(provider: OnKafka) -> list[dict[str, str]]:
    return [headers for _, headers in messages(provider.servers, f"{provider.topic}.dlq")]


def test_workers_killed_at_random_lose_nothing_and_bury_each_once(provider, tmp_path):
    """A dead letter and a retry are one transaction with the offset: no crash gives both."""
    chance = random.Random(5)
    notes = tmp_path / "notes"
    rounds = samples(12)
    kinds = [chance.choice(["good", "good", "flaky", "bad"]) for _ in range(rounds * 25)]
    queue = opened(provider)
    events: list[DomainEvent] = []
    with ExitStack() as stack:

        def start() -> Process:
            worker = stack.enter_context(
                Process(WORK, provider.servers, provider.topic, str(notes))
            )
            worker.hear("ready")
            return worker

        workers = [start(), start()]
        for number in range(rounds):
            events += give(queue, len(events), kinds[number * 25 : number * 25 + 25])
            time.sleep(chance.uniform(0, 1.5))  # a moment to be killed at
            victim = chance.randrange(2)
            workers[victim].kill()
            workers[victim] = start()
        for worker in workers:
            worker.kill()
        workers = [start(), start()]
        bad = {each.event_id for each in events if each.payload["kind"] == "bad"}
        good = {each.payload["number"] for each in events if each.payload["kind"] != "bad"}
        # A transaction that was open at a kill holds up what comes after it until its timeout.
        until(lambda: good <= {n for n, _, _, _ in noted(notes)})
        until(lambda: len(letters(provider)) >= len(bad))
        for worker in workers:
            worker.popen.terminate()
            worker.report()
    queue.close()

    assert Counter(each["ce_id"] for each in letters(provider)) == Counter(bad)
    last = opened(provider)
    assert take(last) == []  # all of it is committed
    last.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_worker_killed_around_the_commit_of_a_retry_leaves_one_of_both(provider, tmp_path, when):
    notes = tmp_path / "notes"
    queue = opened(provider)
    [bad] = give(queue, 0, ["bad"])
    queue.close()
    arguments = (provider.servers, provider.topic, str(notes), when)
    with Process(KILLED + WORK, *arguments) as worker:
        worker.hear("ready")
        worker.popen.wait(60)
    retries = messages(provider.servers, f"{provider.topic}.retry.default.1m")
    [(offset, _)] = committed(provider.servers, provider.topic).values()
    assert (len(retries), offset) == ((0, 0) if when == "before" else (1, 1))

    with Process(WORK, *arguments) as worker:
        worker.hear("ready")
        until(lambda: letters(provider))
        worker.popen.terminate()
        worker.report()

    assert [attempt for _, _, attempt, _ in noted(notes)] == [1, 2, 3]
    [letter] = letters(provider)
    assert (letter["ce_id"], letter["attempt"]) == (bad.event_id, "3")


def test_an_event_that_kills_its_worker_is_buried_alone(provider, tmp_path):
    notes = tmp_path / "notes"
    queue = opened(provider)
    root = event(0)
    for number, kind in enumerate(["good"] * 3 + ["deadly"] + ["good"] * 6):
        queue.enqueue(
            DomainEvent(
                *("parcel.posted", {"number": number, "kind": kind}, f"{root.event_id}-{number}"),
                root.occurred_at,
                root_event_id=root.event_id,
            )
        )
    queue.close()

    while not letters(provider) or len(done(notes)) < 9:
        with Process(WORK, provider.servers, provider.topic, str(notes)) as worker:
            worker.hear("ready")
            until(lambda: worker.popen.poll() is not None or len(done(notes)) == 9)
            if worker.popen.poll() is None:
                worker.popen.terminate()
                worker.report()

    attempts = [attempt for number, _, attempt, _ in noted(notes) if number == 3]
    assert attempts == [1, 2, 3]
    [letter] = letters(provider)
    assert (letter["ce_id"], letter["attempt"]) == (f"{root.event_id}-3", "3")
    assert done(notes) == {0, 1, 2, 4, 5, 6, 7, 8, 9}


def done(notes: Path) -> set[int]:
    return {number for number, kind, _, _ in noted(notes) if kind == "good"}


def test_members_come_and_go_and_each_chain_stays_in_order(provider, tmp_path):
    notes = tmp_path / "notes"
    queue = opened(provider)
    roots = [event(n) for n in range(12)]

    def enqueue(first: int, count: int) -> None:
        for number in range(first, first + count):
            for root in roots:
                queue.enqueue(
                    DomainEvent(
                        *("parcel.posted", {"number": number, "kind": "good"}),
                        *(f"{root.event_id}-{number}", root.occurred_at),
                        root_event_id=root.event_id,
                    )
                )

    with ExitStack() as stack:
        workers: list[Process] = []
        for round_ in range(3):
            workers.append(
                stack.enter_context(Process(WORK, provider.servers, provider.topic, str(notes)))
            )
            workers[-1].hear("ready")
            enqueue(round_ * 10, 10)
        for round_, worker in enumerate(workers[:2], 3):
            worker.popen.terminate()
            worker.report()
            enqueue(round_ * 10, 10)
        until(lambda: len({(r, n) for n, _, _, r in noted(notes)}) == 12 * 50)
        workers[2].popen.terminate()
        workers[2].report()
    queue.close()

    seen: dict[str, list[int]] = {}
    for number, _, attempt, root in noted(notes):
        assert attempt == 1  # members that leave in order cost nobody an attempt
        seen.setdefault(root, []).append(number)
    assert all(each == list(range(50)) for each in seen.values())


def test_a_member_that_does_not_ask_loses_its_deliveries(provider):
    slow = opened(provider, **{"max.poll.interval.ms": 1000})
    fill(slow, 1, 2)
    first, second = take(slow)
    other = opened(provider)

    again = take(other, timeout=30)  # once the first member was dropped

    assert [each.attempt_number for each in again] == [2]  # and those come alone
    assert slow.dequeue(10, 0) == []  # it learns of it
    with pytest.raises(UnknownReceiptError):
        slow.nack(first.receipt_handle, retry_after_seconds=0)
    with pytest.raises(UnknownReceiptError):
        slow.ack(second.receipt_handle)
    other.ack(again[0].receipt_handle)
    [last] = take(other)
    other.ack(last.receipt_handle)
    other.close()
    assert take(slow) == []
    slow.close()


def test_a_broker_that_is_killed_is_waited_for(provider, broker, caplog):
    queue = opened(provider)
    seen: list[int] = []

    def handle(event: DomainEvent, env: object) -> None:
        if event.payload["number"] == 1 and 1 not in seen:
            seen.append(1)
            broker.kill()
            raise ValueError("once")  # the retry is written when the broker is there again
        seen.append(event.payload["number"])
        if set(seen) == {1, 2, 3} and seen.count(1) > 1:
            worker.stop()

    worker = EventWorker(
        Env(queue, {"parcel.posted": [handle]}), retry_policy=RetryPolicy(base_delay_seconds=0.01)
    )
    fill(queue, 1, 2)

    class Back:
        """Starts the broker again once the worker has said that it is away."""

        done = False

        def look(self) -> bool:
            if not self.done and "goes on as soon as the broker can be reached" in caplog.text:
                self.done = True
                broker.start()
                late = opened(provider)
                fill(late, 3)
                late.close()
            return "the broker is there again" in caplog.text and not thread.is_alive()

    back = Back()
    thread = threading.Thread(target=worker.run_forever)
    thread.start()
    try:
        until(back.look)
    finally:
        worker.stop()
        thread.join(60)
    queue.close()

    assert Counter(seen)[2] >= 1
    assert seen.count(1) >= 2
    assert worker.health_snapshot()["dead_lettered"] == 0


def test_after_a_restart_of_the_broker_a_queue_asks_for_its_new_leaders(provider, broker):
    """The client would take the old ones for leaders for 15 minutes."""
    queue = opened(provider)
    assert take(queue) == []
    for _ in range(2):
        broker.kill()
        broker.start()

        def answered() -> bool:
            try:
                return queue.dequeue(10, 0) == []
            except ConnectionLostError:
                return False

        until(answered)
    queue.close()


def test_what_enqueue_returned_for_survives_the_broker(provider, broker):
    queue = opened(provider)
    given = give(queue, 0, ["good"] * 50)
    broker.kill()
    with pytest.raises(ConnectionLostError):
        opened(provider, **{"message.timeout.ms": 1500}).enqueue(event())
    broker.start()

    found = {each.event.event_id for each in take(queue, 100, timeout=60)}
    while len(found) < 50:
        batch = take(queue, 100, timeout=60)
        assert batch
        found |= {each.event.event_id for each in batch}
    queue.close()

    assert found == {each.event_id for each in given}


def test_messages_that_were_deleted_before_they_were_read_are_missed_aloud(
    provider, broker, caplog
):
    queue = opened(provider)
    fill(queue, *range(10))
    [first] = take(queue, 1)
    queue.ack(first.receipt_handle)
    queue.settle()
    [(number, (offset, _))] = committed(provider.servers, provider.topic).items()
    assert offset == 1
    admin = AdminClient({"bootstrap.servers": broker.servers})
    for done_ in admin.delete_records([TopicPartition(provider.topic, number, 6)]).values():
        done_.result()

    assert numbers(take(queue)) == [6, 7, 8, 9]
    assert "up to 5 messages were deleted" in caplog.text
    queue.close()


def test_a_topic_that_is_deleted_is_one_clear_sentence(provider, broker):
    queue = opened(provider, **{"topic.metadata.refresh.interval.ms": 500})
    fill(queue, 1)
    take(queue)
    admin = AdminClient({"bootstrap.servers": broker.servers})
    for done_ in admin.delete_topics([provider.topic]).values():
        done_.result()

    def refused() -> bool:
        try:
            queue.dequeue(10, 0.1)
        except BrokerError as error:
            return "a topic does not exist" in str(error)
        return False

    until(refused)
    queue.close()


def test_a_worker_that_failed_nothing_for_a_long_time_makes_another_producer(clock):
    """The broker forgets a producer without transactions, after 7 days unless it is told otherwise."""
    soon = {
        "transactional.id.expiration.ms": "1000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    }
    with real_kafka(settings=soon) as broker:
        provider = OnKafka(broker.servers, clock)
        queue = provider.open()
        fill(queue, 1)
        [delivery] = take(queue)
        time.sleep(3)  # by the broker's own clock

        queue.nack(delivery.receipt_handle, retry_after_seconds=0)

        [again] = take(queue)
        assert (numbers([again]), again.attempt_number) == ([1], 2)
        assert len(messages(broker.servers, f"{provider.topic}.retry.default.1m")) == 1
        provider.close()


def test_what_a_retry_topic_does_not_take_is_written_smaller(provider, broker, caplog):
    """Topics that were made beforehand may take less than those that the queue makes."""
    admin = AdminClient({"bootstrap.servers": broker.servers})
    for name in provider.topics:
        limit = "20000" if name == provider.topic else "16000"
        topic = NewTopic(name, 1, 1, config={"max.message.bytes": limit})
        [made] = admin.create_topics([topic]).values()
        made.result(30)
    queue = provider.open()
    sizes = {"fits without its reason": 14_000, "does not fit": 18_000, "small": 10}
    events = chain(
        [
            DomainEvent.build(name="parcel.posted", payload={"text": "x" * size})
            for size in sizes.values()
        ]
    )
    for each in events:
        queue.enqueue(each)

    one, two, three = take(queue)
    queue.nack(one.receipt_handle, retry_after_seconds=0, reason="a long reason " * 250)
    queue.nack(two.receipt_handle, retry_after_seconds=0, reason="a long reason " * 250)
    queue.ack(three.receipt_handle)
    [again] = take(queue)
    queue.dead_letter(again.receipt_handle, reason="a long reason " * 250)
    assert take(queue) == []
    queue.settle()

    assert (again.event.event_id, again.attempt_number) == (events[0].event_id, 2)
    [(_, retried)] = messages(provider.servers, f"{provider.topic}.retry.default.1m")
    assert "reason" not in retried
    letters = {said["ce_id"]: (letter, said) for letter, said in messages(*dead(provider))}
    assert len(letters) == 2
    whole, said = letters[events[0].event_id]
    assert len(whole.value()) > 14_000
    assert (said["attempt"], said["origin"]) == ("2", f"{provider.topic}/0/0")
    stub, said = letters[events[1].event_id]
    assert stub.value() is None
    assert said["reason"].startswith(f"it is too large for {provider.topic}.retry.default.1m")
    assert (said["attempt"], said["origin"]) == ("1", f"{provider.topic}/0/1")
    assert "is dead-lettered without its payload" in caplog.text
    assert {offset for offset, _ in committed(provider.servers, provider.topic).values()} == {3}


def dead(provider: OnKafka) -> tuple[str, str]:
    return provider.servers, f"{provider.topic}.dlq"


READER = """
import resource, sys
from ontologia.queues import open_queue

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

queue = open_queue("kafka", bootstrap_servers=sys.argv[1], topic=sys.argv[2],
                   options={"group.protocol": "consumer"})
seen = set()
held = queue.dequeue(1, 30)
before = peak()

def handle_all():
    while batch := queue.dequeue(1_000, 0):
        for each in batch:
            seen.add(each.event.payload["number"])
            queue.ack(each.receipt_handle)

handle_all()
behind = len(seen)
for each in held:
    seen.add(each.event.payload["number"])
    queue.ack(each.receipt_handle)
handle_all()
queue.close()
print(behind, len(seen), (peak() - before) // 1024)
"""


def test_memory_does_not_grow_with_the_topic(provider, broker):
    """Not even while a delivery at the front of its partition is open: no more than 1,000 wait."""
    total = 100_000
    queue = opened(provider)
    assert take(queue) == []  # the topics are there
    queue.close()
    producer = Producer({"bootstrap.servers": broker.servers, "linger.ms": 20, "log_level": 0})
    for number in range(total):
        while True:
            try:
                headers = {"ce_id": f"m{number}", "ce_type": "parcel.posted", "ce_source": "/shop"}
                producer.produce(
                    *(provider.topic, f'{{"number":{number}}}'),
                    headers=headers,
                    partition=0,
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0

    done_ = subprocess.run(
        [sys.executable, "-c", READER, provider.servers, provider.topic],
        capture_output=True,
        text=True,
        check=True,
    )

    behind, received, megabytes = map(int, done_.stdout.split())
    assert received == total
    assert behind <= 1_000
    assert megabytes < 60


def test_a_wrong_password_is_one_clear_sentence():
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:SASL_PLAINTEXT",
        "listener.name.plaintext.plain.sasl.jaas.config": f'{plain} user_shop="right";',
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.sasl.enabled.mechanisms": "PLAIN",
    }
    own = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "shop",
    }
    with real_kafka(settings=settings, client=own | {"sasl.password": "right"}) as broker:
        good = open_queue(
            "kafka",
            bootstrap_servers=broker.servers,
            options=OPTIONS | own | {"sasl.password": "right"},
        )
        fill(good, 1)
        assert numbers(take(good)) == [1]
        good.close()

        wrong = open_queue(
            "kafka",
            bootstrap_servers=broker.servers,
            options=OPTIONS | own | {"sasl.password": "geheim"},
        )
        for ask in (lambda: wrong.enqueue(event()), lambda: wrong.dequeue(1, 0)):
            with pytest.raises(BrokerError, match="refused the login") as raised:
                ask()
            assert "geheim" not in str(raised.value)
        wrong.close()
