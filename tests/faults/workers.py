"""What the processes of these tests run: they write, claim, handle and note what they did.

A process talks to its test through a pipe. What its handlers do it notes in a file of its own,
which survives whatever happens to it.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ontologia import Entity, Event, Field, OntologiaConfig, Session, on_event
from ontologia.clock import from_text
from ontologia.errors import ConnectionLostError
from ontologia.runtime.session import core_of


class Order(Entity):
    id: Field[str] = Field(primary_key=True)


class Receipt(Entity):
    id: Field[str] = Field(primary_key=True)
    order: Field[str]


class Parcel(Entity):
    id: Field[str] = Field(primary_key=True)


class Mark(Entity):
    id: Field[str] = Field(primary_key=True)
    by: Field[str]


class Placed(Event):
    __event_type__ = "faults.placed"
    number: Field[str]


class Shipped(Event):
    __event_type__ = "faults.shipped"
    number: Field[str]


class Own:
    """What a child has to itself."""

    pipe: Any = None
    name: str = ""
    notes: int | None = None
    pace: float = 0


def say(*words: object) -> None:
    Own.pipe.send(words)


def say_running() -> None:
    """Say "running"; a SIGTERM that comes before the run hears signals is sent again."""
    signal.signal(signal.SIGTERM, _send_again)
    say("running")


def _send_again(number: int, _frame: object) -> None:
    threading.Timer(0.01, os.kill, (os.getpid(), number)).start()


def listen() -> None:
    Own.pipe.recv()


def note(what: str, about: str | None) -> None:
    """One line in the child's file, whole or not at all, there for good."""
    if Own.notes is not None:
        os.write(Own.notes, f"{what} {about}\n".encode())


@on_event(Placed, name="receipt")
def receipt(ctx: Any) -> None:
    note("receipt", ctx.event.id)
    ctx.ensure(Receipt(id=ctx.event.number, order=ctx.event.number))
    ctx.commit()
    time.sleep(Own.pace)
    ctx.emit(Shipped(number=ctx.event.number))


@on_event(Placed, name="audit")
def audit(ctx: Any) -> None:
    note("audit", ctx.event.id)
    time.sleep(Own.pace)


@on_event(Shipped, name="ship")
def ship(ctx: Any) -> None:
    note("ship", ctx.event.id)
    ctx.ensure(Parcel(id=ctx.event.number))
    ctx.commit()
    time.sleep(Own.pace)


@on_event(Placed, name="mark")
def mark(ctx: Any) -> None:
    """Whoever comes last has written last: only a lease keeps one that slept from being it."""
    time.sleep(5 * Own.pace)
    ctx.ensure(Mark(id=ctx.event.number, by=f"{os.getpid()} {time.monotonic_ns()}"))
    ctx.commit()


HANDLERS = [receipt, audit, ship]
CONSUMERS = {"faults.placed": ["audit", "receipt"], "faults.shipped": ["ship"]}


@on_event(Placed, name="audit", renew=True)
def asking_audit(ctx: Any) -> None:
    """Number 4 waits until it is told to go on, and keeps its event meanwhile."""
    note("audit", ctx.event.id)
    if ctx.event.number == "4":
        say("inside")
        listen()


@on_event(Placed, name="audit")
def slow_audit(ctx: Any) -> None:
    note("audit", ctx.event.id)
    time.sleep(0.12)


@on_event(Placed, name="audit")
def deadly_audit(ctx: Any) -> None:
    """Number 50 kills its process, every time."""
    note("audit", ctx.event.id)
    if ctx.event.number == "50":
        os.kill(os.getpid(), signal.SIGKILL)


@on_event(Placed, name="audit")
def deadly_beside_slow(ctx: Any) -> None:
    """Number 1 does, while others that began at the same time are still busy."""
    note("audit", ctx.event.id)
    time.sleep(0.05)
    if ctx.event.number == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)


def work(
    uri: str, settings: dict[str, Any], handlers: list[Any], workers: int = 1, pace: float = 0
) -> None:
    """Run handlers, each for at least `pace` seconds, until stopped by a signal."""
    Own.pace = pace
    with Session(uri, config=OntologiaConfig(**settings)) as session:
        say_running()
        session.run(handlers, workers=workers)


def work_and_measure(uri: str, settings: dict[str, Any]) -> None:
    """Run handlers, and write down how late events are and how much memory it takes."""
    measured = open(f"{Own.name}.measured", "a", buffering=1)  # noqa: SIM115 - until the process ends

    @on_event(Placed, name="audit")
    def timed(ctx: Any) -> None:
        audit(ctx)
        late = datetime.now(UTC) - from_text(ctx.event.created_at)
        measured.write(f"delay {time.monotonic():.3f} {late.total_seconds() * 1000:.2f}\n")

    def measure() -> None:
        while True:
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
            measured.write(f"memory {time.monotonic():.3f} {resident / 2**20:.2f}\n")
            time.sleep(0.5)

    threading.Thread(target=measure, daemon=True).start()
    with Session(uri, config=OntologiaConfig(**settings)) as session:
        say_running()
        session.run([receipt, timed, ship])


def hold_the_lock(uri: str) -> None:
    """Keep a write transaction open until told to go on."""
    with Session(uri) as session, core_of(session).store.write():
        say("holding")
        listen()


def produce(uri: str, prefix: str, pause: float) -> None:
    """Commit orders, each with its event, until told to stop; note each commit that returned."""
    with Session(uri) as session:
        number = 0
        while not Own.pipe.poll(pause):
            session.ensure(Order(id=f"{prefix}-{number}"))
            session.commit(event=Placed(number=f"{prefix}-{number}"))
            note("committed", f"{prefix}-{number}")
            number += 1


def produce_despite_losses(uri: str, prefix: str, pause: float) -> None:
    """The same beside a server that goes away; note what returned, and what was refused."""
    with Session(uri) as session:
        say("running")
        number = 0
        while not Own.pipe.poll(pause):
            session.ensure(Order(id=f"{prefix}-{number}"))
            try:
                session.commit(event=Placed(number=f"{prefix}-{number}"))
                note("committed", f"{prefix}-{number}")
            except ConnectionLostError:
                session.discard()
                note("refused", f"{prefix}-{number}")
            number += 1


def produce_and_work(uri: str, prefix: str, seconds: float) -> None:
    """Both at once, in one session: a thread commits for that long, the main thread runs."""
    with Session(uri) as session:

        def commit() -> None:
            try:
                number, end = 0, time.monotonic() + seconds
                while time.monotonic() < end:
                    session.ensure(Order(id=f"{prefix}-{number}"))
                    session.commit(event=Placed(number=f"{prefix}-{number}"))
                    note("committed", f"{prefix}-{number}")
                    number += 1
                say("produced", number)
            except BaseException:
                say("error", traceback.format_exc())
                raise

        producer = threading.Thread(target=commit)
        producer.start()
        session.run(HANDLERS)
        producer.join()


def begin(target: Callable[..., None], pipe: Any, notes: str, *arguments: Any) -> None:
    Own.pipe = pipe
    Own.name = notes
    Own.notes = os.open(notes, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    log = logging.getLogger("ontologia")
    log.addHandler(logging.FileHandler(f"{notes}.log"))
    log.propagate = False
    random.seed()
    # kill -USR1 tells where a child hangs.
    stacks = os.open(f"{notes}.stacks", os.O_CREAT | os.O_WRONLY)
    faulthandler.register(signal.SIGUSR1, file=stacks)
    try:
        target(*arguments)
    except BaseException:
        say("error", traceback.format_exc())
        raise
    say("ended")
