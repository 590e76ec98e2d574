"""Handling a backlog: by one process, by several, beside finished events, and of any length."""

from __future__ import annotations

from collections.abc import Mapping

from bench.beside.contenders import queue
from bench.beside.contenders.contender import LINKS
from bench.beside.harness import Harness
from bench.beside.scenarios.scenario import Round, Scenario, events_of
from bench.beside.sizes import Size


def _rate(
    harness: Harness, key: str, kind: str, count: int, *, processes: int = 1, finished: int = 0
) -> float:
    """Events handled in a second."""
    count = events_of(queue(key), count)
    chain = kind == "chain"
    with harness.filled(key, count, chain=chain, finished=finished) as where:
        expected = count * LINKS if chain else count
        drained = harness.drained(key, where, kind, expected, processes=processes)
    return drained.handled / drained.seconds


def _nothing(harness: Harness, key: str) -> Mapping[str, float]:
    return {"": _rate(harness, key, "nothing", harness.size.backlog)}


def _state(harness: Harness, key: str) -> Mapping[str, float]:
    return {"": _rate(harness, key, "book", harness.size.changes)}


def _chain(harness: Harness, key: str) -> Mapping[str, float]:
    return {"": _rate(harness, key, "chain", harness.size.changes)}


def _retained(harness: Harness, key: str) -> Mapping[str, float]:
    size = harness.size
    return {"": _rate(harness, key, "nothing", size.backlog, finished=size.finished)}


def _processes(kind: str) -> Round:
    def round(harness: Harness, key: str) -> Mapping[str, float]:
        size = harness.size
        count = size.crowd if kind == "nothing" else size.busy
        return {
            _counted(each): _rate(harness, key, kind, count, processes=each)
            for each in size.processes
        }

    return round


def _each_number(size: Size) -> list[str]:
    return [_counted(each) for each in size.processes]


def _counted(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


SCENARIOS = (
    Scenario("drain", "a backlog, a handler that does nothing", "/s", _nothing),
    Scenario("drain-state", "a backlog, a handler that changes the state", "/s", _state),
    Scenario("chain", "events of which each has two followers, one after the other", "/s", _chain),
    Scenario(
        "processes", "a backlog, several processes, a handler that does nothing", "/s",
        _processes("nothing"), _each_number,
    ),
    Scenario(
        "processes-busy", "the same, a handler that takes 2 ms", "/s",
        _processes("nap"), _each_number,
    ),
    Scenario(
        "retained", "a backlog beside finished events that are retained", "/s",
        _retained, once=True,
    ),
)  # fmt: skip
