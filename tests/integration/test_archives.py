"""Finished events that are moved to an archive, and back, on a real S3 service."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.clock import from_text
from ontologia.delivery.lineage import Lineage, child_of
from ontologia.errors import (
    ConfigError,
    DatabaseError,
    InvalidValueError,
    NotFoundError,
    StoreOpenError,
)
from ontologia.relay import Intake, Relay
from ontologia.runtime.operator import Operator
from ontologia.runtime.session import core_of
from ontologia.store.doctor import examine, repair
from ontologia.store.events import archives
from ontologia.store.events.archives import Moved
from ontologia.store.events.operations import Selection
from ontologia.store.findings import Finding
from ontologia.store.s3 import S3EventStore
from ontologia.store.s3.archive import Archive
from ontologia.store.s3.bucket import Bucket
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import (
    OTHER,
    POST,
    POSTED,
    ParcelLost,
    ParcelPosted,
    bury,
    claim,
    claim_of,
    numbers,
    post,
)
from tests.s3.proxy import Proxy

DAY = 24 * 3600
MONTH = 30 * DAY
AGE = timedelta(days=20)


@pytest.fixture
def session(open_session, event_store):
    """Events are retained for 40 days; at the end no rule of delivery is broken."""
    found: Session = open_session(
        namespace=POST, settings={"event_retention_ms": 40 * DAY * 1000, "event_max_attempts": 2}
    )
    yield found
    assert found.event_store.check() == []


@pytest.fixture
def by(session: Session) -> Operator:
    return Operator(session, "ada@host", reason="disk is full")


@pytest.fixture
def bucket(s3_uri: str) -> Bucket:
    return Bucket(s3_uri)


def finish(session: Session, *numbers_: int, **given: Any) -> list[str]:
    """Post parcels that `ship` acknowledges; their ids."""
    ids = post(session.event_store, *numbers_, **given)
    for event in claim(session.event_store):
        session.event_store.ack("ship", event.id)
    return ids


def retained(session: Session, namespace: str = POST) -> set[str]:
    return {each["id"] for each in session.event_store.list_events(namespace)}


def keys(bucket: Bucket) -> set[str]:
    return {each.key for each in bucket.listing("")}


def document(bucket: Bucket, key: str) -> Any:
    found = bucket.get(key)
    assert found is not None
    return json.loads(found.body)


def seen(session: Session) -> None:
    """The consumer `ship` is being run."""
    consumer = session.event_store.consumers.register(POST, "ship", [POSTED])
    session.event_store.heartbeat(session.session_id, [consumer.id])


# -- moving ---------------------------------------------------------------------------------------


@pytest.mark.req("ONT-181", "ONT-182")
def test_finished_events_of_an_age_are_moved_as_the_document_lays_them_out(
    session: Session, by: Operator, bucket: Bucket, clock: ManualClock
) -> None:
    [old] = finish(session, 1)
    shown = session.event_store.inspect_event(old)
    assert shown is not None
    clock.advance(seconds=MONTH)
    [young] = finish(session, 2)

    done = by.archive(bucket.uri, AGE)

    assert done == (1, 0)
    assert retained(session) == {young}
    assert document(bucket, f"post/events/{old}.json") == {
        **{name: shown[name] for name in ("id", "namespace", "type", "payload", "created_at")},
        **{name: shown[name] for name in ("priority", "root_event_id", "chain_depth")},
        "available_at": shown["created_at"],
    }
    record = document(bucket, f"post/archive/{old}.json")
    assert [each["ack_at"] for each in record["claims"]] == [shown["claims"][0]["ack_at"]]
    assert record["event"]["correlation_id"] == old
    assert not [key for key in keys(bucket) if young in key]
    [commit, *_] = session.list_commits()
    assert commit["metadata"]["action"] == "events archive"
    assert commit["metadata"]["arguments"] == {"to": bucket.uri, "before": str(AGE)}
    assert commit["metadata"]["counts"] == {"archived": 1}
    assert commit["metadata"]["reason"] == "disk is full"


def test_an_event_costs_two_writes_and_two_reads_and_a_follower_one_write_more(
    session: Session, proxy: Proxy, s3_uri: str, by: Operator, clock: ManualClock
) -> None:
    [first] = finish(session, 1)
    clock.advance(seconds=MONTH)

    by.archive(s3_uri, AGE)

    assert proxy.kinds() == ["GET", "PUT", "PUT", "GET", "GET"]  # the first looks for a store
    proxy.seen.clear()
    session.event_store.announce(
        session.event_store.log.row(ParcelPosted(number=2), POST, lineage_of(first))
    )
    finish(session)
    clock.advance(seconds=MONTH)
    by.archive(s3_uri, AGE)
    assert sorted(proxy.kinds()) == ["GET"] * 3 + ["PUT"] * 3
    proxy.seen.clear()
    by.restore(s3_uri)
    assert sorted(proxy.kinds()) == ["GET"] * 4 + ["LIST"]


def test_what_a_consumer_has_not_finished_stays(
    session: Session, by: Operator, bucket: Bucket, clock: ManualClock
) -> None:
    [done] = finish(session, 1)
    [ready] = post(session.event_store, 2)
    [failed] = post(session.event_store, 3)
    for event in claim(session.event_store):
        if event.id == failed:
            session.event_store.release("ship", event.id, error="OSError: no van")
        else:
            session.event_store.abandon("ship", str(event.id))
    finish_elsewhere = post(session.event_store, 4, namespace=OTHER)
    lost = ParcelLost(number=5)
    session.event_store.enqueue(lost, POST)  # nobody subscribes to it
    clock.advance(seconds=MONTH)
    seen(session)

    assert session.event_store.archives.count(POST, AGE) == {POSTED: 1, "parcel.lost": 1}
    assert by.archive(bucket.uri, AGE, event_type=POSTED) == (1, 0)

    assert retained(session) == {ready, failed, lost.id}
    assert retained(session, OTHER) == set(finish_elsewhere)
    assert {key for key in keys(bucket) if "/events/" in key} == {f"post/events/{done}.json"}


@pytest.mark.parametrize("payload", ['{"number": 1', "[1]", '{"number":123456789012345678901234}'])
def test_what_the_layout_cannot_hold_stays_with_a_warning(
    session: Session,
    by: Operator,
    bucket: Bucket,
    clock: ManualClock,
    sql,
    payload: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, sound = finish(session, 1, 2)
    sql(f"UPDATE events SET payload = '{payload}' WHERE id = '{broken}'")
    clock.advance(seconds=MONTH)

    with caplog.at_level(logging.WARNING):
        assert by.archive(bucket.uri, AGE) == (1, 1)

    assert retained(session) == {broken}
    assert f"event {broken} is not archived" in caplog.text
    assert sound not in caplog.text


def test_a_key_that_is_too_long_for_s3_leaves_its_event_here(
    session: Session, by: Operator, bucket: Bucket, clock: ManualClock
) -> None:
    long = "ü" * 190
    event = ParcelPosted(number=1)
    event.id = long
    session.event_store.enqueue(event, POST)
    finish(session, 2)
    clock.advance(seconds=MONTH)

    assert by.archive(bucket.uri, AGE) == (1, 1)

    assert retained(session) == {long}


def test_an_object_that_is_not_read_back_as_written_leaves_its_event_here(
    session: Session,
    proxy: Proxy,
    s3_uri: str,
    by: Operator,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    altered, _ = finish(session, 1, 2)
    clock.advance(seconds=MONTH)
    bucket = Bucket(s3_uri)
    key = f"post/archive/{altered}.json"
    proxy.fail("GET", f"{altered}.json", first=lambda: bucket.put(key, b"{}"))

    with caplog.at_level(logging.WARNING):
        assert by.archive(s3_uri, AGE) == (1, 1)

    assert retained(session) == {altered}
    assert f"{key} was not read back as it was written" in caplog.text
    assert by.archive(s3_uri, AGE) == (1, 0)
    assert retained(session) == set()


@pytest.mark.each_database
@pytest.mark.parametrize("verb", ["retry", "dismiss"])
def test_what_changed_after_it_was_written_is_left_for_the_next_time(
    session: Session, proxy: Proxy, s3_uri: str, by: Operator, clock: ManualClock, verb: str
) -> None:
    event_store = session.event_store
    [dead] = post(event_store, 1)
    bury(event_store, dead, clock)
    clock.advance(seconds=MONTH)
    done: list[Any] = []
    which = Selection(event_id=dead)
    proxy.fail("GET", f"{dead}.json", first=lambda: done.append(getattr(by, verb)(which)))

    assert by.archive(s3_uri, AGE, event_type=POSTED) == (0, 0)

    assert done == [(1, 0) if verb == "retry" else 1]
    assert retained(session) >= {dead}
    for event in claim(event_store):
        event_store.ack("ship", event.id)
    assert by.archive(s3_uri, AGE, event_type=POSTED) == (1, 0)
    [kept] = Archive(s3_uri).find(POST, [dead])
    assert kept.dead_letters == ()
    assert (kept.claims[0].ack_at is not None) == (verb == "retry")


def test_two_runs_at_once_move_each_event_once(
    session: Session, proxy: Proxy, s3_uri: str, by: Operator, clock: ManualClock
) -> None:
    ids = set(finish(session, 1, 2, 3))
    clock.advance(seconds=MONTH)
    other: list[Moved] = []
    proxy.fail("GET", ".json", first=lambda: other.append(by.archive(s3_uri, AGE)))

    assert by.archive(s3_uri, AGE) == (0, 0)

    assert other == [(3, 0)]
    assert set(Archive(s3_uri).ids(POST)) == ids


@pytest.mark.req("ONT-181", "ONT-182")
def test_the_event_store_in_a_bucket_reads_archived_events(
    session: Session, bucket: Bucket, archived: dict[str, dict[str, Any]]
) -> None:
    of_event = ("id", "type", "payload", "created_at", "source", "causation_id", "dedup_key")
    with S3EventStore(bucket.uri) as store:
        for event_id, shown in archived.items():
            found = store.inspect_event(event_id, POST)
            assert found is not None
            assert {name: found[name] for name in of_event} == {
                name: shown[name] for name in of_event
            }


def test_an_event_store_collects_no_archived_events(
    session: Session,
    by: Operator,
    bucket: Bucket,
    clock: ManualClock,
    archived: dict[str, dict[str, Any]],
) -> None:
    """One that was opened where an archive is, of whose events it would take all for finished."""
    config = OntologiaConfig(clock=clock)
    with S3EventStore(bucket.uri, config=config) as store:
        store.enqueue(ParcelPosted(number=7), POST)
        clock.advance(seconds=MONTH)

        assert store.collect_events(POST) == 1
        assert store.cleanup_events(POST, timedelta(0)) == 0

    assert by.restore(bucket.uri) == (len(archived), 0, 0)


def test_nothing_is_archived_to_the_place_of_an_event_store(
    session: Session, by: Operator, bucket: Bucket, clock: ManualClock
) -> None:
    """It would be collected there, once it is deleted here."""
    kept = set(finish(session, 1))
    clock.advance(seconds=MONTH)
    with S3EventStore(bucket.uri, config=OntologiaConfig(clock=clock)) as store:
        assert claim(store) == []  # it has a consumer
    there = keys(bucket)

    with pytest.raises(ConfigError, match="is an event store") as raised:
        by.archive(bucket.uri, AGE)

    assert raised.value.hint == "Give the archive a prefix of its own."
    assert retained(session) == kept
    assert keys(bucket) == there


def test_a_session_archives_nothing_to_its_own_event_store(
    bucket: Bucket, clock: ManualClock, open_session, tmp_path
) -> None:
    bucket.put("made", b"{}")  # the bucket is there then
    session = open_session(
        uri=f"sqlite:///{tmp_path}/carried.db", namespace=POST, event_store=bucket.uri
    )

    with pytest.raises(ConfigError, match="is an event store"):
        Operator(session, "ada@host").archive(f"{bucket.uri}/", AGE)


@pytest.mark.each_database
def test_of_two_stores_with_one_archive_the_second_keeps_the_events_they_share(
    session: Session,
    by: Operator,
    s3_uri: str,
    clock: ManualClock,
    open_session,
    tmp_path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each has claims of its own, and one record cannot hold those of both."""
    [shared] = finish(session, 1)
    shown = session.event_store.inspect_event(shared)
    other = open_session(
        uri=f"sqlite:///{tmp_path}/other.db",
        namespace=POST,
        settings={"event_retention_ms": 40 * DAY * 1000},
    )
    send_to(other, session, f"{s3_uri}/relay")
    [own] = finish(other, 2)
    clock.advance(seconds=MONTH)
    archive = f"{s3_uri}/archive"
    assert by.archive(archive, AGE, event_type=POSTED) == (1, 0)

    with caplog.at_level(logging.WARNING):
        done = Operator(other, "bob@host").archive(archive, AGE, event_type=POSTED)

    assert done == (1, 1)
    assert f"event {shared} is not archived" in caplog.text
    assert "each store needs a prefix of its own" in caplog.text
    assert retained(other) == {shared}
    assert by.restore(archive, event_id=shared) == (1, 0, 0)
    found = session.event_store.inspect_event(shared)
    assert found is not None
    assert shown is not None
    assert [each for each in found["claims"] if each["handler_id"] == "ship"] == shown["claims"]
    assert claim(session.event_store) == []
    assert Operator(other, "bob@host").restore(archive, event_id=own) == (1, 0, 0)


