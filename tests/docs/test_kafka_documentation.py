"""What the pages on Kafka and on messages say is so."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from ontologia.queues import cloudevents, kafka, kafka_client, kafka_partitions, open_queue
from ontologia.queues.cloudevents import Message, document_of, headers_of
from ontologia_conformance.kafka_servers import MockKafka
from tests.docs.test_documentation import DOCS, blocks

HOWTO = DOCS / "howto/kafka.md"
MESSAGES = DOCS / "reference/messages.md"
SAID, WIRE = HOWTO.read_text(), MESSAGES.read_text()
TOPIC = "shop.events"
SHIPPED = Message(
    id="01a1f059-a0b3-7259-ba45-26fe7bb6f5d2",
    type="shipment.confirmed",
    source="/ontologia/default",
    time=datetime(2026, 11, 15, 19, 39, 43, 123456, UTC),
    payload='{"shipment_id":"s1"}',
    tenant_id="acme",
    namespace="default",
)


@pytest.fixture
def mock() -> Iterator[MockKafka]:
    with MockKafka() as started:
        queue = open_queue("kafka", bootstrap_servers=started.servers, topic=TOPIC)
        assert isinstance(queue, kafka.KafkaEventQueue)
        started.make_topics([TOPIC, queue.dead_letter_topic, *queue.retry_topics])
        yield started


def test_the_program_runs_with_the_settings_of_the_page(mock, tmp_path):
    [settings], [program] = blocks(HOWTO, "toml"), blocks(HOWTO, "python")
    servers = "broker-1.example.com:9092,broker-2.example.com:9092"
    assert servers in settings
    (tmp_path / "ontologia.toml").write_text(settings.replace(servers, mock.servers))
    (tmp_path / "program.py").write_text(program)

    done = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.stdout, done.stderr) == ("confirmed: s1\n", "")


def test_what_another_program_sends_is_an_event(mock):
    [program] = blocks(MESSAGES, "python")

    exec(program.replace("broker.example.com:9092", mock.servers), {})  # noqa: S102

    queue = open_queue(
        "kafka",
        bootstrap_servers=mock.servers,
        topic=TOPIC,
        options={"group.protocol": "consumer"},
    )
    [delivery] = queue.dequeue(1, 30)
    queue.close()
    assert delivery.event.name == "shipment.confirmed"
    assert delivery.event.event_id == "order-17-confirmed"
    assert delivery.event.payload == {"shipment_id": "s1"}


@pytest.mark.req("EDE-049")
def test_the_examples_of_messages_are_what_is_written():
    [shown] = [each for each in blocks(MESSAGES, "text") if "ce_id" in each]
    lines = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert (lines.pop("key"), lines.pop("value")) == (SHIPPED.root, SHIPPED.payload)
    assert lines == {name: value.decode() for name, value in headers_of(SHIPPED)}

    [document] = blocks(MESSAGES, "json")
    assert json.loads(document) == json.loads(document_of(SHIPPED))


def test_every_attribute_and_header_is_documented():
    full = SHIPPED._replace(root_event_id="a", correlation_id="b", causation_id="c")
    names = [name.removeprefix("ce_") for name, _ in headers_of(full)]

    assert [name for name in [*names, *kafka._OURS] if f"`{name}`" not in WIRE] == []
    assert cloudevents.STRUCTURED in WIRE


def test_names_and_limits_are_those_of_the_code():
    queue = kafka.KafkaEventQueue("broker:9092", "<topic>".strip("<>"), "<group>".strip("<>"))
    for name in [*queue.retry_topics, queue.dead_letter_topic]:
        level = name.rpartition(".")[2]
        assert f"`.{level}`" in SAID or f".{level}`" in SAID
    for option in re.findall(r"^\| `([a-z.]+)`", SAID, re.MULTILINE):
        allowed = {"group.protocol": "consumer", "ontologia.key": "root"}
        value = allowed.get(option, 300_000)
        options = {option: value} | ({} if option != "session.timeout.ms" else {option: 6000})
        options.pop("ontologia.key", None)
        kafka_client.KafkaConnection("127.0.0.1:1", options).consumer("g").close()
    for option in ("acks", "enable.auto.commit", "enable.idempotence", "transactional.id"):
        assert option in kafka_client._OURS
        assert f"`{option}`" in SAID
    assert f"({kafka.JOIN_SECONDS:.0f} s, once)" in (DOCS / "reference/queues.md").read_text()
    assert kafka_partitions._MOST == 1_000
    assert kafka_partitions._MOST_BYTES == 16 * 2**20
