"""What an intake makes of messages: strange ones, late ones, and those that others read, too."""

from __future__ import annotations

import json
import logging

import pytest
from confluent_kafka import Producer

from ontologia import codec
from ontologia.relay import REFUSED, Intake
from ontologia.runtime.session import core_of
from ontologia.store.s3.bucket import Bucket
from ontologia_conformance.backends import NAMES
from tests.relay.world import FILLED, carry, emit, ids, stored

pytestmark = pytest.mark.each_database


@pytest.fixture(scope="session", params=[name for name in NAMES if name != "postgres16"])
def backend(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def here(tmp_path, open_session):
    return open_session(uri=f"sqlite:///{tmp_path}/here.db", namespace="shop")


@pytest.fixture
def there(open_session):
    return open_session(namespace="shop")


def put(place: str, name: str, body: bytes, headers: dict[str, str] | None = None) -> None:
    """Leave a message as another program would."""
    if place.startswith("s3"):
        Bucket(place).put(f"shop/messages/{name}.json", body)
        return
    servers, _, topic = place.removeprefix("kafka://").partition("/")
    producer = Producer({"bootstrap.servers": servers, "log_level": 2})
    given = {"content-type": "application/cloudevents+json"} | (headers or {})
    # One key is one partition: they are read in this order.
    producer.produce(topic, body, "key", headers=[(k, v.encode()) for k, v in given.items()])
    producer.flush(30)


def cloud_event(**more) -> bytes:
    event = {"specversion": "1.0", "id": "e1", "type": "barrel.seen", "source": "/cooper"}
    return json.dumps(event | {"data": {"n": 1}} | more).encode()


@pytest.mark.req("NEW-122", "NEW-126")
def test_a_message_of_another_program_becomes_an_event(there, place):
    put(place, "e1", cloud_event(time="2026-03-01T12:00:00Z"))

    Intake(there, place).run_until_empty()

    [row] = stored(there)
    assert (row.id, row.type, row.chain_depth, row.root_event_id) == ("e1", "barrel.seen", 0, "e1")
    assert codec.decode(row.payload) == {"n": 1}
    assert row.occurred_at == "2026-03-01T12:00:00.000000+00:00"


@pytest.mark.req("NEW-126")
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\xff\xfe{", "not JSON"),
        (b"[]", "a structured CloudEvent is a JSON object"),
        (b'{"specversion": "1.0", "type": "a", "source": "b", "data": {}}', "attribute id"),
        (cloud_event(data=[1]), "data is a JSON object"),
        (cloud_event(specversion="2.0"), "specversion"),
        (cloud_event(chaindepth=21), "max_event_chain_depth is 20"),
        (cloud_event(data={"long": "x" * 1_100_000}), "max_payload_bytes"),
        (cloud_event(data={"n": 2**70}), ""),
        (cloud_event(time="0001-01-01T00:00:00+14:00"), "out of range"),  # before the year 1 in UTC
        (cloud_event(time="9999-12-31T23:59:59-14:00"), "out of range"),
    ],
)
def test_what_is_no_event_is_skipped_and_told(there, s3_uri, body, why, caplog):
    check_skipped(there, s3_uri, body, why, caplog)


@pytest.mark.req("NEW-126")
def test_an_object_that_is_too_large_to_be_read_is_skipped_and_told(
    there, s3_uri, caplog, monkeypatch
):
    monkeypatch.setattr("ontologia.store.s3.bucket.LARGEST", 2_000)

    check_skipped(
        there, s3_uri, cloud_event(data={"n": "x" * 2_000}), "at most 2000 are read", caplog
    )


@pytest.mark.req("NEW-126")
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\xff\xfe{", "not JSON"),
        (cloud_event(time="0001-01-01T00:00:00+14:00"), "out of range"),
    ],
)
def test_what_is_no_event_in_a_topic_is_skipped_and_told(there, topic, body, why, caplog):
    check_skipped(there, topic, body, why, caplog)


def check_skipped(there, place, body, why, caplog):
    put(place, "bad", body)
    put(place, "good", cloud_event())

    intake = Intake(there, place)
    with caplog.at_level(logging.WARNING):
        intake.run_until_empty()

    assert (intake.stored, intake.refused, intake.lag()) == (1, 1, 0)
    [told] = [codec.decode(row.payload) for row in stored(there, REFUSED)]
    assert why in told["reason"]
    assert told["source"] == place
    assert (
        told["place"] in ("partition 0, offset 0", "shop/messages/bad.json")
        or "offset" in told["place"]
    )
    assert body[:1000].decode(errors="replace").startswith(told["content"])
    assert bool(told["content"]) != ("are read" in why)  # what is not read is not shown
    assert "is skipped" in caplog.text
    again = Intake(there, place)
    again.run_until_empty()
    assert (again.stored, again.refused) == (0, 0)