def send_to(there: Session, here: Session, place: str) -> None:
    """Carry the events of a session's namespace to another store, through a bucket."""
    Relay(here, place).run_until_empty()
    Intake(there, place).run_until_empty()


@pytest.mark.each_database
def test_what_became_of_a_restored_event_is_archived_anew(
    session: Session,
    by: Operator,
    bucket: Bucket,
    clock: ManualClock,
    archived: dict[str, dict[str, Any]],
) -> None:
    dead = list(archived)[1]
    by.restore(bucket.uri)
    assert by.retry(Selection(event_id=dead)) == (1, 0)
    for event in claim(session.event_store):
        session.event_store.ack("ship", event.id)
    clock.advance(seconds=41 * DAY)

    assert by.archive(bucket.uri, AGE, event_type=POSTED) == (2, 0)

    [kept] = Archive(bucket.uri).find(POST, [dead])
    assert kept.claims[0].ack_at is not None
    assert kept.dead_letters == ()


@pytest.mark.each_database
def test_a_consumer_that_comes_after_an_event_was_written_gets_it(
    session: Session, proxy: Proxy, s3_uri: str, by: Operator, clock: ManualClock
) -> None:
    event_store = session.event_store
    [event_id] = finish(session, 1)
    clock.advance(seconds=MONTH)
    proxy.fail(
        "GET",
        f"{event_id}.json",
        first=lambda: event_store.consumers.register(POST, "bill", [POSTED]),
    )

    assert by.archive(s3_uri, AGE) == (0, 0)

    assert numbers(claim(event_store, "bill")) == [1]


