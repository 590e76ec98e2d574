"""What somebody who has just installed the package does first. It imports nothing of the tests."""

from ontologia import Entity, Event, Field, HandlerContext, Relation, Session, __version__, on_event


class Customer(Entity):
    id: Field[str]
    tier: Field[str] = Field(default="standard", index=True)


class Knows(Relation[Customer, Customer]):
    since: Field[int]


class OrderPaid(Event):
    customer: Field[str]


@on_event(OrderPaid, name="promote")
def promote(ctx: HandlerContext[OrderPaid]) -> None:
    ctx.ensure(Customer(id=ctx.event.customer, tier="gold"))
    ctx.commit()


with Session("app.db") as session:
    session.ensure([Customer(id="c1"), Customer(id="c2")])
    session.ensure(Knows(left_key="c1", right_key="c2", since=2026))
    session.commit(event=OrderPaid(customer="c1"))
    session.run([promote], max_iterations=1)

    gold = session.query().entities(Customer).where(Customer.tier == "gold")
    assert [each.id for each in gold.collect()] == ["c1"]
    assert gold.as_of(1).collect() == []
    assert session.why(Customer, "c1", "tier").handler_id == "promote"
    assert session.event_store.check() == []

print(__version__)  # noqa: T201
