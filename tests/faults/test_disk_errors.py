"""A disk that refuses, at each system call of a short life of a store.

Whatever is refused, the call that met it says so in an error of ours, or nobody needs to know;
nothing that returned is lost, and what was refused can be done again.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults import bad_disks
from tests.faults.children import Child, ask, assert_sound, points, show_figures
from tests.faults.disk import FAULTS
from tests.faults.figures import AGAIN, tally

# Of a lock SQLite asks again and again, for ten seconds each time: once is enough.
CASES = [(fault, False) for fault in FAULTS] + [
    (fault, True) for fault in FAULTS if fault != "lock"
]


@pytest.mark.sampled
@pytest.mark.req("NEW-062", "ONT-100", "NEW-029")
@pytest.mark.parametrize(("fault", "for_good"), CASES)
def test_a_disk_that_refuses_a_call_loses_nothing_and_the_store_goes_on(
    tmp_path, fault: str, for_good: bool
) -> None:
    """Up to 6 calls of each kind; each of them with ONTOLOGIA_TEST_SAMPLES=10."""
    began = time.monotonic()
    options = (str(tmp_path), fault, for_good)
    with Child(tmp_path, bad_disks.suffer_a_bad_disk, *options, []) as child:
        [count] = child.hear("counted")
    assert count > 0
    numbers = points(count, 6)

    refused, lost, words = 0, [], set()
    with Child(tmp_path, bad_disks.suffer_a_bad_disk, *options, numbers) as child:
        for _ in numbers:
            times, said, problems = child.hear("played")
            refused += times > 0
            words.update(said)
            lost += problems

    kind = f"SQLite: a disk that refuses: {fault}, {'until closed' if for_good else 'once'}"
    tally(AGAIN, kind, tries=refused, losses=len(lost))
    show_figures(began=began, calls=count, refused=refused, said=len(words))
    assert lost == []
    assert refused > 0


@pytest.mark.req("ONT-100", "NEW-029")
@pytest.mark.parametrize("how", ["a question", "while somebody writes", "whether anybody wrote"])
def test_what_cannot_be_read_is_an_error_of_ours_that_says_why(tmp_path, how: str) -> None:
    options = (str(tmp_path / "test.db"), how)
    with Child(tmp_path, bad_disks.read_from_a_bad_disk, *options) as child:
        kind, words = child.hear("raised")
        child.hear("ended")

    assert kind == "DatabaseError"
    assert "test.db: disk I/O error" in words


@pytest.mark.req("ONT-100", "NEW-060")
def test_a_commit_that_could_not_be_synced_is_not_found_after_everybody_was_killed(
    tmp_path,
) -> None:
    image = tmp_path / "image"
    image.mkdir()
    options = (str(tmp_path / "test.db"), str(image))
    with Child(tmp_path, bad_disks.commit_what_cannot_be_synced, *options) as child:
        [words] = child.hear("refused")
        child.hear("ended")

    assert "taken back" in words
    assert ask(image / "test.db", "SELECT entity_key FROM entity_latest") == [("first",)]
    assert ask(image / "test.db", "SELECT id FROM events") == []
    assert_sound(image / "test.db")


@pytest.mark.req("NEW-062", "ONT-100", "NEW-029")
def test_a_disk_that_is_full_at_any_page_loses_nothing_and_the_store_goes_on(tmp_path) -> None:
    """8 sizes of what room is left; each number of pages with ONTOLOGIA_TEST_SAMPLES=10."""
    began = time.monotonic()
    place = tmp_path / "disk"
    place.mkdir()
    with Child(tmp_path, bad_disks.suffer_a_full_disk, str(place)) as child:
        said = child.pipe.recv()
        if said[0] == "no disk":
            pytest.skip(f"a small disk cannot be mounted: {said[1]}")
        _, most, _, lost = said
        numbers = points(most, 8)
        full, others = 0, set()
        for number in numbers:
            child.pipe.send(number - 1)
            _, errors, problems = child.hear("played")
            full += "DiskFullError" in errors
            others.update({*errors} - {"DiskFullError"})
            lost += problems
        child.pipe.send(None)
        child.hear("ended")

    tally(AGAIN, "SQLite: a full disk, at each page", tries=full, losses=len(lost))
    show_figures(began=began, pages=most, full=full, others=others)
    assert lost == []
    assert full > 0
    assert others == set()


@pytest.mark.req("NEW-062", "NEW-029")
@pytest.mark.parametrize(("beside", "pages"), [(True, 0), (False, 8), (False, 0)])
def test_a_session_can_be_opened_and_read_on_a_full_disk(
    tmp_path: Path, beside: bool, pages: int
) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    with Child(tmp_path, bad_disks.open_on_a_full_disk, str(place), beside, pages) as child:
        said = child.pipe.recv()
        if said[0] == "no disk":
            pytest.skip(f"a small disk cannot be mounted: {said[1]}")

    assert said[0] == "opened", said
    _, found, refusal, later = said
    assert (found, later) == ((1, 0), 1)
    assert "no room left" in refusal
    assert "nothing was written" in refusal


@pytest.mark.req("NEW-062")
def test_a_full_disk_is_read_by_all_one_after_the_other_and_what_is_in_the_log_is_there(
    tmp_path: Path,
) -> None:
    """One connection at a time has the file to itself, until there is room for the index of the log."""
    place = tmp_path / "disk"
    place.mkdir()
    with Child(tmp_path, bad_disks.share_a_full_disk, str(place)) as child:
        said = child.pipe.recv()
        if said[0] == "no disk":
            pytest.skip(f"a small disk cannot be mounted: {said[1]}")
        left = child.pipe.recv()

    assert said == ("shared", True, ((1, 1), [1, 1, 1, 1], ["id", "a"]), 4, 4, True)
    assert left == ("left", "ok", 4, [])
