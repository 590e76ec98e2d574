"""`ontologia events retry`, `dismiss`, `cancel` …: what an operator changes, and its record."""

from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
import sys
from datetime import timedelta

import pytest

from ontologia import Session
from ontologia.delivery.lineage import Lineage
from ontologia.errors import LockContentionError
from ontologia.runtime.operator import Operator
from ontologia.store.events.operations import Selection
from ontologia_conformance.event_world import (
    LOST,
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
from tests.integration.commands import events_of, two_hours_ago
from tests.integration.moving import contents
from tests.shop import Customer

ME = f"{getpass.getuser()}@{socket.gethostname()}"


@pytest.fixture
def clock():
    return two_hours_ago()


@pytest.fixture
def run(uri):
    return events_of(uri)


@pytest.fixture
def records(open_session):
    """What is on record, the newest first: the metadata of all commits."""
    session = open_session()

    def read():
        return [commit["metadata"] for commit in session.list_commits(limit=100)]

    return read


# -- retry ----------------------------------------------------------------------------------------


def test_a_dead_letter_is_given_back_with_a_fresh_set_of_attempts(run, event_store, clock, records):
    [dead] = post(event_store, 1)
    bury(event_store, dead, clock)

    done = run("retry", "--event-id", dead, "--reason", "the van is back")

    assert done.stdout.splitlines() == [
        f"Retried 1 dead letter of namespace {POST!r}",
        "Available for processing immediately",
    ]
    assert event_store.list_dead_letters(POST) == []
    assert event_store.check() == []
    [again] = claim(event_store)
    assert again.id == dead
    assert claim_of(event_store, dead)["attempts"] == 0
    [record] = records()
    assert record.pop("session_id")
    assert record == {
        "namespace": POST,
        "operator": ME,
        "action": "events retry",
        "arguments": {"event_id": dead},
        "counts": {"retried": 1},
        "reason": "the van is back",
    }


def test_a_retried_event_may_die_again_and_its_past_is_kept(run, event_store, clock):
    [dead] = post(event_store, 1)
    for rounds in (1, 2, 3):
        assert bury(event_store, dead, clock) == 10
        kept = event_store.inspect_event(dead)["attempts"]
        assert [each["attempt"] for each in kept] == list(range(11 - rounds * 10, 11))
        assert [each["ended_at"] for each in kept] == sorted(each["ended_at"] for each in kept)
        assert len(event_store.list_dead_letters(POST)) == 1
        assert event_store.check() == []
        assert run("retry", "--all").exit_code == 0

    [again] = claim(event_store)
    event_store.ack("ship", again.id)
    assert run("retry", "--all").stdout == f"Retried 0 dead letters of namespace {POST!r}\n"


def test_only_those_that_are_meant_are_retried(run, event_store, clock):
    first, second = post(event_store, 1, 2)
    bury(event_store, first, clock)
    bury(event_store, first, clock, handler="bill")
    bury(event_store, second, clock)

    assert run("retry", "--handler", "bill", "--json").stdout == '{"retried":1,"left":0}\n'
    left = [(row["event_id"], row["handler"]) for row in event_store.list_dead_letters(POST)]
    assert left == [(second, "ship"), (first, "ship")]
    for nobody in (["--type", LOST], ["--error", "no ship"], ["--newer-than", "1h"]):
        assert json.loads(run("retry", "--json", *nobody).stdout)["retried"] == 0
    both = run("retry", "--type", POSTED, "--error", "no van", "--older-than", "1h", "--json")
    assert json.loads(both.stdout)["retried"] == 2
    assert event_store.list_dead_letters(POST) == []


def test_another_namespace_is_left_alone(run, event_store, clock):
    [dead] = post(event_store, 1)
    bury(event_store, dead, clock)

    assert json.loads(run("retry", "--all", "--json", namespace=OTHER).stdout)["retried"] == 0
    assert run("retry", "--event-id", dead, namespace=OTHER).exit_code == 4
    assert len(event_store.list_dead_letters(POST)) == 1


def test_a_dry_run_shows_what_would_be_and_changes_nothing(
    run, uri, event_store, clock, ask_store, direct
):
    gone, kept = post(event_store, 1, 2)
    bury(event_store, gone, clock)
    bury(event_store, kept, clock)
    event_store.retention._delete([gone], "unleased", {"now": "2000"})
    before = contents(ask_store, uri)

    done = run("retry", "--all", "--dry-run")

    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert rows[0][-1] == "Retriable"
    assert [(row[0], row[-1]) for row in rows[1:]] == [(kept, "yes"), (gone, "no")]
    assert f"Would retry 1 dead letter of namespace {POST!r}; nothing was changed" in done.stderr
    assert "1 dead letter would be left" in done.stderr
    assert contents(ask_store, uri) == before


def test_what_cannot_be_retried_is_left_and_said(run, event_store, clock, records):
    gone, kept = post(event_store, 1, 2)
    bury(event_store, gone, clock)
    bury(event_store, kept, clock, handler="bill")
    event_store.retention._delete([gone], "unleased", {"now": "2000"})
    event_store.forget(POST, "bill")

    done = run("retry", "--all")
    one = run("retry", "--event-id", gone)

    assert "Retried 0 dead letters" in done.stdout
    assert "2 dead letters left as they are: the event is not retained any more" in done.stdout
    assert one.exit_code == 4
    assert "was not retried: the event is not retained" in one.stderr
    assert "hint: Its payload is kept with the dead letter" in one.stderr
    assert len(event_store.list_dead_letters(POST)) == 2
    assert records() == []


def test_a_consumer_that_came_back_gets_what_died_before(run, event_store, clock):
    [dead] = post(event_store, 1)
    bury(event_store, dead, clock)
    event_store.forget(POST, "ship")
    assert numbers(claim(event_store, types=[LOST])) == []
    assert "Retried 0" in run("retry", "--all").stdout  # it is not subscribed to it now
    assert numbers(claim(event_store)) == []

    assert "Retried 1" in run("retry", "--all").stdout

    assert numbers(claim(event_store)) == [1]


def test_many_are_retried_in_portions_each_on_record(event_store, open_session, monkeypatch, clock):
    monkeypatch.setattr("ontologia.runtime.operator.PORTION", 2)
    ids = post(event_store, 1, 2, 3, 4, 5)
    claim(event_store)
    for event_id in ids:
        event_store.claims.release(
            "ship", event_id, error="x", policy=event_store.policy, final=True
        )
    session = open_session(namespace=POST)

    done = Operator(session, "ada@host").retry(Selection(handler="ship"))

    assert done == (5, 0)
    counts = [each["metadata"]["counts"]["retried"] for each in session.list_commits()]
    assert counts == [1, 2, 2]
    assert numbers(claim(event_store)) == [1, 2, 3, 4, 5]


def test_a_retry_that_is_interrupted_says_how_far_it_came(
    event_store, open_session, monkeypatch, refuse
):
    monkeypatch.setattr("ontologia.runtime.operator.PORTION", 2)
    ids = post(event_store, 1, 2, 3)
    claim(event_store)
    for event_id in ids:
        event_store.claims.release(
            "ship", event_id, error="x", policy=event_store.policy, final=True
        )
    session = open_session(namespace=POST)
    refuse("commits", """metadata_json LIKE '%"retried":1}%'""")  # the second portion

    with pytest.raises(Exception, match="refused") as caught:
        Operator(session, "ada@host").retry(Selection())

    assert caught.value.__notes__[-1] == "2 dead letters were retried before that"
    assert len(event_store.list_dead_letters(POST)) == 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["--all", "--handler", "x"], ["--older-than", "soon"], ["--dry-run"]],
    ids=["nothing", "all and some", "no span", "a dry run of nothing"],
)
@pytest.mark.parametrize("verb", ["retry", "dismiss"])
def test_it_is_said_which_dead_letters_are_meant(run, event_store, clock, verb, arguments):
    [dead] = post(event_store, 1)
    bury(event_store, dead, clock)

    assert run(verb, *arguments).exit_code == 2
    assert len(event_store.list_dead_letters(POST)) == 1


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        ("shpi", f"there is no consumer shpi in namespace {POST!r}; did you mean ship?\n"),
        ("zzz", f"there is no consumer zzz in namespace {POST!r}\n"),
        ("ship", ""),
    ],
)
@pytest.mark.parametrize("verb", ["retry", "dismiss"])
def test_a_handler_that_nobody_knows_is_told_of(run, event_store, verb, handler, said):
    event_store.consumers.register(POST, "ship", [POSTED])

    done = run(verb, "--handler", handler)
    dry = run(verb, "--handler", handler, "--dry-run")
    told = run(verb, "--handler", handler, "--json")

    assert (done.exit_code, dry.exit_code, told.exit_code) == (0, 0, 0)
    assert done.stderr == said
    assert dry.stderr == (
        f"{said}Would {verb} 0 dead letters of namespace {POST!r}; nothing was changed\n"
    )
    assert told.stderr == ""


