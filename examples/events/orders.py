"""Events, all together: an order, its payment, a receipt an hour later, a nightly cleanup.

Run it: python examples/events/orders.py

The clock of this session can be moved, so the night is over at once.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ontologia import (
    Entity,
    Event,
    Field,
    HandlerContext,
    OntologiaConfig,
    Schedule,
    Session,
    on_event,
)
from ontologia.testing import ManualClock

clock = ManualClock(datetime(2026, 11, 15, 23, 30, tzinfo=UTC))  # half past midnight in Berlin


class Payment(Entity):
    order_id: Field[str] = Field(primary_key=True)
    status: Field[str]


class Receipt(Entity):
    order_id: Field[str] = Field(primary_key=True)


class OrderPlaced(Event):
    order_id: Field[str]


class ReceiptDue(Event):
    order_id: Field[str]


class Cleanup(Event):
    pass


def say(text: str) -> None:
    print(f"  {clock.now():%H:%M} {text}")


@on_event(OrderPlaced, priority=200)
async def charge(ctx: HandlerContext[OrderPlaced]) -> None:
    ctx.ensure(Payment(order_id=ctx.event.order_id, status="done"))
    ctx.emit(
        ReceiptDue(order_id=ctx.event.order_id),
        delay=timedelta(hours=1),
        dedup_key=ctx.event.order_id,
    )
    ctx.commit()
    say(f"{ctx.event.order_id} is paid, attempt {ctx.attempt}")


@on_event(ReceiptDue)
def send_receipt(ctx: HandlerContext[ReceiptDue]) -> None:
    ctx.ensure(Receipt(order_id=ctx.event.order_id))
    ctx.commit()
    say(f"receipt for {ctx.event.order_id}")


@on_event(Cleanup)
def clean_up(ctx: HandlerContext[Cleanup]) -> None:
    say("cleanup")


def main(folder: Path) -> None:
    config = OntologiaConfig(clock=clock, event_poll_interval_ms=3_600_000)
    with Session(f"sqlite:///{folder / 'app.db'}", config=config) as session:
        print("The order comes in, and by mistake once more:")
        session.commit(event=OrderPlaced(order_id="o1"))
        session.commit(event=OrderPlaced(order_id="o1"))

        session.run(
            [charge, send_receipt, clean_up],
            workers=4,
            schedules=[Schedule(event=Cleanup(), cron="0 2 * * *", tz="Europe/Berlin")],
            max_iterations=3,
        )

        print("Two events, but one payment and one receipt:")
        print(f"  {session.query().entities(Payment).collect()}")
        print(f"  {session.query().entities(Receipt).collect()}")
        print(f"  {session.head} commits, {len(session.event_store.list_events('default'))} events")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
