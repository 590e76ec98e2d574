"""A run: the scenarios one after the other, the contenders of each in turn, round after round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from bench.beside.contenders import everyone, field_of
from bench.beside.contenders.contender import BARE, OURS, Queue
from bench.beside.contenders.state import State
from bench.beside.harness import Harness, harness
from bench.beside.results import Figure
from bench.beside.scenarios import SCENARIOS
from bench.beside.scenarios.scenario import Scenario
from bench.measure import BenchError, progress
from bench.stores import Databases

INSTALL = "pip install -e '.[dev,bench]'"


def run(
    scenarios: Sequence[str],
    contenders: Sequence[str],
    rounds: int,
    size: str,
    server: Databases | None,
) -> Iterator[Figure]:
    """Measure; figures come when all rounds of their scenario are done."""
    with harness(server, size) as run:
        for name in scenarios:
            yield from _measured(run, SCENARIOS[name], contenders, rounds, server)
            run.clear()


def absent(chosen: Sequence[str], server: Databases | None) -> dict[str, str]:
    """Who takes part in nothing, and what would help."""
    return {
        f"{contender.name} ({contender.database})": why
        for contender in everyone()
        if contender.name in chosen and (why := _missing(contender, server))
    }


def _measured(
    harness: Harness,
    scenario: Scenario,
    chosen: Sequence[str],
    rounds: int,
    server: Databases | None,
) -> Iterator[Figure]:
    """One scenario: round 1 of all, round 2 of all, and so on."""
    figures: dict[tuple[str, str], Figure] = {}
    taking_part: dict[str, Queue | State] = {}
    for key, contender in field_of(scenario.field).items():
        if (
            contender.name not in chosen
            or contender.database not in scenario.databases
            or _missing(contender, server)
        ):
            continue
        why = _cannot(scenario, contender)
        for title, unit in scenario.units(harness.size).items():
            figure = figures.setdefault(
                (contender.database, title),
                Figure(scenario.name, title, unit, contender.database),
            )
            if why and title == next(iter(scenario.units(harness.size))):  # it is said once
                figure.left_out[contender.name] = why
        if not why:
            taking_part[key] = contender
    for number in range(1 if scenario.once else rounds):
        for key, contender in list(taking_part.items()):
            mine = {
                title: figure
                for (database, title), figure in figures.items()
                if database == contender.database
            }
            if not _one_round(harness, scenario, key, contender.name, mine, number + 1):
                del taking_part[key]
    yield from figures.values()


def _one_round(
    harness: Harness,
    scenario: Scenario,
    key: str,
    name: str,
    figures: dict[str, Figure],
    number: int,
) -> bool:
    """Whether it went well; a contender that fails is out of the scenario, and the rest go on."""
    with progress(f"{scenario.name}, round {number}: {key}"):
        try:
            values = scenario.round(harness, key)
        except BenchError as error:
            if name == OURS:
                raise
            values, failed = {}, f"it failed: {error}"
        else:
            failed = ""
    for title, figure in figures.items():
        if failed:
            figure.rounds.pop(name, None)
            figure.left_out[name] = failed
        else:
            figure.rounds.setdefault(name, []).append(values[title])
    return not failed


def _missing(contender: Queue | State, server: Databases | None) -> str | None:
    """What is not here and would let it take part."""
    if contender.database == "PostgreSQL" and server is None:
        return "no server: --server postgresql://user@host/database"
    missing = [package for module, package in contender.needs.items() if not find_spec(module)]
    return f"{', '.join(missing)} not installed: {INSTALL}" if missing else None


def _cannot(scenario: Scenario, contender: Queue | State) -> str | None:
    """Why it cannot take part in this scenario."""
    if scenario.only is not None and contender.name not in scenario.only:
        return "it would take too long with that many events"
    if scenario.name == "start-up" and contender.name != BARE and not _command_of(contender):
        return "it has no command line"
    return contender.cannot.get(scenario.name)


def _command_of(contender: Queue | State) -> tuple[str, ...]:
    return contender.command if isinstance(contender, Queue) else ()
