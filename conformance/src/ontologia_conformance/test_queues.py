"""What every queue does: who is given which event, how often, and when."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from ontologia.errors import InvalidValueError, SessionClosedError, UnknownReceiptError
from ontologia.queues import CarefulQueue, DomainEvent, EventDelivery
from ontologia.testing import ManualClock
from ontologia_conformance.queue_world import (
    PATIENCE,
    Provider,
    event,
    fill,
    numbers,
    somebody_waits,
    take,
    take_all,
)

ENDS = {
    "ack": lambda queue, receipt: queue.ack(receipt),
    "nack": lambda queue, receipt: queue.nack(receipt, retry_after_seconds=1),
    "dead_letter": lambda queue, receipt: queue.dead_letter(receipt, reason="lost"),
    "abandon": lambda queue, receipt: queue.abandon(receipt),
}


# -- what comes out -------------------------------------------------------------------------------


@pytest.mark.req("EDE-042")
def test_a_queue_says_what_it_is(queues: Provider, queue: CarefulQueue) -> None:
    assert isinstance(queue, CarefulQueue)
    assert queue.provider_key == queues.key
    assert queue.describe().startswith(f"{queues.key}: ")


@pytest.mark.req("EDE-042", "EDE-050", "EDE-052")
def test_an_event_comes_out_as_it_went_in(queue: CarefulQueue) -> None:
    payload = {"text": "Żółw 🐢", "deep": [{"n": -(2**63)}, None, 1.5, True], "empty": {}}
    given = DomainEvent.build(
        name="turtle.seen",
        payload=payload,
        tenant_id="acme",
        correlation_id="req-1",
        causation_id="cmd-1",
    )
    queue.enqueue(given)

    [delivery] = take(queue)

    found = delivery.event
    assert (found.name, found.payload, found.event_id) == ("turtle.seen", payload, given.event_id)
    assert (found.tenant_id, found.correlation_id) == ("acme", "req-1")
    assert (found.causation_id, found.root_event_id, found.chain_depth) == ("cmd-1", None, 0)
    assert found.occurred_at.utcoffset() == timedelta(0)
    assert delivery.attempt_number == 1
    assert isinstance(delivery.receipt_handle, str)


@pytest.mark.req("EDE-031")
def test_an_event_is_delivered_with_its_own_time(queue: CarefulQueue) -> None:
    when = datetime(2026, 3, 1, 11, 30, 0, 250, tzinfo=timezone(timedelta(hours=2)))
    given = replace(event(), occurred_at=when)
    queue.enqueue(given)
    newer = replace(event(2), root_event_id=given.event_id)
    queue.enqueue(newer)

    first, second = take(queue)

    assert (first.event, second.event) == (given, newer)  # in the order of enqueueing


def test_an_event_keeps_its_place_in_a_chain(queue: CarefulQueue) -> None:
    queue.enqueue(DomainEvent("a", {}, "id-2", event().occurred_at, None, None, "id-1", "id-0", 3))

    [delivery] = take(queue)

    assert (delivery.event.root_event_id, delivery.event.chain_depth) == ("id-0", 3)
    assert (delivery.event.causation_id, delivery.event.tenant_id) == ("id-1", None)


@pytest.mark.req("EDE-044")
def test_the_oldest_come_first_and_no_more_than_asked_for(queue: CarefulQueue) -> None:
    fill(queue, *range(25))

    assert numbers(take(queue, 3)) == [0, 1, 2]
    assert numbers(take(queue, 1)) == [3]
    assert numbers(take(queue, 10)) == list(range(4, 14))
    assert numbers(take_all(queue)) == list(range(14, 25))


@pytest.mark.req("EDE-044")
def test_an_empty_queue_gives_nothing(queue: CarefulQueue) -> None:
    assert queue.dequeue(10, 0) == []
    assert queue.dequeue(10, 0.02) == []


@pytest.mark.req("EDE-044")
def test_an_event_ends_the_wait_for_it(queues: Provider, queue: CarefulQueue) -> None:
    other = queues.open()
    with somebody_waits(queue) as waiting:
        other.enqueue(event(7))

        assert numbers(waiting.result(PATIENCE)) == [7]


@pytest.mark.req("EDE-046")
@pytest.mark.parametrize("seconds", [0.5, 3600])
def test_a_retry_that_comes_due_ends_the_wait_for_it(
    queue: CarefulQueue, clock: ManualClock, seconds: float
) -> None:
    fill(queue, 1)
    [first] = take(queue)
    queue.nack(first.receipt_handle, retry_after_seconds=seconds)
    with somebody_waits(queue) as waiting:
        clock.advance(seconds=seconds)

        [again] = waiting.result(PATIENCE)

    assert again.attempt_number == 2


@pytest.mark.req("EDE-045")
def test_what_is_in_flight_is_given_to_nobody(queues: Provider, queue: CarefulQueue) -> None:
    fill(queue, 1, 2)

    assert numbers(take(queue)) == [1, 2]
    assert take(queue) == []
    assert take(queues.open()) == []


# -- how it ends ----------------------------------------------------------------------------------


@pytest.mark.req("EDE-046")
def test_what_is_acknowledged_never_comes_back(
    queues: Provider, queue: CarefulQueue, clock: ManualClock
) -> None:
    fill(queue, 1)
    [delivery] = take(queue)

    queue.ack(delivery.receipt_handle)
    queue.settle()
    clock.advance(seconds=3600)

    assert take(queue) == []
    assert take(queues.open()) == []
    assert queues.dead_letters() == []


@pytest.mark.req("EDE-046", "EDE-052")
def test_what_failed_comes_back_after_its_time_as_the_next_attempt(
    queue: CarefulQueue, clock: ManualClock
) -> None:
    [given] = fill(queue, 1)
    receipts = set()
    for attempt in (1, 2, 3):
        [delivery] = take(queue)
        assert delivery.attempt_number == attempt
        assert delivery.event.event_id == given.event_id
        receipts.add(delivery.receipt_handle)

        queue.nack(delivery.receipt_handle, retry_after_seconds=2.5)

        clock.advance(seconds=2.4)
        assert take(queue) == []
        clock.advance(seconds=0.1)
    assert len(receipts) == 3


def test_what_failed_without_a_wait_comes_back_at_once(queue: CarefulQueue) -> None:
    fill(queue, 1)
    [delivery] = take(queue)

    queue.nack(delivery.receipt_handle, retry_after_seconds=0, reason="no van")

    [again] = take(queue)
    assert again.attempt_number == 2


@pytest.mark.req("EDE-047")
def test_a_dead_letter_is_kept_with_its_reason_and_never_comes_back(
    queues: Provider, queue: CarefulQueue, clock: ManualClock
) -> None:
    first, _ = fill(queue, 1, 2)
    delivery, other = take(queue)

    queue.dead_letter(delivery.receipt_handle, reason="no such street: Żółwia 1")
    queue.ack(other.receipt_handle)
    queue.settle()
    clock.advance(seconds=3600)

    assert take(queue) == []
    assert queues.dead_letters() == [(first.event_id, "no such street: Żółwia 1")]


@pytest.mark.req("EDE-061")
def test_what_was_not_tried_comes_back_at_once_to_its_place_as_the_same_attempt(
    queue: CarefulQueue,
) -> None:
    fill(queue, 1, 2, 3, 4)
    batch = take(queue, 3)

    for delivery in (batch[2], batch[1]):
        queue.abandon(delivery.receipt_handle)

    again = take_all(queue)
    assert numbers(again) == [2, 3, 4]
    assert [delivery.attempt_number for delivery in again] == [1, 1, 1]


def test_what_was_not_tried_again_counts_only_what_was(
    queue: CarefulQueue, clock: ManualClock
) -> None:
    fill(queue, 1)
    queue.nack(take(queue)[0].receipt_handle, retry_after_seconds=1)
    clock.advance(seconds=1)
    queue.abandon(take(queue)[0].receipt_handle)

    [again] = take(queue)

    assert again.attempt_number == 2


@pytest.mark.req("EDE-048")
@pytest.mark.parametrize("end", ENDS)
def test_a_receipt_that_nobody_was_given_ends_nothing(queue: CarefulQueue, end: str) -> None:
    fill(queue, 1)
    [delivery] = take(queue)

    with pytest.raises(UnknownReceiptError, match="nobody's"):
        ENDS[end](queue, "nobody's")

    queue.ack(delivery.receipt_handle)


@pytest.mark.req("EDE-048")
@pytest.mark.parametrize("second", ENDS)
@pytest.mark.parametrize("first", ENDS)
def test_a_receipt_is_used_once(
    queue: CarefulQueue, clock: ManualClock, first: str, second: str
) -> None:
    fill(queue, 1)
    [delivery] = take(queue)
    ENDS[first](queue, delivery.receipt_handle)

    with pytest.raises(UnknownReceiptError):
        ENDS[second](queue, delivery.receipt_handle)

    clock.advance(seconds=1)
    assert len(take(queue)) == (first in ("nack", "abandon"))


@pytest.mark.req("EDE-048")
def test_the_receipt_of_an_earlier_attempt_does_not_end_the_next(
    queues: Provider, queue: CarefulQueue
) -> None:
    fill(queue, 1)
    [first] = take(queue)
    queue.nack(first.receipt_handle, retry_after_seconds=0)
    [second] = take(queue)

    with pytest.raises(UnknownReceiptError):
        queue.dead_letter(first.receipt_handle, reason="late")

    queue.ack(second.receipt_handle)
    assert queues.dead_letters() == []


# -- many at once ---------------------------------------------------------------------------------


@pytest.mark.req("EDE-043", "EDE-045")
def test_threads_that_share_a_queue_lose_and_double_nothing(queue: CarefulQueue) -> None:
    _lose_and_double_nothing([queue] * 3)


@pytest.mark.req("EDE-045", "EDE-050")
def test_workers_with_queues_of_their_own_lose_and_double_nothing(queues: Provider) -> None:
    _lose_and_double_nothing([queues.open() for _ in range(3)])


def _lose_and_double_nothing(taking: list[CarefulQueue]) -> None:
    """Three threads enqueue while three take, of whom each fails one in seven once."""
    each = 60
    acked: Counter[int] = Counter()
    lock = threading.Lock()
    enough = threading.Event()

    def give(first: int) -> None:
        for number in range(first, first + each):
            taking[0].enqueue(event(number))

    def handle(queue: CarefulQueue, delivery: EventDelivery) -> None:
        number = delivery.event.payload["number"]
        if number % 7 == 0 and delivery.attempt_number == 1:
            queue.nack(delivery.receipt_handle, retry_after_seconds=0)
            return
        with lock:
            acked[number] += 1
            if sum(acked.values()) >= 3 * each:
                enough.set()
        queue.ack(delivery.receipt_handle)

    def serve(queue: CarefulQueue) -> None:
        while not enough.is_set():
            for delivery in queue.dequeue(10, 0.02):
                handle(queue, delivery)

    with ThreadPoolExecutor() as pool:
        serving = [pool.submit(serve, queue) for queue in taking]
        for giving in [pool.submit(give, number * each) for number in range(3)]:
            giving.result(PATIENCE)
        arrived = enough.wait(PATIENCE)
        enough.set()
        for done in serving:
            done.result(PATIENCE)

    assert arrived
    for queue in taking:
        queue.settle()
    assert take_all(taking[0]) == []
    assert acked == Counter(range(3 * each))


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "10", None])
def test_a_batch_has_a_size(queue: CarefulQueue, size: object) -> None:
    with pytest.raises(InvalidValueError, match="batch_size"):
        queue.dequeue(size, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", None])
def test_times_are_numbers_of_seconds(queue: CarefulQueue, seconds: float) -> None:
    fill(queue, 1)
    [delivery] = take(queue)

    with pytest.raises(InvalidValueError, match="timeout_seconds"):
        queue.dequeue(1, seconds)
    with pytest.raises(InvalidValueError, match="retry_after_seconds"):
        queue.nack(delivery.receipt_handle, retry_after_seconds=seconds)

    queue.ack(delivery.receipt_handle)


def test_only_events_are_enqueued(queue: CarefulQueue) -> None:
    with pytest.raises(TypeError, match="DomainEvent"):
        queue.enqueue({"name": "parcel.posted"})  # type: ignore[arg-type]

    assert take(queue) == []


def test_a_closed_queue_says_so_and_whoever_waits_is_told(queue: CarefulQueue) -> None:
    fill(queue, 1)
    [delivery] = take(queue)
    with somebody_waits(queue) as waiting:
        queue.close()
        with pytest.raises(SessionClosedError, match="closed"):
            waiting.result(PATIENCE)
    queue.close()

    with pytest.raises(SessionClosedError):
        queue.dequeue(1, 0)
    with pytest.raises(SessionClosedError):
        queue.enqueue(event())
    with pytest.raises(UnknownReceiptError):
        queue.ack(delivery.receipt_handle)


def test_the_time_of_an_event_is_in_utc(queue: CarefulQueue) -> None:
    fill(queue, 1)

    assert take(queue)[0].event.occurred_at.tzinfo is UTC
