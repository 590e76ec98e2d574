"""The queue on Kafka: what is on the wire, what is committed, and what comes from elsewhere.

On librdkafka's mock cluster; tests/faults/test_kafka.py has the real broker.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.commands import Env, api
from ontologia.errors import (
    BrokerError,
    ConfigError,
    ConnectionLostError,
    InvalidValueError,
)
from ontologia.queues import DomainEvent, EventWorker, RetryPolicy, open_queue
from ontologia.queues.kafka import KafkaEventQueue
from ontologia.queues.kafka_client import KafkaConnection
from ontologia.testing import ManualClock
from ontologia_conformance.queue_world import Env as SmallEnv
from ontologia_conformance.queue_world import OnKafka, chain, event, fill, numbers, take
from tests.kafka_servers import MockKafka, committed, messages, send

pytestmark = pytest.mark.req("EDE-049")
CE = {"ce_specversion": b"1.0", "ce_id": b"x-1", "ce_type": b"parcel.posted", "ce_source": b"/shop"}


@pytest.fixture
def queue(kafka: OnKafka) -> KafkaEventQueue:
    return kafka.open()


# -- the choice -----------------------------------------------------------------------------------


def test_the_library_is_imported_only_where_the_provider_is_chosen():
    program = """
import sys
import ontologia.commands, ontologia.queues, ontologia.cli.worker
assert not [name for name in sys.modules if "kafka" in name and "." not in name]
ontologia.queues.open_queue("inmemory")
assert "confluent_kafka" not in sys.modules
ontologia.queues.open_queue("kafka", bootstrap_servers="127.0.0.1:1")
assert "confluent_kafka" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.req("C-159")
def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)

    with pytest.raises(ConfigError, match=r"pip install 'ontologia\[kafka\]'"):
        open_queue("kafka", bootstrap_servers="127.0.0.1:1")


@api.on_event("parcel.posted")
def _posted(event: DomainEvent, env: Env) -> None:
    env.seen.append(event.payload["number"])


