"""Tests of the index, with the fixtures that come with Ontologia: `python -m pytest indexing`."""

from __future__ import annotations

from pathlib import Path

import pytest

from ontologia import HandlerContext, Schedule, Session
from ontologia.testing import check_idempotent
from ontologia.testing.fixtures import Drain

from . import handlers
from .__main__ import HANDLERS
from .handlers import digest, forget, index, objects_of
from .models import Chunk, Document, DocumentChanged, DocumentGone, ScanDue
from .searching import search

OLD, NEW = "the old ship\n\nin the storm", "\n\n".join(f"the new ship {n}" for n in range(25))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text(OLD)
    (folder / "b.txt").write_text("a quiet morning")
    return folder


@pytest.fixture
def watched(session: Session, folder: Path) -> Session:
    """A session with the schedule, as `watch` has it."""
    session.add_schedule(Schedule(ScanDue(folder=str(folder)), "* * * * *"))
    return session


def indexed() -> list[object]:
    """The old text, as the index has it."""
    chunks = [objects_of("a.txt", digest(OLD), n, text) for n, text in enumerate(OLD.split("\n\n"))]
    return [Document(path="a.txt", digest=digest(OLD), chunks=2), *(x for c in chunks for x in c)]


def test_a_document_is_indexed_wherever_its_handler_was_interrupted(folder: Path) -> None:
    (folder / "a.txt").write_text(NEW)
    changed = DocumentChanged(folder=str(folder), path="a.txt", digest=digest(NEW))

    check_idempotent(index, changed, given=indexed())


def test_a_document_is_forgotten_wherever_its_handler_was_interrupted() -> None:
    check_idempotent(forget, DocumentGone(path="a.txt"), given=indexed())


def test_what_changed_is_found_within_a_minute_and_nothing_else_is_touched(
    watched: Session, drain: Drain, folder: Path
) -> None:
    drain(HANDLERS, within=60)
    (folder / "a.txt").write_text(NEW)
    drain(HANDLERS, within=60)

    history = watched.query().entities(Document).with_history().collect()
    assert [each.path for each in history] == ["a.txt", "b.txt", "a.txt"]
    assert search(watched, "old ship") == []
    assert len(search(watched, "new ship")) == 25


def test_a_file_that_is_gone_is_found_in_the_past_alone(
    watched: Session, drain: Drain, folder: Path
) -> None:
    drain(HANDLERS, within=60)
    before = watched.head
    (folder / "a.txt").unlink()
    drain(HANDLERS, within=60)

    assert search(watched, "old ship") == []
    assert watched.query().entities(Chunk).count() == 1
    assert [hit.text for hit in search(watched, "old ship", as_of=before)] == ["the old ship"]


def test_a_text_that_is_half_indexed_is_not_found(
    watched: Session, drain: Drain, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain(HANDLERS, within=60)
    (folder / "a.txt").write_text(NEW)
    found: list[tuple[int, int]] = []

    def renew(ctx: HandlerContext[DocumentChanged]) -> None:
        found.append((len(search(watched, "old ship")), len(search(watched, "new ship"))))

    monkeypatch.setattr(HandlerContext, "renew", renew)
    drain(HANDLERS, within=60)

    assert found == [(1, 0)] * (25 // handlers.CHUNKS_PER_COMMIT + 1)
    assert (len(search(watched, "old ship")), len(search(watched, "new ship"))) == (0, 25)
