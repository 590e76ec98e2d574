"""Relays and intakes on a real Kafka: what the mock cluster does not have."""

from __future__ import annotations

import subprocess
import sys
import threading
from secrets import token_hex

import pytest

from ontologia import codec
from ontologia.errors import BrokerError
from ontologia.relay import REFUSED, Intake, Relay
from ontologia.relay import relay as relaying
from ontologia_conformance.queue_world import real_kafka
from tests.integration.running import until
from tests.kafka_servers import messages
from tests.relay.world import emit, ids, stored

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def broker():
    """One that creates topics for whoever asks, as Kafka does unless it is told not to."""
    with real_kafka(settings={"auto.create.topics.enable": "true"}) as found:
        yield found


@pytest.fixture
def admin(broker):
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": broker.servers})


@pytest.fixture
def make(broker, admin):
    """Make a topic with these settings; its URI."""

    def made(partitions=4, **config) -> str:
        from confluent_kafka.admin import NewTopic

        name = f"t-{token_hex(8)}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        [done] = admin.create_topics([NewTopic(name, partitions, 1, config=settings)]).values()
        done.result(30)
        return f"kafka://{broker.servers}/{name}"

    return made


@pytest.mark.req("NEW-120", "NEW-122")
def test_events_cross(regions, make):
    here, there = regions
    place = make()
    sent = emit(here, *range(1_500))

    Relay(here, place).run_until_empty()
    intake = Intake(there, place)
    assert intake.lag() == 1_500
    intake.run_until_empty()

    assert sorted(ids(there)) == sorted(sent)
    assert intake.lag() == 0


@pytest.mark.req("NEW-127")
@pytest.mark.parametrize("kind", [Relay, Intake])
def test_a_topic_that_is_not_there(session, broker, kind):
    emit(session, 1)

    for _ in range(2):
        with pytest.raises(BrokerError, match="there is no topic nowhere") as raised:
            kind(session, f"kafka://{broker.servers}/nowhere").run()

    assert "Create it" in str(raised.value)


@pytest.mark.req("NEW-120", "NEW-124")
@pytest.mark.parametrize("refused_by", ["client", "broker"])
def test_an_event_that_is_larger_than_the_topic_takes_is_a_dead_letter(
    session, make, monkeypatch, refused_by
):
    """And the others of its batch are not; a broker refuses a batch as a whole."""
    monkeypatch.setattr(relaying, "_FIRST_BATCH", 50)
    if refused_by == "broker":  # whose settings are not told, as to a user without that right
        monkeypatch.setattr("ontologia.relay.kafka._SETTINGS", 0)
    place = make(partitions=1, max_message_bytes="3000")
    sent = emit(session, *range(40))
    log = session.event_store.log
    large = log.untyped_row("barrel.large", codec.encode({"text": "x" * 5_000}), "default")
    with session.event_store.transaction() as tx:
        log.add(tx, [large])
    sent += emit(session, 100)

    relay = Relay(session, place)
    relay.run_until_empty()

    assert [each["event_id"] for each in session.event_store.list_dead_letters("default")] == [
        large.id
    ]
    assert relay.lag() == 0
    assert values(place) >= {row.payload for row in stored(session) if row.id in sent}


def values(place: str) -> set[str]:
    """What the messages of a topic consist of."""
    servers, _, topic = place.removeprefix("kafka://").partition("/")
    return {(message.value() or b"").decode() for message, _ in messages(servers, topic)}


@pytest.mark.req("NEW-126")
def test_what_the_broker_deleted_before_it_was_read_is_told(regions, make, admin):
    from confluent_kafka import TopicPartition

    here, there = regions
    place = make(partitions=1)
    emit(here, 1)
    Relay(here, place).run_until_empty()
    Intake(there, place).run_until_empty()
    emit(here, 2, 3)
    last = emit(here, 4)
    Relay(here, place).run_until_empty()
    [done] = admin.delete_records([TopicPartition(place.rpartition("/")[2], 0, 3)]).values()
    done.result(30)

    Intake(there, place).run_until_empty()

    assert ids(there)[1:] == last
    [told] = [codec.decode(row.payload) for row in stored(there, REFUSED)]
    assert told["place"] == "partition 0, offset 1"
    assert "the first that it has is 3" in told["reason"]


@pytest.mark.req("NEW-122")
def test_partitions_that_are_added_are_read(regions, make, admin, monkeypatch):
    from confluent_kafka.admin import NewPartitions

    monkeypatch.setattr("ontologia.relay.kafka._PARTITIONS", 0.1)
    here, there = regions
    place = make(partitions=1)
    intake = Intake(there, place)
    thread = threading.Thread(target=intake.run)
    thread.start()
    try:
        emit(here, 1)
        Relay(here, place).run_until_empty()
        until(lambda: len(ids(there)) == 1)
        [done] = admin.create_partitions([NewPartitions(place.rpartition("/")[2], 4)]).values()
        done.result(30)
        emit(here, *range(2, 30))
        Relay(here, place).run_until_empty()
        until(lambda: len(ids(there)) == 29)
    finally:
        intake.stop()
        thread.join()


