"""Repair, cleanup, fire and cancel: counted first, done as the command line does them, recorded."""

from __future__ import annotations

import re
import shlex

import pytest
from typer.testing import CliRunner

from ontologia import Entity, Event, Field, Schedule, Session, on_event
from ontologia.cli.main import app as cli
from ontologia.runtime.views.later import deferred_events, schedules
from tests.integration.console.test_verbs import act, ask, command, hidden, last_commit
from tests.integration.console.world import browsing, opened, vic
from tests.integration.running import until

DAY = 86_400
EVIL = '"><img src=x onerror=alert(1)></script>'


class Room(Entity):
    id: Field[str]


class Booked(Event):
    room: Field[str]


class Cleaned(Event):
    pass


@pytest.fixture
def hotel(open_session, clock):
    """3 old events of one type and 1 of another, 1 new one; a schedule; 2 deferred events."""

    @on_event(Cleaned, name=EVIL)
    def clean(ctx):
        """Is done at once."""

    session: Session = open_session(settings={"event_poll_interval_ms": 0})
    session.run([clean], schedules=[Schedule(event=Cleaned(), cron="0 9 * * *")], max_iterations=1)
    session.commit(event=[Booked(room="1"), Booked(room="2"), Booked(room=EVIL), Cleaned()])
    clock.advance(seconds=2 * DAY)
    session.ensure(Room(id="1"))
    session.commit(event=Booked(room="new"))
    for _ in range(2):
        session.defer(Booked(room="later"), delay=3600)
    return session


@pytest.fixture
def desk(hotel):
    app = opened(hotel)
    with browsing(app) as browser:
        browser.console = app
        yield browser
    app.close()


def done(console):
    until(lambda: console.jobs.running is None)


def examine(desk):
    token = desk.get("/health").text.split('name="form_token" value="')[1].split('"')[0]
    desk.post("/health/examine", {"form_token": token})
    done(desk.console)


def events(session) -> int:
    return len(list(session.event_store.list_events("default", limit=100)))


def same(mine, theirs, uri, shown):
    """Run the command that the page showed; both commits are alike but for who and via."""
    result = CliRunner().invoke(cli, [*shlex.split(shown)[1:], "--datastore-uri", uri])
    assert result.exit_code == 0, result.output
    theirs = theirs()
    assert (mine.pop("via"), mine.pop("operator")) == ("console", "ada")
    assert theirs.pop("operator") != "ada"
    assert mine == theirs


@pytest.mark.req("NEW-223")
def test_a_repair_is_counted_by_an_examination_first(desk, hotel, sql, uri):
    sql("DELETE FROM entity_latest")
    assert desk.get("/ask/repair").status_code == 400
    before = hotel.head
    assert "/ask/repair" not in desk.get("/health").text
    examine(desk)
    assert "/ask/repair" in desk.get("/health").text
    asked = ask(desk, "repair")
    assert "current entities are not what history says" in asked.text
    assert hotel.head == before
    [shown] = command(asked)
    answer = act(desk, "repair")
    assert (answer.status_code, answer.headers["location"]) == (303, "/health")
    done(desk.console)
    assert hotel.query().entities(Room).collect()[0].id == "1"
    mine = last_commit(hotel)
    assert mine["mended"]["entity_latest"] == 1
    text = desk.get("/health").text
    assert "entity latest 1" in text
    assert re.search(rf"recorded as commit <a [^>]*>{hotel.head}</a>", text)
    sql("DELETE FROM entity_latest")

    def theirs():
        found = last_commit(hotel)
        del found["mended"]["sessions"]  # silent for long, by the clock of the machine
        return found

    same(mine, theirs, uri, shown)


def test_where_nothing_is_wrong_a_repair_writes_nothing(desk, hotel):
    examine(desk)
    assert act(desk, "repair").status_code == 303
    done(desk.console)
    before = hotel.head
    act(desk, "repair")
    done(desk.console)
    assert hotel.head == before
    assert "Nothing was to be repaired" in desk.get("/health").text


