"""Reading state: by key, by an indexed field, everything, the past, relations with their ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import apsw

from bench.bare import sqlite_state as bare
from bench.goals import statements
from bench.goals.figures import Count, Figure, Ratio, compare
from bench.measure import same
from bench.shop import (
    CUSTOMERS,
    SUBSCRIPTIONS,
    TIER_SIZE,
    VERSIONS,
    Customer,
    Subscription,
    customer_key,
    open_shop,
    tier,
)
from ontologia import Session

_KEYS = 1_000
_TIERS = 50
_STATE = f"{CUSTOMERS:,} with {VERSIONS} versions"
_PAST = VERSIONS // 2 + 1


def figures(large: Path, small: Path) -> Iterator[Figure]:
    """`large` has several versions of each customer, `small` one."""
    with open_shop(large) as session, bare.connected(large) as connection:
        same("use of indexes", True, bare.seeks(connection))
        yield from _points(session, connection)
        yield from _indexed(session, connection)
        with open_shop(small) as other:
            yield from _scans(session, other, connection)
        yield from _relations(session, connection)
    yield _statements(large)


def _points(session: Session, connection: apsw.Connection) -> Iterator[Figure]:
    random = Random(7)
    keys = [customer_key(random.randrange(CUSTOMERS)) for _ in range(_KEYS)]

    def ours() -> list[Any]:
        return [session.query().entities(Customer).where(Customer.id == k).first() for k in keys]

    def ours_then() -> list[Any]:
        return [
            session.query().entities(Customer).where(Customer.id == k).as_of(_PAST).first()
            for k in keys
        ]

    def by_get() -> list[Any]:
        return [session.get(Customer, key) for key in keys]

    def plain() -> list[Any]:
        return [bare.point(connection, key) for key in keys]

    def plain_then() -> list[Any]:
        return [bare.point_as_of(connection, key, _PAST) for key in keys]

    same("point read", plain(), _fields(ours()))
    yield compare(Ratio(f"point read by key, {_STATE}", 5, per=_KEYS), plain, ours, rounds=15)
    same("get", plain(), _fields(by_get()))
    title = f"get by key (ours) beside a query by key, {_STATE}"
    yield compare(Ratio(title, 1.2, per=_KEYS), ours, by_get, rounds=15)
    same("point read as_of", plain_then(), _fields(ours_then()))
    title = f"point read by key under as_of, {_STATE}"
    yield compare(Ratio(title, 8, per=_KEYS), plain_then, ours_then, rounds=15)


def _indexed(session: Session, connection: apsw.Connection) -> Iterator[Figure]:
    tiers = [tier(number) for number in range(_TIERS)]

    def ours() -> list[Any]:
        return [
            session.query().entities(Customer).where(Customer.tier == name).collect()
            for name in tiers
        ]

    def plain() -> list[Any]:
        return [bare.in_tier(connection, name) for name in tiers]

    answer = plain()
    same("filter", answer, [_fields(found) for found in ours()])
    same("filter", [TIER_SIZE] * _TIERS, [len(found) for found in answer])
    title = f"filter on an indexed field, {TIER_SIZE} of {CUSTOMERS:,}"
    yield compare(Ratio(title, 3, per=_TIERS), plain, ours, rounds=15)


def _scans(session: Session, other: Session, connection: apsw.Connection) -> Iterator[Figure]:
    def ours() -> list[Any]:
        return session.query().entities(Customer).collect()

    def single() -> list[Any]:
        return other.query().entities(Customer).collect()

    def ours_then() -> list[Any]:
        return session.query().entities(Customer).as_of(_PAST).collect()

    def plain() -> list[Any]:
        return bare.customers(connection)

    def plain_then() -> list[Any]:
        return bare.customers_as_of(connection, _PAST)

    answer = plain()
    same("collect", answer, _fields(ours()))
    same("collect", CUSTOMERS, len(answer))
    yield compare(Ratio(f"collect() of {_STATE}", 3), plain, ours, rounds=9)
    same("collect of single versions", [each.id for each in single()], [e["id"] for e in answer])
    title = f"  {VERSIONS} versions each (ours) beside 1 version each (bare)"
    yield compare(Ratio(title, 1.2), single, ours, rounds=15)
    same("collect as_of", plain_then(), _fields(ours_then()))
    yield compare(Ratio(f"collect() under as_of, {_STATE}"), plain_then, ours_then, rounds=5)


def _relations(session: Session, connection: apsw.Connection) -> Iterator[Figure]:
    def ours() -> list[Any]:
        return [(r, r.left, r.right) for r in session.query().relations(Subscription).collect()]

    def plain() -> list[Any]:
        return bare.subscriptions(connection)

    found = [({"seats": r.seats}, vars(left), vars(right)) for r, left, right in ours()]
    same("relations", plain(), found)
    title = f"relations().collect() of {SUBSCRIPTIONS:,}, both ends looked at"
    yield compare(Ratio(title), plain, ours, rounds=9)


def _statements(path: Path) -> Count:
    """How many statements SQLite really runs, in a session that has read nothing before."""
    with statements.counted() as ran, open_shop(path) as session:
        ran.clear()
        found = session.query().relations(Subscription).collect()
        ends = {relation.left.id for relation in found} | {r.right.sku for r in found}
        count = ran.total()
    same("relations counted", SUBSCRIPTIONS, len(found))
    assert len(ends) > SUBSCRIPTIONS
    return Count(f"statements of a first relations().collect() of {SUBSCRIPTIONS:,}", count, 6)


def _fields(found: list[Any]) -> list[dict[str, Any]]:
    return [vars(each) for each in found]
