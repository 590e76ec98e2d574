"""Commits on PostgreSQL: numbers in the order of visibility, what is written, opening."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from ontologia import Event, Field, HandlerContext, OntologiaConfig, Session, on_event
from ontologia.errors import InvalidValueError, LockContentionError
from ontologia.store.open import open_store
from ontologia.store.postgres.layout import LAYOUT
from ontologia.store.protocol import Store, Transaction
from ontologia.store.rows import RawChange
from ontologia.store.writer import Request
from ontologia.testing import ManualClock
from tests.shop import Customer, Product, Subscription

Open = Callable[..., Session]
Sql = Callable[..., list[list[Any]]]


class ProductOrdered(Event):
    sku: Field[str]


@pytest.fixture
def open_(uri: str, clock: ManualClock) -> Iterator[Callable[..., Store]]:
    """Open stores; they are closed at the end."""
    opened: list[Store] = []

    def open_one(**settings: Any) -> Store:
        opened.append(open_store(uri, OntologiaConfig(**settings), clock, Random(1)))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def write(store: Store, sku: str) -> int:
    with store.write() as tx:
        return write_in(tx, sku)


def write_in(tx: Any, sku: str) -> int:
    change = RawChange("entity", "Product", (sku,), None, f'{{"price":1.0,"sku":"{sku}"}}')
    number: int = tx.write_commit([change], metadata={}, versions={("entity", "Product"): 1})
    return number


def eventually(condition: Callable[[], object]) -> bool:
    """Wait for another thread, or the server, to have come somewhere."""
    for _ in range(2000):
        if condition():
            return True
        time.sleep(0.005)
    return False


# -- numbers ----------------------------------------------------------------------------------


@pytest.mark.req("SQL-005", "SQL-009")
def test_a_commit_held_open_in_the_middle_holds_back_every_later_number(
    open_: Callable[..., Store], sql: Sql
) -> None:
    first, second, reader = open_(), open_(lock_timeout_ms=30_000), open_()
    numbers: list[int] = []
    later = threading.Thread(target=lambda: numbers.append(write(second, "b")))

    with first.write() as tx:
        assert write_in(tx, "a") == 1
        later.start()
        waiting = (
            "SELECT COUNT(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database"
            " WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()"
        )
        assert eventually(lambda: sql(waiting) == [[1]])
        assert reader.get_head_commit_id() is None
        assert numbers == []
    later.join()

    assert numbers == [2]
    assert [row.id for row in reader.list_commits(limit=9)] == [2, 1]


@pytest.mark.req("SQL-005", "SQL-074")
def test_a_reader_who_follows_the_numbers_never_passes_a_gap(
    open_session: Open, open_: Callable[..., Store]
) -> None:
    sessions = [open_session(entity_types=[Product]) for _ in range(4)]
    follower, looks = open_(), list[list[int]]()

    def commit_some(session: Session, name: int) -> None:
        for number in range(25):
            session.ensure(Product(sku=f"{name}-{number}", price=1.0))
            session.commit()

    writers = [
        threading.Thread(target=commit_some, args=(each, n)) for n, each in enumerate(sessions)
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        looks.append([row.id for row in follower.list_commits(limit=1000)])
    looks.append([row.id for row in follower.list_commits(limit=1000)])

    assert looks[-1] == list(range(100, 0, -1))
    assert all(look == list(range(len(look), 0, -1)) for look in looks)


@pytest.mark.req("SQL-002", "SQL-009")
def test_a_commit_that_was_taken_back_leaves_no_number_out(open_: Callable[..., Store]) -> None:
    store = open_()
    assert write(store, "a") == 1

    def fail() -> None:
        with store.write() as tx:
            assert write_in(tx, "b") == 2
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert write(store, "c") == 2


@pytest.mark.req("SQL-061")
def test_events_do_not_wait_for_a_commit(open_: Callable[..., Store]) -> None:
    store, other = open_(), open_(lock_timeout_ms=50)

    with store.write() as tx:
        write_in(tx, "a")
        other.events.enqueue(ProductOrdered(sku="a"), "default")
        types = [ProductOrdered.__event_type__]
        [claimed] = other.events.claim("default", "h", "s", types, 9, 30_000)
        other.events.ack("h", claimed.id)
        [listed] = other.events.list_events("default")

    assert (claimed.sku, listed["status"]) == ("a", "acked")


@pytest.mark.req("SQL-060", "SQL-061", "SQL-065")
def test_a_long_write_begins_between_two_commits_and_is_renewed_during_its_own(
    open_: Callable[..., Store],
) -> None:
    store, other = open_(), open_()
    with store.write() as tx:
        write_in(tx, "a")
        with pytest.raises(LockContentionError), other.long_write("other", timeout_ms=50):
            pass

    with other.long_write("other"), other.write(owner_id="other") as tx:
        write_in(tx, "b")
        tx.verify_lock("other")
        assert store._lease.renew("other")  # type: ignore[attr-defined]


# -- what is written --------------------------------------------------------------------------


@pytest.mark.req("SQL-071")
def test_what_is_compared_is_the_text_and_not_what_jsonb_makes_of_it(
    open_session: Open, sql: Sql
) -> None:
    session = open_session(entity_types=[Customer])

    def commit(number: float) -> int | None:
        profile = {"bb": number, "a": 1e22}  # jsonb has another order of keys, and one number
        session.ensure(Customer(id="c", name="Ada", profile=profile))
        return session.commit()

    assert [commit(1.0), commit(1.0), commit(1), commit(1)] == [1, None, 2, None]
    assert sql("SELECT fields_json FROM entity_latest") == [
        ['{"id":"c","name":"Ada","profile":{"a":1e+22,"bb":1},"tier":"standard"}']
    ]


@pytest.mark.thorough
def test_a_large_commit_is_history_and_current_as_a_whole(open_session: Open, sql: Sql) -> None:
    session = open_session(settings={"max_batch_size": 50_000})
    session.ensure(Product(sku=f"{n:05}", price=1.0) for n in range(12_000))
    session.ensure(Subscription(left_key="c", right_key=f"{n}", seats=n) for n in range(12_000))
    assert session.commit() == 1
    session.ensure(Product(sku=f"{n:05}", price=1.0) for n in range(11_999))  # as they are
    session.ensure(Product(sku="11999", price=2.0))
    session.delete(Subscription(left_key="c", right_key=f"{n}", seats=n) for n in range(11_999))

    assert session.commit() == 2

    assert sql("SELECT commit_id, COUNT(*) FROM entity_latest GROUP BY 1 ORDER BY 1") == [
        [1, 11_999],
        [2, 1],
    ]
    assert sql("SELECT right_key, commit_id, fields_json FROM relation_latest") == [
        ["11999", 1, '{"seats":11999}']
    ]
    assert sql("SELECT COUNT(*) FROM relation_history WHERE fields_json = 'null'") == [[11_999]]
    assert session.diff(1, 2).deleted[0].right_key == "0"


# -- opening ----------------------------------------------------------------------------------

PROGRAM = """
import sys
from ontologia import Session
from tests.shop import Customer, Product

