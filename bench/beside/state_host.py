"""What a host does with a store of customers: builds it, asks it, changes it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from bench.beside.contenders.state import Shop, State
from bench.measure import quantile, same, seconds
from bench.shop import CUSTOMERS, TIER_SIZE, VERSIONS, customer_key, rows, tier

_PAST = VERSIONS // 2 + 1
_REPEATED = 3


def build(contender: State, where: str, entities: int, versions: int) -> None:
    contender.build(where, entities, versions)


def read(contender: State, where: str, question: str, entities: int, lookups: int) -> float:
    """Seconds for one answer; the first answers are not counted, but their number is checked."""
    with contender.opened(where) as shop:
        ask, per, wanted = _question(shop, question, entities, lookups)
        same(f"answers of {contender.name} to {question}", wanted, len(ask()))
        return quantile([seconds(ask) for _ in range(_REPEATED)], 0.5) / per


def _question(
    shop: Shop, question: str, entities: int, lookups: int
) -> tuple[Callable[[], list[Any]], int, int]:
    """What to ask, how many answers that holds, and how many objects it should give."""
    random = Random(7)  # the same keys for everybody
    keys = [customer_key(random.randrange(entities)) for _ in range(lookups)]
    tiers = [tier(number) for number in range(min(50, lookups))]
    groups = min(entities, CUSTOMERS // TIER_SIZE)
    return {
        "point-read": (lambda: shop.point(keys), lookups, lookups),
        "filter": (lambda: shop.filter(tiers), len(tiers), len(tiers)),
        "scan": (shop.scan, 1, entities),
        "as-of-one": (lambda: shop.point_then(keys, _PAST), lookups, lookups),
        "as-of-all": (lambda: shop.scan_then(_PAST), 1, entities),
        "group-by": (shop.group, 1, groups),
    }[question]


def commit(contender: State, where: str, entities: int, count: int, times: int) -> float:
    """Seconds for one commit that changes this many customers."""
    spread = max(1, entities // count)
    numbers = range(0, spread * count, spread)
    changes = [rows(VERSIONS + 1 + number, numbers) for number in range(times + 1)]
    with contender.opened(where) as shop:
        shop.commit(changes[0][:100])  # to warm up

        def work() -> None:
            for changed in changes[1:]:
                shop.commit(changed)

        elapsed = seconds(work)
        same(
            f"what {contender.name} committed",
            VERSIONS + 1 + times,
            _logins(shop.point([customer_key(0)])[0]),
        )
    return elapsed / times


def _logins(customer: Any) -> Any:
    fields = customer if isinstance(customer, dict) else vars(customer)
    return fields["profile"]["logins"]


COMMANDS: dict[str, Any] = {"build": build, "read": read, "commit": commit}
