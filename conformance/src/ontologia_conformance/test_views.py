"""What operators are shown: the same on every database."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ontologia import (
    Discard,
    Entity,
    Event,
    Field,
    HandlerContext,
    Relation,
    Schedule,
    Session,
    on_event,
)
from ontologia.errors import InvalidValueError, NotFoundError, ReadTimeoutError
from ontologia.runtime.operator import Operator
from ontologia.runtime.session import core_of
from ontologia.runtime.views.attempts import attempt
from ontologia.runtime.views.audit import operators_commits
from ontologia.runtime.views.commits import commit, commits
from ontologia.runtime.views.dead_letters import (
    dead_letters,
    exception_of,
    failure_groups,
    raised_in,
)
from ontologia.runtime.views.events import EventFilter, event, newest_events
from ontologia.runtime.views.graph import Node, graph
from ontologia.runtime.views.handlers import handlers
from ontologia.runtime.views.later import deferred_events, schedules
from ontologia.runtime.views.objects import FieldValue, object_, objects, types, versions
from ontologia.runtime.views.overview import overview
from ontologia.runtime.views.paging import Count, cursor
from ontologia.runtime.views.search import search
from ontologia.runtime.views.sessions import live_sessions, sessions
from ontologia.runtime.views.store import namespaces
from ontologia.store.database import reading_within
from ontologia.store.events.operations import Selection
from ontologia.testing import ManualClock

Open = Callable[..., Session]


class Order(Entity):
    id: Field[str]
    status: Field[str] = Field(default="new")


class Product(Entity):
    id: Field[str]
    name: Field[str]
    price: Field[int]


class OrderPlaced(Event):
    order_id: Field[str]
    pieces: Field[int] = Field(default=1)


class OrderPaid(Event):
    order_id: Field[str]


PLACED = OrderPlaced.__event_type__


@on_event(OrderPlaced, name="pay")
def pay(ctx: HandlerContext[OrderPlaced]) -> None:
    ctx.ensure(Order(id=ctx.event.order_id, status="paid"))
    ctx.commit(event=OrderPaid(order_id=ctx.event.order_id))


@on_event(OrderPlaced, name="mail")
def mail(ctx: HandlerContext[OrderPlaced]) -> None:
    if ctx.event.pieces > 5:
        raise Discard("too many")
    if ctx.event.pieces > 1:
        raise ValueError(f"{ctx.event.pieces} pieces")


@pytest.fixture
def shop(open_session: Open) -> Session:
    return open_session(settings={"event_max_attempts": 1})


def place(session: Session, *pieces: int) -> list[str]:
    """An order of so many pieces for each; the ids of the events."""
    ids: list[str] = []
    for number in pieces:
        placed = OrderPlaced(order_id=f"o{number}", pieces=number)
        session.commit(event=placed)
        ids.append(str(placed.id))
    return ids


def work(session: Session) -> None:
    session.run([pay, mail], max_iterations=3)


@pytest.mark.req("NEW-200")
def test_the_overview_says_what_waits_for_whom_and_since_when(
    shop: Session, open_session: Open, clock: ManualClock
) -> None:
    work(shop)
    first = clock.now()
    place(shop, 1, 2)
    clock.advance(seconds=5)
    place(shop, 3)
    Operator(shop, "ada").pause("mail")

    here = open_session()

    found = overview(here)

    assert [(each.name, each.types, each.waiting) for each in found.handlers] == [
        ("mail", (PLACED,), Count(3)),
        ("pay", (PLACED,), Count(3)),
    ]
    assert {each.oldest_waiting for each in found.handlers} == {first}
    assert [each.name for each in found.paused] == ["mail"]
    assert found.head == shop.head
    assert here.session_id in [each.session_id for each in found.sessions]
    assert found.dead_letters == Count(0)


@pytest.mark.req("NEW-200")
def test_a_count_ends_at_its_bound_and_says_so(shop: Session) -> None:
    work(shop)
    place(shop, 1, 2, 3)

    [mailing, _] = handlers(shop, most=2)

    assert str(mailing.waiting) == "2+"
    assert str(mailing.claimed) == "0"
    assert [str(each.waiting) for each in handlers(shop, most=3)] == ["3", "3"]
    assert [str(each.waiting) for each in handlers(shop, most=None)] == ["3", "3"]


@pytest.mark.req("NEW-200")
def test_what_is_ready_and_what_failed_is_counted(open_session: Open, clock: ManualClock) -> None:
    shop = open_session()
    place(shop, 1, 2)
    work(shop)

    [mailing, _] = handlers(shop)
    assert (mailing.backoff, mailing.failing, mailing.waiting) == (Count(1), Count(1), Count(0))

    clock.advance(seconds=3_600)
    [mailing, _] = handlers(shop)
    assert (mailing.backoff, mailing.failing, mailing.waiting) == (Count(0), Count(1), Count(1))
    assert mailing.sessions == ()  # not heard of for an hour


@pytest.mark.req("NEW-200")
def test_sessions_are_alive_stopped_or_dead(open_session: Open, clock: ManualClock) -> None:
    gone = open_session()
    gone.close()
    silent = open_session()
    clock.advance(seconds=3_600)
    here = open_session()

    page = sessions(here, limit=2)

    assert [(each.session_id, each.state) for each in page.rows] == [
        (here.session_id, "alive"),
        (silent.session_id, "dead"),
    ] or page.rows[1].state == "stopped"
    rest = sessions(here, limit=2, before=page.next)
    states = {each.session_id: each.state for each in (*page.rows, *rest.rows)}
    assert states == {
        here.session_id: "alive",
        silent.session_id: "dead",
        gone.session_id: "stopped",
    }
    assert rest.next is None
    assert [each.session_id for each in live_sessions(here)] == [here.session_id]


@pytest.mark.req("NEW-201")
def test_events_are_listed_newest_first_in_pages(shop: Session, clock: ManualClock) -> None:
    ids: list[str] = []
    for number in range(5):
        ids += place(shop, number)
        clock.advance(seconds=1)

    first = newest_events(shop, limit=2)
    second = newest_events(shop, limit=2, before=first.next)
    third = newest_events(shop, limit=2, before=second.next)

    listed = [each.event_id for page in (first, second, third) for each in page.rows]
    assert listed == ids[::-1]
    assert third.next is None


FILTERS: dict[str, tuple[EventFilter, list[int]]] = {
    "type": (EventFilter(type=PLACED), [7, 2, 1]),
    "status": (EventFilter(type=PLACED, status="dead_lettered"), [7, 2]),
    "handler": (EventFilter(handler="mail"), [7, 2, 1]),
    "handler's status": (EventFilter(handler="pay", status="acked"), [7, 2, 1]),
    "text": (EventFilter(type=PLACED, payload=(("order_id", "o2"),)), [2]),
    "number": (EventFilter(type=PLACED, payload=(("pieces", "7"),)), [7]),
    "no such field": (EventFilter(type=PLACED, payload=(("colour", "7"),)), []),
}


@pytest.mark.req("NEW-201")
@pytest.mark.parametrize("asked", FILTERS)
def test_a_filter_has_the_events_of_which_all_is_true(shop: Session, asked: str) -> None:
    place(shop, 1, 2, 7)
    work(shop)
    which, wanted = FILTERS[asked]

    page = newest_events(shop, which)

    payloads = [event(shop, each.event_id) for each in page.rows]
    assert [each.payload["pieces"] for each in payloads if each is not None] == wanted


@pytest.mark.req("NEW-201")
def test_events_since_a_time_are_those_from_then_on(shop: Session, clock: ManualClock) -> None:
    place(shop, 1)
    clock.advance(seconds=10)
    [wanted] = place(shop, 2)

    page = newest_events(shop, EventFilter(since=clock.now() - timedelta(seconds=1)))

    assert [each.event_id for each in page.rows] == [wanted]


@pytest.mark.req("NEW-201")
def test_a_search_that_takes_too_long_says_how_far_it_came_and_goes_on(shop: Session) -> None:
    [first] = place(shop, 99)
    place(shop, *[1] * 250)
    which = EventFilter(type=PLACED, payload=(("pieces", "99"),))

    page = newest_events(shop, which, seconds=0)

    assert page.rows == ()
    assert page.searched_to is not None
    page = newest_events(shop, which, before=page.next, seconds=0)
    assert [each.event_id for each in page.rows] == [first]
    assert (page.next, page.searched_to) == (None, None)
    later = EventFilter(since=datetime(2100, 1, 1, tzinfo=UTC))
    assert newest_events(shop, later, seconds=0).searched_to is None  # there is nothing older


@pytest.mark.req("NEW-201")
def test_of_a_forgotten_handler_the_events_that_it_had_are_found(shop: Session) -> None:
    [had] = place(shop, 1)
    work(shop)
    shop.event_store.forget("default", "pay")
    place(shop, 2)

    page = newest_events(shop, EventFilter(handler="pay"))

    assert [(each.event_id, each.status) for each in page.rows] == [(had, "acked")]


@pytest.mark.req("NEW-201")
@pytest.mark.parametrize(
    "which",
    [
        EventFilter(status="lost"),
        EventFilter(payload=(("order_id", "o1"),)),
        EventFilter(type=""),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(shop: Session, which: EventFilter) -> None:
    with pytest.raises(InvalidValueError):
        newest_events(shop, which)


@pytest.mark.req("NEW-201")
@pytest.mark.parametrize("text", ["x", "", "W10", "x" * 5_000, "é"])
def test_a_cursor_that_is_none_is_refused(shop: Session, text: str) -> None:
    with pytest.raises(InvalidValueError):
        newest_events(shop, before=text)


@pytest.mark.req("NEW-202")
def test_an_event_is_shown_with_all_that_became_of_it(shop: Session) -> None:
    [event_id] = place(shop, 2)
    work(shop)

    found = event(shop, event_id)

    assert found is not None
    assert found.payload == {"order_id": "o2", "pieces": 2}
    assert {each.handler: each.state for each in found.claims} == {
        "mail": "dead_lettered",
        "pay": "acked",
    }
    [attempt] = found.attempts
    assert attempt.error == "ValueError: 2 pieces"
    assert attempt.raised_in is not None
    assert attempt.raised_in.function == "mail"
    assert len(found.commits) == 1
    assert event(shop, "nowhere") is None


@pytest.mark.req("NEW-203")
def test_dead_letters_are_grouped_by_handler_exception_and_place(shop: Session) -> None:
    ids = place(shop, 2, 3, 7)
    work(shop)

    found = failure_groups(shop)

    assert [(each.handler, each.exception, each.count) for each in found.groups] == [
        ("mail", "ValueError", 2),
        ("mail", "too many", 1),
    ]
    [values, discarded] = found.groups
    assert set(values.event_ids) == set(ids[:2])
    assert values.frame is not None
    assert values.frame.function == "mail"
    assert (values.retriable, discarded.frame) == (2, None)
    assert (found.looked_at, found.searched_to) == (3, None)


@pytest.mark.req("NEW-203")
def test_a_group_is_retried_as_its_events(shop: Session) -> None:
    place(shop, 2, 3, 7)
    work(shop)
    [values, _] = failure_groups(shop).groups

    done = Operator(shop, "ada").retry(Selection(handler="mail", event_ids=values.event_ids))

    assert done.retried == 2
    assert [each.last_error for each in dead_letters(shop).rows] == ["too many"]


@pytest.mark.req("NEW-203")
def test_dead_letters_are_listed_in_pages(shop: Session, clock: ManualClock) -> None:
    for number in (2, 3, 4):
        place(shop, number)
        work(shop)
        clock.advance(seconds=1)

    first = dead_letters(shop, limit=2)
    second = dead_letters(shop, limit=2, before=first.next)

    errors = [each.last_error for each in (*first.rows, *second.rows)]
    assert errors == ["ValueError: 4 pieces", "ValueError: 3 pieces", "ValueError: 2 pieces"]
    assert all(each.retriable for each in first.rows)
    assert second.next is None
    some = dead_letters(shop, Selection(error="3 pieces"))
    assert [each.last_error for each in some.rows] == ["ValueError: 3 pieces"]


TRACEBACK = """Traceback (most recent call last):
  File "/home/ada/shop/first.py", line 3, in cause
    raise KeyError
