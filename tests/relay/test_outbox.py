"""What commands emit, with a queue on Kafka: committed in the store first, and then on the topic."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from secrets import token_hex

import pytest

from ontologia.commands import Command, Env, api
from ontologia.errors import ConfigError
from ontologia.queues import EventWorker, open_queue
from ontologia.queues.kafka import KafkaEventQueue
from ontologia.relay import Relay
from ontologia.relay.kafka import KafkaTarget
from ontologia.runtime.session import core_of
from tests.integration.freight import application
from tests.integration.running import until
from tests.integration.web_world import client, served
from tests.relay.world import emit, stored

CONFIRMED = "shipment.confirmed"
HANDLED: list[str] = []


@api.on_event(CONFIRMED)
def note(event, env):
    HANDLED.append(event.payload["shipment_id"])
    if len(HANDLED) == 1:  # a command of a handler emits, too
        env.dispatch(Command("shipment.confirm", {}, "freight.shipment", "s2"))


@pytest.fixture(autouse=True)
def nothing_handled() -> None:
    HANDLED.clear()


@pytest.fixture
def queue_of(mock_kafka, monkeypatch):
    """Queues on one topic of the mock cluster, for sessions."""
    monkeypatch.setattr("ontologia.relay.kafka._SETTINGS", 0.01)
    monkeypatch.setattr("ontologia.queues.kafka.JOIN_SECONDS", 1.5)
    topic = f"t-{token_hex(8)}"
    retries = [f"{topic}.retry.default.{level}" for level in ("1m", "1h", "long")]
    mock_kafka.make_topics([topic, f"{topic}.dlq", *retries])
    options = {"group.protocol": "consumer"}
    return lambda session, servers=mock_kafka.servers: KafkaEventQueue(
        servers, topic, session=session, options=options
    )


@pytest.fixture
def env(session, queue_of) -> Iterator[Env]:
    with closing(queue_of(session)) as queue:
        made = Env(session, modules=[application(note)], queue=queue)
        for number in (1, 2):
            made.models["freight.shipment"].create({"id": f"s{number}", "reference": "r"})
        yield made
        made.close()


def confirm(env: Env, id: str = "s1") -> None:
    env.dispatch(Command("shipment.confirm", {}, "freight.shipment", id))


@pytest.mark.req("NEW-128")
def test_a_worker_handles_what_commands_emit(env):
    confirm(env)

    EventWorker(env).run_until_empty()

    assert HANDLED == ["s1", "s2"]
    assert [row.type for row in stored(env.session)].count(CONFIRMED) == 2
    assert env.outbox.lag() == 0


@pytest.mark.req("NEW-128")
def test_a_command_that_fails_announces_nothing(env):
    with pytest.raises(LookupError):
        env.dispatch(Command("shipment.fail", {}, "freight.shipment", "s1"))

    assert env.outbox.flush()
    assert [row.type for row in stored(env.session)] == []


@pytest.mark.req("NEW-128")
def test_outside_of_a_command_an_event_is_produced_directly(env):
    env.emit(CONFIRMED, {"shipment_id": "s9"})

    assert stored(env.session) == []
    EventWorker(env).run_until_empty()
    assert HANDLED[0] == "s9"


@pytest.mark.req("NEW-128")
def test_what_a_process_left_behind_is_carried_by_the_next(session, queue_of, env):
    """It died between its commit and the topic."""
    env.outbox.close()  # nothing is carried from here on
    confirm(env)
    assert [row.type for row in stored(session)] == [CONFIRMED]
    assert env.outbox.lag() == 1

    with closing(queue_of(session)) as queue:
        other = Env(session, modules=[application(note)], queue=queue)
        EventWorker(other).run_until_empty()
        other.close()

    assert HANDLED[0] == "s1"


@pytest.mark.req("NEW-128")
def test_what_was_left_behind_is_carried_when_the_brokers_have_another_name(
    session, queue_of, env, mock_kafka
):
    env.outbox.close()  # nothing is carried from here on
    confirm(env)

    with closing(queue_of(session, mock_kafka.servers.replace("127.0.0.1", "localhost"))) as queue:
        other = Env(session, modules=[application(note)], queue=queue)
        EventWorker(other).run_until_empty()
        other.close()

    assert HANDLED[0] == "s1"
    names = [each["name"] for each in session.event_store.list_consumers(session.namespace)]
    assert names == [f"relay:kafka:///{queue.topic}"]


def uri_of(queue: KafkaEventQueue) -> str:
    return f"kafka://{queue.connection.servers}/{queue.topic}"


@pytest.mark.req("NEW-128")
def test_what_an_older_version_left_behind_by_the_name_of_the_brokers_is_carried(session, queue_of):
    before = emit(session, 1)
    with closing(queue_of(session)) as queue:
        older = Relay(session, uri_of(queue))
        assert older.lag() == 1  # it is given what is retained

        with closing(Env(session, queue=queue)) as env:
            assert env.outbox.flush()

        assert [each.event.event_id for each in queue.dequeue(10, 0)] == before
    names = [each["name"] for each in session.event_store.list_consumers(session.namespace)]
    assert older.name not in names


@pytest.mark.req("NEW-128")
def test_beside_a_process_of_an_older_version_its_name_is_kept(tmp_path, open_session, queue_of):
    """Each event is carried once; what waits is adopted when that process has ended."""
    uri = f"sqlite:///{tmp_path}/both.db"
    old_session, session = open_session(uri=uri), open_session(uri=uri)
    with closing(queue_of(session)) as queue:
        older = Relay(old_session, uri_of(queue))
        thread = threading.Thread(target=older.run)
        thread.start()
        try:
            until(lambda: older.name in [each.name for each in core_of(old_session).running])
            env = Env(session, queue=queue)
            sent = emit(session, 1)
            assert env.outbox.flush()
            assert [each.event.event_id for each in queue.dequeue(10, 0)] == sent
        finally:
            older.stop()
            thread.join()
        names = [each["name"] for each in session.event_store.list_consumers(session.namespace)]
        assert names == [older.name]
        env.close()
        old_session.close()


@pytest.mark.req("NEW-128")
def test_what_another_outbox_left_is_told_and_can_be_taken_over(session, queue_of, caplog):
    left = Relay(session, "kafka://gone:9092/parcels")
    sent = emit(session, 1)
    assert left.lag() == 1

    with closing(queue_of(session)) as queue:
        Env(session, queue=queue).close()
        assert f"1 events wait for {left.name}" in caplog.text

        Relay(session, uri_of(queue), formerly=[left.name]).run_until_empty()

        assert [each.event.event_id for each in queue.dequeue(10, 0)] == sent
    names = [each["name"] for each in session.event_store.list_consumers(session.namespace)]
    assert left.name not in names


@pytest.mark.req("NEW-128")
def test_what_was_there_before_the_queue_is_not_announced_again(session, queue_of):
    emit(session, 1)

    with closing(queue_of(session)) as queue, closing(Env(session, queue=queue)) as env:
        later = emit(session, 2)
        assert env.outbox.flush()

        assert [each.event.event_id for each in queue.dequeue(10, 0)] == later


@pytest.mark.req("NEW-181")
def test_what_waits_for_workers_on_the_store_is_told_when_a_queue_on_kafka_comes(
    session, queue_of, caplog
):
    Env(session, queue="store").close()
    open_queue("store", session=session, group="mails").dequeue(1, 0)
    emit(session, 1, 2)

    with closing(queue_of(session)) as queue:
        for _ in range(2):  # the second time it is no news
            Env(session, queue=queue).close()

    assert caplog.text.count("2 events wait in the store for worker:mails") == 1


@pytest.mark.req("NEW-181")
def test_a_broker_that_is_away_is_said_once(session, monkeypatch, caplog):
    monkeypatch.setattr("ontologia.queues.kafka_client.ASK_SECONDS", 0.1)
    monkeypatch.setattr("ontologia.commands.outbox._PAUSE", 0.01)
    opened: list[None] = []
    open_target = KafkaTarget.open

    def open_(target: KafkaTarget) -> None:
        opened.append(None)
        open_target(target)

    monkeypatch.setattr(KafkaTarget, "open", open_)
    with closing(KafkaEventQueue("127.0.0.1:9", "parcels", session=session)) as queue:
        env = Env(session, queue=queue)
        env.outbox.start()
        until(lambda: len(opened) >= 4)
        env.close()

    said = [each.args for each in caplog.records if each.msg.startswith("committed events wait")]
    assert len(said) == 1


@pytest.mark.req("NEW-128")
def test_closing_carries_what_is_committed(session, queue_of, env):
    confirm(env)
    env.close()

    assert env.outbox.lag() == 0


@pytest.mark.req("NEW-128")
def test_within_a_command_an_event_can_be_deferred(env, clock):
    def later(model, cmd):
        env.emit("shipment.reminded", {"shipment_id": "s1"}, delay=60, dedup_key="once")
        env.emit("shipment.reminded", {"shipment_id": "s1"}, delay=60, dedup_key="once")

    env.dispatch(Command("shipment.call", {"do": later}, "freight.shipment", "s1"))
    assert env.outbox.flush()
    assert stored(env.session) == []

    clock.advance(seconds=61)
    until(lambda: [row.type for row in stored(env.session)] == ["shipment.reminded"])
    assert env.outbox.flush()

    with pytest.raises(ConfigError, match="delay="):
        env.emit("shipment.reminded", {}, delay=60)


@pytest.mark.req("NEW-125", "NEW-128")
def test_the_health_of_a_server_tells_what_waits_for_the_topic(env):
    env.outbox.close()  # nothing is carried from here on
    confirm(env)

    with served(env) as server, client(server) as http:
        told = http.get("/health").json()

    assert told["outbox"] == {"lag": 1}
    assert told["queue"].startswith("kafka: ")


@pytest.mark.req("NEW-128", "EDE-049")
def test_one_setting_chooses_kafka(open_session, queue_of, session):
    with closing(queue_of(session)) as queue:
        settings = {
            "default_message_broker_provider": "kafka",
            "kafka_bootstrap_servers": queue.connection.servers,
            "kafka_topic": queue.topic,
            "kafka_options": {"group.protocol": "consumer"},
        }
    env = Env(open_session(settings=settings), modules=[application(note)])
    for number in (1, 2):
        env.models["freight.shipment"].create({"id": f"s{number}", "reference": "r"})

    confirm(env)
    EventWorker(env).run_until_empty()

    assert HANDLED == ["s1", "s2"]
    env.close()
