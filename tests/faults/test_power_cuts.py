"""A power cut forgets every write since the last sync: no call that returned is among them."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from ontologia import OntologiaConfig, Session, on_event
from ontologia.testing import ManualClock
from ontologia_conformance.tiers import SCALE, samples
from tests.faults import hardships
from tests.faults.checker import problems, problems_at_the_end
from tests.faults.children import (
    UNFINISHED,
    Child,
    ask,
    assert_sound,
    noted,
    show_figures,
)
from tests.faults.figures import KEPT, tally
from tests.faults.scenario import finish
from tests.faults.workers import HANDLERS, Placed, receipt

SOME = "unsynced writes kept by chance"
NONE = "no unsynced write kept"
ALL = "each unsynced write kept"
EVERY = 1 if SCALE >= 10 else max(1, int(40 / SCALE))
ANNOUNCED = """
SELECT payload ->> 'number' FROM events WHERE type = 'faults.placed'
UNION SELECT payload ->> 'number' FROM deferred_events
"""


def drain(path, handlers=HANDLERS) -> None:
    """Handle everything, an hour later: leases are over and what was deferred is due."""
    clock = ManualClock(datetime.now(UTC) + timedelta(hours=1))
    with Session(str(path), config=OntologiaConfig(clock=clock)) as session:
        session.run(handlers, max_iterations=20)
    assert ask(path, UNFINISHED) == [(0,)]


@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.req("NEW-032", "NEW-060", "ONT-200")
@pytest.mark.parametrize("backlog", [0, 300], ids=["while they come", "in the middle of a drain"])
@pytest.mark.parametrize("keep", [0.0, 0.5], ids=[NONE, SOME])
def test_a_power_cut_loses_nothing_that_a_caller_was_told_of(tmp_path, keep, backlog):
    """4 cuts of each kind; 20 of each, the full size, with ONTOLOGIA_TEST_SAMPLES=5."""
    moments = random.Random(32)
    began = time.monotonic()
    told = forgotten = 0
    lost: list[str] = []
    cuts = max(2, samples(4))  # the first of them is early: nobody was told of anything by then
    for cut in range(cuts):
        folder = tmp_path / str(cut)
        image = folder / "image"
        image.mkdir(parents=True)
        # Some 20 writes are one round of announcements and handlers.
        writes = int(10 ** moments.uniform(1, 3.8))
        options = (str(folder / "test.db"), str(image), writes, keep, backlog)
        with Child(folder, hardships.work_until_the_power_is_cut, *options) as child:
            assert child.died() == 0

        path = image / "test.db"
        notes = noted(folder)
        announced = {about for what, about in notes if what == "announced"}
        committed = {about for what, about in notes if what == "committed"}
        lost += problems(path, committed=committed, announced=announced)
        told += len(announced) + len(committed)
        forgotten += handled(notes) - acked(path)

        drain(path)
        lost += problems_at_the_end(path, committed=committed, announced=announced)

    tally(KEPT, "SQLite: a power cut at a random moment", tries=cuts, losses=len(lost))
    assert lost == []
    assert told > 0
    show_figures(began=began, cuts=cuts, calls_that_returned=told, runs_forgotten=forgotten)


@pytest.mark.sampled
@pytest.mark.req("NEW-032", "NEW-060", "ONT-200")
@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0], ids=[NONE, SOME, ALL])
def test_a_power_cut_at_each_moment_of_a_short_life_loses_nothing(tmp_path, keep):
    """At one change of the disk of 40; at each of them with ONTOLOGIA_TEST_SAMPLES=10."""
    began = time.monotonic()
    options = (str(tmp_path / "test.db"), str(tmp_path), keep, EVERY)
    with Child(tmp_path, hardships.photograph_each_moment, *options) as child:
        [moments] = child.hear("moments")

    albums = [told.parent for told in tmp_path.glob("*/told.json")]
    lost = []
    for image in albums:
        path, told = image / "test.db", json.loads((image / "told.json").read_text())
        lost += [f"{image.name}: {each}" for each in problems(path, **told)]
        finish(str(path))
        lost += [f"{image.name}, later: {each}" for each in problems_at_the_end(path, **told)]
        shutil.rmtree(image)

    tally(
        KEPT, "SQLite: a power cut at each change of the disk", tries=len(albums), losses=len(lost)
    )
    show_figures(began=began, moments=moments, cuts=len(albums))
    assert lost == []
    assert len(albums) >= moments // EVERY


def handled(notes) -> int:
    return sum(times for (what, _), times in notes.items() if what in ("receipt", "audit", "ship"))


def acked(path) -> int:
    return ask(path, "SELECT COUNT(*) FROM event_claims WHERE ack_at IS NOT NULL")[0][0]


CALLS = (
    *("commit", "commit with an event", "commit with a deferred event", "commit in a handler"),
    *("enqueue", "defer", "defer of the store", "the tick of a schedule"),
)


@pytest.mark.req("NEW-032")
@pytest.mark.parametrize("call", CALLS)
def test_a_power_cut_right_after_a_call_keeps_what_it_wrote(tmp_path, call):
    image = tmp_path / "image"
    image.mkdir()
    options = (str(tmp_path / "test.db"), str(image), call)
    with Child(tmp_path, hardships.call_and_cut_the_power, *options) as child:
        assert child.died() == 0

    path = image / "test.db"
    written = ask(path, f"{ANNOUNCED} UNION SELECT entity_key FROM entity_latest")
    assert ("told",) in written
    assert_sound(path)


@pytest.mark.req("NEW-032", "ONT-200")
def test_events_whose_acks_a_power_cut_forgot_run_again_and_end_acked(tmp_path):
    image = tmp_path / "image"
    image.mkdir()
    options = (str(tmp_path / "test.db"), str(image), 50)
    with Child(tmp_path, hardships.drain_and_cut_the_power, *options) as child:
        assert child.hear("acked") == (50,)
        assert child.died() == 0
    path = image / "test.db"
    remembered = acked(path)
    seen: Counter[str] = Counter()

    @on_event(Placed, name="audit")
    def audit(ctx) -> None:
        seen[ctx.event.number] += 1

    drain(path, [audit])

    assert remembered < 50  # acks are not synced by themselves
    assert len(seen) == 50 - remembered
    assert set(seen.values()) == {1}
    assert acked(path) == 50
    assert_sound(path)


RECEIPTS = "SELECT entity_key FROM entity_latest WHERE entity_type = 'Receipt'"


@pytest.mark.req("NEW-032")
@pytest.mark.parametrize(
    ("durability", "when", "receipts", "acks"),
    [
        ("commit", "committed", [("1",)], 0),
        ("ack", "committed", [], 0),
        ("ack", "acked", [("1",)], 1),
    ],
)
def test_a_handlers_commit_is_on_disk_when_the_setting_says(
    tmp_path, durability, when, receipts, acks
):
    image = tmp_path / "image"
    image.mkdir()
    options = (str(tmp_path / "test.db"), str(image), durability, when)
    with Child(tmp_path, hardships.commit_in_a_handler_and_cut_the_power, *options) as child:
        assert child.died() == 0

    path = image / "test.db"
    assert ask(path, RECEIPTS) == receipts
    assert acked(path) == acks
    assert_sound(path)
    drain(path, [receipt])  # what was not acked comes again, and finds what is there
    assert ask(path, RECEIPTS) == [("1",)]
    assert acked(path) == 1


@pytest.mark.req("NEW-032")
def test_a_power_cut_loses_no_migration_that_returned(tmp_path):
    image = tmp_path / "image"
    image.mkdir()
    with Child(
        tmp_path, hardships.migrate_and_cut_the_power, str(tmp_path / "test.db"), str(image)
    ) as child:
        assert child.died() == 0

    new = hardships.thing(size=int)
    with Session(str(image / "test.db"), entity_types=[new]) as session:
        session.validate()
        assert [each.size for each in session.query().entities(new).collect()] == [7] * 50
    assert_sound(image / "test.db")
