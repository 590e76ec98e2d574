"""Processes, connections and servers that end at any moment: nothing is lost, nothing is doubled.

A run goes on by itself. A commit returns and is there for good, or raises and never was.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from ontologia import Session
from tests.faults import workers
from tests.faults.children import (
    PATIENCE,
    SCALE,
    Child,
    ask,
    assert_all_done_once,
    assert_runs_are_accounted_for,
    noted,
    show_figures,
    wait_until_finished,
)
from tests.faults.workers import HANDLERS
from tests.servers import own_server

if TYPE_CHECKING:
    from ontologia.testing.servers import Postgres

SHORT_LEASE = {
    "event_claim_lease_ms": 300,
    "event_backoff_base_ms": 5,
    "event_max_attempts": 1_000,  # chance may hit one event again and again
}
_schemas = count(1)


@pytest.fixture(scope="module", params=[18, 16])
def server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    with own_server(version=request.param, durable=True) as server:
        yield server


@pytest.fixture
def uri(server: Postgres) -> str:
    place = f"{server.uri}?schema=losses_{next(_schemas)}"
    Session(place).close()
    return place


@contextmanager
def crew(uri: str, folder: Path, *, pause: float = 0.002) -> Iterator[list[Child]]:
    """A producer, and two workers. At the end all is done, and nobody has seen an exception."""
    with ExitStack() as stack:
        producer = Child(folder, workers.produce_despite_losses, uri, "o", pause)
        children = [stack.enter_context(producer)]
        for threads in (1, 2):
            worker = Child(folder, workers.work, uri, SHORT_LEASE, HANDLERS, threads, 0.003)
            children.append(stack.enter_context(worker))
        for child in children:
            child.hear("running")
        yield children
        producer.tell()
        producer.hear("ended")
        wait_until_finished(uri, *children[1:])
        for worker in children[1:]:
            worker.stop()


def assert_nothing_lost_or_doubled(
    uri: str, folder: Path, *, crashed: bool = False, **figures: object
) -> None:
    """A server that crashed has lost the last things that a run wrote down for itself alone."""
    assert_all_done_once(uri)
    if not crashed:
        assert_runs_are_accounted_for(uri, folder)
    notes = noted(folder)
    committed = {about for what, about in notes if what == "committed"}
    refused = {about for what, about in notes if what == "refused"}
    stored = {key for (key,) in ask(uri, "SELECT entity_key FROM entity_latest"
                                         " WHERE entity_type = 'Order'")}  # fmt: skip
    assert stored == committed
    assert refused & stored == set()
    show_figures(orders=len(stored), refused=len(refused), **figures)


def wait_for_orders(folder: Path, more: int) -> None:
    """Let the producer get so many more commits through."""

    def committed() -> int:
        return sum(times for (what, _), times in noted(folder).items() if what == "committed")

    wanted, deadline = committed() + more, time.monotonic() + PATIENCE
    while committed() < wanted:
        assert time.monotonic() < deadline, "the producer does not go on"
        time.sleep(0.02)


@pytest.mark.req("ONT-200", "NEW-060", "ONT-170", "ONT-172")
def test_workers_killed_at_random_moments(uri: str, tmp_path: Path) -> None:
    """12 kills; 100 of them with ONTOLOGIA_TEST_FAULTS=8."""
    chance, began = random.Random(4), time.monotonic()
    with ExitStack() as stack:

        def start() -> Child:
            options = (SHORT_LEASE, HANDLERS, chance.choice([1, 2]), 0.003)
            child = Child(tmp_path, workers.work, uri, *options)
            child.hear("running")
            return stack.enter_context(child)

        with crew(uri, tmp_path):
            victims = [start(), start()]
            for _ in range(int(12 * SCALE)):
                time.sleep(chance.uniform(0.01, 0.25))
                place = chance.randrange(2)
                victims[place].kill()
                victims[place] = start()
            for victim in victims:
                victim.kill()

    assert_nothing_lost_or_doubled(uri, tmp_path, began=began)
    crashes = ask(uri, "SELECT COUNT(*) FROM attempts WHERE outcome = 'lease expired'")[0][0]
    assert crashes > 0  # or no kill hit a handler, and nothing was shown


def test_connections_ended_at_random_moments(uri: str, server: Postgres, tmp_path: Path) -> None:
    """100 of them; those of the listeners, too. 1,000 with ONTOLOGIA_TEST_FAULTS=10."""
    chance, began, ended = random.Random(5), time.monotonic(), 0
    with crew(uri, tmp_path), psycopg.connect(server.uri, autocommit=True) as operator:
        while ended < 100 * SCALE:
            time.sleep(chance.uniform(0, 0.03))
            # Of one that works, more often than not.
            cursor = operator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'ontologia'"
                " ORDER BY state = 'idle' AND random() < 0.7, random() LIMIT 1"
            )
            ended += cursor.rowcount

    assert_nothing_lost_or_doubled(uri, tmp_path, ended=ended, began=began)


@pytest.mark.parametrize("how", ["halt", "kill"], ids=["restarted", "killed"])
def test_a_server_that_goes_away_and_comes_back(
    uri: str, server: Postgres, tmp_path: Path, how: str
) -> None:
    """3 times; 30 with ONTOLOGIA_TEST_FAULTS=10. Every other time it is away for a while."""
    chance, began = random.Random(6), time.monotonic()
    with crew(uri, tmp_path):
        for number in range(int(3 * SCALE)):
            wait_for_orders(tmp_path, 20)
            time.sleep(chance.uniform(0, 0.1))
            getattr(server, how)()
            time.sleep(chance.uniform(0.5, 1.5) if number % 2 else 0)
            server.start()
        wait_for_orders(tmp_path, 20)

    assert_nothing_lost_or_doubled(uri, tmp_path, crashed=how == "kill", began=began)
    logs = [log.read_text() for log in tmp_path.glob("child-*.log")]
    assert [log for log in logs if _said_once_and_over(log)] == logs


def _said_once_and_over(log: str) -> bool:
    """Whether every outage was said once, and once that it was over."""
    words = re.findall("goes on as soon as|is there again", log)
    return words == ["goes on as soon as", "is there again"] * (len(words) // 2)