@pytest.mark.each_database
def test_a_bucket_that_refuses_half_way_loses_nothing_and_the_next_run_goes_on(
    session: Session,
    proxy: Proxy,
    s3_uri: str,
    by: Operator,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archives, "_PORTION", 5)
    ids = set(finish(session, *range(8)))
    clock.advance(seconds=MONTH)

    def refuse(_: Moved) -> None:
        proxy.fail("PUT", "/events/", status=403, times=100)

    with pytest.raises(DatabaseError, match="do not allow") as raised:
        by.archive(s3_uri, AGE, refuse)

    assert raised.value.__notes__ == ["5 events were archived before that"]
    left = retained(session)
    assert len(left) == 3
    assert left < ids
    assert session.list_commits()[0]["metadata"]["counts"] == {"archived": 5}
    proxy.faults.clear()
    told: list[Moved] = []

    assert by.archive(s3_uri, AGE, told.append) == (3, 0)

    assert told == [(3, 0)]
    assert retained(session) == set()
    assert set(Archive(s3_uri).ids(POST)) == ids


def test_an_archive_that_cannot_be_reached_is_said_in_one_sentence(
    session: Session, by: Operator, clock: ManualClock, s3_uri: str, monkeypatch
) -> None:
    finish(session, 1)
    clock.advance(seconds=MONTH)
    for uri in ("file:///tmp/x", "s3://"):
        with pytest.raises(StoreOpenError, match="names no bucket"):
            by.archive(uri, AGE)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreOpenError, match="does not accept the credentials") as raised:
        by.archive(s3_uri, AGE)
    assert "wrong" not in str(raised.value)
    assert len(retained(session)) == 1
    assert session.event_store.archives.places(POST) == []


