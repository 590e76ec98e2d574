"""Statements on one connection, sent together, each prepared once.

A statement is queued until somebody wants to see its answer, or the transaction ends; then all
that is queued goes to the server in one message. That is libpq's pipeline, used directly: the
driver's own looks at the socket after every statement, which costs ten times as much.

Values go as text, and the server knows their types from the statement.
"""

from __future__ import annotations

import functools
import math
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import psycopg
from psycopg import abc, errors, pq
from psycopg.adapt import Transformer

from ontologia.store.database import AnswerLost, Bindings

_Row = TypeVar("_Row")
_PLACE = re.compile(r"%(?:\((\w+)\)s|(s)|(%))")
_LOST = ("08", "57P")  # classes of errors after which the server hangs up
_DONE = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_MOST_QUEUED = 1_000
_MOST_TEXT = 16_000_000  # the server takes no value of a gigabyte, and libpq keeps no two of them
_UNPLANNED = (b"BEGIN", b"COMMIT")  # nothing to prepare
_LOOK = 0.1  # seconds between two looks whether an answer is still waited for


class NoAnswer(psycopg.OperationalError):
    """The server did not answer in time; the connection is closed."""


class Statement(str):
    """The text of a statement that is run again and again."""

    proof: Statement | None = None
    """Has a row, with the same bindings, if and only if what this one wrote was committed."""
    bulk: Statement | None = None
    """The same for many rows: it takes a list of each of their values."""
    announces: bool = False
    """Whether it stores events, so that somebody should be woken."""

    @functools.cached_property
    def plan(self) -> _Plan:
        """The same as the server wants it: $1, $2 … and what they stand for."""
        names: list[str] = []

        def numbered(match: re.Match[str]) -> str:
            if match[3]:
                return "%"
            if match[1] is None:  # values in a row
                names.append(str(len(names)))
            elif match[1] not in names:
                names.append(match[1])
            return f"${names.index(match[1]) + 1 if match[1] else len(names)}"

        text = _PLACE.sub(numbered, self)
        return _Plan(text.encode(), tuple(names))


def prepared(texts: Mapping[str, str]) -> dict[str, Statement]:
    """Statements by their names."""
    return {name: Statement(text) for name, text in texts.items()}


class _Plan(NamedTuple):
    text: bytes
    names: tuple[str, ...]


class Connection(psycopg.Connection[Any]):
    """A connection that remembers what is prepared on it."""

    def __init__(self, pgconn: pq.abc.PGconn, *args: Any, **options: Any) -> None:
        super().__init__(pgconn, *args, **options)
        self.prepared: dict[bytes, bytes] = {}
        """The names of statements, by their text."""
        self.named = 0
        self.transformer: abc.Transformer = Transformer.from_context(self)


class Answer(Sequence[Any]):
    """The rows of a statement. The first look at them sends all that is queued, and waits.

    AnswerLost if the statement was not run, or the connection was lost before the rows arrived.
    """

    __slots__ = ("_sync", "result")

    def __init__(self, sync: Callable[[], object]) -> None:
        self._sync = sync
        self.result: Result | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.known().rows)

    def __len__(self) -> int:
        return len(self.known().rows)

    def __getitem__(self, index: int | slice) -> Any:
        return self.known().rows[index]

    def known(self) -> Result:
        """All that came back."""
        if self.result is None:
            self._sync()
        if self.result is None:
            raise AnswerLost(
                "this statement was not run, or its answer was lost with the connection"
            )
        return self.result


class Result(NamedTuple):
    """What came back."""

    rows: list[Any]
    changed: int
    """How many rows were written, or read."""
    done: bytes
    """What the server says it did."""


Last: TypeAlias = tuple[bytes, Sequence[Any]]
"""A statement that follows when all the others are done, and what it is given."""


class _Queued(NamedTuple):
    plan: _Plan
    values: list[bytes | None]
    answer: Answer