def test_a_handler_that_is_gone_and_left_dead_letters_is_known_by_them(run, event_store, clock):
    [dead] = post(event_store, 1)
    bury(event_store, dead, clock)
    event_store.forget(POST, "ship")

    for done in (run("retry", "--handler", "ship"), run("dismiss", "--handler", "ship")):
        assert (done.exit_code, done.stderr) == (0, "")


@pytest.mark.parametrize("verb", ["retry", "dismiss"])
def test_a_dead_letter_that_is_not_there_is_an_error_that_is_true(run, event_store, clock, verb):
    [dead] = post(event_store, 1)
    bury(event_store, dead, clock)

    unknown = run(verb, "--event-id", "nobody")
    other = run(verb, "--event-id", dead, "--handler", "bill")

    none = "error: there is no dead letter of event {} in namespace {!r}{}; nothing was changed\n"
    assert (unknown.exit_code, unknown.stderr) == (4, none.format("nobody", POST, ""))
    assert (other.exit_code, other.stderr) == (4, none.format(dead, POST, " that fits"))


# -- dismiss --------------------------------------------------------------------------------------


def test_a_dismissed_dead_letter_is_off_the_list_and_never_delivered_again(
    run, event_store, clock, records
):
    first, second = post(event_store, 1, 2)
    bury(event_store, first, clock)
    bury(event_store, second, clock)

    done = run("dismiss", "--event-id", first, "--reason", "a test order")

    assert done.stdout == f"Dismissed 1 dead letter of namespace {POST!r}\n"
    assert [row["event_id"] for row in event_store.list_dead_letters(POST)] == [second]
    assert claim_of(event_store, first)["dead_lettered_at"] is not None
    assert claim(event_store) == []
    assert event_store.check() == []
    assert event_store.inspect_event(first)["payload"] == {"number": 1}
    [record] = records()
    assert record.pop("session_id")
    assert record == {
        "namespace": POST,
        "operator": ME,
        "action": "events dismiss",
        "arguments": {"event_id": first},
        "counts": {"dismissed": 1},
        "reason": "a test order",
    }
    for verb in ("dismiss", "retry"):
        again = run(verb, "--event-id", first)
        assert (again.exit_code, "no dead letter" in again.stderr) == (4, True)
    assert run("replay", "--event-id", first).exit_code == 0
    assert numbers(claim(event_store)) == [1]


