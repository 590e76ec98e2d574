"""kill -9, at any moment: nothing that was committed is lost, nothing is done twice."""

from __future__ import annotations

import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.testing import ManualClock
from ontologia_conformance.tiers import samples
from tests.faults import workers
from tests.faults.checker import problems_at_the_end
from tests.faults.children import (
    UNFINISHED,
    Child,
    ask,
    assert_runs_are_accounted_for,
    assert_sound,
    end_leases,
    noted,
    place_orders,
    show_figures,
    wait_until_finished,
)
from tests.faults.figures import KEPT, tally
from tests.faults.workers import HANDLERS

SHORT_LEASE = {
    "event_claim_lease_ms": 300,
    "event_backoff_base_ms": 5,
    "event_max_attempts": 1_000,  # chance may hit one event again and again
}


@pytest.mark.sampled
@pytest.mark.req("ONT-200", "NEW-060", "ONT-170", "ONT-172", "ONT-139")
def test_kills_at_random_moments_lose_nothing_and_double_nothing(path, tmp_path):
    """25 kills; 100 of them, the full size, with ONTOLOGIA_TEST_SAMPLES=4."""
    kills = samples(25)
    chance = random.Random(200)
    began = time.monotonic()
    Session(str(path)).close()

    with ExitStack() as stack:

        def start(place: int) -> Child:
            if place == 0:
                prefix = f"o{Child.count}"
                child = Child(tmp_path, workers.produce, str(path), prefix, 0.002)
            else:
                options = (SHORT_LEASE, HANDLERS, chance.choice([1, 2]), 0.003)
                child = Child(tmp_path, workers.work, str(path), *options)
                child.hear("running")
            return stack.enter_context(child)

        children = [start(place) for place in range(4)]  # a producer and three workers
        for _ in range(kills):
            time.sleep(chance.uniform(0.01, 0.25))
            place = chance.choice([0, 1, 1, 2, 2, 3, 3])
            children[place].kill()
            children[place] = start(place)
        producer, *alive = children
        producer.tell()
        producer.hear("ended")
        wait_until_finished(path, *alive)
        for child in alive:
            child.stop()

    committed = {about for what, about in noted(tmp_path) if what == "committed"}
    lost = problems_at_the_end(path, committed=committed, announced=committed)
    tally(KEPT, "SQLite: kill -9 at a random moment", tries=kills, losses=len(lost))
    assert lost == []
    repeats = assert_runs_are_accounted_for(path, tmp_path)
    orders = {key for (key,) in ask(path, "SELECT entity_key FROM entity_latest"
                                          " WHERE entity_type = 'Order'")}  # fmt: skip
    crashes = ask(path, "SELECT COUNT(*) FROM attempts WHERE outcome = 'lease expired'")[0][0]
    assert crashes > 0 or kills < 10  # or no kill hit a handler, and nothing was shown
    show_figures(
        kills=kills,
        orders=len(orders),
        crashed_attempts=crashes,
        repeated_runs=repeats,
        began=began,
    )


def run_until_it_dies_no_more(path, folder, handler, settings, count: int, threads: int) -> int:
    """Start a worker again whenever it was killed, until nothing is left; how often it was.

    Its leases end with each death, and no lease while it lives.
    """
    deaths = 0
    while True:
        with Child(folder, workers.work, str(path), settings, [handler], threads) as child:
            child.hear("running")
            while child.process.is_alive():
                if ask(path, UNFINISHED) == [(0,)] and ended(path) >= count:
                    child.stop()
                    return deaths
                child.process.join(0.02)
            assert child.died() == -signal.SIGKILL
        end_leases(path)
        deaths += 1
        assert deaths < 20, "it is never buried"


def ended(path: Path) -> int:
    return ask(
        path,
        "SELECT COUNT(*) FROM event_claims WHERE ack_at IS NOT NULL OR dead_lettered_at IS NOT NULL",
    )[0][0]


@pytest.mark.req("NEW-031", "ONT-139")
@pytest.mark.parametrize(
    ("handler", "count", "deadly", "threads"),
    [(workers.deadly_audit, 100, "50", 1), (workers.deadly_beside_slow, 3, "1", 3)],
    ids=["in a batch of 100", "beside two others"],
)
def test_an_event_that_kills_its_process_is_buried_alone(
    path, tmp_path, handler, count, deadly, threads
):
    numbers = {id: str(number) for number, id in enumerate(place_orders(path, count))}
    settings = {"event_claim_lease_ms": 3_600_000, "event_max_attempts": 4}

    deaths = run_until_it_dies_no_more(path, tmp_path, handler, settings, count, threads)

    claims = ask(path, "SELECT event_id, attempts, ack_at, dead_lettered_at FROM event_claims")
    buried = [(numbers[id], attempts) for id, attempts, _, dead in claims if dead]
    others = {id: attempts for id, attempts, ack, _ in claims if ack}
    assert_sound(path)
    assert (buried, deaths) == ([(deadly, 4)], 4)
    assert len(others) == count - 1
    assert max(others.values()) <= 1
    assert_runs_of_others(path, tmp_path, set(others))


def assert_runs_of_others(path: Path, folder: Path, others: set[str]) -> None:
    """Each ran once, and once more only if an attempt was counted."""
    attempts = dict(ask(path, "SELECT event_id, attempts FROM event_claims"))
    runs = {about: times for (_, about), times in noted(folder).items() if about in others}
    assert runs.keys() == others
    assert {id: times for id, times in runs.items() if times > 1 + attempts[id]} == {}


@pytest.mark.req("NEW-031")
def test_what_was_claimed_and_not_started_returns_unpunished_however_often_workers_die(
    path, tmp_path
):
    place_orders(path, 40)
    clock = ManualClock()
    for _ in range(12):  # more often than event_max_attempts
        config = OntologiaConfig(clock=clock, event_claim_lease_ms=1_000)
        with Session(str(path), config=config) as session:
            taken = session.event_store.claim("default", "audit", "x", ["faults.placed"], 40, 1_000)
        assert len(taken) == 40
        clock.advance(seconds=1)

    assert ask(path, "SELECT DISTINCT attempts FROM event_claims") == [(0,)]
    assert ask(path, "SELECT COUNT(*) FROM dead_letters") == [(0,)]
    assert_sound(path)
