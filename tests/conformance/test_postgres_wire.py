"""Statements on their way to the server: together, prepared once, and never half."""

from __future__ import annotations

import operator
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from ontologia.store.database import AnswerLost
from ontologia.store.postgres.wire import Connection, Statement, Wire, portions
from ontologia_conformance.backends import POSTGRES

pytestmark = POSTGRES

ONE = Statement("SELECT %s::bigint")
ROWS = Statement("SELECT n, 'row ' || n FROM generate_series(1, %(most)s::int) n")
FAILS = Statement("SELECT 1 / %s::int")


@pytest.fixture
def connect(postgres_uri: str) -> Iterator[Any]:
    opened: list[Connection] = []

    def connected(old: Connection | None = None) -> Connection:
        assert len(opened) < 10, "one connection after the other"
        opened.append(Connection.connect(postgres_uri, autocommit=True))
        return opened[-1]

    yield connected
    for connection in opened:
        connection.close()


@pytest.fixture
def wire(connect: Any) -> Wire:
    return Wire(connect(), connect, prepares=True)


def test_answers_come_in_the_order_of_the_questions(wire: Wire) -> None:
    first, many, last = wire.ask(ONE, (1,)), wire.ask(ROWS, {"most": 3}), wire.ask(ONE, (2,))

    assert list(last) == [(2,)]
    assert list(many) == [(1, "row 1"), (2, "row 2"), (3, "row 3")]
    assert list(first) == [(1,)]


@pytest.mark.parametrize(
    ("look", "seen"), [(list, [(1,)]), (len, 1), (bool, True), (operator.itemgetter(0), (1,))]
)
def test_rows_are_waited_for_when_they_are_first_looked_at(
    wire: Wire, look: Callable[[Any], Any], seen: object
) -> None:
    rows, others = wire.ask(ONE, (1,)), wire.ask(ROWS, {"most": 0})
    assert (rows.result, others.result) == (None, None)

    assert look(rows) == seen

    assert others.result is not None
    assert (list(others), len(others), bool(others)) == ([], 0, False)
    assert rows[0:1] == [(1,)]


@pytest.mark.parametrize("look", [list, len, bool, operator.itemgetter(0)])
def test_rows_that_were_lost_with_the_connection_are_not_taken_for_none(
    wire: Wire, look: Callable[[Any], Any]
) -> None:
    rows = wire.ask(ONE, (1,))
    wire.drop()

    with pytest.raises(AnswerLost):
        look(rows)


def test_what_is_asked_together_is_sent_once(wire: Wire) -> None:
    before = wire.ask(Statement("SELECT clock_timestamp(), now()"))
    after = wire.ask(Statement("SELECT clock_timestamp(), now()"))

    assert before[0][1] == after[0][1]  # one message without BEGIN is one transaction
    assert before[0][0] < after[0][0]


def test_what_is_too_large_for_one_message_is_sent_in_several(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ontologia.store.postgres.wire._MOST_TEXT", 100)
    assert list(portions(["x" * 60] * 5, 1_000, len)) == [["x" * 60] * 2] * 2 + [["x" * 60]]
    texts = [wire.ask(Statement("SELECT %s::text"), ("x" * 60,)) for _ in range(3)]

    assert [text.result is not None for text in texts] == [True, True, False]
    assert [list(text) for text in texts] == [[("x" * 60,)]] * 3


def test_a_great_many_questions_need_no_more_room_than_some(wire: Wire) -> None:
    answers = [wire.ask(ROWS, {"most": 200}) for _ in range(2_500)]

    assert all(len(answer) == 200 for answer in answers)


@pytest.mark.parametrize("prepares", [True, False])
def test_a_large_message_and_a_large_answer_do_not_wait_for_each_other(
    connect: Any, prepares: bool
) -> None:
    wire = Wire(connect(), connect, prepares=prepares)
    text = "x" * 100_000
    answers = [wire.ask(Statement("SELECT repeat(%s::text, 3)"), (text,)) for _ in range(100)]

    assert all(list(answer) == [(text * 3,)] for answer in answers)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("text", ""),
        ("text", "naïve ☃ 🎉 \\ ' \" { } , % %s %(x)s $1"),
        ("bigint", -(2**63)),
        ("float8", 0.1),
        ("float8", 1e300),
        ("boolean", True),
        ("boolean", False),
        ("text", None),
        ("text[]", []),
        ("text[]", ["", "NULL", 'a "b" \\c', "{x,y}", " ", "☃", None]),
        ("text[]", ["", "NULL", 'a "b" \\c', "{x,y}", " ", "☃", ""]),
        ("text[]", ["a\1b", "c"]),
        ("text[]", [None, None]),
        ("bigint[]", [1, -2, 2**63 - 1]),
    ],
)
def test_a_value_comes_back_as_it_was_sent(wire: Wire, kind: str, value: Any) -> None:
    assert list(wire.ask(Statement(f"SELECT %s::{kind}"), (value,))) == [(value,)]


