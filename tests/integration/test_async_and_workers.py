"""Coroutines and several workers: the same rules, more at once."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from ontologia import Discard, Event, Field, LeaseExpiredError, Retry, on_event
from ontologia.errors import EventLoopLimitError
from ontologia.runtime.session import core_of
from tests.integration.running import PATIENCE, claim_of, until
from tests.shop import Customer

pytestmark = pytest.mark.each_database


class Job(Event):
    number: Field[int] = 0


class Done(Event):
    number: Field[int] = 0


def announce(session, *numbers: int) -> list[str]:
    events = [Job(number=number) for number in numbers]
    for event in events:
        session.commit(event=event)
    return [event.id for event in events]


@pytest.fixture
def session(open_session):
    session = open_session()
    yield session
    if not core_of(session).closed:
        assert session.event_store.check() == []


# -- async def ------------------------------------------------------------------------------------


@pytest.mark.req("NEW-020")
def test_a_coroutine_commits_emits_and_is_acknowledged(session):
    results = []

    @on_event(Job)
    async def handle(ctx):
        await asyncio.sleep(0)
        ctx.ensure(Customer(id="c1", name="Ada"))
        results.append(ctx.commit())
        ctx.session.ensure(Customer(id="c2", name="Bob"))
        await asyncio.sleep(0)
        results.append(ctx.session.commit())
        ctx.emit(Done(number=ctx.event.number))

    @on_event(Done)
    def done(ctx):
        results.append((ctx.event.number, ctx.event.chain_depth))

    [event_id] = announce(session, 7)
    session.run([handle, done], max_iterations=1)

    assert results == [1, 2, (7, 1)]
    assert session.get_commit(2)["metadata"]["event_id"] == event_id
    assert claim_of(session, event_id)["ack_at"] is not None


@pytest.mark.req("NEW-020")
def test_coroutines_and_functions_are_called_in_the_same_order(session):
    calls = []

    @on_event(Job, priority=3, name="a")
    async def first(ctx):
        await asyncio.sleep(0)
        calls.append(("first", ctx.event.number))

    @on_event(Job, priority=2, name="b")
    def second(ctx):
        calls.append(("second", ctx.event.number))

    @on_event(Job, priority=1, name="c")
    async def third(ctx):
        calls.append(("third", ctx.event.number))

    announce(session, 1, 2)
    session.run([third, second, first], max_iterations=1)

    assert calls == [(name, n) for name in ("first", "second", "third") for n in (1, 2)]


@pytest.mark.req("NEW-020", "NEW-024")
def test_a_coroutine_that_raises_is_tried_again_like_a_function(session):
    attempts = []

    @on_event(Job)
    async def fail(ctx):
        attempts.append((ctx.event.number, ctx.attempt))
        ctx.emit(Done())
        await asyncio.sleep(0)
        match ctx.event.number, ctx.attempt:
            case 1, 1:
                raise ValueError("no")
            case 2, 1:
                raise Retry(after=1)
            case 3, _:
                raise Discard("never")
            case 4, 1:
                raise asyncio.CancelledError

    ids = announce(session, 1, 2, 3, 4)
    session.run([fail], max_iterations=5)

    assert sorted(attempts) == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (4, 1), (4, 2)]
    told = [session.event_store.inspect_event(each) for each in ids]
    outcomes = [[attempt["outcome"] for attempt in each["attempts"]] for each in told]
    assert outcomes == [["failed"], ["retry"], ["discarded"], ["failed"]]
    assert len([e for e in session.event_store.list_events("default") if e["type"] == "done"]) == 3


@pytest.mark.req("NEW-020", "ONT-047")
def test_a_coroutine_that_was_too_slow_writes_nothing(session, clock):
    caught = []

    @on_event(Job)
    async def slow(ctx):
        if ctx.attempt > 1:
            return
        ctx.ensure(Customer(id="c1", name="Ada"))
        clock.advance(seconds=30)
        await asyncio.sleep(0)
        for commit in (ctx.commit, ctx.session.commit):
            with pytest.raises(LeaseExpiredError):
                commit()
            caught.append(commit)

    announce(session, 1)
    session.run([slow], max_iterations=1)

    assert (len(caught), session.head) == (2, 0)


@pytest.mark.req("NEW-020", "ONT-013")
def test_a_session_with_coroutines_runs_inside_a_program_that_has_an_event_loop(session):
    loops = []

    @on_event(Job)
    async def handle(ctx):
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())

    async def main() -> None:
        announce(session, 1)
        await asyncio.to_thread(session.run, handlers=[handle], max_iterations=1)
        announce(session, 2)
        session.run([handle], max_iterations=1)  # blocks this loop, and still ends
        loops.append(asyncio.get_running_loop())

    asyncio.run(main())

    assert len(loops) == 3
    assert loops[2] not in loops[:2]


@pytest.mark.req("NEW-020", "NEW-021")
def test_coroutines_of_several_workers_wait_for_each_other(session):
    met, all_here = [], asyncio.Event()

    @on_event(Job)
    async def meet(ctx):
        met.append(ctx.event.number)
        if len(met) == 3:
            all_here.set()
        async with asyncio.timeout(PATIENCE):
            await all_here.wait()

    ids = announce(session, 1, 2, 3)
    session.run([meet], max_iterations=1, workers=3)

    assert sorted(met) == [1, 2, 3]
    assert all(claim_of(session, each)["attempts"] == 0 for each in ids)


@pytest.mark.req("NEW-020", "ONT-164")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_coroutine_that_exits_ends_the_run_with_its_code(session, workers):
    @on_event(Job)
    async def leave(ctx):
        await asyncio.sleep(0)
        if ctx.event.number == 1:
            sys.exit(3)

    ids = announce(session, 1, 2)
    with pytest.raises(SystemExit) as exit:
        session.run([leave], workers=workers)

    assert exit.value.code == 3
    assert claim_of(session, ids[0])["attempts"] == 1  # or it would do so for ever
    session.run([leave], workers=workers, max_iterations=1)  # another run has a loop again
    claim = claim_of(session, ids[1])
    assert (claim["attempts"], claim["last_error"]) == (0, None)
    assert claim["ack_at"] is not None


@pytest.mark.req("NEW-020", "NEW-021")
@pytest.mark.parametrize("ends", [True, False], ids=["comes to its end", "is cancelled"])
def test_a_coroutine_beside_one_that_exits_is_not_counted_as_failed(open_session, ends):
    session = open_session(settings={"shutdown_grace_ms": 50})
    begun, leaving, cleaned = asyncio.Event(), asyncio.Event(), []

    @on_event(Job)
    async def leave(ctx):
        await begun.wait()
        leaving.set()
        sys.exit(3)

    @on_event(Done)
    async def innocent(ctx):
        begun.set()
        try:
            await leaving.wait()
            await asyncio.sleep(0 if ends else PATIENCE)
        finally:
            cleaned.append(asyncio.get_running_loop().is_running())

    beside = Done()
    session.commit(event=beside)
    announce(session, 1)
    with pytest.raises(SystemExit) as exit:
        session.run([leave, innocent], workers=2)

    assert exit.value.code == 3
    assert cleaned == [True]
    claim = claim_of(session, beside.id)
    assert (claim["attempts"], claim["last_error"]) == (0, None)
    assert (claim["ack_at"] is not None) is ends
    assert session.event_store.inspect_event(beside.id)["attempts"] == []
    assert session.event_store.check() == []


# -- workers --------------------------------------------------------------------------------------


@pytest.mark.req("NEW-021")
def test_so_many_workers_so_many_calls_at_once_and_no_more(session):
    together, lock = threading.Barrier(4), threading.Lock()
    now, most, threads = [0], [0], set()

    @on_event(Job)
    def handle(ctx):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
            threads.add(threading.get_ident())
        together.wait(PATIENCE)
        with lock:
            now[0] -= 1

    ids = announce(session, *range(20))
    session.run([handle], max_iterations=1, workers=4)

    assert (most[0], len(threads)) == (4, 4)
    assert threading.get_ident() not in threads
    assert all(claim_of(session, each)["ack_at"] for each in ids)


@pytest.mark.req("NEW-021")
def test_a_slow_handler_does_not_keep_others_from_running(session):
    quick_done = threading.Event()
    seen = []

    @on_event(Job, priority=900)
    def slow(ctx):
        assert quick_done.wait(PATIENCE)
        seen.append("slow")

    @on_event(Job)
    def quick(ctx):
        seen.append(ctx.event.number)
        ctx.emit(Done())

    @on_event(Done)
    def finish(ctx):
        if seen.count("slow") == 0 and len(seen) == 1:
            quick_done.set()

    announce(session, 1)
    session.run([slow, quick, finish], max_iterations=1, workers=2)

    assert seen == [1, "slow"]


@pytest.mark.req("NEW-021", "ONT-155")
def test_a_free_worker_takes_what_is_most_urgent(session):
    order, release = [], threading.Event()

    def claimed(name: str) -> int:
        consumers = session.event_store.list_consumers("default")
        return next(each["claimed"] for each in consumers if each["name"] == name)

    @on_event(Job, priority=900, name="high")
    def high(ctx):
        if ctx.event.number == 1:
            assert release.wait(PATIENCE)
        until(lambda: claimed("low") == 4 or order)  # from here on there is a choice
        order.append(("high", ctx.event.number))

    @on_event(Job, name="low")
    def low(ctx):
        order.append(("low", ctx.event.number))
        release.set()

    announce(session, 1, 2, 3, 4)
    session.run([low, high], max_iterations=1, workers=2)

    # One worker is held by the first event; the other does the rest of the urgent ones first.
    assert order[:3] == [("high", 2), ("high", 3), ("high", 4)]
    assert sorted(order[3:]) == [("high", 1), *(("low", n) for n in (1, 2, 3, 4))]


@pytest.mark.req("NEW-021")
@pytest.mark.parametrize("kind", ["def", "async"])
def test_with_many_workers_every_event_is_done_once_and_failures_are_tried_again(session, kind):
    done, failed, lock = [], [], threading.Lock()

    def work(ctx):
        number = ctx.event.number
        if number % 7 == 0 and ctx.attempt == 1:
            with lock:
                failed.append(number)
            raise ValueError("every seventh")
        ctx.ensure(Customer(id=str(number), name="x"))
        ctx.commit()
        ctx.emit(Done(number=number))
        with lock:
            done.append(number)

    if kind == "def":
        handler = on_event(Job)(work)
    else:

        @on_event(Job)
        async def handler(ctx):
            await asyncio.sleep(0)
            work(ctx)

    numbers = list(range(60))
    announce(session, *numbers)
    session.run([handler], max_iterations=12, workers=8)  # each failure has its own due time

    assert sorted(done) == numbers
    assert sorted(failed) == numbers[::7]
    assert session.query().entities(Customer).count() == 60
    listed = session.event_store.list_events("default", limit=1000)
    assert len([each for each in listed if each["type"] == "done"]) == 60
    assert len([each for each in listed if each["status"] == "acked"]) == 60


@pytest.mark.req("NEW-021", "ONT-099")
def test_what_must_end_a_run_ends_it_from_any_worker(open_session):
    session = open_session(settings={"max_event_chain_depth": 0})

    @on_event(Job)
    def handle(ctx):
        if ctx.event.number == 3:
            ctx.emit(Done())

    ids = announce(session, *range(6))
    with pytest.raises(EventLoopLimitError):
        session.run([handle], workers=3)

    assert claim_of(session, ids[3])["dead_lettered_at"] is not None
    session.run([handle], workers=3, max_iterations=1)
    assert [claim_of(session, each)["attempts"] for each in ids] == [0, 0, 0, 1, 0, 0]
    assert session.event_store.check() == []
