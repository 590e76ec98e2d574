"""What follows from an order, done by a worker: `ontologia worker orders.reactions`.

Each event comes at least once. A handler that was interrupted, or whose command had a conflict, is
called again, so each of them can do the same twice: commands look at the order's status first, the timer has a `dedup_key`, and the
payment service knows the order's id.
"""

from __future__ import annotations

from pathlib import Path

from ontologia import Discard, Retry
from ontologia.commands import Command, DomainEvent, Env, api

from .payments import CardDeclined, Payments
from .shop import Customer, Order, Product

__all__ = ["Customer", "Order", "Product"]  # a worker that is given this module knows them, too

payments = Payments(Path("payments.jsonl"))


@api.on_event("order.placed")
def start_the_clock(event: DomainEvent, env: Env) -> None:
    """Set a timer. It is an event for later, in the database: it outlives this process."""
    order_id, seconds = event.payload["order_id"], event.payload["pay_within"]
    env.emit("order.overdue", {"order_id": order_id}, delay=seconds, dedup_key=order_id)


@api.on_event("order.placed")
def charge(event: DomainEvent, env: Env) -> None:
    """Ask for the money outside, then write down inside that it is there."""
    [order] = env.models["shop.order"].browse(event.payload["order_id"]).read()
    if order["status"] in ("paid", "shipped"):
        return
    [customer] = env.models["shop.customer"].browse(order["customer"]).read()
    if order["status"] == "placed":
        try:
            receipt = payments.charge(order["id"], order["cents"], customer["card"])
        except TimeoutError as error:
            raise Retry(str(error), after=0.3) from error  # five attempts, then a dead letter
        except CardDeclined as error:
            raise Discard(str(error)) from error  # a dead letter at once: an operator sees it
        pay = Command("order.pay", {"receipt": receipt}, "shop.order", order["id"])
        if env.dispatch(pay) != "cancelled":
            print(f"  {order['id']} is paid")
            return
    payments.refund(order["id"])  # it was cancelled while the money was on its way


@api.on_event("order.paid")
def ship(event: DomainEvent, env: Env) -> None:
    """Send it."""
    env.dispatch(Command("order.ship", {}, "shop.order", event.payload["order_id"]))


@api.on_event("order.overdue")
def cancel(event: DomainEvent, env: Env) -> None:
    """Its time is over. For an order that was paid this is nothing."""
    order_id = event.payload["order_id"]
    if env.dispatch(Command("order.cancel", {}, "shop.order", order_id)) == "cancelled":
        print(f"  {order_id} was not paid in time: cancelled")