@pytest.mark.parametrize("value", ["a\0b", ["a\0b"]])
def test_a_text_that_would_be_cut_off_is_refused(wire: Wire, value: Any) -> None:
    with pytest.raises(psycopg.DataError, match=r"U\+0000"):
        wire.ask(ONE, (value,))


def test_a_percent_sign_is_written_twice_and_a_name_may_be_used_twice(wire: Wire) -> None:
    statement = Statement("SELECT 7 %% %(n)s::int, %(n)s::int, %(m)s::text")

    assert list(wire.ask(statement, {"n": 4, "m": "m", "unused": 1})) == [(3, 4, "m")]


def test_an_error_takes_back_what_went_with_it_and_the_connection_stays(wire: Wire) -> None:
    wire.connection.execute("CREATE TEMP TABLE t (n int)")
    wire.ask(Statement("INSERT INTO t VALUES (1)"))
    failed = wire.ask(FAILS, (0,))
    never = wire.ask(Statement("INSERT INTO t VALUES (2)"))

    with pytest.raises(psycopg.errors.DivisionByZero):
        list(failed)
    with pytest.raises(RuntimeError, match="not run"):
        list(never)

    assert list(wire.ask(Statement("SELECT COUNT(*) FROM t"))) == [(0,)]
    assert list(wire.ask(FAILS, (1,))) == [(1,)]  # prepared or not: it can be asked again


def test_a_connection_that_died_before_it_was_used_is_replaced(wire: Wire, connect: Any) -> None:
    dead = wire.connection
    connect().execute("SELECT pg_terminate_backend(%s)", (dead.info.backend_pid,))

    assert list(wire.ask(ONE, (1,))) == [(1,)]

    assert wire.connection is not dead
    assert dead.closed


def test_a_question_that_ends_its_connection_is_asked_twice_and_no_more(wire: Wire) -> None:
    deadly = wire.ask(Statement("SELECT pg_terminate_backend(pg_backend_pid())"))

    with pytest.raises(psycopg.OperationalError):
        list(deadly)

    assert wire.connection.closed


def test_what_must_not_be_done_twice_is_not(wire: Wire, connect: Any) -> None:
    connect().execute("SELECT pg_terminate_backend(%s)", (wire.connection.info.backend_pid,))
    wire.ask(ONE, (1,))

    with pytest.raises(psycopg.OperationalError):
        wire.sync(once=True)


def test_a_connection_that_dies_in_the_middle_is_not_replaced(wire: Wire, connect: Any) -> None:
    assert list(wire.ask(ONE, (1,))) == [(1,)]
    connect().execute("SELECT pg_terminate_backend(%s)", (wire.connection.info.backend_pid,))

    with pytest.raises(psycopg.OperationalError):
        list(wire.ask(ONE, (1,)))

    assert wire.connection.closed


def test_whoever_is_interrupted_leaves_no_half_answer_behind(wire: Wire) -> None:
    main = threading.main_thread().ident
    assert main is not None
    wire.connection.execute("SELECT 1")
    threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
    slow = wire.ask(Statement("SELECT pg_sleep(60)"))

    with pytest.raises(KeyboardInterrupt):
        list(slow)

    assert wire.connection.closed
