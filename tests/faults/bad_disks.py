"""What processes do on a disk that refuses, or is full."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from pathlib import Path

import apsw

from ontologia import Entity, Field, Session
from ontologia.errors import DatabaseError, DiskFullError
from ontologia.runtime.session import core_of
from tests.faults.disk import FAULTS, BadDisk
from tests.faults.scenario import Scenario
from tests.faults.small_disk import SmallDisk
from tests.faults.workers import Order, Own, Placed, say
from tests.integration.commands import ONTOLOGIA


def suffer_a_bad_disk(folder: str, fault: str, for_good: bool, numbers: list[int]) -> None:
    """Play the scenario once for each number, with the disk refusing that call of the kind.

    Without numbers it is played undisturbed, and says how many such calls there are. A disk that
    refuses for good does so until everything is closed; else the session itself goes on.
    """
    disk = BadDisk(syncs=fault == "sync")

    def play(number: int | None) -> Scenario:
        place = Path(folder, f"{fault}-{number}")
        place.mkdir()
        scenario = Scenario(str(place / "test.db"), reopen=for_good)
        scenario.relief = disk.heal
        scenario.noise = (apsw.IOError,) if fault == "sync" else ()
        disk.fail(None if number is None else fault, number or 0, for_good=for_good)
        scenario.play()
        disk.heal()
        return scenario

    if not numbers:
        play(None)
        say("counted", disk.counts[FAULTS[fault].call])
    for number in numbers:
        scenario = play(number)
        refused, problems = disk.refused, scenario.problems()
        shutil.rmtree(Path(scenario.uri).parent)
        words = [str(refusal.error) for refusal in scenario.refusals]
        say("played", refused, words, problems)


def read_from_a_bad_disk(uri: str, how: str) -> None:
    """Ask what cannot be read any more; say what kind of error that is, and what it says."""
    disk = BadDisk()
    with Session(uri) as session:
        session.ensure([Order(id=f"{number:0500}") for number in range(500)])
        session.commit()
    session = Session(uri, entity_types=[Order])
    writer = core_of(session).store.database.writer
    watch = core_of(session).store.watch()
    busy = threading.Thread(target=_count_for_long, args=(writer,))
    if how == "while somebody writes":
        busy.start()
        while not disk.counts["fcntl"]:  # it has begun
            time.sleep(0.01)
    else:
        session.commit(event=Placed(number="1"))  # so that there is something to be seen
    disk.fail("stale read", 1, for_good=True)
    try:
        watch.settle() if how == "whether anybody wrote" else session.event_store.check()
        say("answered")
    except Exception as error:  # noqa: BLE001 - it is what the test looks at
        say("raised", type(error).__name__, str(error))
    disk.heal()
    while busy.is_alive():
        writer.interrupt()
        busy.join(0.01)


def commit_what_cannot_be_synced(uri: str, image: str) -> None:
    """Have a commit refused, and keep the files as they are if everybody is killed at once."""
    disk = BadDisk(syncs=True)
    with Session(uri) as session:
        session.ensure(Order(id="first"))
        session.commit()
        disk.fail("sync", 1)
        session.ensure(Order(id="refused"))
        try:
            session.commit(event=Placed(number="refused"))
        except DatabaseError as error:
            say("refused", str(error))
        for name in ("test.db", "test.db-wal"):
            shutil.copy(Path(uri).parent / name, Path(image, name))
        session.discard()


def _count_for_long(connection: apsw.Connection) -> None:
    numbers = "SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1000000000"
    with suppress(apsw.InterruptError):
        connection.execute(
            f"WITH numbers(n) AS ({numbers}) SELECT COUNT(*) FROM numbers, entity_latest"
        )


class Added(Entity):
    id: Field[str] = Field(primary_key=True)
    tier: Field[str] = Field(default="", index=True)


def open_on_a_full_disk(place: str, beside: bool, pages: int) -> None:
    """Say what can be read there, what a write says, and what it says once there is room.

    Without a session beside it, SQLite wants room for the index of the log: 8 pages.
    """
    try:
        disk = SmallDisk(Path(place), 8)
    except OSError as error:
        say("no disk", str(error))
        return
    uri = f"sqlite:///{place}/test.db"
    with Session(uri, entity_types=[Order]) as session:
        session.ensure(Order(id="a"))
        session.commit()
    with Session(uri) if beside else nullcontext():
        disk.leave_room(pages)
        with Session(uri, entity_types=[Order, Added]) as session:
            found = session.query().entities(Order).count(), session.query().entities(Added).count()
            session.ensure(Added(id="b"))
            try:
                session.commit()
                said = "written"
            except DiskFullError as error:
                said = error.args[0]
            disk.make_room()
            session.commit()
            say("opened", found, said, session.query().entities(Added).count())


def share_a_full_disk(place: str) -> None:
    """Say what sessions, threads and another process read there at once, and what is there in the end.

    Of the last commit only the log knows, as a crash has left it.
    """
    try:
        disk = SmallDisk(Path(place), 8)
    except OSError as error:
        say("no disk", str(error))
        return
    uri = f"{place}/test.db"
    with Session(f"{place}/before.db", entity_types=[Order]) as session:
        session.ensure(Order(id="a"))
        session.commit()
        for end in ("", "-wal"):
            shutil.copy(f"{place}/before.db{end}", f"{uri}{end}")
    in_log = Path(f"{uri}-wal").stat().st_size > 0
    disk.leave_room(0)
    query = ["query", "entities", "Order", "--datastore-uri", uri]
    with Session(uri, entity_types=[Order]) as one, Session(uri, entity_types=[Order]) as other:

        def count(session: Session) -> int:
            return session.query().entities(Order).count()

        with core_of(one).store.read() as reader:  # and others of the same thread
            nested = reader.head(), count(one)
        with ThreadPoolExecutor(4) as pool:
            threads = list(pool.map(count, [one, other, one, other]))
        asked = subprocess.run([*ONTOLOGIA, *query], capture_output=True, text=True, check=False)
        read = nested, threads, asked.stdout.split()
        disk.make_room()
        for number, session in enumerate((one, other, one)):
            session.ensure(Order(id=f"{number}"))
            session.commit()
        say("shared", in_log, read, count(one), count(other), Path(f"{uri}-shm").exists())
    with closing(apsw.Connection(uri)) as connection:
        [[sound]] = connection.execute("PRAGMA integrity_check").fetchall()
        [[orders]] = connection.execute("SELECT COUNT(*) FROM entity_latest").fetchall()
    say("left", sound, orders, sorted(path.name for path in Path(place).glob("test.db?*")))


def suffer_a_full_disk(place: str) -> None:
    """Play the scenario in as many pages as the test says, until it says none."""
    try:
        disk = SmallDisk(Path(place), 16)
    except OSError as error:
        say("no disk", str(error))
        return
    most = 0

    def grown(_step: str) -> None:
        nonlocal most
        most = max(most, disk.used_pages())

    measured = Scenario(f"{place}/measured.db")
    measured.before = grown
    measured.play()
    say("played", most, [], measured.problems())
    while (pages := Own.pipe.recv()) is not None:
        scenario = Scenario(f"{place}/{pages}.db")
        scenario.relief = disk.make_room
        disk.leave_room(pages)
        scenario.play()
        errors = [type(refusal.error).__name__ for refusal in scenario.refusals]
        say("played", pages, errors, scenario.problems())
        for file in Path(place).iterdir():
            file.unlink()