KeyError

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/ada/.venv/lib/python3.12/site-packages/ontologia/engine/runner.py", line 9, in run
    call()
  File "/home/ada/shop/mail.py", line 12, in mail
    send()
  File "/usr/lib/python3.12/smtplib.py", line 400, in send
    raise OSError
OSError
"""


@pytest.mark.req("NEW-203")
def test_the_frame_of_the_users_code_nearest_to_the_error_is_found() -> None:
    assert str(raised_in(TRACEBACK)) == "/home/ada/shop/mail.py:12 in mail"
    assert raised_in(None) is None
    assert raised_in("no traceback") is None


@pytest.mark.req("NEW-203")
@pytest.mark.parametrize(
    ("error", "found"),
    [
        ("ValueError: 2", "ValueError"),
        ("shop.errors.Late: by a day", "shop.errors.Late"),
        ("KeyError", "KeyError"),
        ("lease expired", "lease expired"),
        ("no colon: is a class", "no colon: is a class"),
        ("two\nlines", "two"),
    ],
)
def test_the_class_of_a_stored_error_is_found(error: str, found: str) -> None:
    assert exception_of(error) == found


@pytest.mark.req("NEW-204")
def test_what_operators_did_is_listed_newest_first(shop: Session) -> None:
    work(shop)
    place(shop, 1)
    Operator(shop, "ada").pause("mail")
    place(shop, 1)
    Operator(shop, "bob", reason="mail is back").resume("mail")

    first = operators_commits(shop, limit=1)
    second = operators_commits(shop, limit=1, before=first.next)

    assert [(each.operator, each.action, each.reason) for each in (*first.rows, *second.rows)] == [
        ("bob", "events resume", "mail is back"),
        ("ada", "events pause", None),
    ]
    assert second.next is None
    assert [each.operator for each in operators_commits(shop, operator="ada").rows] == ["ada"]


@pytest.mark.req("NEW-204")
def test_a_commit_that_only_mentions_an_operator_is_no_operators(
    shop: Session, direct: Callable[..., list[Any]]
) -> None:
    shop.ensure(Order(id="o1"))
    shop.commit()
    direct("UPDATE commits SET metadata_json = ? RETURNING id", ['{"note":{"operator":"x"}}'])

    assert operators_commits(shop).rows == ()


ENDLESS = """WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i > 0)
SELECT COUNT(*) FROM n"""


@pytest.mark.req("NEW-205")
@pytest.mark.parametrize("inside", [False, True])
def test_a_read_ends_at_its_deadline_and_the_session_goes_on(
    shop: Session, *, inside: bool
) -> None:
    database: Any = core_of(shop).store.database  # type: ignore[attr-defined]

    def inside_a_snapshot(statement: str) -> None:
        with database.read() as tx:
            tx.all(statement)

    ask = inside_a_snapshot if inside else database.all
    with reading_within(0.05), pytest.raises(ReadTimeoutError):
        ask(ENDLESS)
    ask(ENDLESS.replace("i > 0", "i < 100000"))

    place(shop, 1)
    assert len(newest_events(shop).rows) == 1


@pytest.mark.req("NEW-205")
def test_of_nested_deadlines_the_first_counts(shop: Session) -> None:
    with reading_within(0.05) as first, reading_within(60) as second:
        assert second is first
    with reading_within(60) as first, reading_within(0.05) as second:
        assert second is not first


# -- state and history ----------------------------------------------------------------------------


class Buys(Relation[Order, Order]):
    pieces: Field[int] = Field(default=1)


@pytest.mark.req("NEW-206")
def test_each_field_says_which_commit_set_it(shop: Session) -> None:
    shop.ensure(Product(id="p1", name="Pen", price=1))
    shop.commit()
    shop.ensure(Product(id="p1", name="Pen", price=2))
    shop.commit()
    shop.ensure(Product(id="p1", name="Pencil", price=2))
    shop.commit()

    now = object_(shop, "entity", "Product", "p1")
    then = object_(shop, "entity", "Product", "p1", as_of=2)

    assert {each.name: (each.value, commit_of(each)) for each in now.fields} == {
        "id": ("p1", 1),
        "name": ("Pencil", 3),
        "price": (2, 2),
    }
    assert {each.name: (each.value, commit_of(each)) for each in then.fields} == {
        "id": ("p1", 1),
        "name": ("Pen", 1),
        "price": (2, 2),
    }
    assert now.written_by is not None
    assert (now.written_by.commit_id, now.deleted) == (3, False)
    with pytest.raises(NotFoundError):
        object_(shop, "entity", "Product", "p1", as_of=0)


def commit_of(field: FieldValue) -> int | None:
    return None if field.set_by is None else field.set_by.commit_id


@pytest.mark.req("NEW-206")
def test_a_deleted_object_has_no_fields_and_its_versions_are_listed(shop: Session) -> None:
    for price in (1, 2):
        shop.ensure(Product(id="p1", name="Pen", price=price))
        shop.commit()
    shop.delete(Product(id="p1", name="Pen", price=2))
    shop.commit()

    found = object_(shop, "entity", "Product", "p1")
    first = versions(shop, "entity", "Product", "p1", limit=2)
    second = versions(shop, "entity", "Product", "p1", limit=2, before=first.next)

    assert (found.deleted, found.fields) == (True, ())
    assert [each.change for each in first.rows] == ["deleted", "updated"]
    assert first.rows[1].changes == {"price": (1, 2)}
    [oldest] = second.rows
    assert (oldest.change, set(oldest.changes)) == ("created", {"id", "name", "price"})
    assert second.next is None


@pytest.mark.req("NEW-206")
def test_the_relations_of_an_entity_are_shown_both_ways(shop: Session) -> None:
    shop.ensure([Order(id="a"), Order(id="b"), Order(id="c")])
    shop.ensure([Buys(left_key="a", right_key="b"), Buys(left_key="c", right_key="a")])
    shop.ensure(Buys(left_key="a", right_key="c"))
    shop.commit()

    found = object_(shop, "entity", "Order", "a", relations=1)

    assert [
        (each.end, [row.label for row in each.rows], each.more) for each in found.relations
    ] == [
        ("left", ["a:b"], True),
        ("right", ["c:a"], False),
    ]
    assert (
        object_(shop, "entity", "Order", "a", as_of=0 + shop.head).relations
        == object_(shop, "entity", "Order", "a").relations
    )
    pieces = object_(shop, "relation", "Buys", "a:b").fields
    assert [(each.name, each.value) for each in pieces] == [("pieces", 1)]


@pytest.mark.req("NEW-206")
def test_objects_are_listed_in_pages_and_filtered(shop: Session) -> None:
    shop.ensure([Product(id=f"p{n}", name="Pen", price=n) for n in range(5)])
    shop.commit()
    shop.ensure(Product(id="p0", name="Pencil", price=9))
    shop.commit()

    def listed(**asked: Any) -> list[str]:
        keys, cursor = list[str](), None
        while True:
            page = objects(shop, "entity", "Product", limit=2, before=cursor, **asked)
            keys += [each.label for each in page.rows]
            if page.next is None:
                return keys
            cursor = page.next

    assert listed() == ["p0", "p1", "p2", "p3", "p4"]
    assert listed(as_of=1) == ["p0", "p1", "p2", "p3", "p4"]
    assert listed(as_of=0) == []
    then = objects(shop, "entity", "Product", as_of=1, limit=1).rows[0]
    assert (then.fields["price"], then.commit_id) == (0, 1)
    assert listed(order="price:desc") == ["p0", "p4", "p3", "p2", "p1"]
    assert listed(filters=[("price", "lt", "3")]) == ["p1", "p2"]
    assert listed(filters=[("price", "lt", "3")], as_of=1) == ["p0", "p1", "p2"]
    [product] = [each for each in types(shop) if each.name == "Product"]
    assert (product.key, str(product.objects), product.fields["price"]) == ("id", "5", "int")


@pytest.mark.req("NEW-206")
def test_relations_are_listed_in_pages(shop: Session) -> None:
    keys = [("a", "b"), ("a", "c"), ("b", "a")]
    shop.ensure([Order(id=name) for name in "abc"])
    shop.ensure([Buys(left_key=left, right_key=right) for left, right in keys])
    shop.commit()

    first = objects(shop, "relation", "Buys", limit=2)
    second = objects(shop, "relation", "Buys", limit=2, before=first.next)

    assert [each.key[:2] for each in (*first.rows, *second.rows)] == keys


@pytest.mark.req("NEW-207")
def test_an_attempt_shows_what_came_in_between(shop: Session, open_session: Open) -> None:
    other = open_session()

    @on_event(OrderPaid, name="ship")
    def ship(ctx: HandlerContext[OrderPaid]) -> None:
        other.ensure(Order(id="o1", status="changed"))
        other.commit()
        ctx.ensure(Order(id="o1", status="shipped"))
        ctx.commit()

    shop.ensure(Order(id="o1", status="old"))
    shop.commit()
    shop.commit(event=OrderPaid(order_id="o1"))
    shop.run([ship], max_iterations=2)
    [row] = newest_events(shop, EventFilter(type=OrderPaid.__event_type__)).rows

    found = attempt(shop, row.event_id, "ship", 1)

    [written] = found.races
    assert found.read_commit == 1
    assert [
        each and each["status"] for each in (written.at_begin, written.before, written.after)
    ] == ["old", "changed", "shipped"]
    assert written.overtaken_by is not None
    assert written.overtaken_by.commit_id == 2
    assert (written.raced, written.why) == (("status",), ())
    assert [each.commit_id for each in found.commits] == [3]
    with pytest.raises(NotFoundError):
        attempt(shop, row.event_id, "ship", 2)


@pytest.mark.req("NEW-207")
def test_a_race_is_found_behind_the_attempts_own_commit_with_why_it_was_made(
    shop: Session, open_session: Open
) -> None:
    """The other commit is a handler's, and the attempt commits before and after it."""
    other = open_session()

    @on_event(OrderPlaced, name="check")
    def check(ctx: HandlerContext[OrderPlaced]) -> None:
        ctx.ensure(Order(id="o1", status="checked"))
        ctx.commit()

    @on_event(OrderPaid, name="ship")
    def ship(ctx: HandlerContext[OrderPaid]) -> None:
        other.commit(event=OrderPlaced(order_id="o1"))
        other.run([check], max_iterations=1)
        for status in ("packed", "shipped"):
            ctx.ensure(Order(id="o1", status=status))
            ctx.commit()

    shop.ensure(Order(id="o1", status="old"))
    shop.commit()
    shop.commit(event=OrderPaid(order_id="o1"))
    shop.run([ship], max_iterations=2)
    [row] = newest_events(shop, EventFilter(type=OrderPaid.__event_type__)).rows
    [placed] = newest_events(shop, EventFilter(type=PLACED)).rows

    found = attempt(shop, row.event_id, "ship", 1)

    for written, before in zip(found.written, ("checked", "packed"), strict=True):
        assert written.before is not None
        assert (written.before["status"], written.raced) == (before, ("status",))
        assert written.overtaken_by is not None
        assert written.overtaken_by.handler == "check"
        assert [each.event_id for each in written.why] == [placed.event_id]


