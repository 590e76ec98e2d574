"""What a strict type checker must catch. Never run: tests/unit/test_typing.py reads the reports.

Each line that ends in the mark is wrong, and both checkers say so; no other line is.
"""

from __future__ import annotations

from ontologia import Entity, Field, OntologiaConfig, Relation, Session, left, right
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


class Wrong(Entity):
    id: Field[str]
    days: Field[int] = 90  # E
    note: Field[str] = Field(default=5)  # E
    tags: Field[list[str]] = Field(default_factory=dict)  # E
    flag: Field[bool] = Field(unique=True)  # E


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
    OntologiaConfig(5)  # E
    del number
