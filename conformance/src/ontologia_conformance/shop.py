"""The types most tests use: a small shop."""

from __future__ import annotations

from ontologia import Entity, Field, Relation


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
