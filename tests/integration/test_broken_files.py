"""Files that are no store, may not be written, are damaged or find no room: an error, no harm."""

from __future__ import annotations

import os
import random
import re
import subprocess
import tempfile
from pathlib import Path

import apsw
import pytest

from ontologia import Entity, Field, Session
from ontologia.errors import (
    DatabaseError,
    DiskFullError,
    IntegrityError,
    StoreOpenError,
)
from tests.integration.processes import ask, run
from tests.shop import Customer


@pytest.fixture(scope="session")
def backend(sqlite):
    """What is said here is about files of SQLite."""
    return sqlite


PAGE = 4096


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def people(count: int) -> list[Customer]:
    return [Customer(id=f"c{n:05}", name="n" * 200) for n in range(count)]


def a_store(path: Path, count: int = 1) -> None:
    """A store with so many customers, closed."""
    with Session(str(path)) as session:
        session.ensure(people(count))


def commits(path: Path) -> int:
    return ask(path, "SELECT COUNT(*) FROM commits")[0][0]


# -- there is no store there ----------------------------------------------------------------------


@pytest.mark.req("NEW-062")
@pytest.mark.parametrize(
    "content",
    [b"hi", b"id,name\n1,Ada\n" * 1000, b"SQLite format 3\0" + b"\xff" * 5000, bytes(5000)],
    ids=["two bytes", "a table of text", "only the header", "zeros"],
)
def test_a_file_that_is_no_database_is_refused_and_left_alone(path, open_session, content):
    path.write_bytes(content)
    before = files(path.parent)

    with pytest.raises(
        StoreOpenError, match=re.escape(f"{path} is not a SQLite database")
    ) as error:
        open_session()

    assert "path" in error.value.hint
    assert isinstance(error.value.__cause__, apsw.Error)
    assert files(path.parent) == before


@pytest.mark.req("NEW-062")
def test_a_directory_is_no_database(path, open_session):
    path.mkdir()

    with pytest.raises(StoreOpenError, match=re.escape(f"{path} is a directory")) as error:
        open_session()

    assert error.value.hint
    assert list(path.parent.iterdir()) == [path]
    assert list(path.iterdir()) == []


@pytest.mark.req("NEW-062")
def test_a_missing_directory_is_named_and_not_made(tmp_path, open_session):
    place = tmp_path / "not" / "here"

    with pytest.raises(StoreOpenError, match=re.escape(f"no directory {place}")) as error:
        open_session(uri=f"sqlite:///{place / 'app.db'}")

    assert "Create the directory" in error.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("uri", "message", "way_out"),
    [
        ("redis://localhost/0", "redis", "sqlite:///"),
        ("sqlite://host/app.db", "names a host", "sqlite:///host/app.db"),
        ("sqlite://app.db", "names a host", "sqlite:///app.db"),
        ("", "names no database", "app.db"),
        ("a\0b", "names no database", "app.db"),
    ],
)
def test_a_uri_that_names_no_store_is_refused(
    tmp_path, monkeypatch, open_session, uri, message, way_out
):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(StoreOpenError, match=message) as error:
        open_session(uri=uri)

    assert way_out in error.value.hint
    assert list(tmp_path.iterdir()) == []


# -- a store that must not be touched ---------------------------------------------------------------


@pytest.mark.req("NEW-062")
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_store_of_a_newer_layout_is_refused_and_left_alone(path, open_session, journal):
    a_store(path)
    ask(path, f"PRAGMA journal_mode={journal}")
    ask(path, "UPDATE ontologia_layout SET version = version + 1")
    before = files(path.parent)

    with pytest.raises(StoreOpenError, match=re.escape(str(path)) + ".*layout") as error:
        open_session()

    assert "Upgrade Ontologia" in error.value.hint
    assert files(path.parent) == before


OPEN_AS_NOBODY = """
with Session(":memory:") as warm:  # everything is imported before the rights are given up
    warm.ensure(Customer(id="c1", name="Ada"))
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    with Session(sys.argv[1]) as session:
        session.ensure(Customer(id="c2", name="Bob"))
    report(["no error", "", ""])
except OntologiaError as error:
    report([type(error).__name__, str(error), error.hint])
"""


@pytest.fixture
def open_place():
    """A directory that other users can reach, other than pytest's."""
    with tempfile.TemporaryDirectory() as place:
        yield Path(place)
        os.chmod(place, 0o700)


