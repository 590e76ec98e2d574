"""The shop of `ontologia demo`: orders are placed, paid and shipped.

A module like yours: `ontologia run ontologia.cli.demo_shop` works on what is announced from here on,
and `--models ontologia.cli.demo_shop` tells commands its types.
"""

from __future__ import annotations

from ontologia import (
    Discard,
    Entity,
    Event,
    EventDeadLetter,
    Field,
    HandlerContext,
    Relation,
    Schedule,
    on_event,
)

UNLUCKY = "o-2"
"""Its first payment fails: the bank does not answer. The second attempt succeeds."""
HOPELESS = "o-3"
"""No attempt to be paid succeeds: the card has expired."""


class Customer(Entity):
    """Somebody who orders."""

    id: Field[str] = Field(primary_key=True)
    name: Field[str]


class Order(Entity):
    """What somebody ordered, and how far that is."""

    id: Field[str] = Field(primary_key=True)
    item: Field[str]
    cents: Field[int]
    status: Field[str] = Field(default="placed", index=True)


class Placed(Relation[Customer, Order]):
    """Whose order it is."""


class Stock(Entity):
    """The last count of what was shipped."""

    id: Field[str] = Field(primary_key=True)
    shipped: Field[int]


class OrderPlaced(Event):
    """A customer wants something."""

    order_id: Field[str]


class OrderPaid(Event):
    """The money is there."""

    order_id: Field[str]


class StockDue(Event):
    """Time to count."""


def _order(ctx: HandlerContext[OrderPlaced] | HandlerContext[OrderPaid]) -> Order:
    order = ctx.get(Order, ctx.event.order_id)
    if order is None:
        raise Discard(f"there is no order {ctx.event.order_id}")  # and no attempt will change that
    return order


@on_event(OrderPlaced)
def charge(ctx: HandlerContext[OrderPlaced]) -> None:
    """Take the money: the new status and the event about it are one transaction."""
    order = _order(ctx)
    if order.id == UNLUCKY and ctx.attempt == 1:
        raise ConnectionError("the bank does not answer")
    if order.id == HOPELESS:
        raise ValueError("the card has expired")
    order.status = "paid"
    ctx.ensure(order)  # run again on fresh state if another commit has changed the order meanwhile
    ctx.commit(event=OrderPaid(order_id=order.id))


@on_event(OrderPaid)
def ship(ctx: HandlerContext[OrderPaid]) -> None:
    """Send the parcel."""
    order = _order(ctx)
    order.status = "shipped"
    ctx.ensure(order)
    ctx.commit()


@on_event(EventDeadLetter)
def apologise(ctx: HandlerContext[EventDeadLetter]) -> None:
    """Dead letters are events, too: what cannot be paid is on hold."""
    failed = ctx.session.event_store.inspect_event(ctx.event.event_id) or {"payload": {}}
    order_id = failed["payload"].get("order_id", "")
    if ctx.get(Order, order_id) is not None:
        ctx.update(Order, order_id, status="on hold")  # this field, whatever the others are
        ctx.commit()


@on_event(StockDue)
def count_stock(ctx: HandlerContext[StockDue]) -> None:
    """Count what was shipped."""
    shipped = ctx.query().entities(Order).where(Order.status == "shipped").collect()
    ctx.ensure(Stock(id="parcels", shipped=len(shipped)))
    ctx.commit()


schedules = [Schedule(event=StockDue(), cron="* * * * *")]
