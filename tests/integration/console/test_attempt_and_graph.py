"""What an attempt saw and wrote, who wrote in between, and what came of an event."""

from __future__ import annotations

import re
import threading
from html import unescape

import pytest

from ontologia import Entity, Event, Field, Session, on_event
from ontologia.runtime.operator import Operator
from ontologia.runtime.views.events import EventFilter, newest_events
from tests.integration.console.world import browsing, opened
from tests.integration.running import PATIENCE

EVIL = '"><img src=x onerror=alert(1)></script>'


class Account(Entity):
    id: Field[str] = Field(primary_key=True)
    balance: Field[int] = 0
    owner: Field[str] = "ada"
    pin: Field[str] = "9876543"


class Moved(Event):
    account: Field[str]
    amount: Field[int]


class Booked(Event):
    account: Field[str]


class Frozen(Event):
    account: Field[str]


@on_event(Frozen, name="freeze")
def freeze(ctx):
    ctx.update(Account, ctx.event.account, balance=-1)
    ctx.commit()


@pytest.fixture
def bank(open_session):
    """`book` writes what it read as it began, over what another commit wrote meanwhile."""
    session: Session = open_session(settings={"event_max_attempts": 2, "event_poll_interval_ms": 0})
    other: Session = open_session()

    @on_event(Moved, name="book")
    def book(ctx):
        if ctx.event.amount < 0:
            ctx.ensure(Account(id=ctx.event.account, balance=ctx.attempt))
            ctx.commit()
            raise ValueError(f"no room for {EVIL}")
        found = ctx.get(Account, ctx.event.account)
        before = 0 if found is None else found.balance
        if found is not None:
            other.update(Account, ctx.event.account, balance=2**53 + 1)
            other.commit()
        ctx.ensure(Account(id=ctx.event.account, balance=before + ctx.event.amount))
        ctx.commit(event=Booked(account=ctx.event.account))

    @on_event(Booked, name=f"tell {EVIL}")
    def tell(ctx):
        """Is done at once."""

    session.work = lambda: session.run([book, tell], max_iterations=20)
    return session


@pytest.fixture
def desk(bank):
    app = opened(bank)
    with browsing(app) as browser:
        yield browser
    app.close()


def move(bank, account, amount) -> str:
    moved = Moved(account=account, amount=amount)
    bank.commit(event=moved)
    bank.work()
    return str(moved.id)


def asked(desk, event_id, number, handler="book"):
    page = desk.get("/attempt", params={"id": event_id, "handler": handler, "number": number})
    assert page.status_code == 200, page.text
    return page.text


def cells(text: str, field: str) -> list[str]:
    """What the table of an object says of a field, without tags."""
    row = re.search(rf"<code>{field}</code></th>(.*?)</tr>", text, re.DOTALL)[1]
    found = re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)
    return [" ".join(unescape(re.sub(r"<[^>]+>", " ", each)).split()) for each in found]


@pytest.mark.req("NEW-220")
def test_a_race_is_shown_with_the_commit_that_caused_it(desk, bank):
    move(bank, "a", 5)
    event_id = move(bank, "a", 7)
    number = bank.head - 1  # of the other commit; the attempt's own is the last
    text = asked(desk, event_id, 1)
    assert cells(text, "balance") == ["5", f"{2**53 + 1} raced", "12 changed"]
    assert cells(text, "owner") == ["ada"] * 3
    assert "A race." in text
    assert re.search(rf"Commit <a [^>]*>{number}</a> of", text)
    assert "succeeded" in text


@pytest.mark.req("NEW-220")
def test_the_commit_of_another_handler_is_shown_with_its_event(desk, bank, open_session):
    move(bank, "a", 5)
    other: Session = open_session(settings={"event_poll_interval_ms": 0})
    frozen = Frozen(account="a")

    def meanwhile():
        other.commit(event=frozen)
        other.run([freeze], max_iterations=2)

    @on_event(Moved, name="slow")
    def slow(ctx):
        if ctx.event.amount != 1:
            return  # it was booked before
        thread = threading.Thread(target=meanwhile)
        thread.start()
        thread.join(PATIENCE)
        ctx.ensure(Account(id="a", balance=1))
        ctx.commit()

    moved = Moved(account="a", amount=1)
    bank.commit(event=moved)
    bank.run([slow], max_iterations=4)
    text = asked(desk, str(moved.id), 1, "slow")
    assert cells(text, "balance")[1:] == ["-1 raced", "1 changed"]
    why = text.split("Why:")[1].split("</p>")[0]
    assert "frozen" in why
    assert str(frozen.id) in why
    assert "freeze" in text.split("came in between")[0]


