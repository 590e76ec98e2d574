"""Processes, connections and servers that end at any moment: nothing is lost, nothing is doubled.

A run goes on by itself. A commit returns and is there for good, or raises and never was.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from ontologia import Session
from ontologia_conformance.tiers import SCALE, samples
from tests.faults import workers
from tests.faults.children import (
    Child,
    ask,
)
from tests.faults.crews import SHORT_LEASE, assert_nothing_lost_or_doubled, crew, wait_for_orders
from tests.faults.workers import HANDLERS
from tests.servers import own_server

if TYPE_CHECKING:
    from ontologia_conformance.servers import Postgres

_schemas = count(1)


@pytest.fixture(scope="module", params=[18, pytest.param(16, marks=pytest.mark.thorough)])
def server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    with own_server(version=request.param, durable=True) as server:
        yield server


@pytest.fixture
def uri(server: Postgres) -> str:
    place = f"{server.uri}?schema=losses_{next(_schemas)}"
    Session(place).close()
    return place


@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.req("ONT-200", "NEW-060", "ONT-170", "ONT-172")
def test_workers_killed_at_random_moments(uri: str, tmp_path: Path) -> None:
    """12 kills; 100 of them with ONTOLOGIA_TEST_SAMPLES=8."""
    chance, began = random.Random(4), time.monotonic()
    kills = max(6, samples(12))  # so many that one hits a handler
    with ExitStack() as stack:

        def start() -> Child:
            options = (SHORT_LEASE, HANDLERS, chance.choice([1, 2]), 0.003)
            child = Child(tmp_path, workers.work, uri, *options)
            child.hear("running")
            return stack.enter_context(child)

        with crew(uri, tmp_path):
            victims = [start(), start()]
            for _ in range(kills):
                time.sleep(chance.uniform(0.01, 0.25))
                place = chance.randrange(2)
                victims[place].kill()
                victims[place] = start()
            for victim in victims:
                victim.kill()

    assert_nothing_lost_or_doubled(uri, tmp_path, "kill -9", kills, began=began)
    crashes = ask(uri, "SELECT COUNT(*) FROM attempts WHERE outcome = 'lease expired'")[0][0]
    assert crashes > 0  # or no kill hit a handler, and nothing was shown


@pytest.mark.thorough
@pytest.mark.sampled
def test_connections_ended_at_random_moments(uri: str, server: Postgres, tmp_path: Path) -> None:
    """100 of them; those of the listeners, too. 1,000 with ONTOLOGIA_TEST_SAMPLES=10."""
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

    assert_nothing_lost_or_doubled(uri, tmp_path, "pg_terminate_backend", ended, began=began)


@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.parametrize("how", ["halt", "kill"], ids=["restarted", "killed"])
def test_a_server_that_goes_away_and_comes_back(
    uri: str, server: Postgres, tmp_path: Path, how: str
) -> None:
    """3 times; 30 with ONTOLOGIA_TEST_SAMPLES=10. Every other time it is away for a while."""
    chance, began = random.Random(6), time.monotonic()
    with crew(uri, tmp_path):
        for number in range(samples(3)):
            wait_for_orders(tmp_path, 20)
            time.sleep(chance.uniform(0, 0.1))
            getattr(server, how)()
            time.sleep(chance.uniform(0.5, 1.5) if number % 2 else 0)
            server.start()
        wait_for_orders(tmp_path, 20)

    crashed = how == "kill"
    trouble = "the server crashes" if crashed else "the server is restarted"
    assert_nothing_lost_or_doubled(uri, tmp_path, trouble, samples(3), crashed=crashed, began=began)
    logs = [log.read_text() for log in tmp_path.glob("child-*.log")]
    assert [log for log in logs if _said_once_and_over(log)] == logs


def _said_once_and_over(log: str) -> bool:
    """Whether every outage was said once, and once that it was over."""
    words = re.findall("goes on as soon as|is there again", log)
    return words == ["goes on as soon as", "is there again"] * (len(words) // 2)
