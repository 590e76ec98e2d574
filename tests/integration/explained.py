"""A small shop whose orders are paid and shipped by handlers, for tests that ask why."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from ontologia import Discard, Entity, Event, Field, HandlerContext, Relation, Session, on_event


class Customer(Entity):
    id: Field[str]
    name: Field[str]
    tier: Field[str] = Field(default="standard", index=True)
    profile: Field[dict[str, object]] = Field(default_factory=dict)


class Product(Entity):
    number: Field[int] = Field(primary_key=True)
    price: Field[Decimal]
    since: Field[datetime | None] = None


class Buys(Relation[Customer, Product]):
    pieces: Field[int]


class Note(Relation[Customer, Customer]):
    role: Field[str] = Field(instance_key=True)
    text: Field[str]


class Ordered(Event):
    customer: Field[str]


class Paid(Event):
    customer: Field[str]


@on_event(Ordered, name="pay")
def pay(ctx: HandlerContext[Ordered]) -> None:
    """Fails at first."""
    if ctx.attempt == 1:
        raise RuntimeError("card \x1b[31mdeclined")
    key = ctx.event.customer
    customer = ctx.query().entities(Customer).where(Customer.id == key).first()
    assert customer is not None
    customer.tier = "gold"
    ctx.ensure(customer)
    ctx.commit()
    ctx.emit(Paid(customer=key))


@on_event(Paid, name="ship")
def ship(ctx: HandlerContext[Paid]) -> None:
    ctx.ensure(Buys(left_key=ctx.event.customer, right_key="10", pieces=7))
    ctx.commit()


@on_event(Paid, name="write")
def write(ctx: HandlerContext[Paid]) -> None:
    raise Discard("no address")


HANDLERS = [pay, ship, write]


def open_shop(session: Session) -> None:
    """Commit 1: what there is, and an order."""
    session.ensure([Customer(id="c1", name="Ada", profile={"city": {"name": "Bern"}})])
    session.ensure([Customer(id="c2", name="Bob", tier="5")])
    session.ensure([Product(number=n, price=Decimal(n) / 10) for n in (9, 10)])
    session.ensure(Buys(left_key="c1", right_key="10", pieces=1))
    session.ensure(Note(left_key="c1", right_key="c:2", role="friend", text="met in Bern"))
    session.commit(event=Ordered(customer="c1"))


def fill(session: Session, clock) -> None:
    """And what follows: commit 2 by `pay` at its second attempt, commit 3 by `ship`."""
    open_shop(session)
    session.run(HANDLERS, max_iterations=1)
    clock.advance(seconds=60)
    session.run(HANDLERS, max_iterations=2)