@pytest.mark.req("NEW-126")
@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"type": "barrel.billed"}, "an event of type barrel.seen with this id"),
        ({"data": {"n": 2}}, "an event of type barrel.seen with this id and another payload"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_message_with_the_id_of_another_event_is_skipped_and_told(
    there, place, other, why, at_once
):
    """CloudEvents have ids that are unique for each source alone."""
    put(place, "1", cloud_event())
    if not at_once:
        Intake(there, place).run_until_empty()
    put(place, "2", cloud_event(source="/billing", **other))

    intake = Intake(there, place)
    intake.run_until_empty()

    assert (intake.stored, intake.known, intake.refused) == (int(at_once), 0, 1)
    [row] = stored(there, "barrel.seen")
    assert codec.decode(row.payload) == {"n": 1}
    [told] = [codec.decode(row.payload) for row in stored(there, REFUSED)]
    assert why in told["reason"]
    assert "/billing" in told["content"]


@pytest.mark.req("NEW-122")
def test_the_same_message_again_is_known_however_its_json_is_written(there, place):
    put(place, "1", cloud_event(data={"a": 1, "b": [1.5, "ü"]}))
    put(place, "2", cloud_event(data={"b": [1.5, "ü"], "a": 1}))
    Intake(there, place).run_until_empty()
    put(place, "3", cloud_event(data={"b": [1.5, "ü"], "a": 1}, time="2026-03-01T12:00:00Z"))

    intake = Intake(there, place)
    intake.run_until_empty()

    assert (intake.stored, intake.known, intake.refused) == (0, 1, 0)
    assert len(stored(there)) == 1


@pytest.mark.req("NEW-122")
def test_of_two_intakes_of_a_source_each_message_is_stored_by_one(here, there, open_session, place):
    emit(here, 1, 2, 3)
    from ontologia.relay import Relay

    Relay(here, place).run_until_empty()
    put(place, "bad", b"[]")
    first, second = Intake(there, place), Intake(open_session(namespace="shop"), place)
    read = first._source.read

    def read_behind_the_other(*given):
        found = read(*given)
        first._source.read = read
        second.run_until_empty()
        return found

    first._source.read = read_behind_the_other
    first.run_until_empty()

    assert sorted(ids(there)) == sorted(ids(here))
    assert (first.stored, second.stored) == (0, 3)
    assert (first.refused, second.refused) == (0, 1)
    assert len(stored(there, REFUSED)) == 1
    assert first.lag() == 0


@pytest.mark.req("NEW-122")
def test_a_message_with_an_early_id_that_comes_late_is_not_missed(here, there, s3_uri, clock):
    emit(here, 1, id="b")
    carry(here, s3_uri, there)
    intake = Intake(there, s3_uri)
    intake.run_until_empty()
    emit(here, 2, id="a")
    carry(here, s3_uri, there)

    assert ids(there) == ["b", "a"]


@pytest.mark.req("NEW-122")
def test_while_it_runs_an_intake_finds_late_messages_within_a_minute(here, there, s3_uri, clock):
    emit(here, 1, id="b")
    carry(here, s3_uri, there)
    source = (intake := Intake(there, s3_uri))._source
    source.open(intake._progress)
    put(s3_uri, "a", cloud_event(id="a", type=FILLED))
    put(s3_uri, "c", cloud_event(id="c", type=FILLED))
    assert source.read(10, 0, lambda: False).names == ["a.json", "c.json"]
    put(s3_uri, "0", cloud_event(id="0", type=FILLED))
    put(s3_uri, "d", cloud_event(id="d", type=FILLED))

    clock.advance(seconds=2)
    requests = source._bucket.requests["LIST"]
    assert source.read(10, 0, lambda: False).names == ["d.json"]
    assert source._bucket.requests["LIST"] == requests + 1

    clock.advance(seconds=60)
    assert "0.json" in source.read(10, 0, lambda: False).names


@pytest.mark.req("NEW-122")
def test_names_are_forgotten_when_the_bucket_has_them_no_more(here, there, s3_uri):
    """So the store does not grow for ever; and what was stored is not stored again."""
    for name in ("a", "b", "c"):
        put(s3_uri, name, cloud_event(id=name))
    Intake(there, s3_uri).run_until_empty()
    intakes = core_of(there).store.events.intakes
    names = ["a.json", "b.json", "c.json"]
    assert intakes.known("shop", s3_uri, names) == set(names)
    Bucket(s3_uri).delete("shop/messages/a.json", "shop/messages/b.json")

    Intake(there, s3_uri).run_until_empty()

    assert intakes.known("shop", s3_uri, names) == {"c.json"}
    assert len(stored(there)) == 3


@pytest.mark.req("NEW-125")
def test_the_lag_counts_messages(here, there, place):
    emit(here, 1, 2, 3)
    from ontologia.relay import Relay

    Relay(here, place).run_until_empty()
    intake = Intake(there, place)
    assert intake.lag() == 3

    intake.run_until_empty()

    assert intake.lag() == 0
    health = intake.health_snapshot()
    assert (health["stored"], health["lag"], health["last_error"]) == (3, 0, None)
    listed = core_of(there).store.events.intakes.listed("shop")
    assert {row["source"] for row in listed} == {place}
    assert sum(row["behind"] for row in listed) == 0
    assert sum(row["position"] for row in listed) == 3


@pytest.mark.req("NEW-122")
def test_how_far_a_source_is_read_is_stored_with_the_events_or_not_at_all(there, place, refuse):
    """The database refuses the events once, and the intake begins again where it was."""
    for number in range(3):
        put(place, str(number), cloud_event(id=str(number)))
    allow = refuse("events", "type = 'barrel.seen'")
    intake = Intake(there, place)
    begin, progress = intake._source.open, intake._progress
    seen = []

    def look_and_begin(given):
        names = [f"{number}.json" for number in range(3)]
        seen.append((progress.positions(), progress.known(names), stored(there)))
        if len(seen) == 2:
            allow()
        begin(given)

    intake._source.open = look_and_begin
    intake.run_until_empty()

    assert seen == [({}, set(), [])] * 2
    assert sorted(row.id for row in stored(there)) == ["0", "1", "2"]
    assert sum(progress.positions().values()) == 3
    assert (intake.stored, intake.known, intake.refused) == (3, 0, 0)
