"""A worker does the same on every queue: handle, retry, bury."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ontologia import Discard, Retry
from ontologia.queues import CarefulQueue, EventWorker, RetryPolicy, get_current_tenant_id
from ontologia.testing import ManualClock
from ontologia_conformance.queue_world import (
    Env,
    Provider,
    chain,
    event,
    fill,
    take,
    work,
)


def handled(succeeded: int, buried: int = 0):
    """Whether so many came to a good end, and so many to a bad one.

    There may be more good ones: some providers announce dead letters.
    """
    return lambda h: h["succeeded"] >= succeeded and h["dead_lettered"] >= buried


@pytest.mark.req("EDE-051", "EDE-056", "EDE-057")
def test_every_event_is_handled_once_in_order(
    queues: Provider, queue: CarefulQueue, clock: ManualClock
) -> None:
    fill(queue, *range(25))
    seen: list[int] = []

    health = work(
        queue, lambda event, env: seen.append(event.payload["number"]),
        clock=clock, until=handled(25),
    )  # fmt: skip

    assert seen == list(range(25))
    assert (health["succeeded"], health["retried"], health["dead_lettered"]) == (25, 0, 0)
    clock.advance(seconds=3600)
    assert take(queues.open()) == []


@pytest.mark.req("EDE-051", "EDE-055", "EDE-057", "EDE-058")
def test_an_event_that_always_fails_is_buried_after_its_fifth_attempt(
    queues: Provider, queue: CarefulQueue, clock: ManualClock
) -> None:
    bad, _ = fill(queue, 1, 2)
    times: list[float] = []

    def fail(event, env) -> None:
        if event.payload["number"] == 1:
            times.append(clock.monotonic())
            raise ValueError("no such street")

    health = work(queue, fail, clock=clock, until=handled(1, buried=1))

    waits = [after - before for before, after in pairwise(times)]
    assert len(waits) == 4
    least = (0.25, 0.5, 1, 2)  # to the microsecond, as stores keep time
    assert all(wait > each - 1e-6 for wait, each in zip(waits, least, strict=True)), waits
    assert queues.dead_letters() == [(bad.event_id, "no such street")]
    assert (health["retried"], health["dead_lettered"]) == (4, 1)
    assert health["last_error"] == "ValueError: no such street"


@pytest.mark.req("EDE-059")
def test_all_handlers_run_again_and_none_after_one_that_failed(
    queue: CarefulQueue, clock: ManualClock
) -> None:
    fill(queue, 1)
    calls: list[str] = []

    def flaky(event, env) -> None:
        calls.append("flaky")
        if calls.count("flaky") == 1:
            raise OSError("once")

    work(
        queue,
        lambda event, env: calls.append("first"),
        flaky,
        lambda event, env: calls.append("last"),
        clock=clock,
        until=handled(1),
    )

    assert calls == ["first", "flaky", "first", "flaky", "last"]


@pytest.mark.req("EDE-038")
def test_a_handler_works_for_the_tenant_of_its_event(
    queue: CarefulQueue, clock: ManualClock
) -> None:
    for each in chain([event(tenant_id=tenant) for tenant in ("acme", None, "emca")]):
        queue.enqueue(each)
    seen: list[str | None] = []

    work(
        queue, lambda event, env: seen.append(get_current_tenant_id()),
        clock=clock, until=handled(3),
    )  # fmt: skip

    assert seen == ["acme", None, "emca"]
    assert get_current_tenant_id() is None


@pytest.mark.req("EDE-041")
def test_an_event_without_handlers_is_done(
    queues: Provider, queue: CarefulQueue, clock: ManualClock
) -> None:
    queue.enqueue(event(name="nobody.cares"))

    work(queue, clock=clock, until=handled(1))

    assert take(queues.open()) == []
    assert queues.dead_letters() == []


def test_a_handler_says_itself_when_to_try_again_and_when_never(
    queues: Provider, queue: CarefulQueue, clock: ManualClock
) -> None:
    _, hopeless = fill(queue, 1, 2)
    tries: list[float] = []

    def decide(event, env) -> None:
        if event.payload["number"] == 2:
            raise Discard("not ours")
        tries.append(clock.monotonic())
        if len(tries) == 1:
            raise Retry(after=7)

    health = work(queue, decide, clock=clock, until=lambda health: len(tries) == 2)

    assert len(tries) == 2
    assert tries[1] - tries[0] > 7 - 1e-6
    assert queues.dead_letters() == [(hopeless.event_id, "not ours")]
    assert (health["retried"], health["dead_lettered"]) == (1, 1)


def test_one_attempt_may_be_all_there_is(
    queues: Provider, queue: CarefulQueue, clock: ManualClock
) -> None:
    [bad] = fill(queue, 1)

    def fail(event, env) -> None:
        raise RuntimeError

    health = work(
        queue, fail, clock=clock, until=handled(0, buried=1), policy=RetryPolicy(max_attempts=1)
    )  # fmt: skip

    assert queues.dead_letters() == [(bad.event_id, "RuntimeError")]
    assert health["retried"] == 0


@pytest.mark.req("EDE-056")
def test_coroutines_are_handlers_and_see_the_same(queue: CarefulQueue, clock: ManualClock) -> None:
    queue.enqueue(event(1, tenant_id="acme"))
    seen: list[object] = []

    async def later(event, env) -> None:
        seen.append((event.payload["number"], get_current_tenant_id()))
        if len(seen) == 1:
            raise ValueError("once")

    health = work(queue, later, clock=clock, until=handled(1))

    assert seen == [(1, "acme"), (1, "acme")]
    assert health["retried"] == 1


@pytest.mark.req("EDE-056", "EDE-061")
def test_a_worker_may_end_when_its_queue_is_empty_and_begin_again(
    queues: Provider, queue: CarefulQueue, clock: ManualClock
) -> None:
    first, *_ = fill(queue, *range(25))
    seen: list[int] = []

    def handle(event_, env) -> None:
        number = event_.payload["number"]
        seen.append(number)
        if number == 3:
            queue.enqueue(chain([first, event(100)])[1])
        if number == 7 and seen.count(7) == 1:
            raise OSError("once")

    worker = EventWorker(Env(queue, {"parcel.posted": [handle]}))
    worker.run_until_empty()

    assert seen == [*range(25), 100]  # and the one that failed is not waited for
    other = queues.open()
    assert take(other) == []  # what is done is acknowledged
    other.settle()  # where a worker has its share of the events, others get it only then
    clock.advance(seconds=1)
    worker.run_until_empty()
    assert seen[26:] == [7]
    assert worker.health_snapshot()["running"] is False
    worker.stop()
    fill(queue, 200)
    worker.run_until_empty()
    assert len(seen) == 27  # one that was stopped runs no more


@pytest.mark.req("EDE-061")
def test_a_worker_that_is_stopped_hands_back_what_it_has_not_begun(
    queues: Provider, queue: CarefulQueue
) -> None:
    fill(queue, 1, 2, 3)
    seen: list[int] = []

    def handle(event, env) -> None:
        seen.append(event.payload["number"])
        worker.stop()

    worker = EventWorker(Env(queue, {"parcel.posted": [handle]}))
    worker.run_forever()

    assert seen == [1]
    health = worker.health_snapshot()
    assert (health["running"], health["processed"], health["succeeded"]) == (False, 1, 1)
    rest = take(queues.open())
    assert [(d.event.payload["number"], d.attempt_number) for d in rest] == [(2, 1), (3, 1)]
