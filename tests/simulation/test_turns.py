"""Threads that take turns, and what stands in for `threading` and `time` among them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from ontologia import Event, Field, HandlerContext, Session, on_event
from ontologia_conformance.simulation import simulate
from ontologia_conformance.simulation.stand_ins import Condition, Lock, Thread
from ontologia_conformance.simulation.turns import Owner, Stuck, Turns


class FerryLeft(Event):
    """Something for a session that is no part of any simulation."""

    number: Field[int]


def run(*works: Callable[[Turns], object], seed: int = 0) -> Turns:
    turns = Turns(Random(seed), 0.5)
    for number, work in enumerate(works):
        turns.spawn(f"t{number}", Owner(f"o{number}"), lambda work=work: work(turns))
    turns.run()
    return turns


def test_when_everybody_waits_time_goes_on_to_the_first_who_need_not() -> None:
    order: list[tuple[str, int]] = []

    def sleeper(name: str, seconds: float) -> Callable[[Turns], None]:
        def work(turns: Turns) -> None:
            turns.sleep(seconds)
            order.append((name, turns.micros))

        return work

    run(sleeper("long", 3600), sleeper("short", 0.5))

    assert order == [("short", 500_000), ("long", 3_600_000_000)]


def test_those_who_wait_for_each_other_are_told_so() -> None:
    def work(turns: Turns) -> None:
        turns.wait(lambda: False)

    with pytest.raises(Stuck, match="everybody waits"):
        run(work, work)


def test_what_one_of_them_raises_ends_it() -> None:
    def broken(turns: Turns) -> None:
        turns.pause()
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        run(broken, lambda turns: turns.sleep(10))


def test_the_dead_do_nothing_more() -> None:
    done: list[str] = []

    def victim(turns: Turns) -> None:
        lock = Lock(turns)
        child = Thread(turns, lambda: turns.sleep(5) or done.append("child"), "child")
        with lock:
            child.start()
            turns.sleep(1)
            done.append("victim")

    def killer(turns: Turns) -> None:
        turns.sleep(0.5)
        owners[0].dead = True

    turns = Turns(Random(0), 0.5)
    owners = [Owner("victim"), Owner("killer")]
    for owner, work in zip(owners, (victim, killer), strict=True):
        turns.spawn(owner.name, owner, lambda work=work: work(turns))
    turns.run()

    assert done == []
    assert turns.micros == 500_000


@pytest.mark.parametrize("seed", range(5))
def test_a_lock_is_had_by_one_at_a_time(seed: int) -> None:
    inside: list[int] = []
    most: list[int] = []
    locks: list[Lock] = []

    def work(turns: Turns) -> None:
        if not locks:
            locks.append(Lock(turns))
        for _ in range(5):
            with locks[0]:
                inside.append(1)
                turns.pause()
                most.append(len(inside))
                inside.pop()
            turns.pause()

    run(work, work, work, seed=seed)

    assert most == [1] * 15


def test_a_condition_is_waited_for_until_somebody_notifies() -> None:
    seen: list[str] = []
    conditions: list[Condition] = []

    def waiter(turns: Turns) -> None:
        conditions.append(Condition(turns))
        with conditions[0]:
            assert conditions[0].wait(1.0) is False
            assert conditions[0].wait(10.0) is True
        seen.append(f"after {turns.micros}")

    def notifier(turns: Turns) -> None:
        turns.sleep(2)
        with conditions[0]:
            conditions[0].notify_all()

    run(waiter, notifier)

    assert seen == ["after 2000000"]


def test_a_session_outside_works_on_while_others_are_simulated(tmp_path: Path) -> None:
    handled: list[int] = []
    last = threading.Event()

    @on_event(FerryLeft, name="ferries.outside")
    def note(ctx: HandlerContext[FerryLeft]) -> None:
        handled.append(ctx.event.number)
        if ctx.event.number == 9:
            last.set()

    with Session(str(tmp_path / "real.db")) as session:
        running = threading.Thread(target=session.run, args=([note],))
        running.start()
        for number in range(10):
            session.commit(event=FerryLeft(number=number))
            simulate(number)
        assert last.wait(30)
        session.stop()
        running.join()

    assert handled == list(range(10))
