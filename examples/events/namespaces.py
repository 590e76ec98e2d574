"""Events, 6: several namespaces in one process, each with a session of its own.

Run it: python examples/events/namespaces.py
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from ontologia import Entity, Event, Field, HandlerContext, Session, on_event


class Seen(Entity):
    id: Field[str] = Field(primary_key=True)
    namespace: Field[str]


class OrderPlaced(Event):
    order_id: Field[str]


@on_event(OrderPlaced)
def prepare(ctx: HandlerContext[OrderPlaced]) -> None:
    ctx.ensure(Seen(id=f"prepare {ctx.event.order_id}", namespace=ctx.session.namespace))
    ctx.commit()


@on_event(OrderPlaced)
def invoice(ctx: HandlerContext[OrderPlaced]) -> None:
    ctx.ensure(Seen(id=f"invoice {ctx.event.order_id}", namespace=ctx.session.namespace))
    ctx.commit()


order_handlers = [prepare]
payment_handlers = [invoice]


# Single process running multiple sessions (different namespaces)
async def main(folder: Path) -> None:
    datastore_uri = f"sqlite:///{folder / 'app.db'}"

    # Orders namespace
    orders_session = Session(datastore_uri=datastore_uri, namespace="orders")

    # Payments namespace (different partition)
    payments_session = Session(datastore_uri=datastore_uri, namespace="payments")

    print("One order is announced in each namespace; both sessions run.")
    orders_session.commit(event=OrderPlaced(order_id="o1"))
    payments_session.commit(event=OrderPlaced(order_id="o2"))

    # Run both sessions concurrently in same process
    await asyncio.gather(
        asyncio.to_thread(orders_session.run, handlers=order_handlers, max_iterations=1),
        asyncio.to_thread(payments_session.run, handlers=payment_handlers, max_iterations=1),
    )

    # Events in "orders" namespace never visible to "payments" namespace and vice versa
    for namespace in ("orders", "payments"):
        seen = orders_session.query().entities(Seen).where(Seen.namespace == namespace)
        print(f"  {namespace}: {[entry.id for entry in seen.collect()]}")
    print("State is shared: one session has read what both wrote.")

    orders_session.close()
    payments_session.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