@pytest.mark.req("NEW-207")
def test_attempts_from_before_a_retry_have_their_own_commits(
    shop: Session, clock: ManualClock
) -> None:
    """Each commits as attempt 1, and fails."""

    @on_event(OrderPaid, name="ship")
    def ship(ctx: HandlerContext[OrderPaid]) -> None:
        ctx.ensure(Order(id="o1", status=f"try {clock.now().second}"))
        ctx.commit()
        raise ValueError("no box")

    shop.commit(event=OrderPaid(order_id="o1"))
    shop.run([ship], max_iterations=1)
    clock.advance(seconds=7)
    Operator(shop, "ada").retry(Selection(handler="ship"))
    shop.run([ship], max_iterations=1)
    [row] = newest_events(shop, EventFilter(type=OrderPaid.__event_type__)).rows

    first, second = (attempt(shop, row.event_id, "ship", number) for number in (0, 1))

    written = [[each.after and each.after["status"] for each in a.written] for a in (first, second)]
    assert written == [["try 0"], ["try 7"]]


@pytest.mark.req("NEW-207")
def test_a_failed_attempt_has_its_traceback(shop: Session) -> None:
    [event_id] = place(shop, 2)
    work(shop)

    found = attempt(shop, event_id, "mail", 1)

    assert found.failed is not None
    assert "ValueError: 2 pieces" in str(found.failed.traceback)
    assert (found.commits, found.written) == ((), ())


