"""What the shop has, and what may be done with it.

Whatever changes an order goes through a command here: one unit of work, in which the stock, the
order and the event about it change together. When it commits, every record that it read must still
be as it was read, so nothing is sold twice, however many programs sell.
"""

from __future__ import annotations

from typing import Any

from ontologia import Field
from ontologia.commands import Command, DomainModel, Env, api
from ontologia.errors import StateConflictError

PAY_WITHIN = 30 * 60.0  # seconds


class OutOfStock(ValueError):
    """There is less than somebody wants."""


@api.model("shop.customer")
class Customer(DomainModel):
    """Somebody who orders."""

    name: Field[str]
    card: Field[str]


@api.model("shop.product")
class Product(DomainModel):
    """Something to be sold. What is ordered, and not cancelled, is not in `stock` any more."""

    cents: Field[int]
    stock: Field[int]


@api.model("shop.order")
class Order(DomainModel):
    """What somebody ordered: placed, then paid and shipped, or cancelled."""

    customer: Field[str] = Field(index=True)
    product: Field[str]
    quantity: Field[int]
    cents: Field[int]
    status: Field[str] = Field(default="placed", index=True)
    receipt: Field[str | None] = Field(default=None)

    @api.on_command("order.place")
    def place(self, cmd: Command) -> dict[str, Any]:
        """Take the stock and write down the order, or refuse."""
        wish = dict(cmd.payload)
        pay_within = wish.pop("pay_within", PAY_WITHIN)
        before = self.env.models["shop.order"].browse(wish["id"]).exists()
        if before:
            return before.read()[0]  # asked for twice, ordered once
        product = self.env.models["shop.product"].browse(wish["product"])
        [found] = product.read()
        left = found["stock"] - wish["quantity"]
        if left < 0:
            raise OutOfStock(f"{wish['quantity']} {product.id} wanted, {found['stock']} left")
        product.write({"stock": left})
        wish["cents"] = found["cents"] * wish["quantity"]
        [order] = self.env.models["shop.order"].create(wish)
        self.emit("order.placed", {"order_id": order.id, "pay_within": pay_within})
        return order.read()[0]

    @api.on_command("order.pay")
    def pay(self, cmd: Command) -> str:
        """Write down that the money is there; the status that the order has now."""
        if self._status(cmd) == "placed":
            cmd.record.write({"status": "paid", "receipt": cmd.payload["receipt"]})
            self.emit("order.paid", {"order_id": cmd.model_id})
        return self._status(cmd)

    @api.on_command("order.ship")
    def ship(self, cmd: Command) -> str:
        """Send what is paid."""
        if self._status(cmd) == "paid":
            cmd.record.write({"status": "shipped"})
        return self._status(cmd)

    @api.on_command("order.cancel")
    def cancel(self, cmd: Command) -> str:
        """Give back the stock of an order that is not paid."""
        [order] = cmd.record.read()
        if order["status"] == "placed":
            cmd.record.write({"status": "cancelled"})
            product = self.env.models["shop.product"].browse(order["product"])
            product.write({"stock": product.read()[0]["stock"] + order["quantity"]})
        return self._status(cmd)

    def _status(self, cmd: Command) -> str:
        return str(cmd.record.read(["status"])[0]["status"])


def carry_out(env: Env, name: str, payload: dict[str, Any], order_id: str | None = None) -> Any:
    """Dispatch a command, and again while another program changes the same records.

    For programs; a worker calls its handlers again itself.
    """
    model_key = None if order_id is None else "shop.order"
    while True:
        try:
            return env.dispatch(Command(name, payload, model_key, order_id))
        except StateConflictError:
            continue  # nothing was written; the next try reads what is true now
