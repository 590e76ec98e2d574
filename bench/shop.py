"""The data: a shop with 100,000 customers, written through the public API."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.measure import progress
from ontologia import Entity, Field, OntologiaConfig, Relation, Session

CUSTOMERS = 100_000
TIER_SIZE = 100
"""Customers in each tier; `tier` is the indexed field."""
VERSIONS = 5
SUBSCRIPTIONS = 5_000
PRODUCTS = 500


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    tier: Field[str] = Field(default="standard", index=True)
    profile: Field[dict[str, object]] = Field(default_factory=dict)


class Product(Entity):
    sku: Field[str] = Field(primary_key=True)
    price: Field[float]


class Subscription(Relation[Customer, Product]):
    seats: Field[int]


def open_shop(path: Path) -> Session:
    """A session on the shop's file that may commit all customers at once."""
    return Session(
        f"sqlite:///{path}",
        entity_types=[Customer, Product],
        relation_types=[Subscription],
        config=OntologiaConfig(max_batch_size=CUSTOMERS),
    )


def rows(version: int, numbers: Iterable[int] = range(CUSTOMERS)) -> list[dict[str, Any]]:
    """The customers' fields; every version differs in every customer."""
    return [
        {
            "id": customer_key(number),
            "name": f"Customer {number}",
            "tier": tier(number % (CUSTOMERS // TIER_SIZE)),
            "profile": {"city": f"City {number % 97}", "logins": version, "newsletter": True},
        }
        for number in numbers
    ]


def customer_key(number: int) -> str:
    return f"c{number:06d}"


def tier(number: int) -> str:
    return f"tier {number:04d}"


def add_customers(session: Session, versions: int, count: int = CUSTOMERS) -> None:
    """Customers who have this many versions each, one commit a version."""
    for version in range(1, versions + 1):
        session.ensure(Customer(**row) for row in rows(version, range(count)))
        session.commit()


def build(path: Path, *, versions: int) -> None:
    """Make a shop in which every customer has this many versions, one commit each."""
    with (
        progress(f"building {CUSTOMERS:,} customers with {versions} version(s) each"),
        open_shop(path) as session,
    ):
        add_customers(session, versions)
        session.ensure(
            Product(sku=f"p{number:03d}", price=number + 0.5) for number in range(PRODUCTS)
        )
        session.ensure(
            Subscription(
                left_key=customer_key(number * 7),
                right_key=f"p{number % PRODUCTS:03d}",
                seats=number,
            )
            for number in range(SUBSCRIPTIONS)
        )
        session.commit()
