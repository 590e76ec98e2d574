"""What a strict type checker must see. Never run: mypy and pyright read it in `make lint`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Literal, assert_type

from pydantic import BaseModel, field_validator, model_validator

from ontologia import (
    AsyncSession,
    AsyncUnit,
    Discard,
    Entity,
    Event,
    EventDeadLetter,
    EventStore,
    Field,
    HandlerContext,
    Later,
    Relation,
    Retry,
    Schedule,
    Session,
    Unit,
    UnitOfWork,
    later,
    left,
    on_event,
    right,
    upgrader,
)
from ontologia.actors import Actor, ActorLoop, Capability, Message
from ontologia.commands import Command, DomainEvent, DomainModel, Env, RecordSet, api
from ontologia.migration import MigrationPreview, MigrationResult
from ontologia.query import Condition, Expr, Path, count, sum
from ontologia.queues import EventWorker, RetryPolicy, open_queue
from ontologia.runtime.delta import Delta


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    tier: Field[str] = Field(default="standard", index=True)
    nick: Field[str | None] = Field(default=None)
    since: Field[datetime]
    tags: Field[list[str]] = Field(default_factory=list)
    profile: Field[dict[str, object]] = Field(default_factory=dict)


class Product(Entity):
    sku: Field[str] = Field(primary_key=True)
    price: Field[float]


class Subscription(Relation[Customer, Product]):
    seats: Field[int]


def instances(now: datetime) -> None:
    customer = Customer(id="c1", name="Ada", since=now)
    assert_type(customer.id, str)
    assert_type(customer.nick, str | None)
    assert_type(customer.since, datetime)
    assert_type(customer.tags, list[str])
    assert_type(customer.profile, dict[str, object])
    customer.tier = "gold"
    subscription = Subscription(left_key="c1", right_key="p1", seats=3)
    assert_type(subscription.seats, int)
    assert_type(subscription.left_key, str)
    assert_type(subscription.left, Customer)
    assert_type(subscription.right.price, float)
    assert_type(customer.meta().commit_id, int)


class Client(Entity, name="Customer"):
    id: Field[str]
    tier: Field[str]

    @field_validator("tier")
    @classmethod
    def known(cls, value: str) -> str:
        return value

    @model_validator(mode="after")
    def whole(self) -> Client:
        return self


class Bought(Relation[Client, Product], name="Subscription"):
    seats: Field[int] = Field(instance_key=True)


class ClientCame(Event, name="client.came"):
    client: Field[str]


class ClientLeft(Event, name="client.left", version=2, formerly=["client.gone"]):
    client: Field[str]


@upgrader(ClientLeft, from_version=1)
def with_client(fields: dict[str, Any]) -> dict[str, Any]:
    return fields | {"client": fields.pop("id")}


@upgrader(Client, from_version=1)
def with_tier(fields: dict[str, Any]) -> dict[str, Any]:
    return fields | {"tier": "gold"}


def as_pydantic() -> None:
    client = Client(id="c1", tier="gold")
    assert_type(client.model_dump(mode="json", exclude={"id"}), dict[str, Any])
    assert_type(Client.model_validate({"id": "c1"}), Client)
    assert_type(Bought.model_validate(Bought(left_key="c", right_key="p", seats=1)), Bought)
    assert_type(client.model_copy(update={"tier": "silver"}), Client)
    assert_type(Client.model_json_schema(mode="serialization"), dict[str, Any])
    assert_type(Bought(left_key="c", right_key="p", seats=1).instance_key, str)
    assert_type(ClientCame(client="c").model_copy(), ClientCame)


def expressions() -> None:
    assert_type(Customer.tier, Expr[str])
    assert_type(Customer.nick, Expr[str | None])
    assert_type(Subscription.seats, Expr[int])
    assert_type(Subscription.left_key, Expr[str])
    assert_type(left(Subscription).tier, Expr[str])
    assert_type(right(Subscription).price, Expr[float])
    assert_type(Customer.tier == "gold", Condition)
    assert_type((Customer.tier == "gold") & ~Customer.nick.is_null(), Condition)
    assert_type(Customer.profile.path("a.b"), Expr[Any])
    assert_type(Customer.profile["a"]["b"], Expr[Any])


def questions(session: Session) -> None:
    entities = session.query().entities(Customer)
    assert_type(entities.collect(), list[Customer])
    assert_type(entities.where(Customer.tier == "gold").limit(3).first(), Customer | None)
    assert_type(entities.count(), int)
    assert_type(entities.max(Customer.name), str | None)
    assert_type(session.query().relations(Subscription).collect(), list[Subscription])
    assert_type(entities.via(Subscription).collect(), list[Path[Customer]])
    assert_type(entities.group_by(Customer.tier).agg(n=count()), list[dict[str, Any]])
    sum(Subscription.seats)


def commits(session: Session) -> None:
    assert_type(session.commit(), int | None)
    assert_type(session.commit(dry_run=True), Delta)
    assert_type(session.migrate(), MigrationPreview)
    assert_type(session.migrate(dry_run=False, force=True), MigrationResult)
    assert_type(session.head, int)
    assert_type(session.commit_at(datetime.now().astimezone()), int)


class OrderPlaced(Event):
    order_id: Field[str]
    total: Field[float] = Field(default=0.0)
    placed_at: Field[datetime | None] = Field(default=None)


class ReceiptDue(Event):
    order_id: Field[str]
    priority: int = 200


class Cleanup(Event):
    pass


def units(session: Session) -> None:
    assert_type(session.get(Customer, "c1"), Customer | None)
    assert_type(session.one(Customer, "c1", as_of=3).tier, str)
    assert_type(session.one(Subscription, ("c1", "p1")).left.name, str)
    session.update(Customer, "c1", tier="gold")
    session.create(Product(sku="p2", price=9.5))
    session.ensure([session.one(Customer, "c1"), Product(sku="p1", price=1.0)], overwrite=True)
    reminder = later(OrderPlaced(order_id="o1"), delay=timedelta(minutes=15))
    assert_type(reminder, Later[OrderPlaced])
    assert_type(session.commit(event=[OrderPlaced(order_id="o1"), reminder]), int | None)
    assert_type(session.transact(promote), str)
    with session.unit(reads="checked") as unit:
        assert_type(unit, Unit)
        assert_type(promote(unit), str)
    promote(session)


def promote(unit: UnitOfWork) -> str:
    customer = unit.one(Customer, "c1")
    customer.tier = "gold"
    unit.ensure(customer)
    return customer.tier


def events() -> None:
    placed = OrderPlaced(order_id="o1", total=9.5, priority=50)
    assert_type(placed.order_id, str)
    assert_type(placed.total, float)
    assert_type(placed.placed_at, datetime | None)
    assert_type(placed.priority, int)
    assert_type(placed.id, str | None)
    assert_type(placed.created_at, str | None)
    assert_type(placed.root_event_id, str | None)
    assert_type(placed.chain_depth, int)
    assert_type(placed.model_dump(), dict[str, Any])
    assert_type(OrderPlaced.model_validate({"order_id": "o1"}), OrderPlaced)
    assert_type(OrderPlaced.__event_type__, str)


@on_event(OrderPlaced)
def charge(ctx: HandlerContext[OrderPlaced]) -> None:
    assert_type(ctx.event, OrderPlaced)
    assert_type(ctx.event.order_id, str)
    assert_type(ctx.session, Session)
    assert_type(ctx.attempt, int)
    assert_type(ctx.lease_until, datetime)
    assert_type(ctx.commit_id, int | None)
    ctx.ensure(Product(sku=ctx.event.order_id, price=ctx.event.total))
    ctx.delete(ctx.query().entities(Product).collect())
    assert_type(ctx.discard(), int)
    ctx.add_commit_meta("by", "charge")
    ctx.emit(ReceiptDue(order_id=ctx.event.order_id), delay=timedelta(hours=1), dedup_key="o1")
    ctx.renew()
    assert_type(ctx.commit(event=Cleanup(), delay=5, expected_head=3), int | None)


@on_event(
    OrderPlaced, lease=timedelta(minutes=5), max_attempts=5, backoff=(0.5, timedelta(hours=1))
)
def with_a_lease(ctx: HandlerContext[OrderPlaced]) -> None:
    assert_type(ctx.event, OrderPlaced)


@on_event(OrderPlaced, renew=True, timeout=1800, formerly=["shop:old"], reads="checked")
async def with_a_lease_that_is_renewed(ctx: HandlerContext[OrderPlaced]) -> None:
    assert_type(ctx.event, OrderPlaced)


@on_event(OrderPlaced, priority=200, name="shop.charge")
async def charge_async(ctx: HandlerContext[OrderPlaced]) -> None:
    assert_type(ctx.event.order_id, str)
    if ctx.attempt > 3:
        raise Discard("the till is closed")
    raise Retry("the till is busy", after=timedelta(seconds=5))


@on_event(EventDeadLetter)
def alert(ctx: HandlerContext[EventDeadLetter]) -> None:
    assert_type(ctx.event.last_error, str)
    assert_type(ctx.event.attempts, int)


@on_event(ReceiptDue)
def of_any_event(ctx: HandlerContext[Event]) -> None:
    assert_type(ctx.event.id, str | None)


def running(session: Session, at: datetime) -> None:
    # A decorated function is what it was before: it can be called, awaited and tested as such.
    plain: Callable[[HandlerContext[OrderPlaced]], None] = charge
    waiting: Callable[[HandlerContext[OrderPlaced]], Awaitable[None]] = charge_async
    schedule = Schedule(event=Cleanup(), cron="0 2 * * *", tz="Europe/Berlin")
    session.run([charge, charge_async, alert], schedules=[schedule], workers=4, start="now")
    session.run([plain, waiting], max_iterations=1)
    named = [charge, charge_async, alert]
    session.run(named)
    assert_type(session.commit(event=OrderPlaced(order_id="o1"), at=at, dedup_key="o1"), int | None)
    assert_type(session.defer(Cleanup(), delay=timedelta(days=1)), int | None)
    assert_type(session.cancel_deferred(5), bool)
    session.add_schedule(schedule)
    assert_type(session.remove_schedule(schedule), bool)
    session.stop()


def storing(session: Session) -> None:
    store: EventStore = session.event_store
    store.enqueue(Cleanup(), "default")
    assert_type(store.claim("default", "h", "s", ["cleanup"], 10, 30_000), list[Event])
    assert_type(session.event_store.list_events("default"), list[dict[str, Any]])
    assert_type(session.event_store.inspect_event("e1"), dict[str, Any] | None)
    assert_type(session.event_store.cleanup_events("default", timedelta(days=7)), int)
    assert_type(session.event_store.check(), list[str])


@api.model("logistics.shipment")
class Shipment(DomainModel):
    reference: Field[str]
    status: Field[str] = Field(default="draft")

    @api.on_command("shipment.confirm")
    def confirm(self, cmd: Command) -> dict[str, Any]:
        cmd.record.write({"status": "confirmed"})
        self.env.emit("shipment.confirmed", {"shipment_id": cmd.model_id})
        record: dict[str, Any] = cmd.record.read()[0]
        return record

    @api.hook("pre.shipment.confirm")
    def only_once(self, cmd: Command) -> None:
        if cmd.record is None:
            raise ValueError("confirm one")
        assert_type(self.env.models["logistics.shipment"].browse(cmd.model_id), RecordSet)

    @api.on_event("logistics.shipment.field_changed", track_fields=["status"])
    def status_changed(self, event: DomainEvent, env: Env) -> None:
        assert_type(event.payload, dict[str, Any])


@api.on_event("shipment.confirmed")
def confirmed(event: DomainEvent, env: Env) -> None:
    assert_type(event.tenant_id, str | None)


def commanding(session: Session) -> None:
    env = Env(session, modules=[__name__], queue=open_queue("inmemory"), tenant_id="acme")
    [made] = env.models["logistics.shipment"].create({"reference": "S-1"})
    assert_type(made, RecordSet)
    assert_type(made.id, str)
    assert_type(made.read(["status"]), list[dict[str, Any]])
    env.dispatch(Command("shipment.confirm", {}, "logistics.shipment", made.id))
    found = env.models["logistics.shipment"].search([("status", "=", "draft")], order="reference")
    assert_type(len(found), int)
    # A record is an entity like all others.
    [shipment] = session.query().entities(Shipment).where(Shipment.status == "draft").collect()
    assert_type(shipment.reference, str)
    assert_type(Shipment.status, Expr[str])
    EventWorker(env, retry_policy=RetryPolicy(max_attempts=3)).run_forever()


class SetData(BaseModel):
    key: str
    value: int


class MemorySet(Message):
    kind: Literal["command"]
    type: Literal["Memory.Set"]
    data: SetData


class MemoryGet(Message):
    kind: Literal["query"]
    type: Literal["Memory.Get"]
    data: str


class MemoryActor(Actor):
    async def handle(self, message: MemorySet | MemoryGet) -> None:
        if message.type == "Memory.Set":
            assert_type(message.data, SetData)
            assert_type(message.data.value, int)
            self.emit("Memory.Changed", message.data)
            self.reply(message, {"stored": True})
        else:
            assert_type(message.data, str)
            assert_type(message.metadata.correlation, str | None)
            self.fail(message, 404, f"there is no {message.data}")


async def acting() -> None:
    memory = Capability(
        "memory",
        "Remembers things",
        inbound=MemorySet | MemoryGet,
        outbound=Message,
        subscribes=[],
        spawn=MemoryActor,
    )
    made = MemorySet.new(SetData(key="a", value=1), correlation="c1")
    assert_type(made, MemorySet)
    assert_type(made.data.value, int)
    async with ActorLoop([memory]) as loop:
        assert_type(await loop.request(made), Message)
        loop.enqueue(Message.event("Sys.Alarm"), "system")


class ProductSold(Event):
    sku: Field[str]


async def asyncio_tasks(session: AsyncSession) -> None:
    assert_type(await session.get(Product, "p1"), Product | None)
    assert_type(await session.one(Product, "p1"), Product)
    assert_type(await session.commit(event=ProductSold(sku="p1")), int | None)
    assert_type(await session.commit(dry_run=True), Delta)
    assert_type(await session.head, int)
    products = session.query().entities(Product).where(Product.price > 1).order_by(Product.sku)
    assert_type(await products.collect(), list[Product])
    assert_type(await products.first(), Product | None)
    assert_type(await products.count(), int)
    assert_type(await products.max(Product.price), float | None)
    assert_type(await products.group_by(Product.sku).agg(n=count()), list[dict[str, Any]])
    async for product in products:
        assert_type(product, Product)
    customers = session.query().entities(Customer)
    assert_type(await customers.via(Subscription).collect(), list[Path[Customer]])
    async with session.unit() as unit:
        assert_type(await unit.get(Customer, "c1"), Customer | None)
    assert_type(await session.transact(_priced), float)
    assert_type(await session.transact(lambda unit: 3), int)
    assert_type(await session.run_sync(session.session.get_commit, 1), dict[str, Any] | None)
    assert_type(await session.migrate(), MigrationPreview)


async def _priced(unit: AsyncUnit) -> float:
    return (await unit.one(Product, "p1")).price
