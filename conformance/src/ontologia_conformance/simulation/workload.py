"""What the processes of a simulation do, unless they are given something else to do: a post office.

It has a little of everything: state that is made, changed and deleted, relations, follow-ups at
once, later and only once, chains, several handlers of one event, and handlers for dead letters.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from ontologia.delivery.dead_letter import EventDeadLetter
from ontologia.delivery.schedule import Schedule
from ontologia.runtime.context import HandlerContext
from ontologia.runtime.handlers import on_event
from ontologia.runtime.session import Session
from ontologia.runtime.unit import UnitOfWork
from ontologia.schema.entity import Entity
from ontologia.schema.event import Event
from ontologia.schema.field import Field
from ontologia.schema.relation import Relation

Handle = Callable[[HandlerContext[Any]], Any]
Produce = Callable[[Session, Random], object]
_PARCELS = 4


class SimulatedParcel(Entity):
    """A parcel, and where it is."""

    id: Field[str] = Field(primary_key=True)
    place: Field[str]
    moves: Field[int]


class SimulatedDepot(Entity):
    """A place where parcels are."""

    id: Field[str] = Field(primary_key=True)
    seen: Field[int]


class SimulatedStay(Relation[SimulatedParcel, SimulatedDepot]):
    """A parcel is at a depot."""

    since: Field[int]


class ParcelSent(Event):
    """Somebody sent a parcel."""

    __event_type__ = "simulated.sent"
    parcel: Field[str]
    number: Field[int]


class ParcelMoved(Event):
    """It was moved."""

    __event_type__ = "simulated.moved"
    parcel: Field[str]
    number: Field[int]


class ParcelCounted(Event):
    """It was counted."""

    __event_type__ = "simulated.counted"
    parcel: Field[str]


class DayEnded(Event):
    """A schedule says so."""

    __event_type__ = "simulated.day_ended"


ENTITIES: list[type[Entity]] = [SimulatedParcel, SimulatedDepot]
RELATIONS: list[type[Relation[Any, Any]]] = [SimulatedStay]


class PostOffice:
    """The handlers and the producer of one run; what they do is drawn from its chances."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._number = 0
        self.schedules = [Schedule(DayEnded(), "* * * * *")]
        self.handlers: list[Handle] = [
            _handler(ParcelSent, 100, "move", self._move),
            _handler(ParcelSent, 20, "count", self._count),
            _handler(ParcelMoved, 50, "store", self._store),
            _handler(ParcelCounted, 150, "tell", self._tell),
            _handler(DayEnded, 100, "close", self._close),
            _handler(EventDeadLetter, 100, "mourn", self._mourn),
        ]

    def produce(self, session: Session, random: Random) -> None:
        """Send a parcel in one of the ways there are, or change something without an event."""
        self._number += 1
        parcel = f"p{random.randrange(_PARCELS)}"
        event = ParcelSent(parcel=parcel, number=self._number, priority=random.choice([1, 100]))
        match random.randrange(7):
            case 0:
                session.defer(event, delay=random.choice([0.0, 0.2, 2.5]))
            case 1:
                session.defer(event, delay=1.0, dedup_key=f"once-{random.randrange(3)}")
            case 2:
                session.ensure(self._parcel(parcel, "sender"))
                session.commit(event=event, delay=0.5)
            case 3:
                session.delete(self._parcel(parcel, "nowhere"))
                session.commit()
            case 4:
                key = f"once-{random.randrange(3)}"
                session.commit(event=event, dedup_key=key)
            case 5:
                session.transact(self._add_to_all)
                session.commit(event=event)
            case _:
                session.ensure(self._parcel(parcel, "sender"))
                session.commit(event=event)

    def _parcel(self, id: str, place: str) -> SimulatedParcel:
        return SimulatedParcel(id=id, place=place, moves=self._random.randrange(3))

    def _move(self, ctx: HandlerContext[ParcelSent]) -> None:
        parcel, number = ctx.event.parcel, ctx.event.number
        depot = f"d{self._random.randrange(2)}"
        ctx.ensure(self._parcel(parcel, depot))
        ctx.ensure(SimulatedDepot(id=depot, seen=number))
        ctx.ensure(SimulatedStay(left_key=parcel, right_key=depot, since=self._random.randrange(2)))
        ctx.commit()
        for _ in range(self._random.choice([0, 1, 1, 2])):
            self._emit(ctx, ParcelMoved(parcel=parcel, number=number))

    def _emit(self, ctx: HandlerContext[Any], event: Event) -> None:
        delay = self._random.choice([None, None, 0.0, 0.3, 2.0])
        key = self._random.choice([None, None, f"k{self._random.randrange(4)}"])
        ctx.emit(event, delay=delay, dedup_key=key)

    def _count(self, ctx: HandlerContext[ParcelSent]) -> None:
        if self._random.random() < 0.6:
            self._add_to_all(ctx)
            ctx.commit()
        self._emit(ctx, ParcelCounted(parcel=ctx.event.parcel))

    def _add_to_all(self, unit: UnitOfWork) -> None:
        """Read what several change at once, and write it back.

        Each adds another number: two that added the same would write the same, so that a lost
        update would change nothing.
        """
        depot = unit.get(SimulatedDepot, "all") or SimulatedDepot(id="all", seen=0)
        depot.seen += self._random.randrange(1, 1_000_000)
        unit.ensure(depot)

    def _store(self, ctx: HandlerContext[ParcelMoved]) -> None:
        if self._random.random() < 0.4:
            ctx.delete(self._parcel(ctx.event.parcel, "nowhere"))
            for depot in ("d0", "d1"):
                ctx.delete(SimulatedStay(left_key=ctx.event.parcel, right_key=depot, since=0))
        else:
            ctx.ensure(self._parcel(ctx.event.parcel, "stored"))
        if self._random.random() < 0.3:
            ctx.commit(event=ParcelCounted(parcel=ctx.event.parcel))
        elif self._random.random() < 0.5:
            ctx.commit()
            self._emit(ctx, ParcelCounted(parcel=ctx.event.parcel))
        else:
            ctx.commit()
            ctx.session.defer(ParcelCounted(parcel=ctx.event.parcel), delay=0.1, dedup_key="later")

    def _tell(self, ctx: HandlerContext[ParcelCounted]) -> None:
        ctx.query().entities(SimulatedParcel).where(
            SimulatedParcel.id == ctx.event.parcel
        ).collect()

    def _close(self, ctx: HandlerContext[DayEnded]) -> None:
        ctx.emit(ParcelCounted(parcel="all"))

    def _mourn(self, ctx: HandlerContext[EventDeadLetter]) -> None:
        ctx.ensure(SimulatedDepot(id="lost", seen=self._random.randrange(1_000)))
        ctx.commit()


def _handler(event: type[Event], priority: int, name: str, method: Handle) -> Handle:
    def handle(ctx: HandlerContext[Any]) -> None:
        method(ctx)

    return on_event(event, priority=priority, name=name)(handle)