def test_only_those_that_are_meant_are_dismissed(run, event_store, clock):
    first, second = post(event_store, 1, 2)
    bury(event_store, first, clock)
    bury(event_store, first, clock, handler="bill")
    bury(event_store, second, clock)

    assert run("dismiss", "--all", "--json", namespace=OTHER).stdout == '{"dismissed":0}\n'
    assert run("dismiss", "--handler", "bill", "--json").stdout == '{"dismissed":1}\n'
    left = [(row["event_id"], row["handler"]) for row in event_store.list_dead_letters(POST)]
    assert left == [(second, "ship"), (first, "ship")]
    assert run("dismiss", "--newer-than", "1h", "--json").stdout == '{"dismissed":0}\n'
    assert run("dismiss", "--older-than", "1h", "--json").stdout == '{"dismissed":2}\n'
    assert event_store.list_dead_letters(POST) == []


def test_a_dry_run_shows_what_would_be_dismissed_and_changes_nothing(
    run, event_store, clock, records
):
    [dead] = post(event_store, 1)
    bury(event_store, dead, clock)
    event_store.forget(POST, "ship")  # nobody would get it again: that does not matter here

    done = run("dismiss", "--all", "--dry-run")

    assert dead in done.stdout
    assert f"Would dismiss 1 dead letter of namespace {POST!r}; nothing was changed" in done.stderr
    assert len(event_store.list_dead_letters(POST)) == 1
    assert records() == []
    assert "Dismissed 1" in run("dismiss", "--all").stdout


