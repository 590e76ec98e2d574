"""The log of a SQLite file is moved into the file beside those who commit."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ontologia import Entity, Field, Session
from ontologia.runtime.session import core_of
from ontologia.store.sqlite import database
from ontologia.store.sqlite.checkpoints import Checkpoints
from tests.integration.running import until


class Ledger(Entity):
    id: Field[str] = Field(primary_key=True)
    text: Field[str]


@pytest.fixture(scope="session")
def backend(sqlite):
    """Of SQLite alone."""
    return sqlite


def write(session: Session, mebibytes: int, since: int = 0) -> None:
    """This much and more, in commits of a few pages each."""
    for number in range(since, since + mebibytes * 16):
        session.ensure(Ledger(id=str(number), text=chr(97 + number % 26) * 65_536))
        session.commit()


def moved(path: Path) -> int:
    """Bytes of the file itself, without its log."""
    return path.stat().st_size


def head_of(log: Path) -> bytes:
    """What a log that begins anew has another of."""
    with log.open("rb") as file:
        return file.read(32)


def until_it_begins_anew(session: Session, log: Path, since: int) -> None:
    """Commit until a commit has found all of the log moved, however slow the thread is."""
    first, numbers = head_of(log), iter(range(since, since + 8000))

    def began_anew() -> bool:
        write(session, 1, since=next(numbers) * 16)
        return head_of(log) != first

    until(began_anew)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def checkpointers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "ontologia-checkpoint"]


def test_a_log_that_grows_is_moved_by_a_thread(path):
    with Session(str(path), entity_types=[Ledger]) as session:
        write(session, 5)
        until(lambda: moved(path) > 3 * 2**20)
        assert len(checkpointers()) == 1
    assert checkpointers() == []
    assert not path.with_name("ledger.db-wal").exists()


def test_no_commit_does_it_before_the_log_is_four_times_as_long(path, monkeypatch):
    monkeypatch.setattr(Checkpoints, "_run", lambda _: None)
    with Session(str(path), entity_types=[Ledger]) as session:
        before = moved(path)
        write(session, 5)
        assert moved(path) == before
        write(session, 5, since=1000)
        assert moved(path) > 8 * 2**20


def test_a_log_that_was_moved_begins_anew_and_is_moved_again(path):
    with Session(str(path), entity_types=[Ledger]) as session:
        log = path.with_name("ledger.db-wal")
        for turn in range(1, 5):
            write(session, 6, since=turn * 1000)
            until(lambda turn=turn: moved(path) > turn * 5 * 2**20)
            until_it_begins_anew(session, log, since=turn * 10_000)


def test_a_thread_that_cannot_begin_leaves_it_to_a_commit(path, monkeypatch):
    with Session(str(path), entity_types=[Ledger]) as session:
        before = moved(path)
        monkeypatch.setattr(
            core_of(session).store.database._checkpoints,
            "_connect",
            lambda: _refuse("no descriptor"),
        )
        write(session, 5)
        until(lambda: checkpointers() == [])
        assert moved(path) == before
        write(session, 5, since=1000)
        assert moved(path) > 8 * 2**20


def _refuse(why: str) -> None:
    import apsw

    raise apsw.CantOpenError(why)


def test_what_was_written_is_there_after_many_rounds(path):
    with Session(str(path), entity_types=[Ledger]) as session:
        for turn in range(4):
            write(session, 6, since=turn * 1000)
    with Session(str(path), entity_types=[Ledger]) as session:
        assert session.query().entities(Ledger).count() == 4 * 6 * 16
        assert session.head == 4 * 6 * 16


def test_a_thread_that_is_refused_makes_no_commit_fail_and_closing_neither(path, monkeypatch):
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Session(str(path), entity_types=[Ledger]) as session:
        before = moved(path)
        monkeypatch.setattr("ontologia.store.sqlite.checkpoints.threading.Thread.start", refuse)
        write(session, 5)
        assert moved(path) == before
        monkeypatch.undo()
        write(session, 2, since=1000)
        until(lambda: moved(path) > 3 * 2**20)  # the next one was not refused
    assert not path.with_name("ledger.db-wal").exists()


def test_a_log_that_a_reader_made_long_is_cut_when_it_begins_anew(path, monkeypatch):
    monkeypatch.setattr(database, "LONGEST_LOG", 2**20)
    log = path.with_name("ledger.db-wal")
    with Session(str(path), entity_types=[Ledger]) as session:
        with core_of(session).store.read() as reader:
            reader.head()
            write(session, 40)
            long = log.stat().st_size
        until_it_begins_anew(session, log, since=2000)

        assert long > 40 * 2**20
        assert log.stat().st_size < 20 * 2**20


def test_what_a_reader_kept_in_the_log_is_moved_when_it_is_gone(path):
    with Session(str(path), entity_types=[Ledger]) as session:
        write(session, 1)
        before = moved(path)
        with core_of(session).store.read() as reader:
            assert reader.head() == 16
            write(session, 40, since=1000)
            assert moved(path) < before + 5 * 2**20
        until_it_begins_anew(session, path.with_name("ledger.db-wal"), since=2000)
        assert moved(path) > 40 * 2**20
