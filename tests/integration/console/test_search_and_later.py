"""An id of anything leads to its page; what happens later is listed, and can be cancelled."""

from __future__ import annotations

from html import unescape

import pytest

from ontologia import Entity, Event, Field, Schedule, Session, on_event
from ontologia.clock import to_text
from ontologia.runtime.views.later import deferred_events, schedules
from tests.integration.console.world import browsing, opened

EVIL = '"><img src=x onerror=alert(1)></script>'


class Parcel(Entity):
    id: Field[str] = Field(primary_key=True)


class Sent(Event):
    parcel: Field[str]


class Counted(Event):
    note: Field[str] = ""


SCHEDULES = [
    Schedule(event=Counted(), cron="*/5 * * * *"),
    Schedule(event=Counted(note=EVIL), cron="0 9 * * *", tz="Europe/Berlin"),
]


@pytest.fixture
def depot(open_session, clock):
    """A schedule that fired once, a parcel with the key 1, a commit 1 and a deferred event 1."""
    session: Session = open_session(settings={"event_poll_interval_ms": 0})
    session.ensure(Parcel(id="1"))
    session.commit()

    @on_event(Counted, name="count")
    def count(ctx):
        if ctx.event.note == "first":
            clock.advance(seconds=300)  # a tick, which the run sees

    session.commit(event=Counted(note="first"))
    session.run([count], schedules=SCHEDULES, max_iterations=4)
    for number in range(60):
        session.defer(Sent(parcel=f"p{number}"), delay=3600 + number, dedup_key=f"k{number}")
    session.defer(Counted(note=EVIL), delay=86_400)
    return session


@pytest.fixture
def desk(depot):
    app = opened(depot)
    with browsing(app) as browser:
        yield browser
    app.close()


def found(desk, text):
    return desk.get("/search", params={"q": text})


@pytest.mark.req("NEW-221")
def test_an_id_that_one_thing_has_leads_to_it(desk, depot):
    [deferred] = [each for each in deferred_events(depot, limit=100).rows if each.number == 60]
    answer = found(desk, f" {deferred.event_id} ")
    assert (answer.status_code, answer.headers["location"]) == (303, "/later?number=60")
    page = desk.get("/later?number=60").text
    assert 'class="meant"' in page
    assert deferred.event_id in page
    assert "p0" not in page  # it begins with the one that was asked for


def test_an_id_that_several_things_have_lists_them(desk):
    answer = found(desk, "1")
    assert answer.status_code == 200
    for kind in ("commit", "deferred event", "entity"):
        assert f'<td data-label="Kind">{kind}</td>' in answer.text


@pytest.mark.parametrize(
    "text", ["nothing", EVIL, "x" * 5_000, "9" * 40, "\ud83d", "%00", "' OR 1"]
)
def test_where_nothing_has_the_id_the_page_says_where_it_looked(desk, text):
    answer = desk.get("/search", params={"q": text.encode("utf-8", "surrogatepass")})
    assert answer.status_code == 200
    assert "Where it looked" in answer.text
    assert "Deferred events" in answer.text
    assert "<img" not in answer.text


def test_schedules_have_their_last_ticks_and_the_next_five(desk, depot):
    text = desk.get("/later").text
    assert text.count("<code>*/5 * * * *</code>") == 1
    assert "Europe/Berlin" in text
    times = text.split("<code>*/5 * * * *</code>")[1].split("</tr>")[0]
    [shown] = [each for each in schedules(depot) if each.cron == "*/5 * * * *"]
    assert shown.last
    assert to_text(shown.last[0].tick) in times
    assert times.count("<time") == len(shown.last) + 5 + 1  # the next one also in minutes
    assert "<img" not in text
    assert EVIL[:6] not in text


def test_deferred_events_come_in_pages_and_by_type(desk):
    first = desk.get("/later").text
    assert first.count('id="deferred-') == 50
    link = unescape(first.split('rel="next" href="')[1].split('"')[0])
    assert desk.get(link).text.count('id="deferred-') == 11
    of_type = desk.get("/later", params={"type": "counted"}).text
    assert of_type.count('id="deferred-') == 1
    assert "&lt;img" in of_type


@pytest.mark.parametrize(
    ("number", "status"), [("99999", 404), ("x", 400), ("9" * 40, 400), ("-1", 400)]
)
def test_a_deferred_event_that_does_not_wait_says_so(desk, number, status):
    assert desk.get("/later", params={"number": number}).status_code == status
