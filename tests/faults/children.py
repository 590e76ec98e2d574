"""Processes in the hands of a test, and what must hold when they are gone.

A child is forked by a server that has imported everything before, so killing and starting a
hundred of them costs little. It is a process like any other: it opens its own session and gets
real signals.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ontologia import Session
from ontologia.clock import SYSTEM_CLOCK, to_text
from ontologia_conformance.tiers import SCALE, samples
from tests.faults.checker import UNFINISHED, ask, problems_at_the_end, unsound
from tests.faults.workers import CONSUMERS, Order, Placed, begin

PATIENCE = max(60, 30 + 30 * SCALE)  # seconds; only a hang takes that long

_EACH = 10

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["ontologia", "apsw", "tests.faults.hardships", "tests.faults.bad_disks"]
)


class Child:
    """A process that runs a function of `workers` and the like; killed, if need be, when the block is left."""

    count = 0

    def __init__(self, folder: Path, target: Callable[..., None], *arguments: Any) -> None:
        type(self).count += 1
        self.notes = folder / f"child-{self.count}"
        self.pipe, theirs = _context.Pipe()
        self.process = _context.Process(
            target=begin, args=(target, theirs, str(self.notes), *arguments), daemon=True
        )
        self.process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.pipe.close()
        self.process.close()

    def hear(self, word: str) -> tuple[Any, ...]:
        """What the child says next, which must begin with `word`; what follows it."""
        if not self.pipe.poll(PATIENCE):
            raise AssertionError(f"wanted {word!r}, heard nothing in {PATIENCE} s\n{self.stacks()}")
        said = self.pipe.recv()
        if said[0] != word:
            raise AssertionError(f"wanted {word!r}, heard " + "\n".join(map(str, said)))
        return tuple(said[1:])

    def stacks(self) -> str:
        """Where its threads are at this moment."""
        self.signal(signal.SIGUSR1)
        time.sleep(1)
        return Path(f"{self.notes}.stacks").read_text()

    def tell(self) -> None:
        self.pipe.send("go")

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.join(PATIENCE)

    def died(self) -> int | None:
        """Wait for its end; its exit code."""
        self.process.join(PATIENCE)
        return self.process.exitcode

    def stop(self) -> None:
        """SIGTERM, and a clean end."""
        self.signal(signal.SIGTERM)
        self.hear("ended")
        assert self.died() == 0


def points(count: int, most: int) -> list[int]:
    """The numbers, from 1 to `count`, at which something goes wrong: so many of them, evenly, or two.

    All of them with ONTOLOGIA_TEST_SAMPLES=10.
    """
    if SCALE >= _EACH:
        return list(range(1, count + 1))
    wanted = min(count, max(2, samples(most)))
    return [1 + index * count // wanted for index in range(wanted)]


def show_figures(*, began: float, **figures: object) -> None:
    """Log what a test did since `began`: `pytest --log-cli-level=INFO` shows it."""
    seconds = round(time.monotonic() - began, 1)
    logging.getLogger("tests.faults").info("%s in %s s", figures, seconds)


def place_orders(path: Path | str, count: int) -> list[str]:
    """Commit that many orders, each with its event; the ids of the events."""
    ids: list[str] = []
    with Session(str(path)) as session:
        for number in range(count):
            session.ensure(Order(id=str(number)))
            event = Placed(number=str(number))
            session.commit(event=event)
            ids.append(str(event.id))
    return ids


_HANDLERS = {name for names in CONSUMERS.values() for name in names}


def end_leases(path: Path | str) -> None:
    """End the leases of all claims, as if their time had passed."""
    now = to_text(SYSTEM_CLOCK.now())
    ask(
        path,
        f"UPDATE event_claims SET lease_until = '{now}', due_at = '{now}'"
        " WHERE lease_token IS NOT NULL AND due_at IS NOT NULL",
    )


def wait_until_finished(path: Path | str, *children: Child) -> None:
    """Wait until no consumer has anything left to do; these children are to live until then."""
    wait_for_rows(path, UNFINISHED, [(0,)], *children)


def wait_for_rows(
    path: Path | str, sql: str, rows: list[tuple[Any, ...]], *children: Child
) -> None:
    """Wait until a statement gives these rows; these children are to live until then."""
    deadline = time.monotonic() + PATIENCE
    while (found := ask(path, sql)) != rows:
        for child in children:
            if child.pipe.poll():
                raise AssertionError("it ended: " + "\n".join(map(str, child.pipe.recv())))
        if time.monotonic() > deadline:
            stacks = "\n".join(child.stacks() for child in children)
            raise AssertionError(f"wanted {rows}, found {found}: {sql}\n{stacks}")
        time.sleep(0.05)


def noted(folder: Path) -> Counter[tuple[str, str]]:
    """How often each thing was noted, by all children together."""
    lines: Counter[tuple[str, str]] = Counter()
    for notes in folder.glob("child-*"):
        if notes.suffix == "":
            lines.update(tuple(line.split(" ", 1)) for line in notes.read_text().splitlines())  # type: ignore[misc]
    return lines


def assert_sound(path: Path | str) -> None:
    """The rules of delivery hold, and a file is whole."""
    assert list(unsound(path)) == []


def assert_all_done_once(path: Path | str) -> None:
    """Every event acked once by each of its consumers, with one result."""
    assert problems_at_the_end(path) == []


def assert_runs_are_accounted_for(path: Path | str, folder: Path) -> int:
    """No handler ran more often than its attempts say; how many runs were repeats."""
    claims = ask(path, "SELECT handler_id, event_id, attempts FROM event_claims WHERE ack_at > ''")
    allowed = {
        (handler, event): attempts + 1
        for handler, event, attempts in claims
        if handler in _HANDLERS
    }
    runs = {key: times for key, times in noted(folder).items() if key[0] in _HANDLERS}
    assert runs.keys() == allowed.keys()
    assert {key: times for key, times in runs.items() if times > allowed[key]} == {}
    return sum(runs.values()) - len(runs)