@pytest.mark.req("NEW-223")
def test_a_cleanup_is_counted_first_and_deletes_what_was_counted(desk, hotel, clock, uri):
    asked = ask(desk, "cleanup", before="1d", type="booked")
    assert "3 events" in asked.text
    assert "Delete 3</button>" in asked.text
    [shown] = command(asked)
    assert "--before 1d --type booked" in shown
    clock.advance(seconds=2 * DAY)  # what has become old since then is not meant
    answer = desk.post("/do/cleanup", hidden(asked) | {"reason": "why"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/health")
    done(desk.console)
    assert events(hotel) == 2
    mine = last_commit(hotel)
    assert mine["counts"] == {"deleted": 3}
    assert mine["reason"] == "why"
    text = desk.get("/health").text
    assert "3 events were deleted" in text
    hotel.commit(event=[Booked(room=each) for each in "789"])
    clock.advance(seconds=2 * DAY)
    left = events(hotel)
    mine["arguments"].pop("before")  # the console says a time, the command line an age
    mine["counts"] = {"deleted": left - 1}

    def theirs():
        found = last_commit(hotel)
        found["arguments"].pop("before")
        return found

    same(mine, theirs, uri, shown)


def test_a_cleanup_of_nothing_leaves_no_record(desk, hotel):
    before = hotel.head
    assert act(desk, "cleanup", before="30d").status_code == 303
    done(desk.console)
    assert hotel.head == before
    assert "0 events were deleted" in desk.get("/health").text


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({}, 400),
        ({"before": "yesterday"}, 400),
        ({"before": "99999999d"}, 400),
        ({"before": "1d", "type": "x" * 5_000}, 400),
        ({"before": "1d", "until": "x"}, 400),
    ],
)
def test_a_cleanup_that_cannot_be_meant_says_so(desk, query, status):
    assert desk.get("/ask/cleanup", params=query).status_code == status


def test_a_cleanup_needs_a_reason(desk, hotel):
    assert act(desk, "cleanup", reason=None, before="1d").status_code == 400
    assert events(hotel) == 5


def test_a_cleanup_that_the_end_of_the_console_breaks_off_is_recorded(hotel):
    """It deletes in portions, and each counts."""
    app = opened(hotel)
    with browsing(app) as browser:
        browser.console = app
        app.live.tell = lambda _: app.jobs.last("cleanup", "default").stop()  # at its first portion
        act(browser, "cleanup", before="1d")
        done(app)
        job = app.jobs.last("cleanup", "default")
        assert "events were deleted before that" in job.error
    deleted = last_commit(hotel)["counts"]["deleted"]
    assert 0 < deleted < 4
    assert events(hotel) == 5 - deleted
    app.close()


def test_a_schedule_is_fired_as_by_the_command_line(desk, hotel, uri):
    [row] = schedules(hotel)
    page = desk.get("/later").text
    assert f'name="key" value="{row.key}"' in page
    [shown] = command(ask(desk, "fire", key=row.key))
    before = events(hotel)
    answer = act(desk, "fire", key=row.key)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/later?done=")
    assert "schedules fire" in desk.get(answer.headers["location"]).text
    assert events(hotel) == before + 1
    mine = last_commit(hotel)
    mine.pop("emitted")
    mine.pop("reason")

    def theirs():
        found = last_commit(hotel)
        found.pop("emitted")
        return found

    same(mine, theirs, uri, shown)


def test_a_deferred_event_is_cancelled_as_by_the_command_line(desk, hotel, uri):
    first, second = deferred_events(hotel).rows
    assert f'name="id" value="{first.event_id}"' in desk.get("/later").text
    [shown] = command(ask(desk, "cancel", id=first.event_id))
    assert act(desk, "cancel", id=first.event_id).status_code == 303
    mine = last_commit(hotel)

    def without_ids(found):
        assert found["cancelled"]["kind"] == "deferred"
        for name in ("id", "number", "created_at", "fire_at"):
            found["cancelled"].pop(name, None)
        del found["arguments"]
        return found

    shown = shown.replace(first.event_id, second.event_id)
    same(without_ids(mine), lambda: without_ids(last_commit(hotel)), uri, shown)
    assert not deferred_events(hotel).rows


def test_a_viewer_changes_nothing(hotel):
    before = hotel.head, events(hotel)
    app = opened(hotel, identify=vic)
    with browsing(app) as browser:
        for path in ("/health", "/later", "/preflight"):
            page = browser.get(path)
            assert page.status_code == 200
            assert "/ask/" not in page.text
        for verb, query in (
            ("repair", {}),
            ("cleanup", {"before": "0s"}),
            ("fire", {"key": "x"}),
            ("cancel", {"id": "1"}),
        ):
            assert browser.get(f"/ask/{verb}", params=query).status_code == 403
            answer = browser.post(f"/do/{verb}", query | {"form_token": "x", "reason": "x"})
            assert answer.status_code == 403
    assert (hotel.head, events(hotel)) == before
    assert app.jobs.last("cleanup", "default") is None
    app.close()


def test_nothing_stored_is_more_than_text(desk, hotel):
    for path in ("/later", "/health", "/ask/cleanup?before=0s"):
        assert "<img" not in desk.get(path).text, path
    examine(desk)
    assert "<img" not in desk.get("/health").text