def test_dead_letters_are_not_dismissed_while_somebody_is_about_to_retry_them(
    event_store, open_session, clock
):
    """Who retries has looked which can be, and has the hand-out to itself until it is done."""
    [dead] = post(event_store, 1)
    bury(event_store, dead, clock)
    other = open_session(namespace=POST, settings={"lock_timeout_ms": 50})

    with event_store.transaction() as tx:
        assert tx.lock_dispatch(wait=True)
        with pytest.raises(LockContentionError):
            Operator(other, "ada@host").dismiss(Selection())

    assert len(event_store.list_dead_letters(POST)) == 1


def test_what_somebody_has_retried_meanwhile_is_not_dismissed(event_store, open_session, clock):
    """Between the list and the transaction another operator may have been quicker."""
    [dead] = post(event_store, 1)
    bury(event_store, dead, clock)
    session = open_session(namespace=POST)
    operations = session.event_store.operations
    [letters] = operations.dead_letters(POST, Selection())
    Operator(session, "ada@host").retry(Selection())

    with session.event_store.transaction() as tx:
        assert operations.dismiss(tx, letters) == 0

    assert numbers(claim(event_store)) == [1]


# -- cancel ---------------------------------------------------------------------------------------


def test_a_deferred_event_is_cancelled_by_its_number(run, event_store, clock, records):
    number = event_store.defer(ParcelPosted(number=7), POST, delay=86_400, dedup_key="seven")

    done = run("cancel", str(number), "--reason", "a mistake")

    assert done.stdout.startswith(f"Cancelled deferred event {number} ({POSTED}, due ")
    clock.advance(seconds=90_000)
    assert claim(event_store) == []
    [record] = records()
    assert record["arguments"] == {"id": str(number)}
    assert record["cancelled"]["payload"] == {"number": 7}
    assert record["reason"] == "a mistake"
    assert event_store.defer(ParcelPosted(number=8), POST, delay=1, dedup_key="seven")
    again = run("cancel", str(number))
    assert again.exit_code == 4
    assert "was cancelled before" in again.stderr


def test_a_deferred_event_is_cancelled_by_its_id(run, event_store, clock):
    event = ParcelPosted(number=7)
    event_store.defer(event, POST, delay=86_400)

    assert json.loads(run("cancel", event.id, "--json").stdout)["kind"] == "deferred"

    clock.advance(seconds=90_000)
    assert claim(event_store) == []


def test_an_event_is_cancelled_by_its_dedup_key(run, event_store, clock, records):
    event_store.defer(ParcelPosted(number=7), POST, delay=86_400, dedup_key="seven")
    event_store.defer(ParcelPosted(number=8), OTHER, delay=86_400, dedup_key="seven")
    other = ParcelLost(number=9)
    row = event_store.log.row(other, POST, Lineage(), dedup_key="seven")
    event_store.announce(row)  # stored, and not deferred

    several = run("cancel", "--dedup-key", "seven")
    assert several.exit_code == 1
    assert f"events of the types {LOST}, {POSTED} have the dedup_key 'seven'" in several.stderr

    deferred = json.loads(run("cancel", "--dedup-key", "seven", "--type", POSTED, "--json").stdout)
    pending = json.loads(run("cancel", "--dedup-key", "seven", "--json").stdout)

    assert (deferred["kind"], deferred["payload"]) == ("deferred", {"number": 7})
    assert (pending["kind"], pending["id"]) == ("pending", row.id)
    assert [record["arguments"] for record in records()] == [
        {"dedup_key": "seven"},
        {"dedup_key": "seven", "type": POSTED},
    ]
    unknown = run("cancel", "--dedup-key", "seven")
    assert unknown.exit_code == 4
    assert "no event in namespace 'post' has the dedup_key 'seven'" in unknown.stderr
    [left] = event_store.listings.deferred(OTHER, 9)
    assert left["payload"] == {"number": 8}


