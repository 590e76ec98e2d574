"""What processes run when the worst happens to them, at a moment that the test can choose."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ontologia import Entity, Field, OntologiaConfig, Schedule, Session, on_event
from ontologia.clock import SystemClock
from ontologia.runtime.operator import Operator
from ontologia.runtime.session import core_of
from ontologia.store.events import archives
from ontologia.testing import ManualClock
from tests.faults.power import Disk, PowerVFS
from tests.faults.scenario import Scenario
from tests.faults.workers import (
    HANDLERS,
    Order,
    Placed,
    Receipt,
    Shipped,
    audit,
    listen,
    note,
    say,
)


def work_and_stop_at(
    uri: str, settings: dict[str, Any], statement: str, about: str, times: int
) -> None:
    """Run handlers; stop where a statement, with `about` in its values, is run that many times."""
    with Session(uri, config=OntologiaConfig(**settings)) as session:
        left = times

        def look(_cursor: Any, sql: str, bindings: Any) -> bool:
            nonlocal left
            if statement in sql and about in str(bindings):
                left -= 1
                if left == 0:
                    say("inside", core_of(session).store.database.writer.in_transaction)
                    listen()
            return True

        core_of(session).store.database.writer.exec_trace = look
        session.run(HANDLERS)


def archive_and_stop_at(
    uri: str, environment: dict[str, str], verb: str, archive: str, statement: str, times: int
) -> None:
    """Move finished events to an archive, or restore them; stop where a statement is run so often.

    In batches of four. With the statement "" it does not stop.
    """
    os.environ.update(environment)
    archives._PORTION = 4
    with Session(uri, config=OntologiaConfig()) as session:
        left = times

        def look(_cursor: Any, sql: str, _bindings: Any) -> bool:
            nonlocal left
            if statement and statement in sql:
                left -= 1
                if left == 0:
                    say("inside")
                    listen()
            return True

        core_of(session).store.database.writer.exec_trace = look
        say("running")
        by = Operator(session, "ada@host")
        done = by.archive(archive, timedelta(0)) if verb == "archive" else by.restore(archive)
        say("done", *done)


class Stopped(SystemClock):
    """A clock that can be stopped: that of a machine which was suspended and does not know."""

    at: datetime | None = None

    def now(self) -> datetime:
        return self.at or super().now()


def outlive_the_lease(uri: str, settings: dict[str, Any], ending: str, clock_stops: bool) -> None:
    """Handle one event for too long, then try whatever a handler can do; say what came of it."""
    clock = Stopped()
    with Session(uri, config=OntologiaConfig(clock=clock, **settings)) as session:
        store, mine = session.event_store, {"session_id": session.session_id}

        @on_event(Placed, name="receipt")
        def late(ctx: Any) -> None:
            ctx.ensure(Receipt(id=ctx.event.number, order="late"))
            ctx.emit(Shipped(number="late"))
            if clock_stops:
                clock.at = clock.now()
            say("inside", session.session_id)
            listen()
            pair = ("receipt", ctx.event.id)
            tries: dict[str, Callable[[], object]] = {
                "renew": ctx.renew,
                "ack": lambda: store.ack(*pair, **mine),
                "release": lambda: store.release(*pair, **mine),
                "abandon": lambda: store.abandon(*pair, **mine),
                "renew by name": lambda: store.renew(*pair, lease_ms=60_000, **mine),
                "start": lambda: store.start(*pair, lease_ms=60_000, **mine),
                "defer": lambda: session.defer(Shipped(number="late"), delay=0),
            }
            if ending != "returns":
                tries["commit"] = lambda: ctx.commit(event=Shipped(number="late"))
                tries["commit of the session"] = session.commit
            say("tried", {name: _outcome(attempt) for name, attempt in tries.items()})
            if ending == "raises":
                raise ValueError("too late anyway")

        session.run([late])


def _outcome(attempt: Callable[[], object]) -> object:
    try:
        return attempt()
    except Exception as error:  # noqa: BLE001 - it is what the test looks at
        return type(error).__name__


def work_until_the_power_is_cut(
    uri: str, image: str, writes: int, keep: float, backlog: int
) -> None:
    """Announce in every way there is, and handle it, on a disk that fails after so many writes.

    Calls that returned are noted. `backlog` events are there before anything is handled.
    """
    disk = Disk(Path(image), keep, writes)
    vfs = PowerVFS(disk)
    config = OntologiaConfig(event_claim_lease_ms=60_000)
    with Session(uri, config=config) as session, Session(uri, config=config) as worker:
        for number in range(backlog):
            session.event_store.enqueue(Placed(number=f"b{number}"), "default")
            note("announced", f"b{number}")
        disk.cut_after(writes)

        def announce() -> None:
            number = 0
            while True:
                session.ensure(Order(id=str(number)))
                session.commit(event=Placed(number=f"c{number}"))
                note("committed", str(number))
                note("announced", f"c{number}")
                session.event_store.enqueue(Placed(number=f"e{number}"), "default")
                note("announced", f"e{number}")
                session.defer(Placed(number=f"d{number}"), delay=0.05 * (number % 3))
                note("announced", f"d{number}")
                number += 1

        threading.Thread(target=announce, daemon=True).start()
        worker.run(HANDLERS, workers=2)
    del vfs


def call_and_cut_the_power(uri: str, image: str, call: str) -> None:
    """Let the power fail at the first write after a call has returned."""
    disk = Disk(Path(image), 0, 0)
    vfs = PowerVFS(disk)
    # By this clock an hour passes between two iterations of a run.
    config = OntologiaConfig(clock=ManualClock(), event_poll_interval_ms=3_600_000)
    with Session(uri, config=config) as session:
        store, event = session.event_store, Placed(number="told")

        @on_event(Placed, name="receipt")
        def commit_and_cut(ctx: Any) -> None:
            ctx.ensure(Order(id="told"))
            ctx.commit()
            disk.cut_after(1)  # its ack

        def commit() -> None:
            session.ensure(Order(id="told"))
            session.commit()

        def commit_in_a_handler() -> None:
            store.enqueue(Placed(number="untold"), "default")
            session.run([commit_and_cut], max_iterations=1)

        calls: dict[str, Callable[[], object]] = {
            "commit": commit,
            "commit with an event": lambda: session.commit(event=event),
            "commit with a deferred event": lambda: session.commit(event=event, delay=3_600),
            "commit in a handler": commit_in_a_handler,
            "enqueue": lambda: store.enqueue(event, "default"),
            "defer": lambda: session.defer(event, delay=3_600),
            "defer of the store": lambda: store.defer(event, "default", delay=3_600),
            "the tick of a schedule": lambda: session.run(
                [], schedules=[Schedule(event, "0 * * * *")], max_iterations=2
            ),
        }
        calls[call]()
        disk.cut_after(1)
        store.heartbeat(session.session_id)
    del vfs
    raise AssertionError("nothing was written")


def drain_and_cut_the_power(uri: str, image: str, count: int) -> None:
    """Handle events that write no state, and let the power fail at the first write after it."""
    disk = Disk(Path(image), 0, 0)
    vfs = PowerVFS(disk)
    with Session(uri) as session:
        for number in range(count):
            session.event_store.enqueue(Placed(number=str(number)), "default")
        session.run([audit], max_iterations=1)
        listed = session.event_store.list_events("default", 1_000)
        say("acked", sum(event["status"] == "acked" for event in listed))
        disk.cut_after(1)
        session.event_store.heartbeat(session.session_id)
    del vfs
    raise AssertionError("nothing was written")


def commit_in_a_handler_and_cut_the_power(uri: str, image: str, durability: str, when: str) -> None:
    """Let the power fail at the first write after a handler's commit, or after its ack."""
    disk = Disk(Path(image), 0, 0)
    vfs = PowerVFS(disk)
    with Session(uri, config=OntologiaConfig(handler_durability=durability)) as session:

        def cut() -> None:
            disk.cut_after(1)
            session.event_store.heartbeat(session.session_id)

        @on_event(Placed, name="receipt")
        def handler(ctx: Any) -> None:
            ctx.ensure(Receipt(id=ctx.event.number, order=ctx.event.number))
            ctx.commit()
            if when == "committed":
                cut()

        session.commit(event=Placed(number="1"))
        session.run([handler], max_iterations=1)
        cut()
    del vfs
    raise AssertionError("nothing was written")


