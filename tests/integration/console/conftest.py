"""A shop that has worked for a while: events done, failed, dead and waiting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ontologia import Entity, Event, Field, HandlerContext, Session, on_event
from tests.integration.console.world import Browser, browsing, opened


class Order(Entity):
    id: Field[str] = Field(primary_key=True)
    status: Field[str] = "open"


class Placed(Event):
    order_id: Field[str]
    amount: Field[int] = 1
    note: Field[str] = ""


@on_event(Placed, name="bill")
def bill(ctx: HandlerContext[Placed]) -> None:
    if ctx.event.amount < 0:
        raise ValueError(f"{ctx.event.order_id} owes us nothing")
    if ctx.event.amount == 0:
        raise KeyError("amount")
    ctx.ensure(Order(id=ctx.event.order_id, status="paid"))
    ctx.commit()


@on_event(Placed, name="pack")
def pack(ctx: HandlerContext[Placed]) -> None:
    """Is done at once."""


@pytest.fixture
def shop(open_session) -> Session:
    """2 dead letters with one failure, 1 with another, 1 event done, 1 waiting."""
    session: Session = open_session(settings={"event_max_attempts": 1, "event_poll_interval_ms": 0})
    for number, amount in enumerate((5, -1, -2, 0)):
        session.commit(event=Placed(order_id=f"o-{number}", amount=amount))
    session.run([bill, pack], max_iterations=20)
    session.commit(event=Placed(order_id="o-9", amount=2**53 + 1, note="<b>late</b>"))
    return session


@pytest.fixture
def desk(shop: Session) -> Iterator[Browser]:
    """A browser in which ada, an operator, is signed in."""
    app = opened(shop)
    with browsing(app) as browser:
        browser.console = app
        yield browser
    app.close()