@pytest.mark.req("NEW-062")
@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "expected"),
    [
        (0o777, 0o444, "ReadOnlyError"),
        (0o555, 0o444, "ReadOnlyError"),
        (0o555, 0o666, "ReadOnlyError"),
        (0o777, 0o000, "StoreOpenError"),
        (0o000, 0o666, "StoreOpenError"),
    ],
    ids=["file", "file and folder", "folder", "unreadable file", "closed folder"],
)
def test_without_the_right_to_write_a_store_nothing_is_written_beside_it_either(
    open_place, folder_mode, file_mode, expected
):
    path = open_place / "shop.db"
    a_store(path)
    before = files(open_place)
    path.chmod(file_mode)
    open_place.chmod(folder_mode)

    kind, message, hint = run(OPEN_AS_NOBODY, path)

    open_place.chmod(0o755)
    path.chmod(0o644)
    assert kind == expected
    assert str(path) in message
    assert re.search("right|permission|allowed", message), "says nothing of rights"
    assert hint
    assert files(open_place) == before


# -- damage ---------------------------------------------------------------------------------------


def spoil(path: Path, first: int, last: int) -> None:
    with path.open("r+b") as file:
        file.seek(first)
        file.write(random.Random(1).randbytes(last - first))


@pytest.mark.req("NEW-062")
@pytest.mark.parametrize(
    ("start", "end"),
    [(0.5, None), (PAGE, None), (100, None), (0, 16), (16, 100), (100, PAGE), (PAGE, 1.0)],
    ids=[
        "cut in half",
        "cut after the first page",
        "cut after the header",
        "garbage for a name",
        "garbage for a header",
        "garbage for a first page",
        "garbage after the first page",
    ],
)
def test_a_damaged_store_is_refused_and_left_as_it_is(path, open_session, start, end):
    a_store(path, 500)
    size = path.stat().st_size
    first, last = (int(at * size) if isinstance(at, float) else at for at in (start, end or size))
    if end is None:
        os.truncate(path, first)
    else:
        spoil(path, first, last)
    before = files(path.parent)

    with pytest.raises(StoreOpenError, match=re.escape(str(path)) + ".*damaged") as error:
        open_session()

    assert "backup" in error.value.hint
    assert files(path.parent) == before


@pytest.mark.req("ONT-100")
def test_damage_that_is_found_when_reading_names_the_file(path, open_session):
    a_store(path, 500)
    content = path.read_bytes()
    for page in range(0, len(content), PAGE):
        if b"n" * 200 in content[page : page + PAGE]:
            spoil(path, page, page + PAGE)
    session = open_session()

    with pytest.raises(DatabaseError, match=re.escape(str(path)) + ".*damaged") as error:
        session.query().entities(Customer).collect()

    assert "backup" in error.value.hint
    assert isinstance(error.value.__cause__, apsw.CorruptError)


# -- no room --------------------------------------------------------------------------------------