@pytest.mark.req("EDE-051")
@pytest.mark.parametrize("chosen_by", ["name", "setting", "environment"])
def test_one_setting_chooses_it(kafka, mock_kafka, monkeypatch, chosen_by):
    settings = {
        "kafka_bootstrap_servers": kafka.servers,
        "kafka_topic": kafka.topic,
        "kafka_options": {"group.protocol": "consumer"},
    }
    if chosen_by == "environment":
        for name, value in settings.items():
            text = json.dumps(value) if isinstance(value, dict) else value
            monkeypatch.setenv(f"ONTOLOGIA_{name.upper()}", text)
        monkeypatch.setenv("ONTOLOGIA_DEFAULT_MESSAGE_BROKER_PROVIDER", "kafka")
        settings = {}
    elif chosen_by == "setting":
        settings["default_message_broker_provider"] = "kafka"
    named = "kafka" if chosen_by == "name" else None

    with (
        Session(":memory:", config=OntologiaConfig(**settings)) as session,
        Env(session, modules=[__name__], queue=named) as env,
    ):
        env.seen = []
        env.emit("parcel.posted", {"number": 7})
        EventWorker(env).run_until_empty()

        assert env.seen == [7]
        assert env.queue.describe() == (
            f"kafka: {kafka.servers}, topic {kafka.topic!r}, group 'default'"
        )
    with pytest.raises(RuntimeError, match="closed"):
        env.queue.enqueue(event())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "needs bootstrap_servers"),
        ({"bootstrap_servers": "me:geheim@broker:9092"}, "has an @"),
        ({"topic": "a b"}, "a Kafka topic has"),
        ({"group": "mails/eu"}, "a Kafka group has"),
        ({"options": {"group.id": "other"}}, "cannot set group.id"),
        ({"options": {"sasl.pasword": "geheim"}}, "does not know sasl.pasword"),
        ({"options": {"sasl.password": ["geheim"]}}, "'sasl.password' is a list"),
        ({"options": {"security.protocol": "geheim"}}, "security.protocol"),
        ({"options": {"ontologia.key": "age"}}, "ontologia.key"),
        ({"options": "geheim"}, "kafka_options is a table"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_secret_is_repeated(settings, words):
    given = {"bootstrap_servers": "127.0.0.1:1"} | settings if settings else {}

    with pytest.raises(ConfigError, match=words) as raised:
        open_queue("kafka", **given).enqueue(event())

    assert "geheim" not in str(raised.value)


def test_options_are_not_shown():
    queue = open_queue(
        "kafka", bootstrap_servers="broker:9092", options={"sasl.password": "geheim"}
    )

    assert "geheim" not in queue.describe() + repr(queue) + repr(vars(queue))
    assert "geheim" not in repr(KafkaConnection("broker:9092", {"sasl.password": "geheim"}))


# -- messages -------------------------------------------------------------------------------------


def test_an_event_is_a_cloudevent_under_the_key_of_its_root(kafka, queue):
    first, second = chain([event(1, tenant_id="acme"), event(2)])
    queue.enqueue(first)
    queue.enqueue(second)

    (one, headers), (two, _) = messages(kafka.servers, kafka.topic)

    assert json.loads(one.value()) == {"number": 1}
    assert headers["ce_id"] == first.event_id
    assert headers["ce_type"] == "parcel.posted"
    assert headers["ce_source"] == "/ontologia/default"
    assert headers["ce_tenantid"] == "acme"
    assert headers["content-type"] == "application/json"
    assert one.key() == two.key() == first.event_id.encode()
    assert one.partition() == two.partition()


@pytest.mark.parametrize(
    ("chosen", "key"),
    [
        ("type", b"parcel.posted"),
        ("tenant", b"acme"),
        ("correlation", b"req-1"),
        ("payload.number", b"1"),
        ("payload.street", None),
    ],
)
def test_the_key_is_chosen_by_an_option(kafka, chosen, key):
    given = event(1, tenant_id="acme", correlation_id="req-1")
    kafka.open(**{"ontologia.key": chosen}).enqueue(given)

    [(message, _)] = messages(kafka.servers, kafka.topic)

    assert message.key() == (key or given.event_id.encode())


def test_a_message_of_another_program_is_an_event(kafka, queue):
    send(kafka.servers, kafka.topic, b'{"number": 1}', CE, key=b"k")
    document = {"specversion": "1.0", "id": "x-2", "type": "parcel.posted", "source": "/shop"}
    structured = {"content-type": b"application/cloudevents+json; charset=utf-8"}
    send(
        kafka.servers,
        kafka.topic,
        json.dumps(document | {"data": {"number": 2}}).encode(),
        structured,
        key=b"k",
    )

    one, two = take(queue)

    assert (one.event.event_id, one.event.name, one.event.payload) == (
        *("x-1", "parcel.posted"),
        {"number": 1},
    )
    assert (two.event.event_id, two.event.payload) == ("x-2", {"number": 2})
    assert one.event.occurred_at.tzinfo is not None  # the time of the message


@pytest.mark.parametrize(
    ("value", "headers", "words"),
    [
        (b"not json", CE, "JSON"),
        (b"[1]", CE, "JSON object"),
        (None, CE, "JSON"),
        (b"{}", CE | {"ce_id": b"\xff"}, "not UTF-8"),
        (b"{}", {}, "attribute id"),
        (b"{}", CE | {"content-type": b"text/plain"}, "content-type"),
        (b"{}", CE | {"ce_type": b"*"}, "all names"),
    ],
)
def test_a_message_that_cannot_be_read_is_dead_lettered_as_it_is(
    kafka, queue, value, headers, words
):
    send(kafka.servers, kafka.topic, value, headers, key=b"k")
    send(kafka.servers, kafka.topic, b'{"number": 2}', CE, key=b"k")

    [good] = take(queue)
    queue.ack(good.receipt_handle)
    queue.settle()

    assert numbers([good]) == [2]
    [(letter, said)] = messages(kafka.servers, f"{kafka.topic}.dlq")
    assert letter.value() == value
    assert letter.key() == b"k"
    assert said["reason"].startswith("it cannot be read: ")
    assert words in said["reason"]
    assert (said["attempt"], said["group"]) == ("0", "default")
    assert said["origin"].startswith(f"{kafka.topic}/")
    assert said["origin"].endswith("/0")
    assert {offset for offset, _ in committed(kafka.servers, kafka.topic).values()} == {2}


# -- how deliveries end ---------------------------------------------------------------------------


def offsets(kafka: OnKafka) -> list[tuple[int, str]]:
    return list(committed(kafka.servers, kafka.topic).values())


def test_an_ack_commits_what_is_done_without_a_gap(kafka, queue):
    fill(queue, 1, 2, 3)
    first, second, third = take(queue)
    assert offsets(kafka) == [(0, '{"starts":[[0,3,1]]}')]  # the attempts are known from now on

    queue.ack(second.receipt_handle)
    assert take(queue) == []
    assert offsets(kafka) == [(0, '{"starts":[[0,3,1]]}')]

    queue.ack(first.receipt_handle)
    assert take(queue) == []
    assert offsets(kafka) == [(2, '{"starts":[[0,1,1]]}')]

    queue.ack(third.receipt_handle)
    queue.settle()
    assert offsets(kafka) == [(3, "")]


@pytest.mark.req("C-159")
def test_a_retry_waits_in_memory_for_earlier_deliveries(kafka, queue, clock):
    first, second = fill(queue, 1, 2)
    one, two = take(queue)

    queue.nack(two.receipt_handle, retry_after_seconds=30, reason="no van: Żółw")
    due = clock.now()
    assert messages(kafka.servers, f"{kafka.topic}.retry.default.1m") == []
    assert take(queue) == []
    assert messages(kafka.servers, f"{kafka.topic}.retry.default.1m") == []

    queue.ack(one.receipt_handle)

    [(message, headers)] = messages(kafka.servers, f"{kafka.topic}.retry.default.1m")
    assert message.key() == first.event_id.encode()
    assert headers["ce_id"] == second.event_id
    assert (headers["attempt"], headers["reason"]) == ("2", "no van: Żółw")
    assert headers["not_before"] > due.isoformat()
    assert headers["origin"].endswith("/1")
    queue.settle()
    assert offsets(kafka) == [(2, "")]


@pytest.mark.req("C-159")
@pytest.mark.parametrize(("seconds", "level"), [(60, "1m"), (61, "1h"), (3601, "long")])
def test_retries_have_a_topic_by_their_delay(kafka, queue, clock, seconds, level):
    fill(queue, 1)
    queue.nack(take(queue)[0].receipt_handle, retry_after_seconds=seconds)

    assert len(messages(kafka.servers, f"{kafka.topic}.retry.default.{level}")) == 1
    clock.advance(seconds=seconds - 0.5)
    assert take(queue) == []
    clock.advance(seconds=0.5)
    assert take(queue)[0].attempt_number == 2


def test_a_long_retry_does_not_hold_up_a_short_one(kafka, queue, clock):
    fill(queue, 1, 2)
    one, two = take(queue)
    queue.nack(one.receipt_handle, retry_after_seconds=50)
    queue.nack(two.receipt_handle, retry_after_seconds=1)
    assert take(queue) == []

    clock.advance(seconds=1)
    [again] = take(queue)
    assert numbers([again]) == [2]
    queue.nack(again.receipt_handle, retry_after_seconds=1)  # moves the other one along
    clock.advance(seconds=1)
    assert [(d.event.payload["number"], d.attempt_number) for d in take(queue)] == [(2, 3)]
    clock.advance(seconds=48)
    assert [(d.event.payload["number"], d.attempt_number) for d in take(queue)] == [(1, 2)]


def test_a_retry_that_another_program_wrote_is_read_as_far_as_it_can_be(kafka, queue):
    topic = f"{kafka.topic}.retry.default.1m"
    send(kafka.servers, topic, b'{"number": 1}', CE | {"not_before": b"2020-01-01T00:00:00"}, b"k")
    send(kafka.servers, topic, b'{"number": 2}', CE | {"attempt": b"often"}, b"k")
    send(kafka.servers, topic, b'{"number": 3}', CE | {"attempt": b"3", "origin": b"t/0/1"}, b"k")
    send(kafka.servers, topic, b'{"number": 5}', CE | {"origin": b"\xff"}, b"k")
    ours = {"attempt": b"9", "not_before": b"2999-01-01T00:00:00", "origin": b"elsewhere"}
    send(kafka.servers, kafka.topic, b'{"number": 4}', CE | ours, b"k")

    found = {each.event.payload["number"]: each for each in take(queue) + take(queue)}

    assert {number: each.attempt_number for number, each in found.items()} == {1: 1, 3: 3, 4: 1}
    queue.dead_letter(found[3].receipt_handle, reason="no such street")
    queue.dead_letter(found[4].receipt_handle, reason="no such street")
    queue.ack(found[1].receipt_handle)
    queue.settle()
    letters = [headers for _, headers in messages(kafka.servers, f"{kafka.topic}.dlq")]
    assert [each["reason"].partition(":")[0] for each in letters].count("no such street") == 2
    assert sum("it cannot be read" in each["reason"] for each in letters) == 2
    origins = {each["origin"] for each in letters}
    assert "t/0/1" in origins
    assert "elsewhere" not in origins


@pytest.mark.req("C-159")
def test_a_dead_letter_says_why_from_where_and_how_often(kafka, queue):
    fill(queue, 1, 2)
    one, two = take(queue)

    queue.dead_letter(one.receipt_handle, reason="no such street")
    queue.dead_letter(two.receipt_handle, reason="not tried", tried=False)

    letters = [headers for _, headers in messages(kafka.servers, f"{kafka.topic}.dlq")]
    assert [each["reason"] for each in letters] == ["no such street", "not tried"]
    assert [each["attempt"] for each in letters] == ["1", "0"]
    assert [each["origin"].rpartition("/")[2] for each in letters] == ["0", "1"]
    assert "not_before" not in letters[0]


def test_groups_have_all_events_and_their_own_retries(kafka, mock_kafka):
    options = {"group.protocol": "consumer", "fetch.wait.max.ms": 5}
    levels = ("1m", "1h", "long")
    mock_kafka.make_topics([f"{kafka.topic}.retry.mails.{level}" for level in levels])
    ours = kafka.open()
    theirs = open_queue(
        *("kafka",),
        bootstrap_servers=kafka.servers,
        topic=kafka.topic,
        group="mails",
        options=options,
    )
    try:
        fill(ours, 1)
        [delivery] = take(theirs)
        theirs.nack(delivery.receipt_handle, retry_after_seconds=0)

        assert [each.attempt_number for each in take(ours)] == [1]
        assert take(ours) == []
        assert [each.attempt_number for each in take(theirs)] == [2]
    finally:
        theirs.close()


# -- attempts that ended with their process -------------------------------------------------------


def die(queue: KafkaEventQueue) -> None:
    """Leave the group as a process does that is killed: nothing more is written."""
    vars(queue)["_partitions"].clear()
    queue.close()


@pytest.mark.req("C-158")
def test_attempts_without_an_end_are_counted_and_such_an_event_comes_alone(kafka, queue):
    fill(queue, 1, 2, 3)
    [one], [two] = take(queue, 1), take(queue, 1)
    queue.abandon(one.receipt_handle)
    queue.settle()
    die(queue)
    queue = kafka.open()

    [one] = take(queue)
    assert (numbers([one]), one.attempt_number) == ([1], 1)
    assert take(queue) == []  # it waits until nothing else is in flight
    queue.ack(one.receipt_handle)
    [two] = take(queue)
    assert (numbers([two]), two.attempt_number) == ([2], 2)
    assert take(queue) == []  # and the others wait for it
    assert offsets(kafka) == [(1, '{"starts":[[0,1,2]]}')]
    queue.ack(two.receipt_handle)
    assert numbers(take(queue)) == [3]


@pytest.mark.req("C-158")
def test_an_event_that_kills_its_process_becomes_a_dead_letter(kafka):
    fill(kafka.open(), 1, 2)
    for attempt in (1, 2):
        queue = kafka.open()
        [delivery] = take(queue, 1)
        assert (numbers([delivery]), delivery.attempt_number) == ([1], attempt)
        die(queue)
    seen: list[int] = []
    handlers = {"parcel.posted": [lambda event, env: seen.append(event.payload["number"])]}

    worker = EventWorker(SmallEnv(kafka.open(), handlers), retry_policy=RetryPolicy(2))
    worker.run_until_empty()

    assert seen == [2]
    [(_, headers)] = messages(kafka.servers, f"{kafka.topic}.dlq")
    assert (headers["attempt"], headers["reason"]) == (
        "2",
        "it was tried 2 times, the last without an end",
    )


def test_what_is_released_at_the_end_counts_as_no_attempt(kafka, queue):
    fill(queue, 1)
    take(queue)
    queue.close()

    [again] = take(kafka.open())

    assert again.attempt_number == 1


# -- members --------------------------------------------------------------------------------------


def test_a_member_that_settles_gives_its_partitions_to_others(kafka, queue):
    fill(queue, 1)
    [delivery] = take(queue)
    fill(queue, 2)
    other = kafka.open()
    assert take(other) == []

    queue.ack(delivery.receipt_handle)
    queue.settle()

    assert numbers(take(other, timeout=30)) == [2]


# -- a broker that is away, or refuses ------------------------------------------------------------


@pytest.fixture
def lone() -> Iterator[MockKafka]:
    with MockKafka() as mock:
        yield mock


def test_while_the_broker_is_away_the_queue_says_so(lone, monkeypatch, clock):
    provider = OnKafka(lone.servers, clock)
    lone.make_topics(provider.topics)
    queue = provider.open(**{"message.timeout.ms": 2000})
    fill(queue, 1)
    [delivery] = take(queue)
    lone.kill()
    monkeypatch.setattr("ontologia.queues.kafka_client.ASK_SECONDS", 0.3)

    with pytest.raises(ConnectionLostError, match="cannot be reached"):
        queue.dequeue(1, 0)
    with pytest.raises(ConnectionLostError, match="the message was not stored"):
        queue.enqueue(event())
    queue.nack(delivery.receipt_handle, retry_after_seconds=0)  # it is kept for later
    provider.close()


def test_no_broker_is_one_clear_sentence(monkeypatch):
    monkeypatch.setattr("ontologia.queues.kafka_client.ASK_SECONDS", 0.2)
    queue = open_queue("kafka", bootstrap_servers="127.0.0.1:1")

    for ask in (lambda: queue.enqueue(event()), lambda: queue.dequeue(1, 0)):
        with pytest.raises(ConnectionLostError, match=r"Kafka at 127\.0\.0\.1:1 cannot be reached"):
            ask()
    queue.close()


def test_a_message_that_is_too_large_is_refused(kafka, queue):
    with pytest.raises(InvalidValueError, match="larger than"):
        queue.enqueue(DomainEvent.build(name="parcel.posted", payload={"text": "x" * 1_100_000}))

    fill(queue, 1)
    assert numbers(take(queue)) == [1]


def test_what_a_broker_refuses_is_one_clear_sentence():
    from confluent_kafka import KafkaError

    connection = KafkaConnection("broker:9092", {"sasl.password": "geheim"})
    said = {
        KafkaError.TOPIC_AUTHORIZATION_FAILED: (BrokerError, "rights on the topic"),
        KafkaError.GROUP_AUTHORIZATION_FAILED: (BrokerError, "rights on the group"),
        KafkaError.UNKNOWN_TOPIC_OR_PART: (BrokerError, "a topic does not exist"),
        KafkaError.MSG_SIZE_TOO_LARGE: (InvalidValueError, "larger than"),
        KafkaError._ALL_BROKERS_DOWN: (ConnectionLostError, "cannot be reached"),
        KafkaError.INVALID_CONFIG: (BrokerError, "refused it"),
        KafkaError._AUTHENTICATION: (BrokerError, "refused the login"),
        KafkaError._TRANSPORT: (BrokerError, "refused the login"),  # which is why it is away
    }
    for code, (kind, words) in said.items():
        error = connection.error("it was not sent", KafkaError(code))
        assert type(error) is kind
        assert error.args[0].startswith("it was not sent: ")
        assert words in error.args[0]
        assert "broker:9092" in error.args[0]


@pytest.mark.parametrize("said", ["_SSL", "_AUTHENTICATION"])
def test_a_connection_that_was_refused_once_does_not_stop_a_queue_that_works(kafka, queue, said):
    from confluent_kafka import KafkaError

    fill(queue, 1)
    assert numbers(take(queue)) == [1]

    queue.connection._note(KafkaError(getattr(KafkaError, said)))  # as a client tells it

    assert take(queue) == []
    assert queue.connection.refused() is None
    fill(queue, 2)
    assert numbers(take(queue)) == [2]


def test_a_broker_that_leaves_while_a_connection_begins_is_away():
    """A TLS handshake that is cut gives the error of a wrong certificate."""
    from confluent_kafka import KafkaError

    connection = KafkaConnection("broker:9093")
    assert type(connection.error("it was not sent", KafkaError(KafkaError._SSL))) is BrokerError

    connection.answered()

    error = connection.error("it was not sent", KafkaError(KafkaError._SSL))
    assert type(error) is ConnectionLostError


def test_without_transactions_the_queue_says_so_and_does_without(kafka, monkeypatch, caplog):
    from confluent_kafka import KafkaError, KafkaException

    real = KafkaConnection.producer

    class Without:
        def init_transactions(self, timeout: float) -> None:
            raise KafkaException(KafkaError(KafkaError._UNSUPPORTED_FEATURE))

    monkeypatch.setattr(
        KafkaConnection,
        "producer",
        lambda self, **more: Without() if "transactional_id" in more else real(self, **more),
    )
    queue = kafka.open()
    fill(queue, 1, 2)
    one, two = take(queue)
    assert "has no transactions" in caplog.text

    queue.nack(one.receipt_handle, retry_after_seconds=0)
    queue.ack(two.receipt_handle)

    assert [(d.event.payload["number"], d.attempt_number) for d in take(queue)] == [(1, 2)]
    assert offsets(kafka) == [(2, "")]
    assert caplog.text.count("has no transactions") == 1


def test_the_clock_of_the_session_says_when_a_retry_is_due(kafka, clock: ManualClock):
    queue = kafka.open()
    fill(queue, 1)
    queue.nack(take(queue)[0].receipt_handle, retry_after_seconds=10 * 365 * 24 * 3600)

    clock.advance(seconds=10 * 365 * 24 * 3600)

    assert take(queue)[0].attempt_number == 2
