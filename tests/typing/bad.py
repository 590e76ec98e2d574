"""What a strict type checker must catch. Never run: tests/unit/test_typing.py reads the reports.

Each line that ends in the mark is wrong, and both checkers say so; no other line is.
"""

from __future__ import annotations

from ontologia import (
    Entity,
    Event,
    Field,
    HandlerContext,
    OntologiaConfig,
    Relation,
    Retry,
    Schedule,
    Session,
    left,
    on_event,
    right,
)
from ontologia.query import avg, count


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    tier: Field[str] = Field(default="standard", index=True)
    nick: Field[str | None] = Field(default=None)
    age: Field[int] = Field(default=0)


class Product(Entity):
    sku: Field[str] = Field(primary_key=True)
    price: Field[float]


class Subscription(Relation[Customer, Product]):
    seats: Field[int]


class Named(Entity):
    id: Field[str]
    code: Field[str] = Field(unique="yes")  # E


class Wrong(Entity):
    id: Field[str]
    days: Field[int] = 90  # E
    note: Field[str] = Field(default=5)  # E
    tags: Field[list[str]] = Field(default_factory=dict)  # E
    flag: Field[bool] = Field(indexed=True)  # E


class Unheard(Relation[Customer, int]):  # E
    pass


def constructors() -> None:
    Customer(id="c1")  # E
    Customer(id="c1", name=5)  # E
    Customer(id="c1", name="Ada", nmae="x")  # E
    Customer("c1", "Ada")  # E
    Customer(id="c1", name=None)  # E
    Subscription(left_key="c1", right_key="p1")  # E
    Subscription(left_key="c1", seats=3)  # E
    Product(sku="p1", price="9.5")  # E


def instances(customer: Customer, subscription: Subscription) -> None:
    customer.tier = 5  # E
    customer.nmae = "x"  # E
    customer.id + 1  # E
    customer.nick.upper()  # E
    number: int = customer.name  # E
    subscription.left.price  # E
    subscription.right.tier  # E
    subscription.left = customer  # E
    del number


def expressions() -> None:
    Customer.nmae  # E
    Customer.age < "5"  # E
    Customer.tier.startswith(5)  # E
    Customer.tier.like(5)  # E
    Customer.age.in_(["a"])  # E
    left(Subscription).price  # E
    right(Subscription).tier  # E
    left(Customer)  # E
    (Customer.tier == "gold") & 5  # E
    Customer.tier.upper()  # E
    Customer.tier == 5  # every object has ==, so this one is left to the run


def questions(session: Session) -> None:
    session.query().entities(Subscription)  # E
    session.query().relations(Customer)  # E
    people = session.query().entities(Customer)
    people.where("tier = 'gold'")  # E
    people.order_by("tier")  # E
    people.limit("5")  # E
    people.via(Product)  # E
    people.group_by(Customer.tier).agg(n=5)  # E
    people.sum("age")  # E
    avg("age")  # E
    count(Customer.age)  # E
    products: list[Product] = people.collect()  # E
    oldest: str = people.max(Customer.age)  # E
    people.first().name  # E
    del products, oldest


def sessions(session: Session) -> None:
    Session(5)  # E
    Session("app.db", "tenant", [Customer])  # E
    Session("app.db", entity_types=[Subscription])  # E
    Session("app.db", relation_types=[Customer])  # E
    Session("app.db", config={"max_batch_size": 5})  # E
    session.ensure(5)  # E
    session.delete(Customer.id)  # E
    session.commit(5)  # E
    number: int = session.commit()  # E
    session.commit(dry_run=True) + 1  # E
    session.diff("1", "2")  # E
    session.head = 5  # E
    session.list_commits(5)  # E
    session.commit_at("2026-11-16")  # E
    OntologiaConfig(5)  # E
    del number


class OrderPlaced(Event):
    order_id: Field[str]
    total: Field[float] = Field(default=0.0)


class Cleanup(Event):
    days: Field[int] = 90  # E
    priority: str = "high"  # E


def events() -> None:
    OrderPlaced()  # E
    OrderPlaced(order_id=5)  # E
    OrderPlaced(order_id="o1", total="9.5")  # E
    OrderPlaced(order_id="o1", totl=9.5)  # E
    OrderPlaced("o1")  # E
    OrderPlaced(order_id="o1", id="e1")  # E
    OrderPlaced(order_id="o1", priority="high")  # E
    OrderPlaced(order_id="o1").unknown  # E
    OrderPlaced.model_validate("o1")  # E


@on_event(OrderPlaced)
def mistaken(ctx: HandlerContext[OrderPlaced]) -> None:
    ctx.event.unknown  # E
    ctx.event.order_id + 1  # E
    number: int = ctx.event.order_id  # E
    ctx.event = OrderPlaced(order_id="o2")  # E
    ctx.emit(Product(sku="p1", price=1.0))  # E
    ctx.emit("order.placed")  # E
    ctx.emit(OrderPlaced)  # E
    ctx.emit(OrderPlaced(order_id="o2"), delay="1h")  # E
    ctx.emit(OrderPlaced(order_id="o2"), dedup_key=5)  # E
    ctx.commit(event=Product(sku="p1", price=1.0))  # E
    ctx.commit(OrderPlaced(order_id="o2"))  # E
    ctx.ensure(OrderPlaced.order_id)  # E
    ctx.add_commit_meta("by", 5)  # E
    ctx.renew("5")  # E
    ctx.acknowledge()  # E
    del number
    raise Retry("later")  # E


@on_event(OrderPlaced)  # E
def of_another_event(ctx: HandlerContext[Cleanup]) -> None:
    del ctx


@on_event(OrderPlaced)  # E
async def of_another_event_async(ctx: HandlerContext[Cleanup]) -> None:
    del ctx


@on_event(OrderPlaced)  # E
def that_returns(ctx: HandlerContext[OrderPlaced]) -> str:
    return ctx.event.order_id


@on_event(OrderPlaced)  # E
def without_context() -> None:
    pass


@on_event("order.placed")  # E
def of_a_name(ctx: HandlerContext[OrderPlaced]) -> None:
    del ctx


@on_event(Customer)  # E
def of_an_entity(ctx: HandlerContext[OrderPlaced]) -> None:
    del ctx


@on_event(OrderPlaced, priority="high")  # E
async def of_wrong_priority(ctx: HandlerContext[OrderPlaced]) -> None:
    ctx.event.unknown  # E


def running(session: Session) -> None:
    session.run(mistaken)  # E
    session.run([mistaken], workers="4")  # E
    session.run([mistaken], start="later")  # E
    session.run([mistaken], schedules=[OrderPlaced(order_id="o1")])  # E
    session.run(["mistaken"])  # E
    session.commit(event=Customer(id="c1", name="Ada"))  # E
    session.commit(event="order.placed")  # E
    session.commit(event=OrderPlaced(order_id="o1"), at="tomorrow")  # E
    session.defer(Customer(id="c1", name="Ada"), delay=5)  # E
    session.cancel_deferred("1")  # E
    session.add_schedule(OrderPlaced(order_id="o1"))  # E
    session.event_store.enqueue("order.placed", "default")  # E
    session.event_store.cleanup_events("default", "7d")  # E
    Schedule(event=OrderPlaced, cron="0 2 * * *")  # E
    Schedule(cron="0 2 * * *")  # E
    Schedule(event=OrderPlaced(order_id="o1"), cron=5)  # E
