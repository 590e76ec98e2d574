"""Nothing that a simulated session runs waits, or starts a thread, behind the simulator's back."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ontologia
from ontologia_conformance.simulation.stand_ins import _MODULES

ROOT = Path(ontologia.__file__).parent
PARTS = [
    "clock.py",
    "ids.py",
    "delivery",
    "engine",
    "migration",
    "query",
    "runtime",
    "schema",
    "store",
]
"""What a session is made of."""
REPLACED = {"threading", "time"}
WAITING = REPLACED | {
    *("asyncio", "concurrent", "multiprocessing", "queue", "sched", "select", "selectors"),
    *("signal", "socket", "subprocess"),
}
"""Modules by which a program waits, or starts what runs beside it."""

BRIEF = "a lock in which nothing is done that could wait: nobody is met there"
SERVER = "the simulator has SQLite alone"
BUCKET = "the simulator has no bucket"
REASONS = {
    "clock": ("threading time", "the simulator has a clock of its own; for the others, " + BRIEF),
    "ids": ("threading", BRIEF),
    "engine.coroutines": ("asyncio concurrent threading", "for async handlers: it has none"),
    "engine.runner": ("asyncio", "to know a CancelledError, which only async handlers raise"),
    "engine.background": (
        "asyncio concurrent threading",
        "for a bus and a mirror, which are not simulated",
    ),
    "runtime.observed": ("time", "how long a handler took, which is told and decides nothing"),
    "runtime.core": ("socket threading", "asks for the names of the machine and of the thread"),
    "engine.signals": ("signal threading", "asks which thread this is: not the main one there"),
    "runtime.transfer.importing": ("threading", "asks for the number of a thread, for a name"),
    "runtime.async_session": ("asyncio", "the simulator has no event loop"),
    "runtime.threads": ("asyncio threading", "for an event loop, which the simulator has not"),
    "schema.registry": ("threading", BRIEF),
    "schema.shape": ("threading", "what a thread is just assigning, in a thread's own variable"),
    "store.database": ("time", "for deadlines of reads, which no simulated program gives"),
    "store.postgres.clock": ("threading", SERVER),
    "store.postgres.database": ("threading time", SERVER),
    "store.postgres.watch": ("threading time", SERVER),
    "store.postgres.wire": ("select time", SERVER),
    "engine.bucket_source": ("threading time", BUCKET),
    "engine.outbox": ("threading time", BUCKET),
    "store.s3.archive": ("concurrent", BUCKET),
    "store.s3.bucket": ("threading time", BUCKET),
    "store.s3.claims": ("threading", BUCKET),
    "store.s3.consumers": ("threading", BUCKET),
    "store.s3.index": ("threading", BUCKET),
    "store.s3.objects": ("concurrent threading", BUCKET),
    "store.s3.sessions": ("threading", BUCKET),
    "store.s3.store": ("threading", BUCKET),
    "store.sqlite.checkpoints": (
        "threading",
        "moves what is committed already, and nobody waits for it",
    ),
    "store.sqlite.database": ("time", "waits while SQLite is busy: there nobody meets a writer"),
    "store.sqlite.watch": ("threading time", "the simulator has a Watch of its own"),
    "store.waker": ("select socket", "is waited for in a Watch alone"),
}
"""Modules that are left as they are: what they import, and why that does no harm."""

HARMLESS = {name: set(words.split()) for name, (words, _) in REASONS.items()}


def name_of(path: Path) -> str:
    found = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return found.removesuffix(".__init__")


def imports(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The top of each name that is imported, wherever, and the statement that does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.name.partition(".")[0], node) for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0], node


TREES = {
    name_of(path): ast.parse(path.read_text())
    for part in PARTS
    for path in [*(ROOT / part).rglob("*.py"), ROOT / part]
    if path.is_file()
}
USED = {
    name: used
    for name, tree in TREES.items()
    if (used := {each for each, _ in imports(tree)} & WAITING)
}


def test_every_module_that_could_wait_is_simulated_or_has_a_reason_not_to_be() -> None:
    missed = {
        name: used - HARMLESS.get(name, set()) - (REPLACED if name in _MODULES else set())
        for name, used in USED.items()
    }

    assert {name: used for name, used in missed.items() if used} == {}


def test_no_module_has_a_reason_that_needs_none() -> None:
    assert [name for name in HARMLESS if not HARMLESS[name] <= USED.get(name, set())] == []
    assert [name for name in _MODULES if not USED[name] & REPLACED] == []
    assert [name for name in _MODULES if HARMLESS.get(name, set()) & REPLACED] == []


@pytest.mark.parametrize("name", _MODULES)
def test_what_is_simulated_is_imported_so_that_it_can_be_replaced(name: str) -> None:
    """By `import time` at the top: the name in the module is what the simulator replaces."""
    tree = TREES[name]
    found = [node for each, node in imports(tree) if each in REPLACED]
    plain = [each for each in tree.body if isinstance(each, ast.Import)]

    assert [each for each in found if each not in plain] == []
    assert all(alias.asname is None for each in plain for alias in each.names)
