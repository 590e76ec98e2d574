"""A small shop: what changed, when, and what it was before.

It makes a database in a temporary folder and prints what it does.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from ontologia import Entity, Field, Relation, Session, left
from ontologia.query import count, sum


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


def main(folder: Path) -> None:
    with Session(
        str(folder / "shop.db"),
        entity_types=[Customer, Product],
        relation_types=[Subscription],
    ) as session:
        print("Ada buys three seats of p1, Bob one.")
        session.ensure([Customer(id="c1", name="Ada"), Customer(id="c2", name="Bob")])
        session.ensure(Product(sku="p1", price=9.5))
        session.ensure(Subscription(left_key="c1", right_key="p1", seats=3))
        session.ensure(Subscription(left_key="c2", right_key="p1", seats=1))
        first = session.commit()
        assert first is not None  # noqa: S101 - the store was empty
        print(f"  commit {first}: {len(session.list_commit_changes(first))} objects written")

        print("Saying the same again writes nothing:")
        session.ensure(Customer(id="c1", name="Ada"))
        print(f"  commit() gave {session.commit()}")

        print("Ada becomes a gold customer. First a dry run:")
        session.update(Customer, "c1", tier="gold")  # this field, whatever the others are
        for change in session.commit(dry_run=True).updated:
            print(f"  would change {change.type_name} {change.key}: {change.fields}")
        second = session.commit()
        print(f"  commit {second}: one new version of one entity")

        print("Who is gold now, and who was after the first commit?")
        gold = session.query().entities(Customer).where(Customer.tier == "gold")
        print(f"  now: {gold.collect()}")
        print(f"  then: {gold.as_of(first).collect()}")

        print("Seats of gold customers, through the relation:")
        of_gold = session.query().relations(Subscription).where(left(Subscription).tier == "gold")
        for subscription in of_gold.collect():
            print(
                f"  {subscription.left.name} has {subscription.seats} seats of "
                f"{subscription.right.sku} at {subscription.right.price}"
            )
        for row in (
            session.query()
            .relations(Subscription)
            .group_by(left(Subscription).tier)
            .agg(customers=count(), seats=sum(Subscription.seats))
        ):
            print(f"  {row}")

        print("Everything Ada ever was:")
        for version in (
            session.query().entities(Customer).where(Customer.id == "c1").with_history().collect()
        ):
            print(f"  commit {version.meta().commit_id}: tier {version.tier}")

        print("What changed between the two commits:")
        for change in session.diff(first, session.head).updated:
            print(f"  {change.type_name} {change.key}: {change.fields}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
