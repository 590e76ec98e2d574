"""Which tests a run has, and how large their samples are.

The environment says it: with `ONTOLOGIA_TEST_TIER=quick` a run has what proves every requirement
once, with small samples; with `rest` it has what that leaves out, and the full samples. Without it
a run has all tests and full samples.

`quick` leaves to `rest`

- tests that are marked `thorough`,
- PostgreSQL 16, and Kafka in the suite of all queues: joining a group takes seconds, and
  tests/integration/test_kafka_queue.py tries it with a broker of the client library,
- outside the conformance suite: PostgreSQL, where the same test runs on SQLite, too, and is not
  marked `each_database`.

A test that is marked `sampled` is in both; it asks `samples` how many examples to try. `examples`
marks a test of hypothesis and does that.
`ONTOLOGIA_TEST_SAMPLES` is a factor for all of them: 10 is ten times the full size.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

QUICK, REST, ALL = "quick", "rest", "all"
TIER = os.environ.get("ONTOLOGIA_TEST_TIER", ALL)
SCALE = float(os.environ.get("ONTOLOGIA_TEST_SAMPLES", "0.1" if TIER == QUICK else "1"))
"""The size of all samples, where 1 is the full size."""

_MARKS = (
    "req(*rows): the rows of docs/requirements.md it proves",
    "thorough: left to `make test-all`",
    "sampled: small samples in `make test`, full ones in `make test-all`",
    "each_database: on PostgreSQL in `make test`, too",
)
_BY_BACKEND = ("backend", "queues")  # fixtures whose parameter is the name of a backend
_LATER = ("postgres16", "kafka", "real_broker", "classic_broker")
_SUITES = {"conformance", "ontologia_conformance"}  # folders of tests that are about each backend


def samples(count: float) -> int:
    """The size of a sample whose full size is `count`; at least 1."""
    return max(1, round(count * SCALE))


def examples(count: int, **options: Any) -> Callable[[Any], Any]:
    """Decorate a test of hypothesis: it is `sampled`, with a sample of `count` examples.

    `options` are more settings of hypothesis.
    """
    chosen = settings(max_examples=samples(count), deadline=None, **options)
    return lambda test: pytest.mark.sampled(chosen(test))


def pytest_configure(config: pytest.Config) -> None:
    for mark in _MARKS:
        config.addinivalue_line("markers", mark)
    if TIER not in (QUICK, REST, ALL):
        raise pytest.UsageError(f"ONTOLOGIA_TEST_TIER is {TIER!r}, not {QUICK}, {REST} or {ALL}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if TIER == ALL:
        return
    later = set(_left_to_rest(items))
    quick = [item for item in items if item not in later]
    lost = _rows(items) - _rows(quick)
    # A part of the suite may well lack what proves a row elsewhere.
    if lost and set(config.args) == set(config.getini("testpaths")):
        items[:] = [LostRows.from_parent(items[0].session, name=", ".join(sorted(lost)))]
        return
    chosen = quick
    if TIER == REST:
        chosen = [item for item in items if item in later or item.get_closest_marker("sampled")]
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


def _left_to_rest(items: list[pytest.Item]) -> Iterable[pytest.Item]:
    backends: dict[str, set[str]] = defaultdict(set)
    for item in items:
        backends[_function(item)].add(_backend(item))
    for item in items:
        backend = _backend(item)
        if (
            item.get_closest_marker("thorough")
            or backend in _LATER
            or (
                backend.startswith("postgres")
                and "sqlite" in backends[_function(item)]
                and _SUITES.isdisjoint(item.path.parts)
                and not item.get_closest_marker("each_database")
            )
        ):
            yield item


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _backend(item: pytest.Item) -> str:
    """The backend that a test is parametrized with; "" if it is not."""
    callspec = getattr(item, "callspec", None)  # of tests with parameters
    params: dict[str, object] = callspec.params if callspec is not None else {}
    return next((str(params[name]) for name in _BY_BACKEND if name in params), "")


def _rows(items: list[pytest.Item]) -> set[str]:
    return {row for item in items for mark in item.iter_markers("req") for row in mark.args}


class LostRows(pytest.Item):
    """Fails in the place of all tests: raised errors are not shown by the workers of xdist."""

    def runtest(self) -> None:
        pytest.fail(
            f"`make test` would not prove {self.name}: all tests of it are left to `make test-all`. "
            "Take the mark `thorough` from one of them.",
            pytrace=False,
        )

    def reportinfo(self) -> tuple[Path, None, str]:
        return Path(__file__), None, f"requirements without a quick test: {self.name}"
