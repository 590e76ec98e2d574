"""What a run has claimed, and in which groups it is started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ontologia.delivery.retry import Backoff, RetryPolicy
from ontologia.runtime.feed import LARGEST_GROUP, Feed
from ontologia.runtime.handlers import Delivery
from ontologia.store.rows import Claim, EventRow

WORK: Any = SimpleNamespace(id="work")


def feed_of(workers: int, *, attempts: int = 3, lease_ms: float = 30_000) -> Feed:
    policy = RetryPolicy(attempts, attempts, Backoff(1, 1))
    return Feed([WORK], workers, {WORK.id: Delivery(lease_ms, policy, None)})


def claimed(number: int, token: str) -> Claim:
    name = f"event {number}"
    row = EventRow(name, "default", "job", "{}", "2026", 100, name, 0, None, None, None, None, None)
    return Claim(row, WORK.id, 1, token, 0, "2027")


def test_what_was_put_back_is_not_started_with_what_came_meanwhile() -> None:
    feed = feed_of(workers=1)
    before = [claimed(number, "of one call") for number in range(2)]
    after = [claimed(number, "of another") for number in range(2, 4)]
    for size in (1, 2):
        feed.pace(WORK, before[:size], 0.0)  # so fast that groups of four are started

    feed.add(WORK, before)
    taken = feed.take()
    feed.add(WORK, after)
    feed.put_back(WORK, before)
    feed.finish()

    assert taken == (WORK, before)
    assert [feed.take(), feed.take()] == [(WORK, before), (WORK, after)]


@pytest.mark.parametrize(
    ("seconds", "workers", "wanted"),
    [
        (0.0, 1, 100),  # nothing is known to be slow
        (0.0005, 1, 100),
        (0.002, 1, 25),
        (0.002, 4, 100),
        (0.01, 4, 20),
        (3.0, 1, 1),
        (3.0, 4, 4),
    ],
)
def test_what_would_wait_for_long_is_left_to_others(seconds, workers, wanted) -> None:
    feed = feed_of(workers)
    group = [claimed(number, "of one call") for number in range(4)]

    assert feed.claim_size(WORK, 100) == 100
    feed.pace(WORK, group, seconds * len(group))
    assert feed.claim_size(WORK, 100) == wanted
    assert feed.claim_size(WORK, 1) == 1


@pytest.mark.parametrize(
    ("attempts", "lease_ms", "largest"),
    [(3, 30_000, LARGEST_GROUP), (1, 30_000, 1), (3, 30, 10), (3, 3, 1)],
)
def test_a_group_is_run_within_a_third_of_the_lease_and_alone_if_there_is_one_attempt(
    attempts, lease_ms, largest
) -> None:
    feed = feed_of(1, attempts=attempts, lease_ms=lease_ms)

    for _ in range(20):
        group = [claimed(number, "of one call") for number in range(feed.group_size(WORK))]
        feed.pace(WORK, group, 0.001 * len(group) if lease_ms < 30_000 else 0.0)

    assert largest / 2 < feed.group_size(WORK) <= largest


def test_no_more_is_claimed_than_a_third_of_the_lease_allows() -> None:
    feed = feed_of(1, lease_ms=30)

    feed.pace(WORK, [claimed(1, "of one call")], 0.002)

    assert feed.claim_size(WORK, 100) == 5
