"""`ontologia events archive` and `restore`."""

from __future__ import annotations

import json

import pytest

from ontologia_conformance.event_world import POST, POSTED, ParcelLost, claim, post
from tests.integration.commands import at_a_terminal, events_of, two_hours_ago


@pytest.fixture
def clock():
    return two_hours_ago()


@pytest.fixture
def run(uri):
    return events_of(uri)


@pytest.fixture
def finished(event_store):
    """Three parcels of two hours ago that `ship` has acknowledged."""
    ids = post(event_store, 1, 2, 3)
    for event in claim(event_store):
        event_store.ack("ship", event.id)
    return ids


def test_finished_events_are_archived_and_restored(run, event_store, finished, s3_uri):
    [waiting] = post(event_store, 4)

    done = run("archive", "--to", s3_uri, "--before", "1h", "--reason", "disk is full")

    assert done.exit_code == 0
    assert done.stdout == "Archived 3 events older than 1 hour of namespace 'post'\n"
    assert done.stderr == ""
    assert [each["id"] for each in event_store.list_events(POST)] == [waiting]

    one = run("restore", "--from", s3_uri, "--event-id", finished[1])
    assert one.stdout == "Restored 1 event of namespace 'post'\n"
    rest = run("restore", "--from", s3_uri)
    assert rest.stdout.splitlines() == [
        "Restored 2 events of namespace 'post'",
        "1 event in the store already",
    ]
    assert {each["id"] for each in event_store.list_events(POST)} == {*finished, waiting}


def test_scripts_are_told_in_json(run, event_store, finished, s3_uri):
    [broken] = post(event_store, 4)
    lost = ParcelLost(number=5)
    event_store.enqueue(lost, POST)
    done = run("archive", "--to", s3_uri, "--before", "1h", "--type", POSTED, "--json")

    assert json.loads(done.stdout) == {"archived": 3, "left": 0}
    back = run("restore", "--from", s3_uri, "--json")
    assert json.loads(back.stdout) == {"restored": 3, "known": 0, "left": 0}
    assert len(event_store.list_events(POST)) == 5
    assert broken


def test_a_dry_run_counts_and_changes_nothing(run, event_store, finished, s3_uri, sql):
    before = sql("SELECT COUNT(*) FROM commits")

    done = run("archive", "--to", s3_uri, "--before", "1h", "--dry-run")

    assert done.stdout.splitlines() == ["Type\tEvents", f"{POSTED}\t3"]
    assert "Would move 3 events older than 1 hour of namespace 'post'" in done.stderr
    assert len(event_store.list_events(POST)) == 3
    assert sql("SELECT COUNT(*) FROM commits") == before
    assert sql("SELECT COUNT(*) FROM archives") == [[0]]


def test_what_could_not_be_archived_is_counted(run, event_store, finished, s3_uri, sql):
    sql(f"UPDATE events SET payload = '[]' WHERE id = '{finished[0]}'")

    done = run("archive", "--to", s3_uri, "--before", "1h")

    assert done.stdout.splitlines() == [
        "Archived 2 events older than 1 hour of namespace 'post'",
        "1 event left as they are: the log says why",
    ]


def test_an_age_at_which_events_are_collected_already_is_warned_of(run, finished, s3_uri):
    done = run("archive", "--to", s3_uri, "--before", "30d")

    assert done.stdout == "Archived 0 events older than 30 days of namespace 'post'\n"
    assert "collected when they are 7 days old (event_retention_ms)" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("archive", "--to", "gs://b/p", "--before", "1h"), 5, "gs:// is not its scheme"),
        (("archive", "--to", "s3://b/p", "--before", "soon"), 2, "no span of time"),
        (("restore", "--from", "app.db"), 5, "it has no scheme"),
        (("restore", "--from", "s3://u:secret@b/p"), 5, "more than a bucket and a prefix"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(run, finished, words, code, said, event_store):
    done = run(*words)

    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr
    assert "secret" not in done.stderr
    assert len(event_store.list_events(POST)) == 3


def test_an_event_that_the_archive_does_not_have_is_an_error(run, finished, s3_uri):
    done = run("restore", "--from", s3_uri, "--event-id", "nobody")

    assert done.exit_code == 4
    assert "has no event nobody of namespace 'post'" in done.stderr


def test_a_terminal_counts_events_while_they_move(uri, finished, s3_uri):
    where = ("--datastore-uri", uri, "--namespace", POST)
    code, shown = at_a_terminal("events", "archive", "--to", s3_uri, "--before", "1h", *where)

    assert code == 0
    assert "0 events archived" in shown
    assert "Archived 3 events older than 1 hour" in shown