# -- restoring ------------------------------------------------------------------------------------


@pytest.fixture
def archived(
    session: Session, by: Operator, bucket: Bucket, clock: ManualClock
) -> dict[str, dict[str, Any]]:
    """What was archived, as it was shown before: one that was acked, one that was buried."""
    store = session.event_store
    [acked] = finish(session, 1)
    dead = ParcelPosted(number=2)
    row = store.log.row(dead, POST, lineage_of(acked), dedup_key="parcel 2")
    store.announce(row)
    bury(store, row.id, clock)
    shown = {each: store.inspect_event(each) for each in (acked, row.id)}
    clock.advance(seconds=MONTH)
    assert by.archive(bucket.uri, AGE, event_type=POSTED) == (2, 0)
    assert len(store.list_dead_letters(POST)) == 1
    return shown  # type: ignore[return-value]


def lineage_of(cause: str) -> Any:
    return child_of(cause, cause, 0, "order 7", "ship")


@pytest.mark.each_database
def test_a_restored_event_is_what_it_was(
    session: Session, by: Operator, bucket: Bucket, archived: dict[str, dict[str, Any]]
) -> None:
    letters = session.event_store.list_dead_letters(POST)

    assert by.restore(bucket.uri) == (2, 0, 0)

    for event_id, shown in archived.items():
        assert session.event_store.inspect_event(event_id) == shown
    assert session.event_store.list_dead_letters(POST) == letters
    assert claim(session.event_store) == []
    again = session.event_store.log.row(
        ParcelPosted(number=9), POST, lineage_of("x"), dedup_key="parcel 2"
    )
    assert session.event_store.holder_of(again) == list(archived)[1]
    [commit, *_] = session.list_commits()
    assert commit["metadata"]["counts"] == {"restored": 2}
    assert commit["metadata"]["arguments"] == {"from": bucket.uri}

    assert by.restore(bucket.uri) == (0, 2, 0)
    assert len(keys(bucket)) == 5


