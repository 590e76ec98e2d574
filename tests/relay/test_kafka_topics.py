"""Intakes and relays over topics: what is particular to Kafka."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Producer

from ontologia import codec
from ontologia.relay import REFUSED, Intake
from tests.integration.running import PATIENCE, until
from tests.relay.world import stored

HEADERS = {"ce_type": "barrel.seen", "ce_source": "/cooper"}


def send(topic: str, *ids: str) -> None:
    servers, _, name = topic.removeprefix("kafka://").partition("/")
    producer = Producer({"bootstrap.servers": servers, "log_level": 2})
    for id in ids:
        producer.produce(name, b"{}", "k", headers=HEADERS | {"ce_id": id})
    assert producer.flush(30) == 0


@pytest.mark.req("NEW-180")
def test_a_message_does_not_wait_for_more_of_them(session, topic, monkeypatch):
    monkeypatch.setattr("ontologia.relay.intake._WAIT", 3_600)
    intake = Intake(session, topic)
    thread = threading.Thread(target=intake.run, daemon=True)
    thread.start()
    try:
        send(topic, "e1")
        until(lambda: [row.id for row in stored(session)] == ["e1"])
    finally:
        intake.stop()
        send(topic, "e2")  # by which it notices
        thread.join(PATIENCE)

    assert not thread.is_alive()


@pytest.mark.req("NEW-126")
def test_a_message_with_an_unreadable_timestamp_is_refused_and_the_next_is_stored(session, topic):
    servers, _, name = topic.removeprefix("kafka://").partition("/")
    producer = Producer({"bootstrap.servers": servers, "log_level": 2})
    microseconds = 1_763_510_400_000_000
    for id, written in (("e1", microseconds), ("e2", microseconds // 1000)):
        producer.produce(name, b"{}", "k", headers=HEADERS | {"ce_id": id}, timestamp=written)
    assert producer.flush(30) == 0

    Intake(session, topic).run_until_empty()

    assert [row.id for row in stored(session, "barrel.seen")] == ["e2"]
    [told] = [codec.decode(row.payload) for row in stored(session, REFUSED)]
    assert told["reason"].startswith("it cannot be read: ValueError")
    assert told["place"].endswith("offset 0")