@pytest.mark.parametrize("arguments", [[], ["1", "--dedup-key", "k"], ["1", "--type", POSTED]])
def test_an_event_is_named_in_one_way(run, event_store, arguments):
    assert run("cancel", *arguments).exit_code == 2


def test_a_deferred_event_that_was_announced_is_named_by_its_id(run, event_store, clock):
    event = ParcelPosted(number=7)
    number = event_store.defer(event, POST, delay=1)
    clock.advance(seconds=2)
    claim(event_store, types=[LOST])  # whoever claims announces what is due

    done = run("cancel", str(number))

    assert done.exit_code == 4
    assert f"was announced as event {event.id}" in done.stderr
    assert run("cancel", event.id).exit_code == 0


@pytest.mark.parametrize("where", ["incoming", "ready", "handed back"])
def test_a_pending_event_is_taken_out_of_the_log(run, event_store, records, where):
    event = ParcelPosted(number=1)
    event_store.enqueue(event, POST)
    if where != "incoming":
        event_store.consumers.register(POST, "ship", [POSTED])
        claim(event_store, "other", types=[LOST])
    if where == "handed back":
        claim(event_store)
        event_store.abandon("ship", event.id)

    done = run("cancel", event.id)

    assert done.stdout == (
        f"Cancelled event {event.id} ({POSTED}) of namespace {POST!r}: no consumer gets it\n"
    )
    assert claim(event_store) == []
    assert claim(event_store, "late") == []
    assert event_store.inspect_event(event.id) is None
    assert event_store.check() == []
    [record] = records()
    assert record["cancelled"]["payload"] == {"number": 1}
    assert record["cancelled"]["kind"] == "pending"


@pytest.mark.parametrize("far", ["in backoff", "due again", "left by a session that died"])
def test_an_event_that_failed_is_cancelled_before_it_is_tried_again(
    run, event_store, clock, records, far
):
    [poison] = post(event_store, 1)
    event_store.consumers.register(POST, "bill", [POSTED])

    def fail(after_ms: float) -> None:
        claim(event_store)
        event_store.claims.release(
            *("ship", poison), error="OSError: no van", policy=event_store.policy, after_ms=after_ms
        )

    fail(0)
    fail(0)
    if far == "in backoff":
        fail(86_400_000)
    if far == "left by a session that died":
        claim(event_store)

    done = run("cancel", poison)

    failed = 3 if far == "in backoff" else 2
    assert done.exit_code == 0, done.stderr
    assert f"ship had tried it: {failed} failed attempts\n" in done.stdout
    clock.advance(seconds=90_000)
    assert claim(event_store) == []
    assert claim(event_store, "bill") == []
    assert event_store.inspect_event(poison) is None
    assert event_store.check() == []
    [record] = records()
    assert record["cancelled"]["failed"] == {
        "ship": {"attempts": failed, "last_error": "OSError: no van"}
    }


