"""`ontologia events tail`: what happens to events, as it happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ontologia.store.events.operations import Selection
from ontologia_conformance.event_world import (
    OTHER,
    POST,
    POSTED,
    ParcelPosted,
    bury,
    claim,
    post,
)
from tests.integration.commands import ONTOLOGIA, Terminal
from tests.integration.moving import contents
from tests.integration.running import PATIENCE


def told(follower) -> list[tuple[str, str, str | None]]:
    """What happened since the last look: what, to which event, by whom."""
    return [(news.what, news.event_id, news.handler) for news in follower.look()]


def test_an_event_is_followed_from_its_announcement_to_its_end(event_store, clock):
    follower = event_store.activity.follow(POST)
    first, second = post(event_store, 1, 2)
    assert told(follower) == [("announced", first, None), ("announced", second, None)]

    clock.advance(seconds=1)
    claim(event_store)
    assert told(follower) == [("claimed", first, "ship"), ("claimed", second, "ship")]

    clock.advance(seconds=1)
    event_store.ack("ship", first)
    event_store.release("ship", second, error="OSError: no van")
    done, failed = follower.look()
    assert (done.what, done.event_id, done.attempt, done.error) == ("done", first, 1, None)
    assert (failed.what, failed.attempt, failed.error) == ("failed", 1, "OSError: no van")
    assert follower.look() == []


def test_what_happened_in_between_is_told_by_its_end(event_store, clock):
    follower = event_store.activity.follow(POST)
    [quick] = post(event_store, 1)
    claim(event_store)
    event_store.ack("ship", quick)

    assert told(follower) == [("announced", quick, None), ("done", quick, "ship")]


def test_a_death_and_a_retry_are_told(event_store, clock):
    [dying] = post(event_store, 1)
    follower = event_store.activity.follow(POST)

    bury(event_store, dying, clock)
    news = {each.what: each for each in follower.look()}
    assert news["dead_letter"].attempt == 10
    assert news["announced"].type == "event.dead_letter"

    [letters] = event_store.operations.dead_letters(POST, Selection())
    with event_store.transaction() as tx:
        event_store.operations.retry(tx, letters)
    assert told(follower) == [("retried", dying, "ship")]


def test_what_was_there_before_is_followed_and_not_told_anew(event_store, clock):
    [done, held, *waiting] = post(event_store, *range(700))
    claim(event_store, limit=2)
    event_store.ack("ship", done)

    follower = event_store.activity.follow(POST)

    assert follower.look() == []
    event_store.ack("ship", held)
    clock.advance(seconds=1)
    [next_one] = claim(event_store, limit=1)
    assert next_one.id == waiting[0]
    assert told(follower) == [("done", held, "ship"), ("claimed", waiting[0], "ship")]


def test_every_event_of_a_long_backlog_is_told(event_store, clock):
    ids = post(event_store, *range(1_200))
    follower = event_store.activity.follow(POST)

    finished = []
    while events := claim(event_store, limit=200):
        for event in events:
            event_store.ack("ship", event.id)
        finished += [news.event_id for news in follower.look() if news.what == "done"]

    assert sorted(finished) == sorted(ids)


def test_other_namespaces_are_not_told(event_store):
    event_store.consumers.register(OTHER, "ship", [POSTED])
    follower = event_store.activity.follow(POST)
    post(event_store, 1, namespace=OTHER)
    claim(event_store, namespace=OTHER)

    assert follower.look() == []


@pytest.mark.each_database
def test_events_that_become_visible_late_are_told(backend, event_store, open_events):
    if backend.name == "sqlite":
        pytest.skip("a number is given and becomes visible at once: there is one writer")
    other = open_events()
    slow = event_store.log.given_row(ParcelPosted(number=1), POST)
    with event_store.transaction() as tx:
        event_store.log.add(tx, [slow])
        tx.one("SELECT 1")  # it has its number, and is not committed
        post(other, 2)
        follower = other.activity.follow(POST)
        [later] = post(other, 3)
        assert told(follower) == [("announced", later, None)]

    assert told(follower) == [("announced", slow.id, None)]


# -- the program ----------------------------------------------------------------------------------


@contextmanager
def tailing(uri: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has begun to follow."""
    program = subprocess.Popen(
        [*ONTOLOGIA, "--datastore-uri", uri, "--namespace", POST, "events", "tail", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "0"},
    )
    watchdog = threading.Timer(PATIENCE, program.kill)
    watchdog.start()
    try:
        assert program.stderr is not None
        begun = program.stderr.readline()
        assert begun == f"following namespace {POST!r}; Ctrl+C ends it\n", program.stderr.read()
        yield program
    finally:
        watchdog.cancel()
        program.kill()
        program.communicate()


def test_a_process_tells_what_happens_and_ends_well(uri, event_store, ask_store):
    with tailing(uri, "--json") as program:
        before = contents(ask_store, uri)
        [found] = post(event_store, 1)
        line = json.loads(program.stdout.readline())
        assert (line["what"], line["event_id"], line["type"]) == ("announced", found, POSTED)
        claim(event_store)
        event_store.ack("ship", found)
        line = json.loads(program.stdout.readline())
        while line["what"] == "claimed":
            line = json.loads(program.stdout.readline())
        assert (line["what"], line["handler"], line["attempt"]) == ("done", "ship", 1)

        program.send_signal(signal.SIGINT)
        assert program.wait(PATIENCE) == 0
        assert program.stderr.read() == ""
    assert contents(ask_store, uri)["sessions"] == before["sessions"]


def test_lines_have_the_same_columns(uri, event_store):
    with tailing(uri) as program:
        [found] = post(event_store, 1)
        first = program.stdout.readline().rstrip("\n").split("  ")

        claim(event_store)
        event_store.release("ship", found, error="OSError: no\nvan")
        line = program.stdout.readline()
        while "claimed" in line:
            line = program.stdout.readline()
    *_, event_id, handler, attempt, error = line.rstrip("\n").split("  ")
    assert first[-2:] == [POSTED, found]
    assert first[1] == "announced"
    assert (event_id, handler, attempt, error) == (found, "ship", "attempt 1", "OSError: no van")
    assert "\x1b" not in line


def test_a_reader_who_has_seen_enough_is_no_error(uri, event_store):
    with tailing(uri) as program:
        post(event_store, 1)
        program.stdout.readline()
        program.stdout.close()
        post(event_store, 2)
        code = program.wait(PATIENCE)

        assert code == 141
        assert program.stderr.read() == ""


def test_a_terminal_gets_colours(uri, event_store):
    with Terminal("events", "tail", "--datastore-uri", uri, "--namespace", POST) as terminal:
        terminal.see("following namespace")
        [found] = post(event_store, 1)
        claim(event_store)
        event_store.ack("ship", found)

        terminal.see("\x1b[32mdone")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0


def test_what_an_error_says_moves_no_cursor(uri, event_store):
    with Terminal("events", "tail", "--datastore-uri", uri, "--namespace", POST) as terminal:
        terminal.see("following namespace")
        [found] = post(event_store, 1)
        claim(event_store)
        event_store.release("ship", found, error="OSError: no \x1b[2Jvan")

        terminal.see("attempt 1  OSError: no \\x1b[2Jvan")
    assert "\x1b[2J" not in terminal.shown
