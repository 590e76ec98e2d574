"""A SQLite file that is deleted or replaced under a session: noticed, and never taken for the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ontologia import Entity, Event, Field, HandlerContext, Session, on_event
from ontologia.errors import DatabaseError
from ontologia.runtime.session import core_of
from ontologia.store.sqlite import database


class Vault(Entity):
    id: Field[str] = Field(primary_key=True)


class VaultOpened(Event):
    vault: Field[str]


@pytest.fixture
def look_always(monkeypatch):
    """The file is looked at with every operation, so that nothing waits for a second to pass."""
    monkeypatch.setattr(database, "_LOOK", 0.0)


def vault(path: Path, *names: str) -> None:
    with Session(str(path), entity_types=[Vault]) as session:
        session.ensure([Vault(id=name) for name in names])
        session.commit()


def found(session: Session) -> list[str]:
    return [each.id for each in session.query().entities(Vault).collect()]


def deleted(path: Path) -> None:
    path.unlink()


def moved(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))


def replaced(path: Path) -> None:
    vault(path.with_suffix(".new"), "theirs")
    os.replace(path.with_suffix(".new"), path)


def restored(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".backup"))
    os.replace(path.with_suffix(".backup"), path)


def folder_moved(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def log_deleted(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


def restored_in_place(path: Path) -> None:
    """As a restore should do it with all programs stopped: the inode of the file stays."""
    vault(path.with_suffix(".backup"), "theirs")
    for name in ("-wal", "-shm"):
        path.with_name(path.name + name).unlink()
    shutil.copy(path.with_suffix(".backup"), path)


WAYS: list[Callable[[Path], None]] = [
    deleted,
    moved,
    replaced,
    restored,
    folder_moved,
    log_deleted,
    restored_in_place,
]


@pytest.mark.usefixtures("look_always")
@pytest.mark.parametrize("how", WAYS, ids=lambda way: way.__name__)
def test_whatever_is_asked_after_that_is_an_error(tmp_path, how):
    path = tmp_path / "here" / "vault.db"
    path.parent.mkdir()
    vault(path, "a")
    session = Session(str(path), entity_types=[Vault])
    assert found(session) == ["a"]

    how(path)

    session.ensure(Vault(id="b"))
    for ask in (
        session.commit,
        lambda: found(session),
        lambda: session.one(Vault, "a"),
        lambda: session.event_store.list_events("default"),
        lambda: session.event_store.enqueue(VaultOpened(vault="a"), "default"),
    ):
        with pytest.raises(DatabaseError, match="was deleted or replaced while it was open"):
            ask()
    session.close()


@pytest.mark.usefixtures("look_always")
def test_a_file_that_comes_back_is_not_trusted_again(tmp_path):
    path = tmp_path / "vault.db"
    vault(path, "a")
    with Session(str(path), entity_types=[Vault]) as session:
        moved(path)
        with pytest.raises(DatabaseError, match="deleted or replaced"):
            found(session)
        path.with_suffix(".moved").rename(path)

        with pytest.raises(DatabaseError, match="deleted or replaced"):
            found(session)


def test_no_new_connection_is_made_to_another_file(tmp_path):
    """Also not before the second is over."""
    path = tmp_path / "vault.db"
    vault(path, "a")
    with Session(str(path), entity_types=[Vault]) as session:
        store = core_of(session).store
        with store.read():  # so that the next read needs a connection of its own
            deleted(path)
            with pytest.raises(DatabaseError, match="deleted or replaced"), store.read():
                pass

    assert not path.exists()


def test_closing_leaves_the_log_of_the_new_file_alone(tmp_path):
    """SQLite deletes a log by its name with the last connection, but not if its file was moved."""
    path = tmp_path / "vault.db"
    vault(path, "a")
    session = Session(str(path), entity_types=[Vault])
    replaced(path)
    for name in ("-wal", "-shm"):  # as a restore should remove these
        path.with_name(path.name + name).unlink()
    with Session(str(path), entity_types=[Vault]) as other:
        other.ensure(Vault(id="b"))
        other.commit()

        session.close()

        assert path.with_name("vault.db-wal").stat().st_size > 0
        other.ensure(Vault(id="c"))
        other.commit()
    with Session(str(path), entity_types=[Vault]) as other:
        assert found(other) == ["b", "c", "theirs"]


def test_the_file_is_looked_at_once_a_second_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "_LOOK", 1_000.0)
    looks: list[str] = []
    look = database._identity
    path = tmp_path / "vault.db"
    vault(path, "a")
    with Session(str(path), entity_types=[Vault]) as session:
        found(session)
        monkeypatch.setattr(database, "_identity", lambda path: looks.append(path) or look(path))
        for number in range(50):
            session.ensure(Vault(id=str(number)))
            session.commit()
            found(session)
        assert looks == []

        core_of(session).store.database._look_again = 0.0  # the second is over
        found(session)
        found(session)

        assert sorted(looks) == [str(path), f"{path}-wal"]


def test_the_errors_say_within_a_second():
    assert database._LOOK <= 1.0


def test_closing_leaves_a_file_alone_that_was_restored_in_place(tmp_path):
    """Moving the old log into it would mix the two."""
    path = tmp_path / "vault.db"
    vault(path, "a")
    session = Session(str(path), entity_types=[Vault])
    session.ensure([Vault(id=str(number)) for number in range(1_000)])
    session.commit()
    restored_in_place(path)

    session.close()

    assert path.read_bytes() == path.with_suffix(".backup").read_bytes()


_WRITES = """
import apsw, sys
for _ in range(3):
    file = apsw.Connection(sys.argv[1])
    file.execute("PRAGMA user_version = 7")
    file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    file.execute("VACUUM")
    file.close()