@pytest.mark.parametrize(
    ("far", "said"),
    [
        ("claimed", "is claimed at this moment by ship"),
        ("claimed again", "is claimed at this moment by ship"),
        ("acked by another", "was finished or buried by ship"),
        ("dead", "was finished or buried by ship"),
    ],
)
def test_an_event_that_is_worked_on_or_ended_is_not_cancelled(
    run, event_store, clock, records, far, said
):
    clock.advance(seconds=7_200)  # leases are looked at with the real time
    [begun] = post(event_store, 1)
    event_store.consumers.register(POST, "bill", [POSTED])
    if far == "dead":
        bury(event_store, begun, clock)
    else:
        claim(event_store, lease_ms=3_600_000)
    if far == "claimed again":
        event_store.claims.release(
            *("ship", begun), error="x", policy=event_store.policy, after_ms=0
        )
        claim(event_store, lease_ms=3_600_000)
    if far == "acked by another":
        event_store.ack("ship", begun)

    done = run("cancel", begun)

    assert done.exit_code == 6
    assert f"event {begun} {said}; it was not cancelled" in done.stderr
    assert event_store.inspect_event(begun) is not None
    assert records() == []


@pytest.mark.parametrize("which", ["nobody", "99", "9" * 30])
def test_what_is_not_there_cannot_be_cancelled(run, event_store, which):
    [elsewhere] = post(event_store, 1, namespace=OTHER)

    assert run("cancel", which).exit_code == 4
    assert run("cancel", elsewhere).exit_code == 4
    assert event_store.inspect_event(elsewhere) is not None


# -- replay and cleanup ---------------------------------------------------------------------------


@pytest.mark.req("ONT-196")
def test_an_event_is_replayed_to_those_who_had_it(run, event_store, records):
    [first] = post(event_store, 1)
    claim(event_store)
    event_store.ack("ship", first)

    one, two, three = run("replay", "--event-id", first).stdout.splitlines()

    assert one == f"Event {first} re-enqueued for namespace {POST!r}"
    assert two == "Available for processing immediately"
    [again] = claim(event_store)
    assert three == f"New event ID: {again.id}"
    assert again.id != first
    [record] = records()
    assert record["action"] == "events replay"
    assert record["arguments"] == {"event_id": first}
    assert record["new_event_id"] == again.id


@pytest.mark.req("ONT-197")
def test_what_is_not_there_cannot_be_replayed(run, event_store, records):
    [elsewhere] = post(event_store, 1, namespace=OTHER)

    for event_id in ("nobody", elsewhere):
        done = run("replay", "--event-id", event_id)
        assert done.exit_code == 4
        assert f"there is no event {event_id} in namespace {POST!r}" in done.stderr
    assert event_store.list_events(POST) == []
    assert records() == []


@pytest.mark.req("ONT-194", "ONT-195")
def test_old_events_are_deleted(run, event_store, clock, records):
    with event_store.transaction(durable=False) as tx:
        events = [ParcelPosted(number=number) for number in range(1_234)]
        event_store.log.add(tx, [event_store.log.given_row(each, POST) for each in events])
    clock.advance(seconds=7_000)
    [young] = post(event_store, 1)

    done = run("cleanup", "--before", "1h", "--reason", "room")

    assert done.stdout == f"Deleted 1,234 events older than 1 hour for namespace {POST!r}\n"
    assert [row["id"] for row in event_store.list_events(POST)] == [young]
    [record] = records()
    assert record["counts"] == {"deleted": 1_234}
    assert record["arguments"] == {"before": "1:00:00"}
    assert run("cleanup", "--before", "7d").stdout == (
        f"Deleted 0 events older than 7 days for namespace {POST!r}\n"
    )
    assert len(records()) == 1


@pytest.mark.req("ONT-194")
def test_old_events_of_one_type_are_deleted(run, event_store, clock, records):
    kept = post(event_store, 1, 2)
    lost, elsewhere, young = (ParcelLost(number=number) for number in (3, 4, 5))
    event_store.enqueue(lost, POST)
    event_store.enqueue(elsewhere, OTHER)
    clock.advance(seconds=7_000)
    event_store.enqueue(young, POST)
    chosen = ("cleanup", "--before", "1h", "--type", LOST)

    dry = run(*chosen, "--dry-run")
    assert dry.stdout == f"Type\tEvents\n{LOST}\t1\n"
    assert dry.stderr.startswith(f"Would delete 1 event of type {LOST} older than 1 hour")
    assert event_store.inspect_event(lost.id)
    done = run(*chosen)

    assert done.stdout == (
        f"Deleted 1 event of type {LOST} older than 1 hour for namespace {POST!r}\n"
    )
    assert {row["id"] for row in event_store.list_events(POST)} == {*kept, young.id}
    assert len(event_store.list_events(OTHER)) == 1
    [record] = records()
    assert record["arguments"] == {"before": "1:00:00", "type": LOST}
    assert record["counts"] == {"deleted": 1}


