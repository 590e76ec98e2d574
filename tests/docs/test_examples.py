"""Every example runs, and does what it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# Extensions are run by their host: test_extension_examples.py has them. Applications are more than
# one file: test_example_*.py have those.
ELSEWHERE = {"extensions", "orders", "indexing", "assistant", "fastapi", "asgi", "regions"}
EXAMPLES = sorted(
    path
    for path in (ROOT / "examples").rglob("*.py")
    if ELSEWHERE.isdisjoint(path.relative_to(ROOT).parts)
)
MAIN = """
import asyncio, inspect, pathlib, {name} as example
done = example.main(pathlib.Path.cwd())
if inspect.isawaitable(done):
    asyncio.run(done)
"""


def _run(folder, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def uri(tmp_path):
    """Where the examples keep their database."""
    return f"sqlite:///{tmp_path / 'app.db'}"


@pytest.fixture
def told(tmp_path):
    """Run an example on a database that stays; what it printed, line by line."""

    def run(name):
        examples = ROOT / "examples"
        places = [str(examples / "events"), str(examples), os.environ.get("PYTHONPATH", "")]
        done = _run(
            tmp_path, "-c", MAIN.format(name=name), PYTHONPATH=os.pathsep.join(filter(None, places))
        )
        assert (done.returncode, done.stderr) == (0, "")
        return [line.strip() for line in done.stdout.splitlines()]

    return run


@pytest.fixture
def left(sql, open_session):
    """What an example left in the store: objects, events with their status, number of commits."""

    def look():
        session = open_session()
        assert session.event_store.check() == []
        assert sql("SELECT * FROM dead_letters") == []
        objects = sql("SELECT entity_type, entity_key FROM entity_latest ORDER BY 1, 2")
        events = [
            f"{event['type']} {event['status']}"
            for each in session.event_store.list_namespaces()
            for event in session.event_store.list_events(each["namespace"])
        ]
        return [" ".join(each) for each in objects], sorted(events), session.head

    return look


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_prints_what_it_did_and_leaves_nothing_behind(example, tmp_path):
    done = _run(tmp_path, str(example))

    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) > 3
    assert list(tmp_path.iterdir()) == []


def test_an_example_says_what_it_shows():
    silent = [path.name for path in EXAMPLES if not path.read_text().startswith('"""')]

    assert silent == []


def test_reservations_lose_no_update(told, left):
    """The other program's, one with transact, and three by the handler: five of ten are left."""
    lines = told("reservations")

    assert [line for line in lines if ":" in line] == [
        "Product p1: read 1, now 2",
        "left: 8",
        "left: 5",
    ]
    objects, events, _ = left()
    assert sum(each.startswith("Reservation ") for each in objects) == 3
    assert events.count("reservation.requested acked") == 3
    assert events.count("stock.reserved unsubscribed") == 3


@pytest.mark.req("ONT-208")
def test_a_simple_handler_is_given_each_event_once_and_commits_for_each(told, left):
    lines = told("simple_handler")

    assert lines[2:4] == ["to ada@example.com: welcome, u1", "to bob@example.com: welcome, u2"]
    assert left() == (["EmailLog u1", "EmailLog u2"], ["user.signup acked"] * 2, 2)


@pytest.mark.req("ONT-208")
def test_chained_handlers_follow_an_order_to_its_end_in_one_iteration(told, left):
    lines = told("chaining")

    assert lines[1:3] == ["charge 99.5 for o1", "ship o1"]
    assert [line for line in lines if "root is the order: True" in line] == lines[4:7]
    assert left() == (
        ["Payment o1", "Shipment o1"],
        ["order.fulfilled unsubscribed", "order.placed acked", "payment.completed acked"],
        2,
    )


@pytest.mark.req("ONT-208")
def test_a_schedule_announces_its_event_at_its_time(told, left):
    lines = told("schedule")

    assert lines[1:] == [
        "cleanup deletes ['old']",
        "Left: ['new']",
        "system.cleanup, announced at 02:00: acked",
    ]
    assert left() == (["Report new"], ["system.cleanup acked"], 2)


@pytest.mark.req("ONT-208")
def test_a_large_import_is_committed_in_batches_and_again_is_nothing(told, left, sql):
    lines = told("batched_commits")

    assert lines[1:4] == ["commit 1: 1000", "commit 2: 1000", "commit 3: 500"]
    assert lines[5] == "still 2500 records"
    objects, events, head = left()
    assert (len(objects), events, head) == (2500, ["bulk.import acked"] * 2, 3)
    assert sql("SELECT COUNT(*) FROM entity_history") == [[2500]]


@pytest.mark.req("ONT-208")
def test_a_handler_takes_up_what_a_program_committed(told, left):
    lines = told("imperative_and_reactive")

    assert lines[1] == "the program commits 1"
    assert lines[3:] == ["the handler commits 2", "Workspace of u1"]
    assert left() == (["User u1", "Workspace u1"], ["user.created acked"], 2)


@pytest.mark.req("ONT-208")
def test_two_namespaces_of_one_process_do_not_see_each_others_events(told, left):
    lines = told("namespaces")

    assert lines[1:3] == ["orders: ['prepare o1']", "payments: ['invoice o2']"]
    assert left() == (["Seen invoice o2", "Seen prepare o1"], ["order.placed acked"] * 2, 2)


def test_an_order_is_paid_and_has_its_receipt_an_hour_later_and_once(told, left):
    lines = told("orders")

    assert lines[1:5] == [
        "23:30 o1 is paid, attempt 1",
        "23:30 o1 is paid, attempt 1",
        "00:30 receipt for o1",
        "01:00 cleanup",
    ]
    assert left() == (
        ["Payment o1", "Receipt o1"],
        ["cleanup acked", "order.placed acked", "order.placed acked", "receipt.due acked"],
        2,
    )