@pytest.mark.req("NEW-208")
def test_the_graph_leads_from_event_to_handler_to_commit_to_event(shop: Session) -> None:
    shop.ensure(Order(id="first"))
    shop.commit(event=OrderPlaced(order_id="o2", pieces=2))
    work(shop)
    [placed] = newest_events(shop, EventFilter(type=PLACED)).rows

    found = graph(shop, placed.event_id)

    def drawn(node: Node) -> Any:
        return (node.kind, node.label, [drawn(each) for each in node.children])

    [root] = found.roots
    assert root.kind == "commit"
    assert root.id == "1"
    [event_node] = root.children
    assert event_node.asked
    by_name = {each.label: each for each in event_node.children}
    assert by_name["mail"].state == "dead_lettered"
    assert [each.kind for each in by_name["mail"].children if each.kind != "event"] == ["attempt"]
    [commit_node] = by_name["pay"].children
    assert drawn(commit_node)[:2] == ("commit", "handler pay")
    [paid] = commit_node.children
    assert (paid.kind, paid.label) == ("event", OrderPaid.__event_type__)


@pytest.mark.req("NEW-208")
def test_a_replayed_event_links_to_what_it_repeats(shop: Session) -> None:
    [event_id] = place(shop, 1)

    new_id = Operator(shop, "ada").replay(event_id)

    [root] = graph(shop, new_id).roots
    assert (root.id, root.repeats) == (new_id, event_id)


