"""What an engine has claimed, and in which batches it is started."""

from __future__ import annotations

import pytest

from ontologia.delivery.retry import Backoff, RetryPolicy
from ontologia.engine.consumer import Consumer
from ontologia.engine.inbox import LARGEST_BATCH, Inbox
from ontologia.store.rows import Claim, EventRow
from ontologia.testing import ManualClock


def consumer(*, attempts: int = 3, lease_ms: float = 30_000) -> Consumer:
    policy = RetryPolicy(attempts, attempts, Backoff(1, 1))
    return Consumer("work", ["job"], lambda claim: None, policy, lease_ms)


WORK = consumer()


def inbox_of(workers: int, of: Consumer = WORK) -> Inbox:
    return Inbox([of], ManualClock(), workers)


def claimed(number: int, token: str) -> Claim:
    name = f"event {number}"
    row = EventRow(name, "default", "job", "{}", "2026", 100, name, 0, None, None, None, None, None)
    return Claim(row, WORK.name, 1, token, 0, "2027")


def test_what_was_put_back_is_not_started_with_what_came_meanwhile() -> None:
    inbox = inbox_of(workers=1)
    before = [claimed(number, "of one call") for number in range(2)]
    after = [claimed(number, "of another") for number in range(2, 4)]
    for size in (1, 2):
        inbox.pace(WORK, before[:size], 0.0)  # so fast that groups of four are started

    inbox.add(WORK, before)
    taken = inbox.take()
    inbox.add(WORK, after)
    inbox.put_back(WORK, before)

    assert taken == (WORK, before)
    assert [inbox.take(), inbox.take()] == [(WORK, before), (WORK, after)]


def test_a_consumer_whose_call_hangs_is_served_after_the_others_once() -> None:
    policy = RetryPolicy(3, 3, Backoff(1, 1))
    first, second, third = (
        Consumer(name, ["job"], lambda claim: None, policy, 30_000) for name in ("1", "2", "3")
    )
    every = [first, second, third]
    inbox = Inbox(every, ManualClock(), 2)
    for each in every:
        inbox.add(each, [claimed(0, each.name), claimed(1, f"{each.name}, later")])

    inbox.serve_last(first)
    inbox.serve_last(second)
    assert inbox.in_turn([first, second, third]) == [third, first, second]
    taken = [inbox.take() for _ in range(6)]

    assert [each and each[0] for each in taken] == [third, third, first, first, second, second]
    assert inbox.in_turn(every) == every


def test_for_several_workers_events_of_fast_handlers_are_started_with_their_claim() -> None:
    inbox = inbox_of(workers=4)
    assert inbox.start_size(WORK) == 0  # nobody knows yet how long one takes

    for size in (1, 2):
        inbox.pace(WORK, [claimed(n, "of one call") for n in range(size)], 0.0)
    assert inbox.start_size(WORK) == 4 * 4

    inbox.pace(WORK, [claimed(n, "of one call") for n in range(4)], 3.0)
    assert inbox.start_size(WORK) == 0  # they would be started, and wait


@pytest.mark.parametrize(("seconds", "started"), [(0.01, True), (1.0, False)])
def test_what_was_started_with_its_claim_is_started_anew_if_all_workers_were_busy(
    seconds, started
) -> None:
    clock = ManualClock()
    inbox = Inbox([WORK], clock, workers=4)
    claims = [claimed(number, "of one call") for number in range(2)]
    for claim in claims:
        claim.started = True

    inbox.add(WORK, claims)
    clock.advance(seconds=seconds)
    inbox.take()

    assert claims[0].started is started


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
    inbox = inbox_of(workers)
    group = [claimed(number, "of one call") for number in range(4)]

    assert inbox.claim_size(WORK, 100) == 100
    inbox.pace(WORK, group, seconds * len(group))
    assert inbox.claim_size(WORK, 100) == wanted
    assert inbox.claim_size(WORK, 1) == 1


@pytest.mark.parametrize(
    ("attempts", "lease_ms", "largest"),
    [(3, 30_000, LARGEST_BATCH), (1, 30_000, 1), (3, 30, 10), (3, 3, 1)],
)
def test_a_group_is_run_within_a_third_of_the_lease_and_alone_if_there_is_one_attempt(
    attempts, lease_ms, largest
) -> None:
    work = consumer(attempts=attempts, lease_ms=lease_ms)
    inbox = inbox_of(1, work)

    for _ in range(20):
        group = [claimed(number, "of one call") for number in range(inbox.start_size(work))]
        inbox.pace(work, group, 0.001 * len(group) if lease_ms < 30_000 else 0.0)

    assert largest / 2 < inbox.start_size(work) <= largest


def test_no_more_is_claimed_than_a_third_of_the_lease_allows() -> None:
    work = consumer(lease_ms=30)
    inbox = inbox_of(1, work)

    inbox.pace(work, [claimed(1, "of one call")], 0.002)

    assert inbox.claim_size(work, 100) == 5
