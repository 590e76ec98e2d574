"""`python -m bench.beside`, with a handful of events: that it measures what it says, not how fast that is.

It runs in a process of its own, as users run it; its event classes are then nobody else's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import psycopg
import pytest

from tests.integration.processes import PATIENCE, ROOT
from tests.servers import own_server

TINY = """
import sys
from bench.beside.sizes import SIZES, Size
SIZES["small"] = Size(
    singles=5, bulk=20, backlog=20, crowd=20, busy=20, changes=10, processes=(1, 2), samples=3, loaded=5, finished=50,
    few=10, many=40, entities=30, lookups=5, commits=2,
)
{first}
from bench.beside.__main__ import main
main()
"""
EVENTS = [
    "enqueue-one", "enqueue-many", "drain", "drain-state", "chain", "processes", "retained",
    "latency", "growth",
]  # fmt: skip
STATE = ["point-read", "filter", "scan", "as-of", "group-by", "commit-1", "commit-10000"]
RIVALS = {
    "huey": "huey", "litequeue": "litequeue", "persist-queue": "persistqueue", "dbos": "dbos",
}  # fmt: skip


def bench(*words, first="", code=0, server="none"):
    done = subprocess.run(
        [sys.executable, "-c", TINY.format(first=first), "--server", server, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def records(*words, **options):
    return [json.loads(line) for line in bench(*words, "--json", **options).stdout.splitlines()]


def measured(found):
    return {(each["scenario"], each["contender"]) for each in found if each.get("median", 0) > 0}


@pytest.mark.thorough
@pytest.mark.req("ONT-207")
def test_every_scenario_with_events_is_measured_beside_the_bare_loop():
    found = records(*EVENTS, "--contenders", "ontologia,bare", "--rounds", "1")

    assert measured(found) == {(name, who) for name in EVENTS for who in ("ontologia", "bare")}
    latency = [each["figure"] for each in found if each.get("scenario") == "latency"]
    assert latency == ["median", "median", "p99", "p99"] or sorted(latency) == sorted(
        ["median", "p99"] * 2
    )


@pytest.mark.req("ONT-207")
@pytest.mark.parametrize("rival", RIVALS)
def test_a_rival_does_the_same_work_or_says_why_it_cannot(rival):
    if find_spec(RIVALS[rival]) is None:
        pytest.skip(f"{rival} is not installed")
    some = [name for name in EVENTS if name not in ("growth", "processes")]

    found = records(*some, "--contenders", rival, "--rounds", "1")

    reasons = {each.get("scenario"): each["left_out"] for each in found if "left_out" in each}
    assert not [why for why in reasons.values() if "failed" in why]
    assert {name for name, _ in measured(found)} | set(reasons) >= set(some)
    assert len({name for name, _ in measured(found)}) >= len(some) - 1


@pytest.mark.thorough
def test_every_scenario_with_state_is_measured_and_all_give_as_many_answers():
    found = records(*STATE, "--contenders", "ontologia,bare,sqlalchemy-history", "--rounds", "1")

    whoever = {"ontologia", "bare"}
    if find_spec("sqlalchemy_history"):
        whoever.add("sqlalchemy-history")
    assert measured(found) == {(name, who) for name in STATE for who in whoever}


@pytest.mark.req("NEW-004")
def test_an_idle_worker_needs_less_than_80_mb():
    [found] = [
        each
        for each in records("memory", "--contenders", "ontologia", "--rounds", "1")
        if "median" in each
    ]

    assert found["unit"] == "MB"
    assert 10 < found["median"] < 80


@pytest.mark.thorough
def test_rounds_go_in_turn():
    done = bench("enqueue-one", "--contenders", "ontologia,bare", "--rounds", "2", "--json")

    lines = [line.split(" ...")[0].strip() for line in done.stderr.splitlines()]
    assert lines == [
        f"enqueue-one, round {number}: {who}" for number in (1, 2) for who in ("ontologia", "bare")
    ]
    rounds = [len(each["rounds"]) for each in map(json.loads, done.stdout.splitlines()[:2])]
    assert rounds == [2, 2]


@pytest.mark.thorough
def test_who_is_not_installed_is_named_with_what_helps():
    done = bench(
        "enqueue-one", "--contenders", "bare,huey", "--rounds", "1",
        first="sys.modules['huey'] = None",
    )  # fmt: skip

    [line] = [line for line in done.stdout.splitlines() if "huey" in line]
    assert "not installed" in line
    assert "pip install -e '.[dev,bench]'" in line


@pytest.mark.thorough
def test_nothing_is_measured_of_who_did_not_do_the_work():
    fake = "from bench.beside.contenders.{}; {}.changed = 'SELECT 3'"

    done = bench(
        "drain-state", "--contenders", "ontologia", "--rounds", "1", code=1,
        first=fake.format("ours import Ours", "Ours"),
    )  # fmt: skip
    assert "orders that ontologia wrote: these two differ" in done.stderr

    found = records(
        "drain-state", "--contenders", "bare", "--rounds", "1",
        first=fake.format("bare import Bare", "Bare"),
    )  # fmt: skip
    assert measured(found) == set()
    assert "it failed" in found[0]["left_out"]


@pytest.fixture
def server() -> Iterator[str]:
    """One of its own: databases are counted there."""
    with own_server() as server:
        yield server.uri


@pytest.mark.thorough
def test_on_a_server_databases_are_made_and_dropped_again(server):
    found = records(
        "enqueue-many", "drain", "drain-state", "chain", "latency", "processes",
        "--contenders", "ontologia,bare", "--rounds", "1", server=server,
    )  # fmt: skip

    on_server = [each for each in found if each.get("database") == "PostgreSQL"]
    assert len(measured(on_server)) == 2 * 6
    assert {each["database"] for each in found} == {"SQLite", "PostgreSQL"}
    with psycopg.connect(server) as connection:
        left = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE '%bench%'")
        assert left.fetchall() == []


@pytest.mark.parametrize("rival", ["pgqueuer", "procrastinate", "dbos"])
def test_a_rival_on_a_server_does_the_same_work(rival, place):
    if find_spec(rival) is None:
        pytest.skip(f"{rival} is not installed")
    some = ["enqueue-one", "enqueue-many", "drain", "drain-state", "chain", "retained", "latency"]

    found = records(*some, "--contenders", rival, "--rounds", "1", server=place("postgres"))

    on_server = [each for each in found if each.get("database") == "PostgreSQL"]
    assert measured(on_server) == {(name, rival) for name in some}, on_server


@pytest.mark.thorough
def test_a_page_and_a_picture_are_written(tmp_path):
    page, picture = tmp_path / "RESULTS.md", tmp_path / "bars.svg"

    bench(
        "enqueue-one", "--contenders", "ontologia,bare", "--rounds", "1",
        "--write-results", str(page), "--svg", str(picture),
    )  # fmt: skip

    text = page.read_text()
    assert "| enqueue-one | SQLite | ontologia |" in text
    assert "(RESULTS.svg)" in text
    assert "Where somebody is ahead" in text
    assert (tmp_path / "RESULTS.svg").read_text() == picture.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nope"], "there are enqueue-one, enqueue-many"),
        (["drain", "--contenders", "nope"], "there are ontologia, bare, huey"),
        (["drain", "--server", "sqlite:///app.db"], "--server is postgresql://user@host/database"),
        (["drain", "--rounds", "0"], "--rounds"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_measured(words, said):
    done = bench(*words, code=2)

    assert said in " ".join(done.stderr.split())
    assert "round 1" not in done.stderr


def test_a_worker_that_is_stopped_before_its_run_begins_reports(tmp_path):
    """It gets SIGTERM between its first word and the moment its run handles signals."""
    where = str(tmp_path / "orders.db")
    program = f"""
import signal
from ontologia.runtime.session import Session
from bench import orders
from bench.beside import worker

orders.make_orders({where!r})
run = Session.run

def late(self, *words, **options):
    signal.raise_signal(signal.SIGTERM)
    return run(self, *words, **options)

Session.run = late
worker._work(worker.queue("ontologia"), {where!r}, "nothing")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        input="go\n", cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE,
    )  # fmt: skip

    assert [json.loads(line) for line in done.stdout.splitlines()][1]["handled"] == 0
