"""What a strict type checker must see. Never run: mypy and pyright read it in `make lint`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, assert_type

from ontologia import Entity, Field, Relation, Session, left, right
from ontologia.migration import MigrationPreview, MigrationResult
from ontologia.query import Condition, Expr, Path, count, sum
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