def photograph_each_moment(uri: str, album: str, keep: float, every: int) -> None:
    """Play the scenario, and before each change of the disk keep what a power cut would leave."""
    disk = Disk(Path(album), keep, 0)
    vfs = PowerVFS(disk)
    scenario = Scenario(uri)

    def photograph(number: int) -> None:
        if number % every == 0:
            image = Path(album, str(number))
            image.mkdir()
            disk.develop(image)
            told = {"committed": [*scenario.committed], "announced": [*scenario.announced]}
            (image / "told.json").write_text(json.dumps(told))

    disk.before_each = photograph
    scenario.play()
    say("moments", disk.changes)
    del vfs


def thing(**fields: type) -> type[Entity]:
    """The type Thing, with these fields beside its key."""
    annotations: dict[str, Any] = {"id": Field[str]} | {n: Field[t] for n, t in fields.items()}
    return type("Thing", (Entity,), {"__annotations__": annotations})


def migrate_and_cut_the_power(uri: str, image: str) -> None:
    """Let the power fail at the first write after a migration has returned."""
    disk = Disk(Path(image), 0, 0)
    vfs = PowerVFS(disk)
    old, new = thing(), thing(size=int)
    with Session(uri, entity_types=[old]) as session:
        session.ensure([old(id=str(number)) for number in range(50)])
        session.commit()
    upgraders = {("Thing", 1): lambda fields: fields | {"size": 7}}
    with Session(uri, entity_types=[new], upgraders=upgraders) as session:
        session.migrate(dry_run=False, force=True)
        disk.cut_after(1)
        session.event_store.heartbeat(session.session_id)
    del vfs
    raise AssertionError("nothing was written")