with Session(sys.argv[1], entity_types=[Customer, Product]) as session:
    session.ensure(Product(sku=sys.argv[2], price=1.0))
    print(session.commit())
"""


@pytest.mark.thorough
@pytest.mark.req("SQL-009", "ONT-005")
def test_ten_processes_that_open_at_once_share_one_store(uri: str, sql: Sql) -> None:
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, uri, f"{n}"], stdout=subprocess.PIPE, text=True
        )
        for n in range(10)
    ]
    said = [program.communicate()[0] for program in programs]

    assert sorted(map(int, said)) == list(range(1, 11))
    assert sql("SELECT type_name, schema_version_id FROM schema_versions ORDER BY 1") == [
        ["Customer", 1],
        ["Product", 1],
    ]


def test_a_schema_that_held_events_alone_gets_state_and_keeps_them(
    open_session: Open, sql: Sql
) -> None:
    old = open_session()
    old.event_store.enqueue(ProductOrdered(sku="a"), "default")
    old.close()
    sql(
        "DROP TABLE entity_history, relation_history, entity_latest, relation_latest, "
        "schema_registry, schema_versions, locks CASCADE",
        "UPDATE ontologia_layout SET version = 1",
    )

    session = open_session(entity_types=[Product])
    session.ensure(Product(sku="a", price=1.0))

    assert session.commit() == 1
    assert sql("SELECT version FROM ontologia_layout") == [[LAYOUT]]
    assert len(session.event_store.list_events("default")) == 1


# -- a session as a whole -----------------------------------------------------------------------


@pytest.mark.req("ONT-085")
def test_a_run_gives_events_to_handlers_which_commit(open_session: Open, sql: Sql) -> None:
    session = open_session(entity_types=[Product])

    @on_event(ProductOrdered)
    def deliver(ctx: HandlerContext[ProductOrdered]) -> None:
        ctx.ensure(Product(sku=ctx.event.sku, price=2.0))
        ctx.commit(event=None)

    session.ensure(Product(sku="a", price=1.0))
    session.commit(event=ProductOrdered(sku="b"))
    session.run([deliver], max_iterations=1)

    assert sql("SELECT entity_key, commit_id FROM entity_latest ORDER BY 1") == [["a", 1], ["b", 2]]
    [consumer] = session.event_store.list_consumers("default")
    assert (consumer["ready"], consumer["claimed"]) == (0, 0)
    assert session.event_store.check() == []


def test_a_key_that_no_index_can_hold_is_refused_in_our_words(session, monkeypatch):
    """With a long name of its type, a key within our limit may be too long for the server's."""
    monkeypatch.setattr("ontologia.store.key_length.LONGEST_KEY", 10_000)
    session.ensure(Customer(id=Random(1).randbytes(4_000).hex(), name="Ada"))
    with pytest.raises(InvalidValueError, match="longer than an index can hold"):
        session.commit()
    session.discard()

    assert session.head == 0


@pytest.mark.req("ONT-121")
def test_a_lease_that_runs_out_while_a_commit_waits_for_its_turn_is_seen(
    open_: Callable[..., Store], uri: str, clock: ManualClock
) -> None:
    """The fence is asked together with the lock; what counts is when the lock was had."""
    store, other = open_(lock_timeout_ms=10_000), open_()
    other.events.enqueue(ProductOrdered(sku="a"), "default")
    consumer = store.events.consumers.register("default", "ship", [ProductOrdered.__event_type__])
    [claim] = store.events.claims.claim(
        consumer,
        [ProductOrdered.__event_type__],
        session_id="s1",
        limit=1,
        lease_ms=30_000,
        policy=store.events.policy,
    )
    held: list[bool] = []

    class Commit(Request):
        state = True

        def look_ahead(self, tx: Transaction) -> None:
            tx.look_ahead(claim, {})

        def write(self, tx: Transaction) -> None:
            tx.admit()
            held.append(tx.holds(claim))

    waiting = threading.Thread(target=store.submit, args=(Commit(),))
    with other.write():
        waiting.start()
        blocked = (
            "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'advisory' AND state = 'active'"
            " AND datname = current_database()"
        )
        assert eventually(lambda: other.events._database.all(blocked))
        clock.advance(seconds=30)
    waiting.join()

    assert held == [False]