def test_without_another_writer_there_is_no_race(desk, bank):
    text = asked(desk, move(bank, "b", 5), 1)
    assert cells(text, "balance") == ["not there", "not there", "5 changed"]
    assert "A race." not in text
    assert "created" in text


def test_a_failed_attempt_has_its_traceback_and_what_it_had_committed(desk, bank):
    event_id = move(bank, "c", -1)
    first, second = asked(desk, event_id, 1), asked(desk, event_id, 2)
    assert "Traceback (most recent call last)" in second
    assert "ValueError: no room for" in unescape(second)
    assert "in book" in second
    assert cells(first, "balance") == ["not there", "not there", "1 changed"]
    assert cells(second, "balance") == ["1", "1", "2 changed"]
    assert f"/attempt?id={event_id}&amp;handler=book&amp;number=2" in first


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({}, 400),
        ({"id": "x", "handler": "book", "number": "one"}, 400),
        ({"id": "x", "handler": "book", "number": "9" * 30}, 400),
        ({"id": "x", "handler": "book", "number": "1"}, 404),
    ],
)
def test_an_attempt_that_is_not_there_says_so(desk, query, status):
    assert desk.get("/attempt", params=query).status_code == status


def test_an_attempt_that_was_not_made_says_so(desk, bank):
    event_id = move(bank, "d", 1)
    answer = desk.get("/attempt", params={"id": event_id, "handler": "book", "number": 3})
    assert answer.status_code == 404
    assert "made no attempt 3" in answer.text


def test_hidden_fields_are_hidden_at_all_three_moments(bank):
    event_id = move(bank, "e", 1)
    app = opened(bank, redact=["pin", "balance"])
    with browsing(app) as browser:
        text = asked(browser, event_id, 1)
    assert "9876543" not in text
    assert cells(text, "balance")[-1] == "hidden here changed"


def test_who_came_in_between_is_told_without_what_is_redacted(bank):
    move(bank, "a", 5)
    event_id = move(bank, "a", 7)
    made = bank.get_commit(bank.head - 1)["metadata"]["session_id"]
    for redact, shown in (([], True), (["session_id"], False)):
        app = opened(bank, redact=redact)
        with browsing(app) as browser:
            text = asked(browser, event_id, 1)
        app.close()
        [by] = re.findall(r"of (?:(?! of ).)*came in between", text)
        assert (made in by) == shown


def test_an_attempt_of_another_namespace_is_shown_there(desk, bank, open_session):
    elsewhere = open_session(namespace="branch")
    moved = Moved(account="z", amount=1)
    elsewhere.commit(event=moved)

    @on_event(Moved, name="note")
    def note(ctx):
        """Is done at once."""

    elsewhere.run([note], max_iterations=2)
    answer = desk.get("/attempt", params={"id": str(moved.id), "handler": "note", "number": 1})
    assert answer.status_code == 303
    assert "namespace=branch" in answer.headers["location"]
    assert "Attempt 1" in desk.get(answer.headers["location"]).text


def test_nothing_stored_is_more_than_text(desk, bank):
    event_id = move(bank, EVIL, -1)
    done = move(bank, EVIL, 1)
    booked = newest_events(bank, EventFilter(type="booked")).rows[0].event_id
    for text in (
        asked(desk, event_id, 2),
        asked(desk, done, 1),
        asked(desk, booked, 1, f"tell {EVIL}"),
        desk.get("/graph", params={"id": event_id}).text,
        desk.get("/graph", params={"id": done}).text,
    ):
        assert "<img" not in text
        assert "</script></" not in text
        assert "style=" not in text
        assert "&lt;img" in text


def test_the_graph_has_every_node_and_a_link_for_each(desk, bank):
    event_id = move(bank, "f", 1)
    failed = move(bank, "f", -1)
    Operator(bank, "eve").pause(f"tell {EVIL}")
    waiting = move(bank, "f", 1)
    text = desk.get("/graph", params={"id": event_id}).text
    assert re.search(r'class="[^"]*asked', text)
    assert "tell" in text
    assert f"/attempt?id={failed}&amp;handler=book&amp;number=1" in (
        desk.get("/graph", params={"id": failed}).text
    )
    assert re.search(r'class="[^"]*waits', desk.get("/graph", params={"id": waiting}).text)


@pytest.mark.parametrize(("query", "status"), [({}, 400), ({"id": "nothing"}, 404)])
def test_the_graph_of_nothing_says_so(desk, query, status):
    assert desk.get("/graph", params=query).status_code == status