@pytest.mark.req("NEW-209")
def test_the_commit_that_a_handlers_event_came_with_is_found(shop: Session) -> None:
    place(shop, 1)
    work(shop)
    [paid] = newest_events(shop, EventFilter(type=OrderPaid.__event_type__)).rows
    found = event(shop, paid.event_id)

    assert found is not None
    assert found.source == "pay"
    assert found.commit_id is not None
    made = commit(shop, found.commit_id).made
    assert (made.handler, made.emitted) == ("pay", (paid.event_id,))


@pytest.mark.req("NEW-206")
def test_commits_are_listed_newest_first_and_by_metadata(shop: Session) -> None:
    [event_id] = place(shop, 1)
    work(shop)
    for name in "abc":
        shop.ensure(Order(id=name))
        shop.commit()

    first = commits(shop, limit=2)
    second = commits(shop, limit=2, before=first.next)
    numbers = [each.commit_id for each in (*first.rows, *second.rows)]
    assert numbers == [4, 3, 2, 1]
    [handled] = commits(shop, metadata={"handler_id": "pay"}).rows
    assert (handled.commit_id, handled.by) == (1, "handler pay")
    of_event = {"event_id": event_id}
    assert commits(shop, metadata=of_event).rows == (handled,)
    assert commits(shop, metadata=of_event, before=second.next or cursor(1)).rows == ()
    detail = commit(shop, 2)
    assert (detail.before, detail.after) == (1, 3)
    [created] = detail.changes.rows
    assert (created.change, created.label) == ("created", "a")
    assert created.fields == {"id": (None, "a"), "status": (None, "new")}
    with pytest.raises(NotFoundError):
        commit(shop, 5)