class Wire:
    """What is sent on a connection, and what comes back. Used by one thread at a time.

    A connection may have died before anything was asked on it; then `another` gives one instead.
    Once: whatever kills that one, too, may be the question itself, or somebody who wants it ended.

    `until` says until when the answer to a message that was sent at some time is waited for, by
    the monotonic clock. It is asked again and again: a wait that has begun can be shortened.
    """

    def __init__(
        self,
        connection: Connection,
        another: Callable[[Connection], Connection],
        *,
        prepares: bool,
        until: Callable[[float], float] = lambda sent: math.inf,
    ) -> None:
        self.connection = connection
        self._until = until
        self._another: Callable[[Connection], Connection] | None = another
        self._prepares = prepares
        self._queue: list[_Queued] = []
        self._text = 0  # how much there is to be sent
        self._answered = False
        self._sent = 0  # how many of the queue are on their way
        self._made: dict[bytes, bytes] = {}  # what they prepare
        self._expected: list[Answer | None] = []  # who waits for each of their results

    def ask(self, statement: Statement, bindings: Bindings = ()) -> Answer:
        """Queue a statement."""
        plan = statement.plan
        if isinstance(bindings, dict):
            values = [_bound(bindings[name]) for name in plan.names]
        else:
            values = [_bound(value) for value in bindings]
        answer = Answer(self.sync)
        self._queue.append(_Queued(plan, values, answer))
        self._text += sum(map(len, filter(None, values)))
        if len(self._queue) >= _MOST_QUEUED or self._text >= _MOST_TEXT:
            self.sync()
        return answer

    def roll_back(self) -> None:
        """Take the transaction back, and forget what is queued."""
        if self._sent:
            self.connection.close()  # nobody is going to read its answers
        self.drop()
        try:
            self.connection.rollback()
        except psycopg.Error:
            self.connection.close()  # the server takes it back by itself

    def drop(self) -> None:
        """Nobody is going to answer what was sent."""
        self._forget()
        self._queue, self._text = [], 0

    def push(self) -> None:
        """Let the server begin with what is queued; the next `sync` waits for its answers."""
        try:
            self._send()
            self.connection.pgconn.flush()
        except psycopg.Error:  # `sync` meets it, too, and knows what to do
            self.connection.close()
            self._forget()

    def sync(self, *, once: bool = False, then: Last | None = None) -> bool:
        """Send what is queued and wait for the answers; the first error is raised.

        If it is the first that is sent and the connection turns out to be lost, it is sent again
        on another, unless it must not be done twice. `then` goes with it and is run after it, in a
        transaction of its own; whether it was, which is all that can go wrong with it.
        """
        done = False
        while self._queue:
            try:
                done = self._exchange(then)
            except NoAnswer:
                raise  # another connection would only take more time
            except psycopg.OperationalError:
                if once or not self.replaced():
                    raise
        return done

    def replaced(self) -> bool:
        """Have another connection instead of one that died; False if that cannot be, or is not."""
        another, self._another = self._another, None
        if another is None or self._answered or not self.connection.closed:
            return False
        self.connection = another(self.connection)
        return True

    def _exchange(self, then: Last | None = None) -> bool:
        connection = self.connection
        pgconn = connection.pgconn
        try:
            self._send()
            pgconn.pipeline_sync()
            if then is not None:
                text, values = then
                pgconn.send_query_params(text, [_bound(value) for value in values])
                pgconn.pipeline_sync()
            results = _received(pgconn, self._until)
            done = then is not None and _was_done(pgconn, self._until)
            if pgconn.status == pq.ConnStatus.OK:
                pgconn.exit_pipeline_mode()
            failed = _first_error(results)
            if failed is not None and (failed.sqlstate or "").startswith(_LOST):
                raise failed
        except BaseException:  # in the middle of an answer, nobody can make sense of the rest
            connection.close()
            self._forget()
            raise
        made, expected = self._made, self._expected
        self._forget()
        self._queue, self._text = [], 0
        if failed is not None:
            raise failed
        self._answered = True
        connection.prepared |= made
        load = connection.transformer
        for each, result in zip(expected, results, strict=True):
            if each is not None:
                each.result = _loaded(load, result)
        return done

    def _send(self) -> None:
        """Hand what is queued to libpq."""
        pgconn, known = self.connection.pgconn, self.connection.prepared
        if not self._sent:
            pgconn.enter_pipeline_mode()
        for (text, _), values, answer in self._queue[self._sent :]:
            if self._prepares and not text.startswith(_UNPLANNED):
                name = known.get(text) or self._made.get(text)
                if name is None:
                    # Never the same name again: one that failed may or may not be there.
                    self.connection.named += 1
                    name = self._made[text] = b"ontologia_%d" % self.connection.named
                    pgconn.send_prepare(name, text)
                    self._expected.append(None)
                pgconn.send_query_prepared(name, values)
            else:
                pgconn.send_query_params(text, values)
            self._expected.append(answer)
        self._sent = len(self._queue)

    def _forget(self) -> None:
        """Nothing of the queue is on its way."""
        self._sent, self._made, self._expected = 0, {}, []