def test_long_lineage_and_a_payload_in_another_order_come_back_as_they_were(
    session: Session, by: Operator, bucket: Bucket, clock: ManualClock, sql: Any
) -> None:
    store = session.event_store
    row = store.log.row(ParcelPosted(number=1), POST, Lineage(source="ü" * 1_000))
    payload = '{"number": 1.0, "a":"☃"}'
    store.announce(row._replace(payload=payload))
    clock.advance(seconds=MONTH)
    shown = store.inspect_event(row.id)
    assert by.archive(bucket.uri, AGE) == (1, 0)
    with S3EventStore(bucket.uri) as other:
        [found] = [other.inspect_event(row.id, POST)]
    assert found is not None
    assert found["source"] == row.source

    by.restore(bucket.uri)

    assert store.inspect_event(row.id) == shown
    assert [bytes(str(text), "utf-8") for [text] in sql("SELECT payload FROM events")] == [
        payload.encode()
    ]


def test_a_dead_letter_that_came_back_can_be_retried(
    session: Session, by: Operator, bucket: Bucket, archived: dict[str, dict[str, Any]]
) -> None:
    dead = list(archived)[1]
    assert by.retry(Selection(event_id=dead)) == (0, 1)
    assert by.dismiss(Selection(event_id=dead)) == 1

    assert by.restore(bucket.uri, event_id=dead) == (1, 0, 0)

    [letter] = session.event_store.list_dead_letters(POST)
    assert letter["last_error"] == "OSError: no van"
    assert by.retry(Selection(event_id=dead)) == (1, 0)
    assert numbers(claim(session.event_store)) == [2]


def test_a_consumer_that_has_not_finished_a_restored_event_gets_it(
    session: Session, by: Operator, bucket: Bucket, archived: dict[str, dict[str, Any]]
) -> None:
    assert claim(session.event_store, "bill") == []  # it is new, and nothing is retained

    by.restore(bucket.uri)

    assert numbers(claim(session.event_store, "bill")) == [1, 2]
    assert claim(session.event_store, "ship") == []


@pytest.mark.each_database
def test_what_was_open_when_it_was_archived_is_ready_again(
    session: Session, by: Operator, bucket: Bucket, clock: ManualClock
) -> None:
    store = session.event_store
    post(store, 1)
    [event] = claim(store)
    store.start("ship", event.id, lease_ms=1_000)
    store.release("ship", event.id, error="OSError: no van")
    claim(store, "bill")
    clock.advance(seconds=45 * DAY)
    store.register_session("s9", POST, {})  # somebody was there, but neither consumer
    clock.advance(seconds=45 * DAY)
    store.heartbeat("s9")
    assert by.archive(bucket.uri, AGE) == (1, 0)
    store.forget(POST, "bill")

    by.restore(bucket.uri)

    assert [each["handler_id"] for each in shown_claims(session, event.id)] == ["ship"]
    [again] = claim(store)
    assert again.id == event.id
    assert claim_of(store, event.id)["attempts"] == 1


def wrong_records(session: Session) -> list[Finding]:
    """What `doctor` finds of events that are not there."""
    core = core_of(session)
    found = examine(core.store, core.clock, core.config)
    return [each for each in found if each.check == "without_event"]


def shown_claims(session: Session, event_id: Any) -> list[dict[str, Any]]:
    found = session.event_store.inspect_event(event_id)
    assert found is not None
    claims: list[dict[str, Any]] = found["claims"]
    return claims