@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["", "dry run"])
def test_a_type_that_is_none_deletes_nothing(run, event_store, dry):
    post(event_store, 1)

    done = run("cleanup", "--before", "0s", "--type", "", *dry)

    assert done.exit_code == 1
    assert "an event's type is text of 1 to 200 characters" in done.stderr
    assert len(event_store.list_events(POST)) == 1


def test_a_dry_run_of_a_cleanup_counts_what_is_old(run, uri, event_store, clock, ask_store, direct):
    post(event_store, 1, 2, 3)
    event_store.enqueue(ParcelLost(number=4), POST)
    post(event_store, 5, namespace=OTHER)
    clock.advance(seconds=7_000)
    post(event_store, 6)
    before = contents(ask_store, uri)

    done = run("cleanup", "--before", "1h", "--dry-run")

    assert done.stdout == f"Type\tEvents\n{LOST}\t1\n{POSTED}\t3\n"
    assert done.stderr.startswith(f"Would delete 4 events older than 1 hour of namespace {POST!r}")
    assert contents(ask_store, uri) == before


@pytest.mark.req("ONT-195")
@pytest.mark.parametrize("before", ["7x", "", "d7", "-7d", "9" * 9 + "w"])
def test_an_age_that_is_none_deletes_nothing(run, event_store, before):
    post(event_store, 1)

    done = run("cleanup", "--before", before)

    assert done.exit_code in (1, 2)
    assert done.stderr
    assert len(event_store.list_events(POST)) == 1


def test_a_cleanup_that_is_interrupted_is_on_record(event_store, open_session, clock):
    with event_store.transaction(durable=False) as tx:
        events = [ParcelPosted(number=number) for number in range(1_500)]
        event_store.log.add(tx, [event_store.log.given_row(each, POST) for each in events])
    clock.advance(seconds=60)
    session = open_session(namespace=POST)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        Operator(session, "ada@host").cleanup(timedelta(seconds=1), interrupt)

    assert caught.value.__notes__ == ["1,000 events were deleted before that"]
    [commit] = session.list_commits()
    assert commit["metadata"]["counts"] == {"deleted": 1_000}


# -- consumers ------------------------------------------------------------------------------------


@pytest.mark.req("NEW-027")
def test_a_handler_is_paused_and_resumed(run, event_store, records):
    event_store.consumers.register(POST, "ship", [POSTED])
    post(event_store, 1)

    assert run("pause", "ship", "--reason", "stocktaking").stdout == "Paused ship\n"
    assert run("pause", "ship").stdout == "ship was paused already\n"
    assert claim(event_store) == []
    assert run("resume", "ship").stdout == "Resumed ship\n"
    assert run("resume", "ship", "--json").stdout == (
        '{"handler":"ship","paused":false,"changed":false}\n'
    )
    assert numbers(claim(event_store)) == [1]
    assert [(each["action"], each.get("reason")) for each in records()] == [
        ("events resume", None),
        ("events pause", "stocktaking"),
    ]


@pytest.mark.req("NEW-030")
def test_a_consumer_is_forgotten_unless_it_runs(run, event_store, clock, records):
    clock.advance(seconds=7_200)
    event_store.consumers.register(POST, "ship", [POSTED])
    event_store.register_session("s1", POST, {"consumers": ["ship"]})

    busy = run("forget", "ship")
    event_store.end_session("s1")
    done = run("forget", "ship")

    assert busy.exit_code == 6
    assert "is run by 1 live session(s): s1" in busy.stderr
    assert done.stdout == f"Forgot ship in namespace {POST!r}, with what waited for it\n"
    assert event_store.list_consumers(POST) == []
    [record] = records()
    assert record["arguments"] == {"handler": "ship"}


