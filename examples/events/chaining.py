"""Events, 2: handlers that announce events to each other.

Run it: python examples/events/chaining.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from ontologia import Entity, Event, Field, HandlerContext, Session, on_event


class Payment(Entity):
    order_id: Field[str] = Field(primary_key=True)
    status: Field[str]


class Shipment(Entity):
    order_id: Field[str] = Field(primary_key=True)


class OrderPlaced(Event):
    order_id: Field[str]
    user_id: Field[str]
    total: Field[float]
    priority: int = 10


class PaymentCompleted(Event):
    order_id: Field[str]
    priority: int = 20


class OrderFulfilled(Event):
    order_id: Field[str]


@on_event(OrderPlaced, priority=10)
def process_payment(ctx: HandlerContext[OrderPlaced]) -> None:
    order_id = ctx.event.order_id
    print(f"  charge {ctx.event.total} for {order_id}")

    ctx.ensure(Payment(order_id=order_id, status="completed"))
    # Emit event atomically with commit
    ctx.commit(event=PaymentCompleted(order_id=order_id))


@on_event(PaymentCompleted, priority=20)
def fulfill_order(ctx: HandlerContext[PaymentCompleted]) -> None:
    order_id = ctx.event.order_id
    print(f"  ship {order_id}")
    ctx.ensure(Shipment(order_id=order_id))

    # Alternative: buffer event first, then commit
    ctx.emit(OrderFulfilled(order_id=order_id))
    ctx.commit()


def main(folder: Path) -> None:
    with Session(f"sqlite:///{folder / 'app.db'}") as session:
        print("An order is placed; one iteration of the loop follows the whole chain:")
        placed = OrderPlaced(order_id="o1", user_id="u1", total=99.5)
        session.commit(event=placed)
        session.run([process_payment, fulfill_order], max_iterations=1)

        print("The chain, as it is stored:")
        found = [
            session.event_store.inspect_event(event["id"])
            for event in session.event_store.list_events(session.namespace)
        ]
        events = [event for event in found if event is not None]
        for event in sorted(events, key=lambda each: int(each["chain_depth"])):
            same = event["root_event_id"] == placed.id
            print(f"  {event['chain_depth']}: {event['type']}, root is the order: {same}")

        print("Every commit says which event it answers:")
        for commit in reversed(session.list_commits()):
            handler = commit["metadata"]["handler_id"].partition(":")[2]
            print(f"  commit {commit['id']}: {handler}, attempt {commit['metadata']['attempt']}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