def portions(rows: Iterable[_Row], most: int, size: Callable[[_Row], int]) -> Iterator[list[_Row]]:
    """Rows to be sent by one statement each: not too many, and not too much."""
    portion: list[_Row] = []
    text = 0
    for row in rows:
        portion.append(row)
        text += size(row)
        if len(portion) >= most or text >= _MOST_TEXT:
            yield portion
            portion, text = [], 0
    if portion:
        yield portion


def _received(pgconn: pq.abc.PGconn, until: Callable[[float], float]) -> list[pq.abc.PGresult]:
    """A result for each, after everything is sent."""
    results: list[pq.abc.PGresult] = []
    began = time.monotonic()
    unsent = pgconn.flush()
    while True:
        while pgconn.is_busy():
            if not _wait(pgconn.socket, writing=bool(unsent)) and time.monotonic() >= until(began):
                raise NoAnswer("the server does not answer")
            if unsent:
                unsent = pgconn.flush()
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:  # stands between the results of two statements
            if pgconn.status == pq.ConnStatus.BAD:
                raise psycopg.OperationalError(pgconn.get_error_message())
            continue
        if result.status == pq.ExecStatus.PIPELINE_SYNC:
            return results
        if pgconn.status == pq.ConnStatus.BAD:
            raise psycopg.OperationalError(pgconn.get_error_message())
        results.append(result)


def _was_done(pgconn: pq.abc.PGconn, until: Callable[[float], float]) -> bool:
    """Whether the statement that followed was run. What went before it is done in any case."""
    try:
        return _first_error(_received(pgconn, until)) is None
    except psycopg.OperationalError:
        return False


def _wait(socket: int, *, writing: bool) -> bool:
    """Wait until the socket can be read, or written if that is wanted; False after `_LOOK`.

    Signals are heard meanwhile.
    """
    if sys.platform == "win32":
        return any(select.select([socket], [socket] if writing else [], [], _LOOK))
    poll = select.poll()
    poll.register(socket, select.POLLIN | (select.POLLOUT if writing else 0))
    return bool(poll.poll(_LOOK * 1000))


def _first_error(results: list[pq.abc.PGresult]) -> psycopg.Error | None:
    for result in results:
        if result.status not in _DONE:  # those after it were not run
            return errors.error_from_result(result, "utf-8")
    return None


def _loaded(load: abc.Transformer, result: pq.abc.PGresult) -> Result:
    rows: list[Any] = []
    if result.ntuples:
        load.set_pgresult(result)
        rows = load.load_rows(0, result.ntuples, tuple)
    return Result(rows, result.command_tuples or 0, result.command_status or b"")


def plain(connection: Connection, sql: str, bindings: Bindings) -> Answer:
    """Run a statement that is made for one question: by the driver, and not prepared."""
    # Bytes, because the driver's types want str to be a literal. Without bindings the server is
    # sent plain text, and several statements can go at once.
    cursor = connection.execute(sql.encode(), bindings or None)
    answer = Answer(lambda: None)
    rows = cursor.fetchall() if cursor.description is not None else []
    done = (cursor.statusmessage or "").encode()
    answer.result = Result(rows, max(0, cursor.rowcount), done)
    return answer


def _bound(value: Any) -> bytes | None:
    """A value as text."""
    if value is None:
        return None
    if isinstance(value, str):
        text = value.encode()
        if b"\0" in text:  # libpq would stop reading there
            raise psycopg.DataError("PostgreSQL text cannot contain U+0000")
        return text
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, int | float):
        return repr(value).encode()
    if isinstance(value, list):
        return _bound(_array(value))
    raise TypeError(f"no value for a statement: {value!r}")


_BETWEEN = "\1"  # no text that anybody writes has it; where one does, its array is made by and by


def _array(values: list[str | int | None]) -> str:
    """A list as PostgreSQL reads it; columns of one kind as a whole, since they may be long."""
    kinds = set(map(type, values))
    if kinds == {str}:
        joined = _BETWEEN.join(cast("list[str]", values))
        if joined.count(_BETWEEN) == len(values) - 1:
            return '{"' + _escaped(joined).replace(_BETWEEN, '","') + '"}'
    elif kinds == {int}:
        return "{" + ",".join(map(str, values)) + "}"
    elif kinds == {type(None)}:
        return "{" + ",".join(["NULL"] * len(values)) + "}"
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: str | int | None) -> str:
    """A value within an array."""
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else f'"{_escaped(value)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