@pytest.mark.parametrize("command", ["pause", "resume", "forget"])
def test_a_consumer_that_is_not_there_is_an_error(run, event_store, records, command):
    done = run(command, "nobody")

    assert done.exit_code == 4
    assert f"error: there is no consumer nobody in namespace {POST!r}" in done.stderr
    assert "hint: ontologia events consumers lists them" in done.stderr
    assert records() == []


# -- the record -----------------------------------------------------------------------------------


def test_the_record_disturbs_no_question_about_the_past(run, event_store, open_session):
    session = open_session(entity_types=[Customer], namespace=POST)
    session.ensure(Customer(id="c1", name="Ada"))
    session.commit()
    event_store.consumers.register(POST, "ship", [POSTED])

    run("pause", "ship")
    session.ensure(Customer(id="c1", name="Bob"))
    assert session.commit() == 3

    names = [session.query().entities(Customer).as_of(n).collect()[0].name for n in (1, 2, 3)]
    assert names == ["Ada", "Ada", "Bob"]
    assert session.list_commit_changes(2) == []
    assert not session.diff(1, 2)
    assert len(session.diff(1, 3).updated) == 1
    assert [commit["id"] for commit in session.list_commits()] == [3, 2, 1]


@pytest.mark.parametrize("verb", ["retry", "dismiss", "cancel", "replay", "pause", "forget"])
def test_a_change_that_cannot_be_recorded_is_not_made(
    event_store, open_session, clock, refuse, uri, ask_store, verb
):
    event_store.consumers.register(POST, "ship", [POSTED])
    dead, _ = post(event_store, 1, 2)
    bury(event_store, dead, clock)
    session = open_session(namespace=POST)
    by = Operator(session, "ada@host")
    before = contents(ask_store, uri)
    allow = refuse("commits", "metadata_json IS NOT NULL")

    does = {
        "retry": lambda: by.retry(Selection(event_id=dead)),
        "dismiss": lambda: by.dismiss(Selection(event_id=dead)),
        "cancel": lambda: by.cancel(_pending(session)),
        "replay": lambda: by.replay(dead),
        "pause": lambda: by.pause("ship"),
        "forget": lambda: by.forget("ship"),
    }[verb]
    with pytest.raises(Exception, match="refused"):
        does()

    allow()
    assert contents(ask_store, uri) == before


def _pending(session: Session) -> str:
    [found] = [
        row["id"]
        for row in session.event_store.list_events(POST)
        if row["status"] == "unsubscribed" and row["type"] == "event.dead_letter"
    ]
    return found


@pytest.mark.parametrize("reason", ["", "x" * 2_001, "\udcff"], ids=["empty", "long", "broken"])
def test_a_reason_that_cannot_be_kept_is_refused_before_anything_is_done(run, event_store, reason):
    event_store.consumers.register(POST, "ship", [POSTED])

    assert run("pause", "ship", "--reason", reason).exit_code == 1
    assert event_store.list_consumers(POST)[0]["paused_at"] is None


@pytest.mark.thorough
def test_real_processes_operate_a_store(uri, event_store, clock):
    first, second, _ = post(event_store, 1, 2, 3)
    bury(event_store, first, clock)
    deferred = event_store.defer(ParcelLost(number=4), POST, delay=86_400)
    where = {**os.environ, "ONTOLOGIA_DATASTORE_URI": uri}

    def operate(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "ontologia", "events", *arguments, "--namespace", POST],
            capture_output=True,
            text=True,
            check=False,
            env=where,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    assert "Retried 1 dead letter" in operate("retry", "--all")
    assert "Cancelled deferred event" in operate("cancel", str(deferred))
    assert "re-enqueued" in operate("replay", "--event-id", second)
    assert operate("pause", "ship") == "Paused ship\n"
    assert operate("resume", "ship") == "Resumed ship\n"
    assert "Deleted 0 events" in operate("cleanup", "--before", "7d")
    assert "Forgot ship" in operate("forget", "ship")
