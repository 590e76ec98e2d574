"""kill -9 while many objects are migrated: the next try goes on, and nothing of anybody is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

from ontologia import Session
from ontologia.errors import LockContentionError
from ontologia.runtime.session import core_of
from ontologia.store.doctor import examine
from ontologia.store.findings import Severity
from ontologia_conformance.backends import Backend
from ontologia_conformance.tiers import SCALE, samples
from tests.faults import migrations
from tests.faults.children import Child, points, show_figures
from tests.faults.migrations import Counter

FEW = 20
STATEMENTS = 90
"""About as many as a migration of so many objects in batches of three runs."""


def assert_migrated(uri: str, expected: dict[str, int]) -> None:
    """Finish the migration, if it is not finished; then each object is there once, in one commit."""
    with migrations.open_new(uri) as session:
        while True:
            try:
                result = session.migrate(dry_run=False, force=True)
                break
            except LockContentionError:  # until the lease of the one that was killed ends
                continue
        assert session.pending_migration() is None
        found = {each.id: each for each in session.query().entities(Counter).collect()}
        assert {key: each.count for key, each in found.items()} == expected
        migrated = [
            each for each in session.list_commits(limit=10_000) if "migration" in each["metadata"]
        ]
        assert len(migrated) == 1
        assert result.commit_id in (None, migrated[0]["id"])
        assert {each.meta().commit_id for each in found.values()} == {migrated[0]["id"]}
        core = core_of(session)
        wrong = [
            each
            for each in examine(core.store, core.clock, core.config)
            if each.severity is Severity.error
        ]
        assert wrong == []


@pytest.fixture(scope="session", params=["sqlite", "postgres18"])
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.getfixturevalue(request.param)
    return found


@pytest.mark.sampled
@pytest.mark.req("NEW-146")
def test_a_kill_before_any_statement_leaves_what_the_next_try_finishes(tmp_path: Path) -> None:
    began, kills = time.monotonic(), 0
    for point in points(STATEMENTS, 30):
        uri = f"sqlite:///{tmp_path}/{uuid4().hex}.db"
        migrations.fill(uri, FEW)
        with Child(tmp_path, migrations.migrate_until_statement, uri, point) as child:
            said = child.pipe.recv()
            if said[0] == "inside":
                kills += 1
            child.kill()
        assert_migrated(uri, {f"{number:07}": 10 * number for number in range(FEW)})

    assert kills > 1
    show_figures(began=began, kills=kills)


@contextmanager
def writing(uri: str, folder: Path, names: list[str]) -> Iterator[list[Child]]:
    """Programs of the old version that commit until they are refused."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(folder, migrations.write, uri, name)) for name in names
        ]
        for child in children:
            child.hear("running")
        yield children


@pytest.mark.sampled
@pytest.mark.each_database
@pytest.mark.req("NEW-145", "NEW-146")
def test_no_commit_is_lost_however_often_the_migration_is_killed(uri: str, tmp_path: Path) -> None:
    """Two programs commit all the time; the migration is killed at random moments."""
    began, random = time.monotonic(), Random(24)
    objects = samples(20_000)
    migrations.fill(uri, objects)
    names, kills = ["a", "b"], 0
    with writing(uri, tmp_path, names) as writers:
        for _ in range(samples(20)):
            with Child(tmp_path, migrations.migrate, uri) as child:
                child.pipe.poll(random.uniform(0, 0.4 + SCALE))
                time.sleep(random.uniform(0, 0.05))
                child.kill()
                kills += 1
        with migrations.open_new(uri) as session:
            while session.pending_migration() is not None or session.migrate():
                try:
                    session.migrate(dry_run=False, force=True)
                except LockContentionError:
                    continue
        for each in writers:
            each.hear("ended")

    expected = {f"{number:07}": 10 * number for number in range(objects)}
    for name, each in zip(names, writers, strict=True):
        for line in each.notes.read_text().splitlines():
            number = int(line.removeprefix("wrote "))
            expected[f"{name}-{number % 50}"] = 10 * number
    assert len(expected) > objects
    assert_migrated(uri, expected)
    show_figures(began=began, kills=kills, commits=len(expected) - objects)


@pytest.mark.thorough
@pytest.mark.req("NEW-144")
def test_the_memory_of_a_migration_does_not_grow_with_the_objects(tmp_path: Path) -> None:
    import tracemalloc

    peaks = []
    for objects in (4_000, 16_000):
        uri = f"sqlite:///{tmp_path}/{objects}.db"
        migrations.fill(uri, objects)
        with migrations.open_new(uri) as session:
            tracemalloc.start()
            assert session.migrate(dry_run=False, force=True).objects == objects
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        Session(uri).close()

    assert peaks[1] < 1.3 * peaks[0]
