"""No update is lost: several processes, threads and coroutines read, change and write one object."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from ontologia import Session
from ontologia_conformance.backends import NAMES, Backend
from tests.faults import reservations
from tests.faults.children import PATIENCE, Child, end_leases
from tests.faults.reservations import ReservationRequested, Shipment, Stock

SETTINGS = {"event_claim_limit": 2}


@pytest.fixture(scope="session", params=[name for name in NAMES if name != "postgres16"])
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def session(uri: str) -> Iterator[Session]:
    with Session(uri) as session:
        yield session


def request_all(session: Session, skus: list[str]) -> None:
    events = [ReservationRequested(sku=sku, number=n) for n, sku in enumerate(skus)]
    session.commit(event=events)


def wait_until_done(session: Session, number: int) -> None:
    """Until so many requests are acked or dead-lettered."""
    deadline = time.monotonic() + PATIENCE
    while True:
        listed = session.event_store.list_events(session.namespace, limit=10_000)
        asked = [each for each in listed if each["type"] == ReservationRequested.__event_type__]
        over = [each for each in asked if each["status"] in ("acked", "dead_lettered")]
        if len(over) == number:
            return
        assert time.monotonic() < deadline, f"{len(over)} of {number}"
        time.sleep(0.05)


def left(session: Session) -> dict[str, int]:
    return {each.id: each.left for each in session.query().entities(Stock).collect()}


@pytest.mark.req("ONT-200")
@pytest.mark.parametrize("handler", ["reserve_handler", "reserve_async"])
def test_what_is_in_stock_is_sold_once(session, uri, tmp_path: Path, handler):
    """Two processes with four workers each, ten pieces, forty requests."""
    session.ensure(Stock(id="p1", left=10))
    session.commit()
    request_all(session, ["p1"] * 40)

    with ExitStack() as stack:
        children = [
            stack.enter_context(
                Child(tmp_path, reservations.work, uri, SETTINGS, getattr(reservations, handler), 4)
            )
            for _ in range(2)
        ]
        for child in children:
            child.hear("running")
        wait_until_done(session, 40)
        for child in children:
            child.stop()

    assert left(session) == {"p1": 0}
    assert session.query().entities(Shipment).count() == 10
    assert session.event_store.list_dead_letters(session.namespace) == []
    refused = session.event_store.list_events(session.namespace, limit=100)
    assert sum(each["type"] == "faults.reservation_refused" for each in refused) == 30


def test_requests_for_different_objects_do_not_disturb_each_other(session, uri, tmp_path, sql):
    """One process, four workers, each object wanted once: no unrelated commit is a conflict."""
    skus = [f"p{n}" for n in range(40)]
    session.ensure([Stock(id=sku, left=1) for sku in skus])
    session.commit()
    request_all(session, skus)

    with Child(
        tmp_path, reservations.work, uri, SETTINGS, reservations.reserve_handler, 4
    ) as child:
        child.hear("running")
        wait_until_done(session, 40)
        child.stop()

    assert set(left(session).values()) == {0}
    assert [tuple(row) for row in sql("SELECT SUM(conflicts) FROM event_claims")] == [(0,)]


def test_increments_of_two_processes_add_up(session, uri, tmp_path):
    session.ensure(Stock(id="p1", left=0))
    session.commit()

    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(tmp_path, reservations.increment, uri, 100)) for _ in range(2)
        ]
        for child in children:
            child.hear("running")
        for child in children:
            child.tell()
        for child in children:
            child.hear("incremented")

    assert left(session) == {"p1": 200}


def test_increments_of_async_handlers_in_two_processes_add_up(session, uri, tmp_path):
    session.ensure(Stock(id="p1", left=0))
    session.commit()
    request_all(session, ["p1"] * 200)

    with ExitStack() as stack:
        children = [
            stack.enter_context(
                Child(tmp_path, reservations.work, uri, SETTINGS, reservations.add_async, 4)
            )
            for _ in range(2)
        ]
        for child in children:
            child.hear("running")
        wait_until_done(session, 200)
        for child in children:
            child.stop()

    assert left(session) == {"p1": 200}
    assert session.event_store.list_dead_letters(session.namespace) == []


def test_increments_of_two_threads_add_up(session):
    session.ensure(Stock(id="p1", left=0))
    session.commit()

    def increment() -> None:
        for _ in range(100):
            session.transact(reservations._increment, retries=10_000)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(increment) for _ in range(2)]:
            done.result(PATIENCE)

    assert left(session) == {"p1": 200}


@pytest.mark.req("ONT-200")
def test_death_between_a_conflict_and_the_next_run_loses_nothing(session, uri, tmp_path):
    """Two processes commit what they changed at the same version, and the one with the conflict dies."""
    session.ensure(Stock(id="p1", left=100))
    session.commit()
    request_all(session, ["p1"] * 60)
    settings = SETTINGS | {"event_claim_lease_ms": 3_600_000}

    with ExitStack() as stack:
        mortal = [
            stack.enter_context(
                Child(tmp_path, reservations.work, uri, settings, reservations.reserve_and_die, 1)
            )
            for _ in range(2)
        ]
        for child in mortal:
            child.hear("running")
        for child in mortal:
            child.hear("read")
        for child in mortal:
            child.tell()
        wait([child.process.sentinel for child in mortal], PATIENCE)
        [fallen] = [child for child in mortal if not child.process.is_alive()]
        [survivor] = [child for child in mortal if child is not fallen]
        assert fallen.died() == -signal.SIGKILL
        survivor.stop()
        end_leases(uri.removeprefix("sqlite:///"))
        last = stack.enter_context(
            Child(tmp_path, reservations.work, uri, settings, reservations.reserve_handler, 2)
        )
        last.hear("running")
        wait_until_done(session, 60)
        last.stop()

    assert left(session) == {"p1": 40}
    assert session.query().entities(Shipment).count() == 60
    assert session.event_store.list_dead_letters(session.namespace) == []
