"""How much of everything: `small` shows that it works, `full` is what figures are taken from."""

from __future__ import annotations

from typing import NamedTuple


class Size(NamedTuple):
    """The numbers of one run."""

    singles: int
    """Events stored one by one."""
    bulk: int
    """Events stored at once."""
    backlog: int
    """Events that wait when a drain begins."""
    crowd: int
    """The same, for several processes: less is over before the last of them has begun."""
    busy: int
    """The same, for handlers that take their time."""
    changes: int
    """Events whose handler changes the state, and chains."""
    processes: tuple[int, ...]
    samples: int
    """Events whose way to another process is timed, with pauses between."""
    loaded: int
    """The same without pauses, but for 2 ms."""
    finished: int
    """Events that are retained."""
    few: int
    many: int
    """Events of two backlogs: what one event costs should be the same in both."""
    entities: int
    lookups: int
    commits: int
    """Commits of one entity that are timed together."""


ROUNDS = {"small": 1, "full": 3}

SIZES = {
    "small": Size(
        singles=50, bulk=500, backlog=1_000, crowd=500, busy=200, changes=100, processes=(2,),
        samples=15, loaded=50, finished=5_000, few=1_000, many=5_000, entities=2_000, lookups=100,
        commits=10,
    ),
    "full": Size(
        singles=300, bulk=5_000, backlog=5_000, crowd=20_000, busy=2_000, changes=1_000,
        processes=(1, 2, 4, 8), samples=200, loaded=400, finished=1_000_000, few=10_000,
        many=1_000_000, entities=100_000, lookups=1_000, commits=50,
    ),
}  # fmt: skip