"""


@pytest.mark.usefixtures("look_always")
@pytest.mark.parametrize("linked", [False, True])
def test_a_log_stays_whatever_other_programs_do(tmp_path, linked):
    path = tmp_path / "vault.db"
    if linked:
        (tmp_path / "there").mkdir()
        path.symlink_to(tmp_path / "there" / "real.db")
    with Session(str(path), entity_types=[Vault]) as session:  # a new file has no log at first
        assert found(session) == []
        session.ensure(Vault(id="a"))
        session.commit()
        for _ in range(2):
            subprocess.run([sys.executable, "-c", _WRITES, str(path)], check=True)
            with Session(str(path), entity_types=[Vault]) as other:
                assert found(other) == ["a"]
            assert found(session) == ["a"]
        session.ensure(Vault(id="b"))
        session.commit()
        assert found(session) == ["a", "b"]


def test_a_file_that_vanishes_while_it_is_opened_is_not_opened(tmp_path, monkeypatch):
    path = tmp_path / "vault.db"
    vault(path, "a")
    connect = database.Database._connect

    def too_late(*given):
        connection = connect(*given)
        path.unlink()
        return connection

    monkeypatch.setattr(database.Database, "_connect", too_late)

    with pytest.raises(DatabaseError, match="while it was being opened"):
        Session(str(path), entity_types=[Vault])


@pytest.mark.usefixtures("look_always")
def test_a_program_may_change_its_directory(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Session("vault.db", entity_types=[Vault]) as session:
        monkeypatch.chdir(tmp_path / "elsewhere")
        session.ensure(Vault(id="a"))
        session.commit()
        with core_of(session).store.read():
            assert found(session) == ["a"]

    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.usefixtures("look_always")
def test_a_run_ends_with_the_error(tmp_path):
    path = tmp_path / "vault.db"
    vault(path, "a")
    with Session(str(path), entity_types=[Vault]) as session:

        @on_event(VaultOpened, name="vanish")
        def vanish(ctx: HandlerContext[VaultOpened]) -> None:
            deleted(path)

        session.commit(event=VaultOpened(vault="a"))

        with pytest.raises(DatabaseError, match="deleted or replaced"):
            session.run([vanish])