@pytest.mark.req("NEW-210")
def test_deferred_events_are_listed_in_pages(shop: Session) -> None:
    for seconds in (30, 10, 20):
        shop.defer(OrderPaid(order_id=f"o{seconds}"), delay=seconds)
    shop.defer(OrderPlaced(order_id="o"), delay=5)

    first = deferred_events(shop, type=OrderPaid.__event_type__, limit=2)
    second = deferred_events(shop, type=OrderPaid.__event_type__, limit=2, after=first.next)

    found = [each.payload["order_id"] for each in (*first.rows, *second.rows)]
    assert found == ["o10", "o20", "o30"]
    assert second.next is None


@pytest.mark.req("NEW-211")
def test_an_id_of_anything_is_found(shop: Session) -> None:
    [event_id] = place(shop, 1)
    work(shop)
    number = shop.defer(OrderPaid(order_id="o1"), delay=60)

    def kinds(text: str) -> list[str]:
        return [each.kind for each in search(shop, text)]

    assert kinds(event_id) == ["event"]
    assert kinds(" o1 ") == ["entity"]
    assert kinds("1") == ["deferred", "commit"] if number == 1 else ["commit"]
    assert kinds(shop.session_id) == ["session"]
    assert kinds("pay") == ["handler"]
    assert kinds("Order") == ["type"]
    for nothing in ("", "nowhere", "x" * 5_000, "a\0b", "\ud800", "9" * 30):
        assert kinds(nothing) == []


