"""Handlers that do not return: others go on, the attempt counts, and nothing of it is written.

A handler hangs until the test lets it go, and moves the clock past its timeout before.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from datetime import timedelta

import pytest

from ontologia import Entity, Event, Field, on_event
from ontologia.cli.failures import EXIT_CODES
from ontologia.engine import watchdog
from ontologia.engine.inbox import Inbox
from ontologia.engine.source import StoreSource
from ontologia.errors import AbandonedThreadsError, HandlerError, LeaseExpiredError
from ontologia.queues import EventWorker, StoreEventQueue
from ontologia.runtime.session import core_of
from ontologia.store import doctor
from ontologia_conformance.queue_world import Env, fill
from tests.integration.processes import PATIENCE, Process
from tests.integration.running import running, until

HUNG = 3


class Valve(Entity):
    id: Field[str]
    open: Field[bool] = False


class ValveTurned(Event):
    number: Field[int]


class GaugeRead(Event):
    number: Field[int]


class PumpStarted(Event):
    number: Field[int]


class Trap:
    """Where handlers hang, until the test lets them go."""

    def __init__(self, clock) -> None:
        self._clock = clock
        self._opened = threading.Event()
        self.calls: dict[str, watchdog.Call] = {}
        """The last call with each event."""

    def hang(self) -> None:
        self._clock.advance(seconds=1)
        self.wait()

    def hang_past_the_timeout(self, ctx) -> None:
        """Hang as if a minute had passed, which is the timeout of no call that runs beside it."""
        call = self.calls[ctx.event_id]
        call.at -= 60
        call.began -= 60
        self.wait()

    def move_to_the_end_of_its_time(self, ctx, seconds: float = 29.5) -> None:
        """By default as late as it is overdue with a lease of 30 s, which still holds."""
        call = self.calls[ctx.event_id]
        call.at -= 3_600  # with renew=True it has an hour
        call.began -= 3_600
        self._clock.advance(seconds=seconds)

    def hang_to_the_end(self, ctx, seconds: float = 29.5) -> None:
        self.move_to_the_end_of_its_time(ctx, seconds)
        self.wait()

    def wait(self) -> None:
        self._opened.wait(PATIENCE)

    def let_go(self) -> None:
        self._opened.set()


@pytest.fixture
def trap(clock, monkeypatch):
    """At the end all threads have ended that hung in it."""
    made, before = Trap(clock), watchdog.count_abandoned()
    begin = watchdog.Watchdog.begin

    def noted(self, consumer, claim):
        call = made.calls[claim.event.id] = begin(self, consumer, claim)
        return call

    monkeypatch.setattr(watchdog.Watchdog, "begin", noted)
    yield made
    made.let_go()
    until(lambda: watchdog.count_abandoned() <= before)


def turn(session, *numbers: int) -> None:
    session.commit(event=[ValveTurned(number=number) for number in numbers])


def attempts(session, kind: type[Event], number: int) -> list[dict]:
    for each in session.event_store.list_events("default", 1_000):
        told = session.event_store.inspect_event(each["id"])
        if told["type"] == kind.__event_type__ and told["payload"]["number"] == number:
            return told["attempts"]
    raise LookupError(number)


def test_what_a_handler_held_when_it_timed_out_is_freed_when_it_returns(session, trap):
    """Not only by the garbage collector: it may be a statement, whose snapshot would stay open."""
    held = []

    @on_event(ValveTurned, name="turn", timeout=0.2, max_attempts=1)
    def turn_valve(ctx):
        thing = Trap(None)
        held.append(weakref.ref(thing))
        trap.hang()

    turn(session, 1)
    gc.disable()
    try:
        with running(session, [turn_valve]):
            until(lambda: session.event_store.list_dead_letters("default"))
            trap.let_go()
            until(lambda: held[0]() is None)
    finally:
        gc.enable()


@pytest.fixture
def large_batches(monkeypatch):
    """As on a quick machine: the batch of the event that hangs has others."""
    take = Inbox.take
    monkeypatch.setattr(Inbox, "take", lambda self, **options: take(self, 50, **options))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("large_batches")
def test_a_handler_that_hangs_holds_up_neither_its_own_events_nor_others(
    session, trap, caplog, workers
):
    done, threads = [], set()

    @on_event(ValveTurned, name="turn", timeout=30, max_attempts=1)
    def turn_valve(ctx):
        threads.add(threading.get_ident())
        if ctx.event.number == HUNG:
            trap.hang_past_the_timeout(ctx)
        done.append(ctx.event.number)

    @on_event(GaugeRead, name="read")
    def read(ctx):
        done.append(-ctx.event.number)

    turn(session, *range(20))
    session.commit(event=GaugeRead(number=7))
    with (
        caplog.at_level(logging.WARNING, "ontologia"),
        running(session, [turn_valve, read], workers=workers),
    ):
        until(lambda: len(done) == 20)  # all but one, while that one hangs
        assert sorted(done) == [-7, *(n for n in range(20) if n != HUNG)]
        until(lambda: session.event_store.list_dead_letters("default"))
        trap.let_go()
        until(lambda: HUNG in done)

    [letter] = session.event_store.list_dead_letters("default")
    assert (letter["attempts"], letter["last_error"][:29]) == (1, "TimeoutError: still running a")
    [attempt] = attempts(session, ValveTurned, HUNG)
    assert attempt["outcome"] == "timed out"
    assert "in turn_valve\n    trap.hang_past_the_timeout(ctx)" in attempt["traceback"]
    assert "has ended after its timeout; nothing of it is written any more" in caplog.text
    assert session.event_store.check() == []


@pytest.mark.parametrize("names", [("a-turn", "b-read"), ("b-turn", "a-read")])
@pytest.mark.parametrize("kind", ["function", "coroutine", "renewed"])
@pytest.mark.parametrize(
    ("workers", "seconds"),
    [
        (1, 29.5),
        (1, 31),  # nothing looked before its lease had ended
        (2, 29.5),
    ],
)
def test_others_and_newer_events_run_before_an_event_that_hangs_is_tried_again(
    session, trap, names, kind, workers, seconds
):
    """The clock stands still: its next attempt comes after a backoff, which does not end."""
    calls, done = [], set()
    turns, reads = names

    def begin(ctx):
        calls.append((ctx.event.number, ctx.attempt))
        if ctx.event.number == 1:
            ctx.commit(event=[ValveTurned(number=2), GaugeRead(number=1)])
            trap.move_to_the_end_of_its_time(ctx, seconds)
            return True
        done.add(ctx.event.number)
        return False

    @on_event(ValveTurned, name=turns)
    def function(ctx):
        if begin(ctx):
            trap.wait()

    @on_event(ValveTurned, name=turns)
    async def coroutine(ctx):
        if begin(ctx):
            await asyncio.Event().wait()

    @on_event(ValveTurned, name=turns, renew=True)
    def renewed(ctx):
        if begin(ctx):
            trap.wait()

    @on_event(GaugeRead, name=reads)
    def read(ctx):
        done.add(-ctx.event.number)

    turn(session, 1)
    handler = {"function": function, "coroutine": coroutine, "renewed": renewed}[kind]
    with running(session, [handler, read], workers=workers):
        until(lambda: done == {2, -1})
        until(lambda: attempts(session, ValveTurned, 1))  # another worker may have done them before
        trap.let_go()

    assert [attempt for number, attempt in calls if number == 1] == [1]
    [attempt] = attempts(session, ValveTurned, 1)
    assert (attempt["attempt"], attempt["outcome"]) == (1, "timed out")
    assert session.event_store.check() == []


@pytest.mark.parametrize("workers", [1, 2])
def test_one_event_that_hangs_is_a_dead_letter_at_its_limit_and_its_process_goes_on(
    session, clock, trap, workers
):
    """With the settings as they are: ten attempts, and at most eight threads."""
    called, done = [], []

    @on_event(ValveTurned, name="turn")
    def turn_valve(ctx):
        called.append(ctx.attempt)
        trap.hang_to_the_end(ctx)

    @on_event(GaugeRead, name="read")
    def read(ctx):
        done.append(ctx.event.number)

    turn(session, 1)
    with running(session, [turn_valve, read], workers=workers):
        for number in range(1, 11):
            until(lambda number=number: len(attempts(session, ValveTurned, 1)) == number)
            clock.advance(seconds=31)  # its backoff is over
        until(lambda: session.event_store.list_dead_letters("default"))
        session.commit(event=GaugeRead(number=1))
        until(lambda: done == [1])
        trap.let_go()

    assert called == [1, 2]  # a quarter of the threads is all that one event may keep
    made = attempts(session, ValveTurned, 1)
    assert [each["attempt"] for each in made] == list(range(1, 11))
    assert {each["outcome"] for each in made} == {"timed out"}
    refused = "TimeoutError: it was not called: 2 earlier attempts hang in this process"
    assert {each["error"] for each in made[2:]} == {refused}
    assert session.event_store.check() == []


def test_an_event_is_called_again_once_its_threads_have_returned(session, clock, trap, monkeypatch):
    monkeypatch.setattr("ontologia.engine.engine._SHARE", 1_000)  # one thread for an event
    called = []

    @on_event(ValveTurned, name="turn")
    def turn_valve(ctx):
        called.append(ctx.attempt)
        if ctx.attempt == 1:
            trap.hang_to_the_end(ctx)

    turn(session, 1)
    with running(session, [turn_valve]):
        until(lambda: len(attempts(session, ValveTurned, 1)) == 1)
        clock.advance(seconds=31)
        until(lambda: len(attempts(session, ValveTurned, 1)) == 2)
        before = watchdog.count_abandoned()
        trap.let_go()
        until(lambda: watchdog.count_abandoned() < before)
        clock.advance(seconds=31)
        until(lambda: called == [1, 3])
        until(lambda: session.event_store.list_events("default")[0]["status"] == "acked")

    assert [each["attempt"] for each in attempts(session, ValveTurned, 1)] == [1, 2]


@pytest.mark.parametrize("kind", ["function", "coroutine"])
@pytest.mark.usefixtures("large_batches")
def test_a_handler_is_served_although_each_event_of_those_before_it_hangs(session, trap, kind):
    calls = []

    def hang(ctx):
        calls.append(ctx.event.__event_type__)
        trap.hang_to_the_end(ctx)

    async def await_for_ever(ctx):
        calls.append(ctx.event.__event_type__)
        trap.move_to_the_end_of_its_time(ctx)
        await asyncio.Event().wait()

    function = {"function": hang, "coroutine": await_for_ever}[kind]

    @on_event(ValveTurned, name="a-turn", max_attempts=1)
    def turn_valve(ctx):
        return function(ctx)

    @on_event(GaugeRead, name="b-read", max_attempts=1)
    def read(ctx):
        return function(ctx)

    @on_event(PumpStarted, name="c-start")
    def start(ctx):
        calls.append(ctx.event.__event_type__)

    turn(session, 1, 2)
    session.commit(event=[GaugeRead(number=n) for n in (1, 2)])
    session.commit(event=PumpStarted(number=1))
    with running(session, [turn_valve, read, start]):
        until(lambda: len(calls) == 5)  # while all of the others hang
        trap.let_go()

    kinds = [each.__event_type__ for each in (ValveTurned, GaugeRead, PumpStarted)]
    assert calls[:3] == kinds


def test_a_short_lease_that_the_handler_asks_for_is_not_over_at_once(session, trap, monkeypatch):
    """A call is overdue a second before its lease ends, or a tenth of a short one before."""
    seen, looks = [], []
    look = watchdog.Watchdog.look
    monkeypatch.setattr(watchdog.Watchdog, "look", lambda self: looks.append(1) or look(self))

    @on_event(ValveTurned, name="turn")
    def turn_valve(ctx):
        seen.append(ctx.attempt)
        trap.calls[ctx.event_id].began -= 3_600
        ctx.renew(seconds=0.5)
        before = len(looks)
        until(lambda: len(looks) > before + 3)

    turn(session, 1)
    session.run([turn_valve], max_iterations=1)

    assert seen == [1]
    assert session.event_store.list_events("default")[0]["status"] == "acked"


def test_a_handler_that_timed_out_is_given_to_another_thread_after_its_backoff(
    session, clock, trap
):
    seen = []

    @on_event(ValveTurned, name="turn", lease=0.05)
    def turn_valve(ctx):
        seen.append((ctx.attempt, threading.get_ident()))
        if ctx.attempt == 1:
            trap.hang()

    turn(session, 1)
    with running(session, [turn_valve]):
        until(lambda: attempts(session, ValveTurned, 1))
        clock.advance(seconds=31)
        until(lambda: len(seen) == 2)  # before it has returned
        until(lambda: session.event_store.list_events("default")[0]["status"] == "acked")
        trap.let_go()

    assert [number for number, _ in seen] == [1, 2]
    assert seen[0][1] != seen[1][1]
    [attempt] = attempts(session, ValveTurned, 1)
    assert (attempt["attempt"], attempt["outcome"]) == (1, "timed out")
    assert session.event_store.check() == []


def test_it_is_timed_out_before_the_engine_claims_it_again(session, clock, trap, monkeypatch):
    """Not claimed as the event of a process that died: then it would run alone, and all others wait."""
    begin, look, hung, ended = StoreSource.begin, watchdog.Watchdog.look, [], []

    def look_elsewhere(self):
        """The other thread that looks comes too late."""
        return 0.01 if threading.current_thread().name == "ontologia-keeper" else look(self)

    def lease_ends(self):
        """After the engine has begun a pass, and before it looks."""
        begin(self)
        if hung and not ended:
            until(lambda: time.monotonic() > hung[0] + 0.02)
            ended.append(True)
            clock.advance(seconds=1)

    monkeypatch.setattr(watchdog.Watchdog, "look", look_elsewhere)
    monkeypatch.setattr(StoreSource, "begin", lease_ends)

    @on_event(ValveTurned, name="turn", lease=0.02, max_attempts=1)
    def turn_valve(ctx):
        if ctx.event.number == 1:
            hung.append(time.monotonic())
            trap.wait()

    turn(session, 1)
    with running(session, [turn_valve], workers=2):
        until(lambda: hung)
        with session.unit() as unit:
            unit.commit(event=ValveTurned(number=2))  # wakes the engine
        until(lambda: session.event_store.list_dead_letters("default"))
        trap.let_go()

    [attempt] = attempts(session, ValveTurned, 1)
    assert attempt["outcome"] == "timed out"


def test_a_run_in_a_thread_of_the_program_ends_although_its_handler_hangs(session, trap):
    @on_event(ValveTurned, name="turn", timeout=0.2, max_attempts=1)
    def turn_valve(ctx):
        trap.hang()

    turn(session, 1)
    with running(session, [turn_valve]):
        until(lambda: session.event_store.list_dead_letters("default"))
    session.close()  # which waits for the run, too


def test_a_lease_that_the_handler_renews_itself_is_its_time(session, clock, monkeypatch):
    seen, looks = [], []
    look = watchdog.Watchdog.look
    monkeypatch.setattr(watchdog.Watchdog, "look", lambda self: looks.append(1) or look(self))

    @on_event(ValveTurned, name="turn", lease=0.02)
    def turn_valve(ctx):
        seen.append(ctx.attempt)
        ctx.renew(seconds=60)
        clock.advance(seconds=30)
        before = len(looks)
        until(lambda: len(looks) > before + 3)

    turn(session, 1)
    session.run([turn_valve], max_iterations=1)

    assert seen == [1]
    assert session.event_store.list_events("default")[0]["status"] == "acked"


def test_past_its_timeout_a_handler_can_write_nothing(session, trap):
    refused = []

    @on_event(ValveTurned, name="turn", timeout=0.2, max_attempts=1)
    def turn_valve(ctx):
        trap.hang()
        ctx.ensure(Valve(id="v1", open=True))
        try:
            ctx.commit()
        except LeaseExpiredError as error:
            refused.append(error)

    turn(session, 1)
    with running(session, [turn_valve]):
        until(lambda: session.event_store.list_dead_letters("default"))
        trap.let_go()
        until(lambda: refused)

    assert session.get(Valve, "v1") is None
    assert len(session.event_store.list_dead_letters("default")) == 1


def test_a_renewed_lease_is_kept_until_the_timeout_and_retried_after_the_backoff(session, trap):
    seen = []

    @on_event(ValveTurned, name="turn", renew=True, timeout=0.2, backoff=(30, 30))
    def turn_valve(ctx):
        seen.append(ctx.attempt)
        trap.hang()

    turn(session, 1)
    with running(session, [turn_valve]):
        until(lambda: attempts(session, ValveTurned, 1))
        trap.let_go()

    [attempt] = attempts(session, ValveTurned, 1)
    assert (seen, attempt["outcome"]) == ([1], "timed out")
    [claim] = session.event_store.inspect_event(
        session.event_store.list_events("default")[0]["id"]
    )["claims"]
    assert claim["available_at"] > claim["lease_until"]


def test_a_timeout_beyond_the_lease_is_refused(session):
    @on_event(ValveTurned, name="turn", timeout=60)
    def turn_valve(ctx):
        pass

    with pytest.raises(HandlerError, match="timeout of 60 s and a lease of 30 s"):
        session.run([turn_valve], max_iterations=1)


# -- coroutines -------------------------------------------------------------------------------------


def test_a_coroutine_is_cancelled_and_its_thread_goes_on(session, clock):
    ended, before = [], watchdog.count_abandoned()

    @on_event(ValveTurned, name="turn", timeout=0.2, max_attempts=1)
    async def turn_valve(ctx):
        if ctx.event.number == 1:
            clock.advance(seconds=1)
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled")
        ended.append(ctx.event.number)

    turn(session, 1, 2)
    session.run([turn_valve], max_iterations=1)

    assert ended == ["cancelled", 2]
    assert watchdog.count_abandoned() == before
    assert [each["outcome"] for each in attempts(session, ValveTurned, 1)] == ["timed out"]


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def test_a_coroutine_that_timed_out_says_what_it_awaited(session, clock):
    @on_event(ValveTurned, name="turn", timeout=0.2, max_attempts=1)
    async def turn_valve(ctx):
        clock.advance(seconds=1)
        await wait_for_ever()

    turn(session, 1)
    session.run([turn_valve], max_iterations=1)

    [attempt] = attempts(session, ValveTurned, 1)
    where = attempt["traceback"].partition("It was here:\n")[2]
    names = re.findall(r"line \d+, in (\w+)", where)
    assert names == ["turn_valve", "wait_for_ever", "wait"], where
    assert "    await wait_for_ever()\n" in where


def test_a_coroutine_that_another_one_kept_from_being_called_says_where_that_was(
    session, clock, trap, monkeypatch
):
    monkeypatch.setattr(watchdog, "_CLEANING_UP", PATIENCE)  # no other event loop takes over
    started = []

    @on_event(ValveTurned, name="turn", timeout=0.2, max_attempts=1)
    async def turn_valve(ctx):
        trap.hang()

    @on_event(PumpStarted, name="start", timeout=0.2, max_attempts=1)
    async def start_pump(ctx):
        started.append(ctx.event.number)

    turn(session, 1)
    with running(session, [turn_valve, start_pump], workers=2):
        until(lambda: session.event_store.list_dead_letters("default"))
        with session.unit() as unit:
            unit.commit(event=PumpStarted(number=1))
        until(lambda: len(trap.calls) == 2)
        clock.advance(seconds=1)
        until(lambda: len(session.event_store.list_dead_letters("default")) == 2)
        trap.let_go()
        [late] = [each for each in trap.calls.values() if each.consumer.name == "start"]
        # Python would warn of a coroutine that is not awaited.
        until(lambda: inspect.getcoroutinestate(late.coroutine._awaited) == inspect.CORO_CLOSED)
        assert late.coroutine.ended, "its event loop would count as blocked for ever"

    assert started == [], "it was called after its timeout"
    [attempt] = attempts(session, PumpStarted, 1)
    text, where = attempt["traceback"].split("\nThe event loop was here:\n")
    assert text.endswith("s, since another coroutine blocks the event loop"), text
    assert re.findall(r"line \d+, in (\w+)", where)[:2] == ["turn_valve", "hang"], where


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_what_blocked_in_a_method_of_the_context_says_who_called_it(session, trap, kind):
    @on_event(ValveTurned, name="turn", timeout=0.2, max_attempts=1)
    def function(ctx):
        ctx.add_commit_meta("reason", Slow())

    @on_event(ValveTurned, name="turn", timeout=0.2, max_attempts=1)
    async def coroutine(ctx):
        ctx.add_commit_meta("reason", Slow())

    class Slow:
        def __repr__(self):
            trap.hang()
            return "slow"

    turn(session, 1)
    with running(session, [{"function": function, "coroutine": coroutine}[kind]]):
        until(lambda: session.event_store.list_dead_letters("default"))
        trap.let_go()

    [attempt] = attempts(session, ValveTurned, 1)
    where = attempt["traceback"].partition("It was here:\n")[2]
    names = re.findall(r"line \d+, in (\w+)", where)
    assert names[0] == kind, where
    assert "add_commit_meta" in names
    assert names[-4:-1] == ["hang", "wait", "wait"], where


def test_a_coroutine_that_blocks_its_loop_is_left_with_it(session, trap, monkeypatch, caplog):
    monkeypatch.setattr(watchdog, "_CLEANING_UP", 0.05)
    loops = []

    @on_event(ValveTurned, name="turn", timeout=0.2, max_attempts=1)
    async def turn_valve(ctx):
        loops.append(asyncio.get_running_loop())
        if ctx.event.number == 1:
            trap.hang()

    turn(session, 1)
    with running(session, [turn_valve]):
        until(lambda: "others run on another event loop" in caplog.text)
        turn(session, 2)
        until(lambda: len(loops) == 2)
        trap.let_go()

    assert loops[0] is not loops[1]


_FRAMES_AND_GARBAGE = """
import gc, threading
from ontologia.engine.coroutines import stack_of

