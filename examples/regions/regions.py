"""Two regions and a bucket between them: an order here is packed there, and both know it.

It needs `pip install 'ontologia[s3]'`, a bucket, and the variables that lead to it (AWS_REGION,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY; AWS_ENDPOINT_URL for another service than AWS). REGIONS_URI
names the place: s3://bucket/prefix. With kafka://broker:9092/topic it runs as well.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from ontologia import Event, Field, HandlerContext, Session, on_event
from ontologia.relay import Intake, Relay


class OrderPlaced(Event):
    order_id: Field[str]


class OrderPacked(Event):
    order_id: Field[str]


@on_event(OrderPlaced)
def pack(ctx: HandlerContext[OrderPlaced]) -> None:
    """Runs in the warehouse, on events of the shop."""
    print(f"  the warehouse packs {ctx.event.order_id}")
    ctx.emit(OrderPacked(order_id=ctx.event.order_id))


@on_event(OrderPacked)
def thank(ctx: HandlerContext[OrderPacked]) -> None:
    """Runs in the shop, on events of the warehouse."""
    print(f"  the shop hears that {ctx.event.order_id} is packed, hop {ctx.event.chain_depth}")


def carry(source: Session, target: Session, place: str) -> None:
    """As `ontologia relay` and `ontologia intake` do all the time, in processes of their own."""
    Relay(source, place).run_until_empty()
    intake = Intake(target, place)
    intake.run_until_empty()
    print(f"  {intake.stored} stored, {intake.known} known already")


def main(folder: Path) -> None:
    place = os.environ.get("REGIONS_URI", "")
    if not place:
        sys.exit("set REGIONS_URI to s3://bucket/prefix or kafka://broker:9092/topic")
    with (
        Session(str(folder / "shop.db"), "acme") as shop,
        Session(str(folder / "warehouse.db"), "acme") as warehouse,
    ):
        print("The shop takes an order; the relay carries it.")
        shop.commit(event=OrderPlaced(order_id="o1"))
        carry(shop, warehouse, place)
        warehouse.run([pack], max_iterations=1)
        print("The answer comes back; the order itself does not.")
        carry(warehouse, shop, place)
        shop.run([thank], max_iterations=1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
