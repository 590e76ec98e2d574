"""What the processes of `test_lost_updates` run: they read a number, change it and write it back."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from ontologia import Entity, Event, Field, OntologiaConfig, Session, UnitOfWork, on_event
from ontologia.errors import StateConflictError
from tests.faults.workers import Own, listen, say, say_running


class Stock(Entity):
    id: Field[str]
    left: Field[int]


class Shipment(Entity):
    id: Field[str]
    sku: Field[str]


class ReservationRequested(Event):
    __event_type__ = "faults.reservation_requested"
    sku: Field[str]
    number: Field[int]


class ReservationRefused(Event):
    __event_type__ = "faults.reservation_refused"
    number: Field[int]


def reserve(unit: UnitOfWork, event: ReservationRequested) -> bool:
    """Take one piece, if there is one, and only once for a request."""
    if unit.get(Shipment, str(event.number)) is not None:
        return True
    stock = unit.one(Stock, event.sku)
    if stock.left == 0:
        return False
    stock.left -= 1
    unit.ensure(stock)
    unit.create(Shipment(id=str(event.number), sku=event.sku))
    return True


@on_event(ReservationRequested, name="reserve")
def reserve_handler(ctx: Any) -> None:
    if reserve(ctx, ctx.event):
        ctx.commit()
    else:
        ctx.commit(event=ReservationRefused(number=ctx.event.number))


@on_event(ReservationRequested, name="reserve")
async def reserve_async(ctx: Any) -> None:
    taken = reserve(ctx, ctx.event)
    await asyncio.sleep(0)
    if taken:
        ctx.commit()
    else:
        ctx.commit(event=ReservationRefused(number=ctx.event.number))


@on_event(ReservationRequested, name="add")
async def add_async(ctx: Any) -> None:
    """Add one piece: events of which nobody keeps account, so only a lost update can show."""
    stock = ctx.one(Stock, ctx.event.sku)
    await asyncio.sleep(0)
    stock.left += 1
    ctx.ensure(stock)
    ctx.commit()


_told: list[bool] = []


@on_event(ReservationRequested, name="reserve")
def reserve_and_die(ctx: Any) -> None:
    """The first conflict of this process is its end: between the conflict and the next run.

    Its first call says that it has read, and waits until it is told to commit.
    """
    if not reserve(ctx, ctx.event):
        return
    if not _told:
        say("read")
        listen()
        _told.append(True)
    try:
        ctx.commit()
    except StateConflictError:
        os.kill(os.getpid(), signal.SIGKILL)
        raise


def work(uri: str, settings: dict[str, Any], handler: Any, workers: int) -> None:
    """Run one handler until stopped by a signal."""
    with Session(uri, config=OntologiaConfig(**settings)) as session:
        say_running()
        session.run([handler], workers=workers)


def increment(uri: str, times: int) -> None:
    """Add one to the same object, again and again."""
    with Session(uri) as session:
        say("running")
        Own.pipe.recv()
        for _ in range(times):
            session.transact(_increment, retries=10_000)
        say("incremented")


def _increment(unit: UnitOfWork) -> None:
    stock = unit.one(Stock, "p1")
    stock.left += 1
    unit.ensure(stock)