@pytest.mark.each_database
def test_a_restored_event_is_retained_for_as_long_again(
    session: Session,
    by: Operator,
    bucket: Bucket,
    clock: ManualClock,
    archived: dict[str, dict[str, Any]],
) -> None:
    clock.advance(seconds=20 * DAY)
    by.restore(bucket.uri)
    seen(session)
    clock.advance(seconds=39 * DAY)
    seen(session)

    session.event_store.collect_events(POST)
    assert retained(session) >= set(archived)
    assert by.archive(bucket.uri, AGE, event_type=POSTED) == (0, 0)
    clock.advance(seconds=2 * DAY)
    seen(session)
    session.event_store.collect_events(POST)

    assert not retained(session) & set(archived)
    assert wrong_records(session) == []


@pytest.mark.each_database
def test_a_key_that_another_event_took_meanwhile_stays_its_own(
    session: Session, by: Operator, bucket: Bucket, archived: dict[str, dict[str, Any]], clock
) -> None:
    store = session.event_store
    row = store.log.row(ParcelPosted(number=9), POST, lineage_of("x"), dedup_key="parcel 2")
    taken = store.announce(row).id
    by.restore(bucket.uri)
    assert store.holder_of(row) == taken

    clock.advance(seconds=1)
    store.cleanup_events(POST, just_after(archived))

    assert store.holder_of(row) == taken


def just_after(archived: dict[str, dict[str, Any]]) -> Any:
    """After what was archived, and before what came then."""
    return max(from_text(each["created_at"]) for each in archived.values()) + timedelta(seconds=1)


def test_one_that_the_archive_does_not_have_is_an_error(
    session: Session, by: Operator, bucket: Bucket, archived: dict[str, dict[str, Any]]
) -> None:
    with pytest.raises(NotFoundError, match="has no event nobody of namespace 'post'"):
        by.restore(bucket.uri, event_id="nobody")


UNREADABLE = (
    ("events", b"{", "not JSON"),
    ("events", b"[]", "no JSON object"),
    ("events", b'{"id": "another"}', "of another event"),
    ("archive", b'{"claims": 7}', "no JSON object"),
    ("archive", b'{"event": {}, "claims": 7}', "claims is no list"),
    ("archive", b'{"event": {}, "claims": [{}]}', "is of a wrong type"),
    ("archive", b'{"event": {}, "payload": "{}"}', "two payloads differ"),
    ("archive", b'{"event": {"occurred_at": "yesterday"}}', "occurred_at is no time"),
    ("archive", b'{"event": {"source": "a\\u0000b"}}', "U.0000"),
    ("archive", b'{"event": {"source": true}}', "source is of a wrong type"),
)


def test_what_cannot_be_read_is_not_restored_and_the_rest_is(
    session: Session,
    by: Operator,
    bucket: Bucket,
    archived: dict[str, dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad, good = archived
    for folder, body, why in UNREADABLE:
        key = f"post/{folder}/{bad}.json"
        whole = bucket.get(key)
        assert whole is not None
        bucket.put(key, body)
        with pytest.raises(InvalidValueError, match=why):
            by.restore(bucket.uri, event_id=bad)
        if body != UNREADABLE[-1][1]:
            bucket.put(key, whole.body)

    with caplog.at_level(logging.WARNING):
        assert by.restore(bucket.uri) == (1, 0, 1)

    assert retained(session) >= {good}
    assert bad not in retained(session)
    assert f"event {bad} in the archive {bucket.uri} cannot be read" in caplog.text


def test_an_event_that_was_not_written_completely_is_not_there(
    session: Session, by: Operator, bucket: Bucket, archived: dict[str, dict[str, Any]]
) -> None:
    half, whole = archived
    bucket.delete(f"post/events/{half}.json")

    assert by.restore(bucket.uri) == (1, 0, 0)

    assert session.event_store.inspect_event(whole) is not None
    assert session.event_store.inspect_event(half) is None


@pytest.mark.each_database
def test_repair_forgets_that_an_event_was_restored_which_is_gone(
    session: Session, by: Operator, bucket: Bucket, archived: dict[str, dict[str, Any]], sql
) -> None:
    sql("INSERT INTO restored(event_id, restored_at) VALUES ('gone', '2026')")
    core = core_of(session)
    found = wrong_records(session)
    assert [(f.where, f.count) for f in found] == [("restored", 1)]

    repair(core.store, core.clock, core.config, {})

    assert sql("SELECT COUNT(*) FROM restored") == [[0]]
