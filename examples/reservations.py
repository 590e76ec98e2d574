"""Changing the same objects at the same time: nothing is lost, and the short way is the safe one.

Run it: python examples/reservations.py
"""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path

from ontologia import Entity, Event, Field, HandlerContext, Session, UnitOfWork, later, on_event
from ontologia.errors import StateConflictError


class Product(Entity):
    id: Field[str]
    stock: Field[int]


class Customer(Entity):
    id: Field[str]
    name: Field[str]
    tier: Field[str] = Field(default="standard")


class Order(Entity):
    id: Field[str]
    total: Field[float]


class Reservation(Entity):
    id: Field[str]
    sku: Field[str]


class OrderPlaced(Event):
    order_id: Field[str]


class Reminder(Event):
    order_id: Field[str]


class ReservationRequested(Event):
    sku: Field[str]


class StockReserved(Event):
    sku: Field[str]
    left: Field[int]


def reserve(unit: UnitOfWork, sku: str) -> int:
    """Take one piece. Works in a session, a unit and a handler."""
    product = unit.one(Product, sku)  # NotFoundError if there is none
    product.stock -= 1
    unit.ensure(product)  # written only if no other commit has changed it by then
    return product.stock


@on_event(ReservationRequested, name="shop.reserve", lease=timedelta(minutes=5), max_attempts=5)
def on_reservation(ctx: HandlerContext[ReservationRequested]) -> None:
    if ctx.get(Reservation, ctx.event_id) is not None:
        return  # an earlier attempt got this far: an event may be delivered twice
    left = reserve(ctx, ctx.event.sku)
    ctx.create(Reservation(id=ctx.event_id, sku=ctx.event.sku))
    # After a conflict the handler runs again at once on fresh state; no attempt is counted.
    ctx.commit(event=StockReserved(sku=ctx.event.sku, left=left))


def main(folder: Path) -> None:
    uri = f"sqlite:///{folder / 'app.db'}"
    with Session(uri) as session:
        session.ensure([Product(id="p1", stock=10), Customer(id="c1", name="Ada")])
        session.commit()

        print("Two programs change one product.")
        product = session.one(Product, "p1")
        with Session(uri) as other:  # another program is faster
            other.transact(lambda unit: reserve(unit, "p1"))
        product.stock -= 1
        session.ensure(product)
        try:
            session.commit()
        except StateConflictError as error:
            print(f"  {error.type_name} {error.key}: read {error.read}, now {error.found}")
            session.discard()

        session.update(Customer, "c1", tier="gold")  # this field, whatever the others are
        session.create(Order(id="o-1", total=9.5))  # ObjectExistsError if there is one
        session.commit(
            event=[OrderPlaced(order_id="o-1"), later(Reminder(order_id="o-1"), delay=900)]
        )

        print("Reserve one piece, again on fresh state if need be; then three by a handler.")
        print(f"  left: {session.transact(lambda unit: reserve(unit, 'p1'))}")
        session.commit(event=[ReservationRequested(sku="p1") for _ in range(3)])
        session.run([on_reservation], max_iterations=1, workers=2)
        print(f"  left: {session.one(Product, 'p1').stock}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
