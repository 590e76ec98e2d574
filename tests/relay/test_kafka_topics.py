"""Intakes and relays over topics: what is particular to Kafka."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from ontologia import codec
from ontologia.relay import REFUSED, Intake
from tests.relay.world import stored

HEADERS = {"ce_type": "barrel.seen", "ce_source": "/cooper"}


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
