"""A process of a contender: `python -m bench.beside.worker host|work|state ...`.

A host stores events, or asks for state, one command a line, for as long as its input is open. A
worker handles events until SIGTERM, and says at the end how it fared.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any

import orjson

from bench.beside.contenders import queue, state_of
from bench.beside.contenders.contender import Fields, Handling, Queue
from bench.measure import seconds
from bench.processes import say
from bench.workload import fields

if TYPE_CHECKING:
    from bench.beside.contenders.state import State


def main() -> None:
    what, key, *words = sys.argv[1:]
    if what == "work":
        _work(queue(key), *words)
    elif what == "host":
        _host(queue(key), _COMMANDS)
    else:
        from bench.beside.state_host import COMMANDS

        _host(state_of(key), COMMANDS)


def _work(contender: Queue, where: str, kind: Any) -> None:
    handling = Handling(kind)
    contender.work(where, handling)
    say({"handled": handling.handled, "started": handling.started, "peak": _peak()})


def _peak() -> int:
    """The most memory that this process has used, in bytes."""
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _host(contender: Queue | State, known: Mapping[str, Any]) -> None:
    for line in sys.stdin:
        what, *words = orjson.loads(line)
        say(known[what](contender, *words))


def _fill(contender: Queue, where: str, count: int, chain: bool, finished: int) -> None:
    """A store in which events wait."""
    contender.make(where)
    if finished:
        contender.finish(where, finished)
    if count:
        with contender.producing(where) as producer:
            producer.together(_rows(count, chain=chain))
    contender.ready(where)


def _store(contender: Queue, where: str, count: int, together: bool) -> float:
    """Seconds for each event."""
    with contender.producing(where) as producer:
        producer.each(_rows(3))  # to warm up
        store = producer.together if together else producer.each
        rows = _rows(count)
        return seconds(lambda: store(rows)) / count


def _pace(contender: Queue, where: str, count: int, least: float, most: float) -> dict[str, int]:
    """One event after the other with pauses between; when each was stored, by its number."""
    returned: dict[str, int] = {}
    random = Random(7)  # the same pauses for everybody
    with contender.producing(where) as producer:
        for row in _rows(count):
            producer.each([row])
            returned[row["order_id"]] = time.monotonic_ns()
            time.sleep(random.uniform(least, most))
    return returned


def _rows(count: int, *, chain: bool = False) -> list[Fields]:
    step = {"step": 1} if chain else {}
    return [fields(number) | step for number in range(count)]


_COMMANDS: dict[str, Any] = {"fill": _fill, "store": _store, "pace": _pace}


if __name__ == "__main__":
    main()
