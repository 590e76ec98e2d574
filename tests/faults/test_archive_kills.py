"""kill -9 while events are moved to an archive, or restored: nothing is lost, nothing is there twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ontologia import Session
from ontologia.runtime.operator import Operator
from ontologia.store.s3.archive import Archive
from tests.faults import hardships
from tests.faults.children import Child, place_orders, points, show_figures
from tests.faults.workers import Placed
from tests.s3.proxy import Proxy, Seen

EVENTS = 10
REQUESTS = 1 + 4 * EVENTS  # one to look; two to write an event, two to read it back
NOW = timedelta(0)
STATEMENTS = {  # while a batch is deleted, and where: a statement, and at which time
    "before": ("INSERT INTO archives", 2),
    "half way": ("DELETE FROM attempts", 2),
    "at the end": ("COMMIT", 2),
}
RESTORING = {
    "half way": ("INSERT INTO event_claims", 6),
    "the last statement": ("INSERT INTO ready", 2),
    "at the end": ("COMMIT", 2),
}


class Deadly(Proxy):
    """Kills a process with one of its requests."""

    left = 0
    kill: Callable[[], None] = staticmethod(lambda: None)

    def note(self, seen: Seen) -> Any:
        with self._lock:
            self.left -= 1
            last = self.left == 0
        if last:
            self.kill()
        return super().note(seen)


@pytest.fixture
def fill(tmp_path: Path) -> Callable[[], tuple[str, dict[str, Any]]]:
    """A new store with finished events, and all that is said of each."""

    def made() -> tuple[str, dict[str, Any]]:
        path = tmp_path / f"{uuid4().hex}.db"
        ids = place_orders(path, EVENTS)
        with Session(str(path)) as session:
            store = session.event_store
            for event in store.claim(
                "default", "ship", session.session_id, [Placed.__event_type__], 100, 60_000
            ):
                store.ack("ship", str(event.id))
            return str(path), {each: store.inspect_event(each) for each in ids}

    return made


def assert_each_is_somewhere(path: str, uri: str, before: dict[str, Any]) -> set[str]:
    """In the store as it was, or else complete in the archive; the ids of those in the store."""
    with Session(path) as session:
        store = session.event_store
        assert store.check() == []
        here = {each: store.inspect_event(each) for each in before}
    retained = {each for each, shown in here.items() if shown is not None}
    assert all(here[each] == before[each] for each in retained)
    gone = [each for each in before if each not in retained]
    assert [each.row.id for each in Archive(uri).find("default", gone)] == gone
    return retained


def assert_goes_on(path: str, uri: str, before: dict[str, Any]) -> None:
    """The next run moves the rest; restored, everything is as it was."""
    left = assert_each_is_somewhere(path, uri, before)
    with Session(path) as session:
        by = Operator(session, "ada@host")
        assert by.archive(uri, NOW) == (len(left), 0)
        assert session.event_store.list_events("default") == []
        assert set(Archive(uri).ids("default")) == set(before)
        assert by.restore(uri) == (EVENTS, 0, 0)
    assert assert_each_is_somewhere(path, uri, before) == set(before)


@pytest.mark.sampled
@pytest.mark.req("NEW-060")
def test_a_kill_at_any_request_loses_nothing_and_the_next_run_goes_on(
    fill, tmp_path, s3_server, s3_uri
):
    began, left = time.monotonic(), []
    for point in points(REQUESTS, 12):
        path, before = fill()
        uri = f"{s3_uri}/{point}"
        with Deadly(s3_server) as proxy:
            options = (path, proxy.environment, "archive", uri, "", 0)
            with Child(tmp_path, hardships.archive_and_stop_at, *options) as child:
                proxy.kill, proxy.left = child.process.kill, point
                assert child.died() == -9
        left.append(len(assert_each_is_somewhere(path, uri, before)))
        assert_goes_on(path, uri, before)

    assert left == sorted(left, reverse=True)
    assert left[0] == EVENTS > left[-1]
    show_figures(began=began, kills=len(left))


@pytest.mark.thorough
@pytest.mark.req("NEW-060")
@pytest.mark.parametrize("point", STATEMENTS)
def test_a_kill_while_events_are_deleted_deletes_a_batch_or_nothing_of_it(
    fill, tmp_path, s3_server, s3_uri, point
):
    path, before = fill()
    options = (path, s3_server, "archive", s3_uri, *STATEMENTS[point])
    with Child(tmp_path, hardships.archive_and_stop_at, *options) as child:
        child.hear("running")
        child.hear("inside")
        child.kill()

    left = assert_each_is_somewhere(path, s3_uri, before)
    assert len(left) == EVENTS - 4
    assert_goes_on(path, s3_uri, before)


@pytest.mark.thorough
@pytest.mark.req("NEW-060")
@pytest.mark.parametrize("point", RESTORING)
def test_a_kill_while_events_are_restored_restores_a_batch_or_nothing_of_it(
    fill, tmp_path, s3_server, s3_uri, point
):
    path, before = fill()
    with Session(path) as session:
        assert Operator(session, "ada@host").archive(s3_uri, NOW) == (EVENTS, 0)
    options = (path, s3_server, "restore", s3_uri, *RESTORING[point])
    with Child(tmp_path, hardships.archive_and_stop_at, *options) as child:
        child.hear("running")
        child.hear("inside")
        child.kill()

    known = len(assert_each_is_somewhere(path, s3_uri, before))
    assert 0 < known < EVENTS
    with Session(path) as session:
        done = Operator(session, "ada@host").restore(s3_uri)
    assert done == (EVENTS - known, known, 0)
    assert assert_each_is_somewhere(path, s3_uri, before) == set(before)
