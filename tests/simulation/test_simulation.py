"""The simulator: the same seed does the same, every trouble occurs, and no promise is broken."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from ontologia import Entity, Event, Field, HandlerContext, Session, on_event
from ontologia.delivery.retry import Backoff
from ontologia.engine import maintenance
from ontologia_conformance.simulation import Report, SimulationFailed, simulate
from ontologia_conformance.simulation.__main__ import main
from ontologia_conformance.simulation.troubles import (
    AT_BEGIN,
    AT_COMMIT,
    AT_STATEMENTS,
    IN_HANDLERS,
    OF_PROCESSES,
)

PORTION = 100
PORTIONS = [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(1, 20))]
TROUBLES = {**AT_STATEMENTS, **AT_BEGIN, **AT_COMMIT, **IN_HANDLERS, **OF_PROCESSES}
ACTS = {"retry", "replay", "cancel", "cancel_event", "cleanup", "pause", "collect", "forget"}


@pytest.mark.req("ONT-139", "ONT-170", "ONT-172")
@pytest.mark.parametrize("portion", PORTIONS)
def test_no_promise_is_broken_whatever_goes_wrong(portion: int) -> None:
    counts: Counter[str] = Counter()

    for seed in range(portion * PORTION, (portion + 1) * PORTION):
        counts.update(simulate(seed).counts)

    assert [trouble for trouble in TROUBLES if not counts[trouble]] == []
    assert [act for act in ACTS if not counts[f"operator: {act}"]] == []
    assert counts["events"] > 5 * PORTION
    assert counts["commits"] > 3 * PORTION


def test_a_seed_does_the_same_again() -> None:
    for seed in range(5):
        assert simulate(seed).trace == simulate(seed).trace


def test_two_seeds_do_not() -> None:
    assert simulate(1).trace != simulate(2).trace


def test_another_process_with_another_order_of_sets_does_the_same() -> None:
    command = [sys.executable, "-m", "ontologia_conformance.simulation", "--seed", "3", "--trace"]
    traces = [
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": order},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout.splitlines()
        for order in ("1", "2")
    ]
    steps = simulate(3).trace

    assert len(steps) > 100
    assert traces[0][: len(steps)] == traces[1][: len(steps)] == steps


def test_afterwards_threads_are_the_real_ones_again() -> None:
    simulate(0)

    assert maintenance.threading is threading
    assert not [each for each in threading.enumerate() if each.name.startswith("simulated")]


def test_the_command_says_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--start", "7"]) == 0

    said = capsys.readouterr().out
    assert said.startswith("3 seeds in ")
    assert ", 0 failed" in said
    assert " steps\n" in said


# -- handlers of one's own --------------------------------------------------------------------------


class TollTaken(Event):
    """Somebody paid."""

    gate: Field[str]
    number: Field[int]


class Toll(Entity):
    """One payment."""

    number: Field[int] = Field(primary_key=True)
    gate: Field[str]


class TollTotal(Entity):
    """How many payments there were."""

    gate: Field[str] = Field(primary_key=True)
    count: Field[int]


@on_event(TollTaken, name="tolls.careful")
def careful(ctx: HandlerContext[TollTaken]) -> None:
    ctx.ensure(Toll(number=ctx.event.number, gate=ctx.event.gate))
    ctx.commit()


@on_event(TollTaken, name="tolls.careless")
def careless(ctx: HandlerContext[TollTaken]) -> None:
    """Counts again what is delivered again."""
    gate = ctx.event.gate
    totals = ctx.query().entities(TollTotal).where(TollTotal.gate == gate).collect()
    ctx.ensure(TollTotal(gate=gate, count=totals[0].count + 1 if totals else 1))
    ctx.commit()


def all_are_counted_once(session: Session, produced: int) -> None:
    totals = session.query().entities(TollTotal).collect()
    assert sum(each.count for each in totals) <= produced


def run_tolls(
    seed: int, handler: Any, check: Callable[[Session, int], object] = lambda *_: None
) -> tuple[Report, set[int]]:
    """Run it; also the numbers of the tolls that a producer was told are stored.

    `check` gets how many tolls were produced: events that are finished may have been collected.
    """
    produced = 0
    told: set[int] = set()

    def produce(session: Session, random: Random) -> None:
        nonlocal produced
        number, produced = produced, produced + 1
        session.commit(event=TollTaken(gate=random.choice("ab"), number=number))
        told.add(number)

    report = simulate(
        seed,
        handlers=[handler],
        produce=produce,
        entity_types=[Toll, TollTotal],
        check=lambda session: check(session, produced),
    )
    return report, told


def test_handlers_of_ones_own_are_simulated() -> None:
    counts: Counter[str] = Counter()
    tolls: set[int] = set()
    sure = 0

    def look(session: Session, _produced: int) -> None:
        tolls.update(each.number for each in session.query().entities(Toll).collect())
        counts["buried"] += len(session.event_store.list_dead_letters("default"))

    for seed in range(30):
        tolls.clear()
        buried = counts["buried"]
        report, told = run_tolls(seed, careful, look)
        counts.update(report.counts)
        # An operator may have taken events away before they were handled, or dead letters after it.
        taken = any(
            report.counts[f"operator: {act}"] for act in ("cancel_event", "cleanup", "forget")
        )
        sure += not taken
        assert told <= tolls or counts["buried"] > buried or taken

    assert sure > 10
    assert counts["death"] > 0
    assert counts["events"] > 60


def first_failure(handler: Any) -> SimulationFailed:
    for seed in range(100):
        try:
            run_tolls(seed, handler, all_are_counted_once)
        except SimulationFailed as error:
            return error
    raise AssertionError("nothing was found")


def test_a_handler_that_minds_being_called_twice_is_found_out() -> None:
    failure = first_failure(careless)

    assert str(failure).startswith(f"seed {failure.seed}: AssertionError")
    begun = [line for line in failure.trace if "tolls.careless begins toll.taken" in line]
    stored = [line for line in failure.trace if re.search(r" producer#\d+ +insert_event$", line)]
    assert len(begun) > len(stored) > 0
    assert f"the same call with seed {failure.seed}" in str(failure)


def test_a_broken_promise_is_told_with_its_steps_and_the_command_that_shows_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bug for a moment: what failed is tried again at once."""
    monkeypatch.setattr(Backoff, "delay_ms", lambda *_: 0)

    with pytest.raises(SimulationFailed) as failed:
        [simulate(seed) for seed in range(50)]

    seed, said = failed.value.seed, str(failed.value)
    assert said.startswith(f"seed {seed}: Violation: the next attempt waits as long as")
    assert said.splitlines()[-2] == failed.value.trace[-1]
    assert said.endswith(f"python -m ontologia_conformance.simulation --seed {seed} --trace")
    assert main(["--seed", str(seed)]) == 1


def test_handlers_without_events_are_refused() -> None:
    with pytest.raises(TypeError, match="go together"):
        simulate(0, handlers=[careful])


def test_async_handlers_are_refused() -> None:
    @on_event(TollTaken, name="tolls.async")
    async def later(ctx: HandlerContext[TollTaken]) -> None:
        ctx.commit()

    with pytest.raises(TypeError, match="async"):
        run_tolls(0, later)