# -- what operators do ----------------------------------------------------------------------------


@pytest.mark.req("NEW-213")
def test_what_an_operator_emits_is_recorded_with_it(shop: Session) -> None:
    ada = Operator(shop, "ada", reason="forgotten", via="console")

    done = ada.emit(PLACED, {"order_id": "o1", "pieces": 2}, cls=OrderPlaced, dedup_key="k")
    again = ada.emit(PLACED, '{"order_id": "o1"}', dedup_key="k")
    later = ada.emit(PLACED, {"order_id": "o2"}, delay=60)

    assert again == (done.event_id, None, None)
    assert later.deferred == 1
    found = event(shop, done.event_id)
    assert found is not None
    assert (found.commit_id, found.payload["pieces"]) == (done.commit_id, 2)
    [second, first] = operators_commits(shop).rows
    assert (first.commit_id, second.commit_id) == (done.commit_id, later.commit_id)
    assert (first.action, first.reason, first.via) == ("emit", "forgotten", "console")
    assert first.arguments == {"type": PLACED, "dedup_key": "k"}
    assert first.metadata["emitted"] == [done.event_id]
    for wrong in ({"order_id": "o1", "colour": "red"}, {"order_id": 7}):
        with pytest.raises(ValueError, match=r"colour|order_id"):
            ada.emit(PLACED, wrong, cls=OrderPlaced)
    assert shop.head == second.commit_id


