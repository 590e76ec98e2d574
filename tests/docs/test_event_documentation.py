"""What the pages on events say is so."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from ontologia import Discard, Event, Field, HandlerContext, OntologiaConfig, codec, on_event
from ontologia.delivery.lifecycle import ClaimState
from ontologia.schema.event import _LONGEST_TYPE, METADATA
from ontologia.schema.shape import _LONGEST_NAME
from ontologia.store.events.store import EventStore
from tests.docs.test_documentation import DOCS, blocks, public_methods
from tests.shop import Customer

REFERENCE = (DOCS / "reference/events.md").read_text()
LIFECYCLE = (DOCS / "lifecycle.md").read_text()


class Paid(Event):
    __event_type__ = "docs.paid"
    order_id: Field[str]


class Shipped(Event):
    __event_type__ = "docs.shipped"
    order_id: Field[str]


@on_event(Paid, name="book")
def book(ctx: HandlerContext[Paid]) -> None:
    ctx.ensure(Customer(id=ctx.event.order_id, name="Ada"))
    ctx.emit(Shipped(order_id=ctx.event.order_id))
    ctx.commit()


@on_event(Paid, name="fail")
def fail(ctx: HandlerContext[Paid]) -> None:
    raise ValueError(f"{ctx.event.order_id} is broken")


@on_event(Paid, name="refuse")
def refuse(ctx: HandlerContext[Paid]) -> None:
    raise Discard(f"not {ctx.event.order_id}")


# -- the reference ----------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [HandlerContext, EventStore], ids=str)
def test_every_method_is_documented(cls):
    missing = [n for n in public_methods(cls) if not re.search(rf"`{n}[(`]", REFERENCE)]

    assert missing == []


def test_what_the_store_knows_of_an_event_is_documented():
    assert [name for name in METADATA if f"`{name}`" not in REFERENCE] == []


def test_the_fields_of_every_listing_are_documented_and_no_others(session):
    session.commit(event=Paid(order_id="o1"))
    session.run([book, refuse], max_iterations=1)
    store = session.event_store
    [first] = [e for e in store.list_events("default") if e["type"] == "docs.paid"]

    for call, rows in {
        "list_namespaces()": store.list_namespaces(),
        "list_sessions(namespace)": store.list_sessions("default"),
        "list_consumers(namespace)": store.list_consumers("default"),
        "list_events(namespace, limit=100)": store.list_events("default"),
        "list_dead_letters(namespace, limit=100)": store.list_dead_letters("default"),
    }.items():
        [said] = re.findall(rf"^\| `{re.escape(call)}` \| ((?:`\w+` ?)+)", REFERENCE, re.MULTILINE)
        assert re.findall(r"\w+", said) == list(rows[0]), call
    shown = store.inspect_event(first["id"])
    for names in (shown, shown["claims"][0], shown["attempts"][0]):
        assert [name for name in names if f"`{name}`" not in REFERENCE] == []


# -- the life of an event -----------------------------------------------------------------------


def test_the_page_on_the_life_of_an_event_names_every_state_and_tables_that_exist(session, sql):
    named = set(re.findall(r"^\| `(\w+)` \|", LIFECYCLE, re.MULTILINE))
    there = {row[0] for row in sql("SELECT name FROM sqlite_master WHERE type = 'table'")}

    assert [s for s in ClaimState if s.value.replace("_", "-") not in LIFECYCLE] == []
    assert len(named) >= 8
    assert named - there == set()


# -- guides ---------------------------------------------------------------------------------------


@pytest.mark.req("ONT-205")
def test_the_way_from_handlers_of_commits_is_described_with_a_checklist():
    guide = DOCS / "howto/from-on-commit.md"
    page = guide.read_text()
    [before], [now] = blocks(guide, "text"), blocks(guide, "python")

    for old in ("@on_commit`", "@on_commit_entity(", "@on_schedule(", "Ontology(db_path"):
        assert re.search(rf"^\| .*{re.escape(old)}.* \| .*\|$", page, re.MULTILINE), old
    assert "@on_commit_entity" in before
    assert all(word in now for word in ("class UserUpdated(Event)", "ctx.commit()", "Schedule("))
    assert page.count("\n- [ ] ") >= 10


@pytest.mark.req("ONT-206")
@pytest.mark.parametrize(
    ("page", "advice"),
    [
        ("howto/handlers.md", "`ensure` says what should be true"),
        ("howto/handlers.md", "External effects are yours"),
        ("howto/handlers.md", "key=f"),
        ("howto/idempotency.md", "`ensure` is idempotent"),
        ("howto/idempotency.md", "Give the other side a key that is the same"),
        ("howto/tuning.md", "10 to 50"),
        ("howto/tuning.md", "10 to 15 s"),
        ("howto/tuning.md", "100 and more"),
        ("howto/tuning.md", "The lease is 2 to 3 times your longest"),
        ("explain/limits.md", "no savepoints"),
        ("explain/limits.md", "No events across namespaces"),
        ("explain/limits.md", "No history replay"),
        ("explain/limits.md", "No distributed transactions"),
    ],
)
def test_rules_tuning_and_non_goals_are_stated(page, advice):
    assert advice in (DOCS / page).read_text()


def test_the_bounds_are_those_of_the_code():
    page = (DOCS / "explain/limits.md").read_text()
    settings = OntologiaConfig.model_fields

    assert f"| {settings['max_batch_size'].default:,} | `max_batch_size`" in page
    assert f"| {settings['max_payload_bytes'].default // 2**20} MiB | `max_payload_bytes`" in page
    assert f"| {settings['max_event_chain_depth'].default} | `max_event_chain_depth`" in page
    assert f"| levels of JSON | {codec.MAX_DEPTH} |" in page
    assert _LONGEST_TYPE == _LONGEST_NAME == 200
    assert "| 200 characters |" in page


# -- looking at the database ----------------------------------------------------------------------


def test_the_queries_on_events_find_what_they_say(open_session, sql):
    # SQL's now is the machine's, and what failed must not be due again before it was asked for.
    hour = 3_600_000
    settings = {"clock": None, "event_backoff_base_ms": hour, "event_backoff_max_ms": hour}
    session = open_session(settings=settings)
    queries = {query.splitlines()[0]: query for query in blocks(DOCS / "howto/diagnose.md", "sql")}

    def ask(what):
        [query] = [query for title, query in queries.items() if what in title]
        return sql(query)

    session.commit(event=Paid(order_id="o1"))
    session.run([book], max_iterations=1)
    assert ask("the last event's chain") == [
        [0, "docs.paid", None, 1, "book"],
        [1, "docs.shipped", "book", None, None],
    ]
    session.run([fail, refuse], max_iterations=1)
    session.commit(event=Paid(order_id="o2"))
    assert ask("no session has looked at") == [[1]]
    store = session.event_store
    [taken] = store.claim("default", "other", session.session_id, ["docs.paid"], 1, 60_000)
    session.defer(Shipped(order_id="o3"), delay=timedelta(hours=1), dedup_key="o3")
    store.register_session("ghost", "default", {"hostname": "h1", "pid": 7})
    sql("UPDATE sessions SET last_heartbeat = '2026' WHERE session_id = 'ghost'", "SELECT 1")

    assert taken.order_id == "o1"
    assert sorted(ask("what waits for whom")) == [
        ["default", "book", 0, 1, 0, 0],
        ["default", "fail", 0, 1, 0, 1],
        ["default", "other", 0, 1, 1, 0],
        ["default", "refuse", 0, 1, 0, 0],
    ]
    assert sorted(row[1::2] for row in ask("the oldest unclaimed")) == [
        ["book", 1],
        ["fail", 1],
        ["other", 1],
        ["refuse", 1],
    ]
    [failing] = ask("what fails now")
    assert (failing[0], failing[3], failing[5]) == ("fail", 1, "ValueError: o1 is broken")
    [letters] = ask("dead letters by error")
    assert letters[:5] == ["default", "refuse", "docs.paid", "not o1", 1]
    assert ask("no consumer subscribes to") == [["default", "docs.shipped", 1]]
    [later] = ask("what is announced later")
    assert (later[2], later[4]) == ("docs.shipped", "o3")
    assert [row[0] for row in ask("they died")] == ["ghost"]
    assert ask("an open claim that is neither") == []
    assert store.check() == []


def test_the_query_for_stuck_claims_finds_one(session, sql):
    session.commit(event=Paid(order_id="o1"))
    session.run([fail], max_iterations=1)
    [query] = [
        q for q in blocks(DOCS / "howto/diagnose.md", "sql") if "an open claim that is neither" in q
    ]

    sql("UPDATE event_claims SET due_at = NULL", "SELECT 1")

    assert [row[1] for row in sql(query)] == ["fail"]