@pytest.mark.req("NEW-120", "NEW-122")
def test_a_broker_that_is_killed_and_comes_back(regions, make, broker, monkeypatch, caplog):
    """Relay and intake wait; what is committed meanwhile arrives, in order and once."""
    monkeypatch.setattr("ontologia.relay.kafka._SILENCE", 0.5)
    here, there = regions
    place = make(partitions=1)
    relay, intake = Relay(here, place), Intake(there, place)
    threads = [threading.Thread(target=each.run) for each in (relay, intake)]
    for thread in threads:
        thread.start()
    try:
        sent = emit(here, *range(10))
        until(lambda: len(ids(there)) == 10)
        broker.kill()
        sent += emit(here, *range(10, 30))
        until(lambda: "does not answer" in caplog.text)
        broker.start()
        sent += emit(here, *range(30, 40))
        until(lambda: len(ids(there)) == 40)
    finally:
        relay.stop()
        intake.stop()
        for thread in threads:
            thread.join()

    assert ids(there) == sent
    assert (relay.lag(), intake.lag()) == (0, 0)


_READER = """
import resource, sys
from ontologia import Session
from ontologia.relay import Intake

with Session(sys.argv[1], "shop") as session:
    intake = Intake(session, sys.argv[2])
    intake._source.open(intake._progress)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    intake.run_until_empty()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    sys.stdout.write(f"{intake.stored} {grown // 1024}")
"""


@pytest.mark.req("NEW-122")
def test_memory_does_not_grow_with_the_topic(tmp_path, make):
    """200 MB of messages."""
    from confluent_kafka import Producer

    place = make()
    servers, _, topic = place.removeprefix("kafka://").partition("/")
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20})
    body = codec.encode({"text": "x" * 2_000}).encode()
    for number in range(100_000):
        while True:
            try:
                headers = {"ce_id": f"m{number}", "ce_type": "barrel.seen", "ce_source": "/cooper"}
                producer.produce(topic, body, key=str(number), headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0

    store = f"sqlite:///{tmp_path}/there.db"
    done = subprocess.run(
        [sys.executable, "-c", _READER, store, place], capture_output=True, text=True, check=True
    )

    stored_, megabytes = map(int, done.stdout.split())
    assert stored_ == 100_000
    assert megabytes < 120


@pytest.fixture
def another(admin):
    """Delete a topic and create it again, with one partition."""

    def made(place: str) -> None:
        from confluent_kafka.admin import NewTopic

        name = place.rpartition("/")[2]
        [done] = admin.delete_topics([name]).values()
        done.result(30)
        until(lambda: name not in admin.list_topics(timeout=30).topics)
        [done] = admin.create_topics([NewTopic(name, 1, 1)]).values()
        done.result(30)
        until(lambda: name in admin.list_topics(timeout=30).topics)

    return made


@pytest.mark.req("NEW-122")
@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_topic_that_was_created_again_is_read_from_its_first_message(
    regions, make, another, number, monkeypatch, caplog
):
    """Also where it has more messages than the topic before."""
    monkeypatch.setattr("ontologia.relay.kafka._SETTINGS", 30)
    here, there = regions
    place = make(partitions=1)
    sent = emit(here, 1, 2)
    Relay(here, place).run_until_empty()
    Intake(there, place).run_until_empty()
    another(place)
    sent += emit(here, *range(3, 3 + number))
    Relay(here, place).run_until_empty()

    intake = Intake(there, place)
    intake.run_until_empty()

    assert ids(there) == sent
    assert intake.lag() == 0
    assert "was deleted and created again" in caplog.text
    assert stored(there, REFUSED) == []
    again = Intake(there, place)
    again.run_until_empty()
    assert (again.stored, again.known) == (0, 0)


@pytest.mark.req("NEW-125")
def test_the_lag_is_0_once_all_is_read_also_behind_transactions(regions, make, broker):
    """Ends of transactions and aborted messages have offsets, too."""
    from confluent_kafka import Producer

    _, there = regions
    place = make(partitions=1)
    topic = place.rpartition("/")[2]
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": token_hex(8)})
    producer.init_transactions(60)

    def send(id: str) -> None:
        headers = {"ce_id": id, "ce_type": "barrel.seen", "ce_source": "/cooper"}
        producer.produce(topic, b"{}", headers=headers)
        producer.flush(60)

    for id in ("e1", "e2", "e3"):
        producer.begin_transaction()
        send(id)
        producer.commit_transaction(60)
    producer.begin_transaction()
    send("aborted")
    producer.abort_transaction(60)

    intake = Intake(there, place)
    assert intake.lag() >= 3
    intake.run_until_empty()

    assert ids(there, "barrel.seen") == ["e1", "e2", "e3"]
    assert (intake.lag(), intake.health_snapshot()["lag"]) == (0, 0)
    again = Intake(there, place)
    again.run_until_empty()
    assert (again.stored, again.known) == (0, 0)
