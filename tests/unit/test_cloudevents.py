"""Events on the wire: what is written can be read, and what others write is checked."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontologia.errors import InvalidValueError
from ontologia.queues.cloudevents import (
    Message,
    document_of,
    headers_of,
    read_document,
    read_message,
)
from ontologia_conformance.tiers import examples

WRITTEN = datetime(2026, 11, 18, 12, tzinfo=UTC)
PLAIN = Message("e1", "order.placed", "/shop", datetime(2026, 11, 17, 8, 30, tzinfo=UTC), '{"n":1}')
FULL = PLAIN._replace(
    root_event_id="e0",
    chain_depth=3,
    correlation_id="c",
    causation_id="e00",
    tenant_id="acme",
    namespace="büro/1",
    priority=-7,
)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
MESSAGES = st.builds(
    Message,
    id=TEXT,
    type=TEXT,
    source=TEXT,
    time=st.datetimes(timezones=st.just(UTC)),
    payload=st.dictionaries(TEXT, st.integers(-(2**63), 2**63 - 1)).map(
        lambda each: json.dumps(each, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    ),
    root_event_id=st.none() | TEXT,
    chain_depth=st.integers(0, 2**31 - 1),
    correlation_id=st.none() | TEXT,
    causation_id=st.none() | TEXT,
    tenant_id=st.none() | TEXT,
    namespace=st.none() | TEXT,
    priority=st.integers(-(2**31) + 1, 2**31 - 1),
)


@given(MESSAGES)
@examples(200)
def test_what_is_written_is_read_again(message):
    assert read_message(headers_of(message), message.payload.encode(), WRITTEN) == message
    assert read_document(document_of(message), WRITTEN) == message


def test_a_message_has_the_attributes_of_cloudevents_as_headers():
    assert dict(headers_of(FULL)) == {
        "ce_specversion": b"1.0",
        "ce_id": b"e1",
        "ce_type": b"order.placed",
        "ce_source": b"/shop",
        "ce_time": b"2026-11-17T08:30:00.000000+00:00",
        "ce_rootid": b"e0",
        "ce_correlationid": b"c",
        "ce_causationid": b"e00",
        "ce_tenantid": b"acme",
        "ce_namespace": "büro/1".encode(),
        "ce_chaindepth": b"3",
        "ce_priority": b"-7",
        "content-type": b"application/json",
    }


def test_a_document_has_the_payload_as_data():
    assert json.loads(document_of(PLAIN)) == {
        "specversion": "1.0",
        "id": "e1",
        "type": "order.placed",
        "source": "/shop",
        "time": "2026-11-17T08:30:00.000000+00:00",
        "chaindepth": 0,
        "priority": 100,
        "datacontenttype": "application/json",
        "data": {"n": 1},
    }


def test_what_another_program_leaves_out_has_a_default():
    headers = [("ce_id", b"x"), ("ce_type", b"t"), ("ce_source", b"/other")]

    read = read_message(headers, b"{}", WRITTEN)

    assert read == Message("x", "t", "/other", WRITTEN, "{}")
    assert read.root == "x"
    assert read._replace(root_event_id="r").root == "r"


def test_kafka_messages_may_be_in_structured_mode():
    headers = [("Content-Type", b"application/cloudevents+json; charset=UTF-8")]

    assert read_message(headers, document_of(FULL), WRITTEN) == FULL


def test_an_instant_with_another_offset_or_none_is_understood():
    document = json.loads(document_of(PLAIN))

    def read(time: str) -> datetime:
        return read_document(json.dumps(document | {"time": time}).encode(), WRITTEN).time

    assert read("2026-11-17T10:30:00+02:00") == PLAIN.time
    assert read("2026-11-17T08:30:00Z") == PLAIN.time
    assert read("2026-11-17T08:30:00") == PLAIN.time
    assert read("2026-11-17T08:30:00").tzinfo is UTC
    assert read("2026-11-17t08:30:00.000000000z") == PLAIN.time


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ce_id": None}, "has the attribute id"),
        ({"ce_type": None}, "has the attribute type"),
        ({"ce_source": None}, "has the attribute source"),
        ({"ce_id": b""}, "id is text of 1 to 200"),
        ({"ce_id": b"x" * 201}, "id is text of 1 to 200"),
        ({"ce_type": b"\xff"}, "'ce_type' is not UTF-8"),
        ({"ce_specversion": b"2.0"}, "version 1.0 is understood"),
        ({"ce_time": b"yesterday"}, "time is an instant"),
        ({"ce_time": b"2026-W01-1"}, "time is an instant"),
        ({"ce_time": b"2026-11-17"}, "time is an instant"),
        ({"ce_time": b"20261117T083000Z"}, "time is an instant"),
        ({"ce_time": b"2026-11-17T08:30:60Z"}, "time is an instant"),
        ({"ce_chaindepth": b"-1"}, "chaindepth is a whole number"),
        ({"ce_chaindepth": b"many"}, "chaindepth is a whole number"),
        ({"ce_priority": b"99999999999"}, "priority is a whole number"),
        ({"content-type": b"text/plain"}, "content-type is 'text/plain'"),
    ],
)
def test_what_is_no_cloudevent_is_refused(change, said):
    headers = dict(headers_of(PLAIN)) | change
    given = [(name, value) for name, value in headers.items() if value is not None]

    with pytest.raises(InvalidValueError, match=said):
        read_message(given, b"{}", WRITTEN)


@pytest.mark.parametrize(
    "value", [None, b"", b"[]", b"1", b'{"a":NaN}', b'{"a":18446744073709551616}']
)
def test_a_payload_is_a_json_object(value):
    with pytest.raises(InvalidValueError):
        read_message(headers_of(PLAIN), value, WRITTEN)


@pytest.mark.parametrize(
    "change", [{"data": None}, {"data": [1]}, {"datacontenttype": "text/xml"}, {"id": 7}]
)
def test_a_document_is_checked_likewise(change):
    document = json.loads(document_of(PLAIN)) | change

    with pytest.raises(InvalidValueError):
        read_document(json.dumps(document).encode(), WRITTEN)