class Disk:
    """A disk of a few megabytes, and something that takes its room."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.ballast = place / "ballast"

    def fill(self, *, leave: int = 0) -> None:
        room = os.statvfs(self.place)
        self.ballast.write_bytes(bytes(room.f_bavail * room.f_frsize - leave))

    def make_room(self) -> None:
        self.ballast.unlink()


@pytest.fixture
def disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", place],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small disk needs the right to mount one")
    yield Disk(place)
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.req("NEW-062", "NEW-029", "ONT-100", "SQL-058")
def test_a_commit_on_a_full_disk_can_be_made_again_when_there_is_room(disk, open_session):
    path = disk.place / "shop.db"
    session = open_session(uri=str(path), entity_types=[Customer])
    session.ensure(Customer(id="first", name="Ada"))
    session.commit()
    session.ensure(people(3_000))
    disk.fill()

    with pytest.raises(DiskFullError, match=re.escape(str(path))) as error:
        session.commit()

    assert "Free some space" in error.value.hint
    assert isinstance(error.value.__cause__, apsw.Error)
    assert (session.head, session.query().entities(Customer).count()) == (1, 1)
    disk.make_room()
    assert (session.commit(), session.query().entities(Customer).count()) == (2, 3_001)
    assert ask(path, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.req("NEW-062")
def test_a_store_cannot_be_made_on_a_full_disk_but_can_be_when_there_is_room(disk, open_session):
    path = disk.place / "shop.db"
    disk.fill()

    with pytest.raises(DiskFullError, match=re.escape(str(path))) as error:
        open_session(uri=str(path))

    assert "space" in error.value.hint
    disk.make_room()
    assert open_session(uri=str(path)).head == 0


def test_a_commit_that_finds_no_room_for_an_index_is_made_or_refused_but_not_both(
    disk, open_session
):
    fields = {"id": str, "name": str, "tier": str, "profile": dict[str, object]}
    annotations = {name: Field[kind] for name, kind in fields.items()}
    plain = type("Customer", (Entity,), {"__annotations__": annotations})  # tier has no index
    path = disk.place / "shop.db"
    with Session(str(path)) as session:
        session.ensure(
            [plain(id=str(n), name="x", tier="t" * 500, profile={}) for n in range(4_000)]
        )
    session = open_session(uri=str(path))
    session.ensure(Customer(id="new", name="Ada"))
    disk.fill(leave=400_000)

    try:
        commit_id = session.commit()
    except DiskFullError:
        commit_id = None

    assert session.head == (1 if commit_id is None else commit_id)
    disk.make_room()
    assert session.commit() == (2 if commit_id is None else None)


@pytest.mark.req("NEW-062", "NEW-029")
def test_a_limit_on_the_size_of_files_is_as_good_as_a_full_disk(path):
    program = """
    import resource

    session = Session(sys.argv[1], entity_types=[Customer])
    session.ensure(Customer(id="first", name="Ada"))
    session.commit()
    session.ensure([Customer(id=str(n), name="n" * 200) for n in range(2_000)])
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, most))
    try:
        session.commit()
        error = None
    except DatabaseError as raised:
        error = raised
    during = [session.head, session.query().entities(Customer).count()]
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    after = [session.commit(), session.query().entities(Customer).count()]
    report([type(error).__name__, str(error), error.hint, during, after])
    """

    kind, message, hint, during, after = run(program, path)

    assert during == [1, 1]
    assert after == [2, 2_001]
    assert str(path) in message
    assert kind == "DiskFullError"
    assert hint


# -- what the database itself refuses -----------------------------------------------------------------


@pytest.mark.req("SQL-002", "SQL-058", "SQL-103", "NEW-029", "ONT-100")
def test_a_commit_that_fails_in_the_middle_leaves_no_trace_and_no_gap(path, session, sql):
    sql(
        "CREATE TRIGGER no_c2 BEFORE INSERT ON entity_history WHEN NEW.entity_key = 'c2' "
        "BEGIN SELECT RAISE(ABORT, 'c2 is not welcome'); END"
    )
    session.ensure([Customer(id=f"c{n}", name="x") for n in (1, 2, 3)])

    with pytest.raises(IntegrityError, match=re.escape(str(path)) + ".*c2 is not welcome") as error:
        session.commit()

    assert isinstance(error.value.__cause__, apsw.ConstraintError)
    for table in ("commits", "entity_history", "entity_latest", "schema_versions"):
        assert sql(f"SELECT COUNT(*) FROM {table}") == [[0]], table
    sql("DROP TRIGGER no_c2")
    assert session.commit() == 1
    assert sql("SELECT entity_key, commit_id FROM entity_history") == [
        ["c1", 1],
        ["c2", 1],
        ["c3", 1],
    ]


@pytest.mark.req("SQL-024")
def test_a_commit_that_history_refers_to_cannot_be_deleted(session, sql):
    session.ensure(Customer(id="c1", name="Ada"))
    session.commit()
    sql("CREATE TRIGGER forget AFTER INSERT ON commits BEGIN DELETE FROM commits WHERE id = 1; END")
    session.ensure(Customer(id="c2", name="Bob"))

    with pytest.raises(IntegrityError, match="FOREIGN KEY"):
        session.commit()

    assert sql("SELECT id FROM commits") == [[1]]
    assert sql("SELECT entity_key FROM entity_history") == [["c1"]]


@pytest.mark.req("SQL-025")
@pytest.mark.parametrize("table", ["entity_history", "relation_history"])
def test_a_version_without_its_commit_cannot_be_written(session, sql, table):
    columns, values = {
        "entity_history": ("entity_type, entity_key", "'T', 'k'"),
        "relation_history": ("relation_type, left_key, right_key", "'T', 'l', 'r'"),
    }[table]
    sql(
        f"CREATE TRIGGER stray AFTER INSERT ON commits BEGIN INSERT INTO {table}"
        f"({columns}, fields_json, commit_id) VALUES ({values}, '{{}}', 99); END"
    )
    session.ensure(Customer(id="c1", name="Ada"))

    with pytest.raises(IntegrityError, match="FOREIGN KEY"):
        session.commit()

    assert sql(f"SELECT COUNT(*) FROM {table}") == [[0]]
    assert session.head == 0


@pytest.mark.req("ONT-100")
def test_any_other_failure_of_the_database_is_a_database_error_with_its_cause(path, session, sql):
    sql("ALTER TABLE entity_history RENAME TO elsewhere")
    session.ensure(Customer(id="c1", name="Ada"))

    with pytest.raises(DatabaseError, match=re.escape(str(path))) as error:
        session.commit()

    assert not isinstance(error.value, IntegrityError)
    assert isinstance(error.value.__cause__, apsw.SQLError)
    sql("ALTER TABLE elsewhere RENAME TO entity_history")
    assert session.commit() == 1
