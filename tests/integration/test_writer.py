"""Requests that wait at the same time share a transaction, and nothing else."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from contextvars import ContextVar, copy_context

import pytest
from pydantic import field_validator

from ontologia import Entity, Event, Field
from ontologia.errors import (
    BatchSizeExceededError,
    ConnectionLostError,
    DatabaseError,
    LockContentionError,
    ObjectExistsError,
    StateConflictError,
    UniqueViolationError,
)
from ontologia.runtime.commits import WriteRequest, Written
from ontologia.runtime.session import core_of
from ontologia.store import writer as writer_module
from ontologia.store.writer import Request
from tests.integration.running import until

PATIENCE = float(
    os.environ.get("ONTOLOGIA_TEST_PATIENCE", "60")
)  # seconds; less where a bug is planted

pytestmark = pytest.mark.each_database


class Seat(Entity):
    id: Field[str] = Field(primary_key=True)
    number: Field[int] = Field(default=0, unique=True)


class Taken(Event):
    seat: Field[str]


class Blocker(Request):
    """Writes nothing, and keeps all others waiting until it is told to end."""

    state = True

    def __init__(self, error: BaseException | None = None) -> None:
        self.begun, self.free = threading.Event(), threading.Event()
        self._error, self._failed = error, False

    def write(self, tx) -> None:
        tx.admit()
        self.begun.set()
        assert self.free.wait(PATIENCE)
        if self._error is not None and not self._failed:
            self._failed = True
            raise self._error


def writer_of(session):
    return getattr(core_of(session).store, "_state_writer", None) or core_of(session).store._writer


class Call(threading.Thread):
    """A function in a thread of its own; what it returned or raised."""

    def __init__(self, function) -> None:
        super().__init__(daemon=True)
        self._function = function
        self.outcome = None

    def run(self) -> None:
        try:
            self.outcome = self._function()
        except BaseException as error:  # noqa: BLE001 - compared by the test
            self.outcome = error


def blocked(session, blocker):
    """Have a request written that keeps all others waiting."""
    call = Call(lambda: core_of(session).store.submit(blocker))
    call.start()
    assert blocker.begun.wait(PATIENCE)
    return call


def together(session, *functions, blocker=None):
    """Call these so that all of them wait for the same transaction; what came of each."""
    blocker, writer = blocker or Blocker(), writer_of(session)
    first = blocked(session, blocker)
    calls = []
    for function in functions:
        calls.append(Call(function))
        calls[-1].start()
        until(lambda: len(writer._waiting) == len(calls))
    blocker.free.set()
    for call in [first, *calls]:
        call.join(PATIENCE)
        assert not call.is_alive()
    return [call.outcome for call in calls], first.outcome


@pytest.fixture
def begun(session, monkeypatch):
    """How many requests each transaction has, one number a transaction."""
    writer, sizes = writer_of(session), []
    write_batch = writer._write_batch

    def counted(batch, own, deadline):
        write_batch(batch, own, deadline)
        sizes.append(len(batch.tickets))

    monkeypatch.setattr(writer, "_write_batch", counted)
    return sizes


def seat(session, id, number, **options):
    def commit():
        with session.unit() as unit:
            unit.ensure(Seat(id=id, number=number))
            return unit.commit(**options)

    return commit


@pytest.fixture
def session(open_session):
    session = open_session(entity_types=[Seat])
    session.ensure(Seat(id="first", number=99))
    session.commit()
    return session


def test_those_who_wait_are_written_by_one_transaction_and_numbered_in_their_order(session, begun):
    outcomes, _ = together(session, *(seat(session, f"s{n}", n) for n in range(5)))

    assert outcomes == [2, 3, 4, 5, 6]
    assert begun == [5]  # the one that kept them waiting had a transaction to itself
    numbers = {each.id: each.meta().commit_id for each in session.query().entities(Seat).collect()}
    assert numbers == {"first": 1, "s0": 2, "s1": 3, "s2": 4, "s3": 5, "s4": 6}


def test_one_that_fails_takes_no_other_along(session):
    def create():
        with session.unit() as unit:
            unit.create(Seat(id="first"))

    outcomes, _ = together(
        session,
        seat(session, "a", 1, event=Taken(seat="a")),
        seat(session, "b", 1, event=Taken(seat="b")),  # fails when it is written already
        create,  # fails before
        seat(session, "c", 3, event=Taken(seat="c")),
    )

    # Where the transaction is taken apart, either of the first two may come first then.
    kept = "a" if isinstance(outcomes[1], UniqueViolationError) else "b"
    assert isinstance(outcomes["ba".index(kept)], UniqueViolationError)
    assert isinstance(outcomes[2], ObjectExistsError)
    assert sorted(each for each in outcomes if isinstance(each, int)) == [2, 3]
    assert session.head == 3
    assert [each.id for each in session.query().entities(Seat).collect()] == [kept, "c", "first"]
    events = session.event_store.list_events(session.namespace)
    taken = [session.event_store.inspect_event(each["id"])["payload"]["seat"] for each in events]
    assert sorted(taken) == [kept, "c"]


def test_what_a_neighbour_changed_is_a_conflict(session):
    def count():
        with session.unit() as unit:
            found = unit.one(Seat, "first")
            found.number += 1
            unit.ensure(found)
            return unit.commit()

    outcomes, _ = together(session, count, count, count)

    assert outcomes[0] == 2
    assert [type(each) for each in outcomes[1:]] == [StateConflictError] * 2
    assert (outcomes[1].read, outcomes[1].found) == (1, 2)
    assert session.one(Seat, "first").number == 100
    assert session.head == 2


def test_those_who_change_different_objects_do_not_conflict(session):
    for name in "ab":
        session.ensure(Seat(id=name, number=ord(name)))
    session.commit()

    def rise(name):
        def change():
            with session.unit() as unit:
                found = unit.one(Seat, name)
                found.number += 1000
                unit.ensure(found)
                return unit.commit()

        return change

    outcomes, _ = together(session, rise("a"), rise("b"))

    assert outcomes == [3, 4]


def test_an_interrupt_of_the_thread_that_writes_leaves_the_others_written(session, monkeypatch):
    monkeypatch.setattr(writer_of(session), "_joins", False)
    leading = Blocker(KeyboardInterrupt())
    leading.free.set()

    outcomes, _ = together(
        session,
        lambda: core_of(session).store.submit(leading),
        seat(session, "a", 1),
        seat(session, "b", 2),
    )

    assert isinstance(outcomes[0], KeyboardInterrupt)
    assert sorted(outcomes[1:]) == [2, 3]
    assert session.head == 3


def test_an_interrupt_between_commit_and_the_answers_writes_nothing_twice(session, monkeypatch):
    writer = writer_of(session)
    begin = writer._begin

    @contextmanager
    def interrupted(durable, timeout_ms):
        monkeypatch.setattr(writer, "_begin", begin)
        with begin(durable, timeout_ms) as tx:
            yield tx
        raise KeyboardInterrupt

    blocker = Blocker()
    first = blocked(session, blocker)
    monkeypatch.setattr(writer, "_begin", interrupted)
    monkeypatch.setattr(writer, "_joins", False)
    calls = [Call(seat(session, name, number)) for number, name in enumerate("abc")]
    for count, call in enumerate(calls, 1):
        call.start()
        until(lambda: len(writer._waiting) == count)  # noqa: B023 - called at once
    blocker.free.set()
    for call in [first, *calls]:
        call.join(PATIENCE)
        assert not call.is_alive()

    # The thread that led is interrupted, and what it wrote is there; so is all that it wrote for others.
    assert [type(call.outcome) for call in calls] == [KeyboardInterrupt, int, int]
    assert [call.outcome for call in calls[1:]] == [3, 4]
    assert session.head == 4


def test_a_leader_that_is_gone_is_replaced(session, monkeypatch):
    """Interrupted when it was about to tell the others, and each time it tried once more."""
    monkeypatch.setattr(writer_module, "_LOST", 0.01)
    monkeypatch.setattr(writer_module, "_release", lambda lock: None)  # and nothing is woken
    monkeypatch.setattr(writer_of(session), "_joins", False)
    end, calls = writer_module._Batch.end, []

    def interrupted(batch):
        calls.append(batch)
        if len(calls) <= 3:
            raise KeyboardInterrupt
        end(batch)

    monkeypatch.setattr(writer_module._Batch, "end", interrupted)
    outcomes, _ = together(session, *(seat(session, f"s{n}", n) for n in range(4)))

    # The three interrupts may be met by three threads. The others have an answer, and all is
    # written once.
    numbers = {each for each in outcomes if isinstance(each, int)}
    assert numbers
    assert numbers < {2, 3, 4, 5}
    assert {type(each) for each in outcomes} == {int, KeyboardInterrupt}
    assert session.head == 5


def test_if_the_commit_fails_all_have_failed_and_nothing_is_there(session, monkeypatch):
    writer = writer_of(session)
    begin = writer._begin

    @contextmanager
    def refused(durable, timeout_ms):
        with begin(durable, timeout_ms) as tx:
            yield tx
            raise DatabaseError("the disk refuses to sync")

    monkeypatch.setattr(writer, "_begin", refused)
    outcomes, _ = together(session, seat(session, "a", 1), seat(session, "b", 2))
    monkeypatch.setattr(writer, "_begin", begin)

    assert [str(each) for each in outcomes] == ["the disk refuses to sync"] * 2
    assert session.head == 1
    assert seat(session, "a", 1)() == 2


def test_a_large_request_is_written_alone(session, begun, monkeypatch):
    monkeypatch.setattr(writer_module, "_MOST", 5)

    def large():
        with session.unit() as unit:
            unit.ensure([Seat(id=f"l{n}", number=200 + n) for n in range(10)])
            return unit.commit()

    outcomes, _ = together(session, seat(session, "a", 1), large, seat(session, "b", 2))

    assert outcomes == [2, 3, 4]
    assert begun == [1, 1, 1]


def test_a_thread_that_waits_too_long_is_told_so_and_is_not_written_later(open_session):
    session = open_session(entity_types=[Seat], settings={"lock_timeout_ms": 50})
    blocker, writer = Blocker(), writer_of(session)
    first = blocked(session, blocker)
    late = [Call(seat(session, "a", 1)), Call(seat(session, "b", 2))]
    for call in late:
        call.start()
    for call in late:
        call.join(PATIENCE)
    assert not writer._waiting
    blocker.free.set()
    first.join(PATIENCE)

    assert [type(call.outcome) for call in late] == [LockContentionError] * 2
    assert seat(session, "c", 3)() == 1
    assert [each.id for each in session.query().entities(Seat).collect()] == ["c"]


class Soft(Blocker):
    durable = False


def noting_durability(writer, monkeypatch):
    durable, begin = [], writer._begin

    def noted(hard, timeout_ms):
        durable.append(hard)
        return begin(hard, timeout_ms)

    monkeypatch.setattr(writer, "_begin", noted)
    return durable


def test_a_transaction_is_durable_if_one_of_its_requests_is(session, monkeypatch):
    durable = noting_durability(writer_of(session), monkeypatch)
    soft = Soft()
    soft.free.set()

    together(
        session, seat(session, "a", 1), lambda: core_of(session).store.submit(soft), blocker=Soft()
    )

    assert durable == [False, True]


@pytest.mark.parametrize(("late", "expected"), [(Blocker, [True, False, True]), (Soft, None)])
def test_what_comes_late_joins_others_unless_it_is_more_durable(
    session, monkeypatch, late, expected
):
    """On PostgreSQL, where a late request would cost a round trip, it has a transaction of its own."""
    writer = writer_of(session)
    durable = noting_durability(writer, monkeypatch)
    first, slow, quick, last = Blocker(), Soft(), Soft(), late()
    for each in (quick, last):
        each.free.set()
    calls = [blocked(session, first)]
    for waiting, request in enumerate((slow, quick), 1):
        calls.append(Call(lambda request=request: core_of(session).store.submit(request)))
        calls[-1].start()
        until(lambda: len(writer._waiting) == waiting)  # noqa: B023 - called at once
    first.free.set()
    assert slow.begun.wait(PATIENCE)
    calls.append(Call(lambda: core_of(session).store.submit(last)))
    calls[-1].start()
    until(lambda: len(writer._waiting) == 1)
    slow.free.set()
    for call in calls:
        call.join(PATIENCE)

    assert [call.outcome for call in calls] == [None] * 4
    expected = expected or [True, False] + [False] * (not writer._joins)
    assert durable == expected


def test_a_request_that_the_database_refuses_is_found_and_the_others_are_written(session):
    class Refused(Request):
        state = True

        def write(self, tx) -> None:
            tx.admit()
            tx.tx.run("INSERT INTO no_such_table VALUES (1)")

    outcomes, _ = together(
        session,
        seat(session, "a", 1),
        lambda: core_of(session).store.submit(Refused()),
        seat(session, "b", 2),
    )

    assert isinstance(outcomes[1], DatabaseError)
    assert sorted([outcomes[0], outcomes[2]]) == [2, 3]
    assert session.head == 3


def test_a_request_that_is_being_written_is_not_told_that_it_waited_too_long(open_session):
    """It is taken along at the very moment at which its time is over."""
    session = open_session(entity_types=[Seat], settings={"lock_timeout_ms": 50})
    writer, blocker = writer_of(session), Blocker()
    first = blocked(session, blocker)
    gives_up, outcomes = writer._gives_up, []

    def a_moment_too_late(ticket):
        blocker.free.set()
        first.join(PATIENCE)
        batch = writer_module._Batch()
        with writer._turn.taken():  # as another leader does
            writer._take(batch)
            outcomes.append(gives_up(ticket))
            writer._leader, writer._batch = threading.get_ident(), batch
            writer._write_batch(batch, batch.tickets[0], time.monotonic() + PATIENCE)
            batch.end()
            writer._leader, writer._batch = 0, None
        return outcomes[-1]

    writer._gives_up = a_moment_too_late
    late = Call(seat(session, "a", 1))
    late.start()
    late.join(PATIENCE)

    assert outcomes == [False]
    assert late.outcome == 1
    assert session.head == 1


def test_a_statement_that_is_refused_only_at_the_end_takes_no_other_along(session):
    def too_long():
        with session.unit() as unit:
            unit.ensure(Seat(id="x" * 6000, number=7))  # more than an index of PostgreSQL takes
            return unit.commit()

    outcomes, _ = together(session, seat(session, "a", 1), too_long, seat(session, "b", 2))

    assert isinstance(outcomes[0], int)
    assert isinstance(outcomes[2], int)
    kept = [each.id for each in session.query().entities(Seat).collect() if len(each.id) < 10]
    assert kept == ["a", "b", "first"]


class Aisle(Entity):
    id: Field[str] = Field(primary_key=True)


def test_a_type_that_was_rolled_back_is_registered_again(session, monkeypatch):
    """Two units of one transaction that is not committed: one registers a type, one relies on it."""
    writer = writer_of(session)
    begin, failed = writer._begin, []

    @contextmanager
    def refused(durable, timeout_ms):
        with begin(durable, timeout_ms) as tx:
            yield tx
            if not failed:
                failed.append(True)
                raise ConnectionLostError("refused", hint=None)

    def aisle(id):
        def commit():
            with session.unit() as unit:
                unit.ensure(Aisle(id=id))

        return commit

    blocker = Blocker()
    first = blocked(session, blocker)
    monkeypatch.setattr(writer, "_begin", refused)
    calls = [Call(aisle(id)) for id in "ab"]
    for count, call in enumerate(calls, 1):
        call.start()
        until(lambda: len(writer._waiting) == count)  # noqa: B023 - called at once
    blocker.free.set()
    for call in [first, *calls]:
        call.join(PATIENCE)
    assert [type(call.outcome) for call in calls] == [ConnectionLostError] * 2

    aisle("c")()

    assert [
        each.version for each in core_of(session).store.list_schema_versions("entity", "Aisle")
    ] == [1]


def test_a_request_runs_in_the_context_of_the_thread_that_submitted_it(session):
    name: ContextVar[str] = ContextVar("name", default="nobody")
    seen = []

    class Look(Request):
        state = True

        def write(self, tx) -> None:
            tx.admit()
            seen.append((name.get(), threading.current_thread().name))

    def look(mine):
        def submit():
            name.set(mine)
            core_of(session).store.submit(Look())

        return submit

    together(session, look("Ada"), look("Bea"))

    assert [each for each, _ in seen] == ["Ada", "Bea"]
    assert len({thread for _, thread in seen}) == 1


def test_a_commit_inside_a_transaction_is_refused_and_leaves_no_lock_behind(session):
    class Nested(Request):
        state = True

        def write(self, tx) -> None:
            tx.admit()
            seat(session, "inner", 1)()

    with pytest.raises(RuntimeError, match="write transaction open already"):
        core_of(session).store.submit(Nested())

    assert seat(session, "after", 2)() == 2


@pytest.fixture
def patient(session, monkeypatch):
    """Two threads have committed together, and each waits for the other from now on."""
    monkeypatch.setattr(writer_module, "_GATHER", PATIENCE)
    together(session, seat(session, "a", 1), seat(session, "b", 2))
    writer = writer_of(session)
    writer._took = PATIENCE
    return writer


def test_threads_that_committed_together_commit_together_again(session, begun, patient):
    first, second = Call(seat(session, "c", 3)), Call(seat(session, "d", 4))
    first.start()
    until(lambda: len(patient._waiting) == 1)
    second.start()
    for call in (first, second):
        call.join(PATIENCE / 2)

    assert [first.outcome, second.outcome] == [4, 5]
    assert begun == [2, 2]


def test_threads_that_do_not_come_are_waited_for_once(session, begun):
    together(session, seat(session, "a", 1), seat(session, "b", 2))

    assert [seat(session, "c", 3)(), seat(session, "d", 4)()] == [4, 5]
    assert begun == [2, 1]  # the last one was written at once


def test_a_soft_request_does_not_wait_for_others(session, patient):
    request = Soft()
    request.free.set()
    call = Call(lambda: core_of(session).store.submit(request))
    call.start()

    assert request.begun.wait(PATIENCE / 2)
    call.join(PATIENCE)


def request(session, *seats, **options):
    """What a unit that ensures these would have written."""
    intents = core_of(session).new_intents()
    intents.ensure(seats)
    return WriteRequest(intents.snapshot(), {}, **options)


def seats(session):
    return [each.id for each in session.query().entities(Seat).collect()]


def test_requests_that_one_thread_submits_at_once_share_a_transaction(session, begun):
    requests = [request(session, Seat(id=f"s{n}", number=n)) for n in range(5)]

    outcomes = core_of(session).commits.write_all(requests)

    assert [each.commit_id for each in outcomes] == [2, 3, 4, 5, 6]
    assert begun == [5]


def test_of_requests_submitted_at_once_one_that_fails_takes_no_other_along(session):
    stale = request(session, Seat(id="first", number=7))
    stale.reads = {("entity", "Seat"): {("first",): 77}}
    requests = [
        request(session, Seat(id="a", number=1)),
        request(session, Seat(id="b", number=99)),  # the number of the first one
        stale,
        request(session, Seat(id="c", number=3)),
        request(session),  # nothing to write
        request(session, *(Seat(id=f"m{n}", number=300 + n) for n in range(20_000))),
    ]

    outcomes = core_of(session).commits.write_all(requests)

    assert [type(each) for each in outcomes] == [
        Written,
        UniqueViolationError,
        StateConflictError,
        Written,
        Written,
        BatchSizeExceededError,
    ]
    assert sorted(outcomes[n].commit_id for n in (0, 3)) == [2, 3]
    assert outcomes[4].commit_id is None
    assert seats(session) == ["a", "c", "first"]


def submitted(session, *batches, blocker=None):
    """Have threads submit these while another one writes; what came of each thread."""
    blocker, writer = blocker or Blocker(), writer_of(session)
    first = blocked(session, blocker)
    calls, waiting = [], 0
    for batch in batches:
        calls.append(Call(lambda batch=batch: core_of(session).commits.write_all(batch)))
        calls[-1].start()
        waiting += len(batch)
        until(lambda: len(writer._waiting) == waiting)  # noqa: B023 - called at once
    blocker.free.set()
    for call in [first, *calls]:
        call.join(PATIENCE)
        assert not call.is_alive()
    return [call.outcome for call in calls]


def test_threads_that_submit_several_requests_lead_for_each_other(session, begun, monkeypatch):
    monkeypatch.setattr(writer_module, "_MOST", 4)
    requests = [request(session, Seat(id=f"s{n}", number=n)) for n in range(10)]

    outcomes = submitted(session, requests[:3], requests[3:8], requests[8:])

    assert [[each.commit_id for each in some] for some in outcomes] == [
        [2, 3, 4],
        [5, 6, 7, 8, 9],
        [10, 11],
    ]
    assert begun == [4, 4, 2]


def test_of_an_interrupted_thread_with_several_requests_none_is_written_later(session, monkeypatch):
    writer = writer_of(session)
    monkeypatch.setattr(writer, "_joins", False)
    monkeypatch.setattr(writer_module, "_MOST", 2)
    requests = [request(session, Seat(id=f"s{n}", number=n)) for n in range(5)]
    begin, begun = writer._begin, []

    def interrupted(durable, timeout_ms):
        begun.append(durable)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return begin(durable, timeout_ms)

    monkeypatch.setattr(writer, "_begin", interrupted)
    outcome = Call(lambda: core_of(session).commits.write_all(requests))
    outcome.run()

    assert isinstance(outcome.outcome, KeyboardInterrupt)
    assert not writer._waiting
    assert seats(session) == ["first", "s0", "s1"]
    assert seat(session, "later", 50)() == 4
    assert seats(session) == ["first", "later", "s0", "s1"]


def test_requests_that_wait_too_long_are_all_told_so(open_session):
    session = open_session(entity_types=[Seat], settings={"lock_timeout_ms": 50})
    requests = [request(session, Seat(id=f"s{n}", number=n)) for n in range(3)]
    blocker = Blocker()
    first = blocked(session, blocker)

    outcomes = core_of(session).commits.write_all(requests)
    blocker.free.set()
    first.join(PATIENCE)

    assert [type(each) for each in outcomes] == [LockContentionError] * 3
    assert seats(session) == []


@pytest.mark.parametrize("count", [1, 3])
def test_each_request_is_written_in_its_own_context(session, count):
    told = ContextVar("told", default="nothing")
    seen = []

    def derive(found):
        seen.append(told.get())
        return []

    requests = []
    for number in range(count):
        context = copy_context()
        context.run(told.set, f"context {number}")
        options = {"context": context, "derive": derive}
        requests.append(request(session, Seat(id=f"s{number}", number=number), **options))

    core_of(session).commits.write_all(requests)

    assert seen == [f"context {number}" for number in range(count)]


def test_if_no_transaction_can_begin_all_that_wait_are_told_so_at_once(session, monkeypatch):
    """To find that a server is away takes ten seconds; no request waits for that again."""
    writer, tried = writer_of(session), []

    def away(durable, timeout_ms):
        tried.append(durable)
        raise ConnectionLostError("the server is away")

    monkeypatch.setattr(writer, "_begin", away)
    requests = [request(session, Seat(id=f"s{n}", number=n)) for n in range(6)]

    outcomes = core_of(session).commits.write_all(requests)

    assert [str(each) for each in outcomes] == ["the server is away"] * 6
    assert len(tried) == 1


def test_a_request_that_was_taken_along_before_its_thread_led_keeps_no_other_waiting(
    open_session, monkeypatch
):
    """It was to lead, but a transaction that had begun already wrote it."""
    monkeypatch.setattr(writer_module, "_LOST", 10 * PATIENCE)
    session = open_session(
        entity_types=[Seat], settings={"lock_timeout_ms": int(PATIENCE * 10_000)}
    )
    writer = writer_of(session)
    monkeypatch.setattr(writer, "_joins", True)
    first, leading = Blocker(), Blocker()
    calls = [blocked(session, first), Call(lambda: core_of(session).store.submit(leading))]
    calls[-1].start()
    until(lambda: writer._waiting)
    first.free.set()
    assert leading.begun.wait(PATIENCE)
    write_one = writer._write_one

    def late(ticket, *limits):
        until(lambda: ticket.ended)
        return write_one(ticket, *limits)

    monkeypatch.setattr(writer, "_write_one", late)
    calls.append(Call(seat(session, "a", 1)))
    calls[-1].start()
    until(lambda: writer._waiting)
    leading.free.set()
    for call in calls:
        call.join(PATIENCE)
        assert not call.is_alive()
    monkeypatch.setattr(writer, "_write_one", write_one)

    assert calls[-1].outcome == 1
    following = Call(seat(session, "b", 2))
    following.start()
    following.join(PATIENCE / 2)
    assert following.outcome == 2


class Guarded(Entity):
    """Its validator takes a lock, as one does that looks into a cache of the program."""

    id: Field[str] = Field(primary_key=True)
    number: Field[int] = Field(default=0)

    @field_validator("number")
    @classmethod
    def known(cls, number: int) -> int:
        if not GUARD.acquire(timeout=5):
            raise ValueError("another thread has the lock")
        GUARD.release()
        return number


GUARD = threading.RLock()


def test_a_thread_may_update_what_a_validator_sees_while_it_has_a_lock_of_that(session, begun):
    session.ensure(Guarded(id="g"))
    session.commit()

    def update():
        with GUARD, session.unit() as unit:
            unit.update(Guarded, "g", number=7)
            return unit.commit()

    outcomes, _ = together(session, seat(session, "a", 1), update, seat(session, "b", 2))

    assert outcomes == [3, 4, 5]
    assert begun == [1, 1, 1]
    assert session.one(Guarded, "g").number == 7


def updated(session, id, number):
    """What a unit that updates this would have written."""
    with session.unit() as unit:
        unit.update(Seat, id, number=number)
        found = WriteRequest(unit._intents.snapshot(), {})
        unit.discard()
    return found


def test_updates_of_several_threads_share_a_transaction_unless_the_type_has_upgraders(
    session, begun, monkeypatch
):
    monkeypatch.setattr(writer_of(session), "_joins", False)
    session.ensure([Seat(id=id, number=number) for number, id in enumerate("ab")])
    session.commit()

    sizes = []
    for upgraders in {}, {("Seat", 1): dict}:
        core_of(session).versions.add_upgraders(upgraders)
        for ours, theirs in (["a"], ["b"]), (["a", "b"], []):
            begun.clear()
            submitted(
                session,
                [updated(session, id, 100 * len(sizes) + ord(id)) for id in ours],
                [updated(session, id, 100 * len(sizes) + ord(id)) for id in theirs],
            )
            sizes.append(max(begun))

    assert sizes == [2, 2, 1, 2]
    found = {each.id: each.number for each in session.query().entities(Seat).collect()}
    assert found == {"a": 300 + ord("a"), "b": 300 + ord("b"), "first": 99}