@pytest.mark.req("NEW-214")
def test_an_operator_works_in_the_namespace_that_is_named(
    shop: Session, open_session: Open
) -> None:
    there = open_session(namespace="elsewhere", settings={"event_max_attempts": 1})
    place(there, 2)
    there.run([mail], max_iterations=2)
    ada = Operator(shop, "ada", namespace="elsewhere")

    assert ada.pause("mail")
    assert ada.retry(Selection(handler="mail")).retried == 1
    emitted = ada.emit(PLACED, {"order_id": "o9"})

    assert {each.namespace for each in operators_commits(shop).rows} == {"elsewhere"}
    assert [each.name for each in overview(there).paused] == ["mail"]
    found = event(shop, emitted.event_id)
    assert found is not None
    assert found.namespace == "elsewhere"
    with pytest.raises(InvalidValueError):
        Operator(shop, "ada", namespace="")


DAILY = Schedule(event=OrderPaid(order_id="daily"), cron="0 2 * * *", tz="Europe/Berlin")


@pytest.mark.req("NEW-215")
def test_the_schedules_that_sessions_run_are_on_record(
    open_session: Open, clock: ManualClock
) -> None:
    running = open_session()
    running.add_schedule(DAILY)
    running.run([pay], max_iterations=2)
    clock.advance(seconds=86_400)
    running.run([pay], max_iterations=2)
    clock.advance(seconds=86_400)
    here = open_session()
    fired = newest_events(here, EventFilter(type=OrderPaid.__event_type__))

    [found] = schedules(here)

    assert (found.key, found.type) == (DAILY.key, OrderPaid.__event_type__)
    assert (found.payload, found.cron, found.tz) == (
        {"order_id": "daily"},
        "0 2 * * *",
        "Europe/Berlin",
    )
    assert [each.hour for each in found.next] == [1] * 5
    assert found.next[0] > clock.now()
    assert [each.event_id for each in found.last] == [each.event_id for each in fired.rows]


@pytest.mark.req("NEW-215")
def test_a_schedule_that_comes_while_a_session_runs_is_on_record(
    open_session: Open, clock: ManualClock
) -> None:
    shop = open_session()
    seen: list[str] = []

    @on_event(OrderPlaced, name="plan")
    def plan(ctx: HandlerContext[OrderPlaced]) -> None:
        shop.add_schedule(DAILY)
        while not schedules(shop):  # written beside the run
            clock.advance(seconds=0.1)
            time.sleep(0.02)
        seen.extend(each.key for each in schedules(shop))

    place(shop, 1)
    shop.run([plan], max_iterations=1)

    assert set(seen) == {DAILY.key}


@pytest.mark.req("NEW-215")
def test_a_schedule_is_fired_by_an_operator_beside_its_ticks(open_session: Open) -> None:
    shop = open_session()
    shop.run([pay], schedules=[DAILY], max_iterations=1)

    event_id = Operator(shop, "ada").fire(OrderPaid.__event_type__)
    again = Operator(shop, "ada").fire(DAILY.key)

    found = event(shop, event_id)
    assert found is not None
    assert found.payload == {"order_id": "daily"}
    assert again != event_id
    assert [each.action for each in operators_commits(shop).rows] == ["schedules fire"] * 2
    assert schedules(shop)[0].last == ()
    with pytest.raises(NotFoundError):
        Operator(shop, "ada").fire("nothing")


@pytest.mark.req("NEW-200")
def test_the_namespaces_of_a_store_are_listed_by_name(shop: Session, open_session: Open) -> None:
    for name in ("b", "a"):
        open_session(namespace=name)
    place(shop, 1)

    assert namespaces(shop) == ["a", "b", "default"]
    assert namespaces(shop, most=2) == ["a", "b"]