class Node:
    pass

stop = threading.Event()
for _ in range(20):
    threading.Thread(target=stop.wait, daemon=True).start()
gc.set_threshold(1)
for _ in range(500):
    node = Node()
    node.itself, node.local = node, threading.local()
    node.local.used = True
    del node
    assert stack_of(threading.get_ident())
print("looked", gc.isenabled())
"""


def test_looking_where_threads_are_does_not_hang_in_the_garbage_collector():
    """In CPython 3.11 the whole process hung, with the interpreter's lock."""
    looked = subprocess.run(
        [sys.executable, "-c", _FRAMES_AND_GARBAGE],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert looked.stdout == "looked True\n", looked.stderr


# -- too many ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_ends_once_too_many_threads_hang(open_session, trap, workers):
    most = watchdog.count_abandoned() + 1
    session = open_session(settings={"max_abandoned_threads": most})
    hanging, done = [], []

    @on_event(ValveTurned, name="turn", timeout=0.2, max_attempts=1)
    def turn_valve(ctx):
        hanging.append(ctx.event.number)
        trap.hang()

    @on_event(GaugeRead, name="read", priority=1)
    def read(ctx):
        done.append(ctx.event.number)

    turn(session, 1, 2)

    def run() -> None:
        with running(session, [turn_valve, read], workers=workers) as thread:
            until(lambda: core_of(session).stopping or not thread.is_alive())
            session.commit(event=GaugeRead(number=1))
            trap.let_go()

    with pytest.raises(AbandonedThreadsError, match=f"max_abandoned_threads is {most}"):
        run()

    assert (len(hanging), done) == (2, [])
    assert next(code for kind, code in EXIT_CODES if issubclass(AbandonedThreadsError, kind)) == 7


# -- the main thread --------------------------------------------------------------------------------

HANG = """
import threading, time
from ontologia import Event, Field, on_event

class ValveTurned(Event):
    number: Field[int]

class GaugeRead(Event):
    number: Field[int]

@on_event(ValveTurned, name="turn", timeout=0.2, max_attempts=1)
def turn_valve(ctx):
    say("hangs", threading.current_thread() is threading.main_thread())
    while True:
        time.sleep(3600)

@on_event(GaugeRead, name="read", priority=1)
def read(ctx):
    say("read", threading.current_thread() is threading.main_thread())

with Session(sys.argv[1]) as session:
    session.commit(event=[ValveTurned(number=1), GaugeRead(number=1)])
    session.run([turn_valve, read])
    report(len(session.event_store.list_dead_letters("default")))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_main_thread_that_hangs_is_replaced_and_still_ends_the_program(uri, number):
    with Process(HANG, uri) as other:
        assert other.hear("hangs") == "True"
        assert other.hear("read") == "False"
        other.popen.send_signal(number)
        assert other.report() == 1


# -- other doors, and operators ---------------------------------------------------------------------


def test_a_worker_of_a_queue_goes_on_without_the_thread_that_hangs(open_session, clock, trap):
    session = open_session(settings={"event_claim_lease_ms": 50})
    queue, done = StoreEventQueue(session), []

    def listed():
        return session.event_store.list_events("default")

    def handle(event, _env):
        number = event.payload["number"]
        if number == 1 and not done:
            done.append("hangs")
            trap.hang()
        else:
            done.append(number)

    worker = EventWorker(Env(queue, {"parcel.posted": [handle]}))
    thread = threading.Thread(target=worker.run_forever)
    thread.start()
    fill(queue, 1, 2)
    until(lambda: sorted(each["status"] for each in listed()) == ["acked", "pending"])
    clock.advance(seconds=31)  # its backoff is over
    until(lambda: len(done) == 3)  # the second, and the first again
    health = worker.health_snapshot()
    trap.let_go()
    worker.stop()
    thread.join(PATIENCE)

    assert sorted(map(str, done)) == ["1", "2", "hangs"]
    assert health["retried"] == 1
    assert not thread.is_alive()


def test_operators_see_threads_that_hang_and_attempts_past_their_lease(session, clock, trap):
    @on_event(ValveTurned, name="turn", timeout=0.2, max_attempts=1)
    def turn_valve(ctx):
        trap.hang()

    def found() -> dict[str, int]:
        core = core_of(session)
        return {
            each.check: each.count
            for each in doctor.examine(core.store, core.clock, core.config)
            if each.check in ("overdue", "abandoned_threads")
        }

    turn(session, 1)
    with running(session, [turn_valve]):
        until(lambda: found() == {"abandoned_threads": 1})
        trap.let_go()
        until(lambda: found() == {})

    turn(session, 2)
    events = session.event_store
    kinds = [ValveTurned.__event_type__]
    [claim] = events.claims.claim(
        events.consumers.register("default", "turn", kinds),
        kinds,
        session_id="gone",
        limit=1,
        lease_ms=50,
        policy=events.policy,
        start=1,
    )
    assert claim.started
    clock.advance(seconds=1)
    assert found() == {"overdue": 1}
    stats = events.activity.stats("default", timedelta(hours=1))
    assert [each["overdue"] for each in stats if each["handler"] == "turn"] == [1]
