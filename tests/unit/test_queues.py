"""Named events, retry policies, the choice of a queue, and a worker on a queue that has no extras."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta

import pytest

from ontologia.errors import (
    ConfigError,
    ConnectionLostError,
    InvalidValueError,
    LockContentionError,
    UnknownReceiptError,
)
from ontologia.queues import (
    CarefulQueue,
    Delivered,
    DomainEvent,
    EventDelivery,
    EventWorker,
    InMemoryEventQueue,
    RetryPolicy,
    get_current_tenant_id,
    open_queue,
    set_current_tenant_id,
)
from ontologia.queues.current import delivered
from ontologia_conformance.queue_world import Env, event, fill, numbers, take

# -- events ---------------------------------------------------------------------------------------


@pytest.mark.req("EDE-031")
def test_an_event_is_built_with_an_id_and_a_time_of_its_own():
    built = DomainEvent.build(
        name="shipment.confirmed",
        payload={"shipment_id": "s1"},
        tenant_id="acme",
        correlation_id="req-abc",
        causation_id="cmd-xyz",
    )

    assert (built.name, built.payload) == ("shipment.confirmed", {"shipment_id": "s1"})
    assert (built.tenant_id, built.correlation_id) == ("acme", "req-abc")
    assert (built.causation_id, built.root_event_id, built.chain_depth) == ("cmd-xyz", None, 0)
    assert built.event_id[14] == "7"
    assert built.occurred_at.utcoffset() == timedelta(0)


@pytest.mark.req("EDE-032")
def test_nothing_of_an_event_can_be_assigned_and_no_two_have_one_id():
    first, second = event(), event()

    assert first.event_id != second.event_id
    for field in dataclasses.fields(first):
        with pytest.raises(AttributeError):
            setattr(first, field.name, "other")


def test_an_event_has_a_copy_of_its_payload():
    payload = {"items": [1]}
    built = DomainEvent.build(name="a", payload=payload)

    payload["items"].append(2)

    assert built.payload == {"items": [1]}


@pytest.mark.parametrize(
    "payload", [None, [], "text", {"x": float("nan")}, {"x": "\0"}, {1: 2}, {"x": object()}]
)
def test_a_payload_is_a_json_object(payload):
    with pytest.raises(InvalidValueError, match=r"^a\.b: "):
        DomainEvent.build(name="a.b", payload=payload)


@pytest.mark.parametrize("name", ["", "*", None, 5, "x" * 201, "nul\0"])
def test_a_name_is_one_that_events_can_have(name):
    with pytest.raises(InvalidValueError):
        DomainEvent.build(name=name, payload={})


@pytest.mark.parametrize("field", ["tenant_id", "correlation_id", "causation_id"])
def test_ids_are_text_or_nothing(field):
    with pytest.raises(InvalidValueError, match=field):
        DomainEvent.build(name="a", payload={}, **{field: 5})


@pytest.mark.req("EDE-052")
def test_a_delivery_cannot_be_changed():
    delivery = EventDelivery(event(), "r1", 1)

    with pytest.raises(AttributeError):
        delivery.attempt_number = 2


# -- policies -------------------------------------------------------------------------------------


@pytest.mark.req("EDE-053", "EDE-054")
def test_the_default_policy_doubles_up_to_ten_seconds():
    policy = RetryPolicy()

    assert (policy.max_attempts, policy.base_delay_seconds) == (5, 0.25)
    assert policy.max_delay_seconds == 10.0
    delays = [policy.compute_delay_seconds(n) for n in range(1, 8)]
    assert delays == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert policy.compute_delay_seconds(100_000) == 10.0
    with pytest.raises(AttributeError):
        policy.max_attempts = 6


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"base_delay_seconds": -1},
        {"base_delay_seconds": float("nan")},
        {"max_delay_seconds": float("inf")},
        {"max_delay_seconds": "10"},
    ],
)
def test_a_policy_that_cannot_be_is_refused(wrong):
    with pytest.raises(InvalidValueError, match=next(iter(wrong))):
        RetryPolicy(**wrong)


def test_attempts_are_counted_from_one():
    with pytest.raises(InvalidValueError, match="attempt_number"):
        RetryPolicy().compute_delay_seconds(0)


# -- the choice of a provider ---------------------------------------------------------------------


@pytest.mark.req("EDE-043", "EDE-051")
def test_a_provider_is_chosen_by_its_name_alone(session, clock):
    for provider in ("inmemory", "store"):
        queue = open_queue(provider, session=session, group="mail")
        assert queue.provider_key == provider
        assert isinstance(queue, CarefulQueue)

    in_memory = open_queue("inmemory", session=session)
    in_memory.enqueue(event())
    in_memory.nack(in_memory.dequeue(1, 0)[0].receipt_handle, retry_after_seconds=5)
    clock.advance(seconds=5)
    assert in_memory.dequeue(1, 0)[0].attempt_number == 2


@pytest.mark.req("EDE-049")
@pytest.mark.parametrize(
    ("provider", "words"),
    [
        ("kafka", "needs bootstrap_servers"),
        ("none", "none means no queue at all"),
        ("rabbit", "no queue provider 'rabbit'; the providers are inmemory, kafka and store"),
        (None, "no queue provider None"),
    ],
)
def test_a_provider_that_there_is_not_is_refused(provider, words):
    with pytest.raises(ConfigError, match=words):
        open_queue(provider)


def test_a_setting_that_no_queue_has_is_refused():
    with pytest.raises(ConfigError, match="topics"):
        open_queue("inmemory", topics="parcels")
    with pytest.raises(ConfigError, match="needs session="):
        open_queue("store", group="mail")


# -- in memory ------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.req("EDE-043")
def test_ten_threads_on_the_queue_in_memory_lose_and_double_nothing():
    queue = InMemoryEventQueue()
    each, acked, lock = 2_000, Counter(), threading.Lock()

    def give(first):
        for number in range(first, first + each):
            queue.enqueue(event(number))

    def serve(_):
        seen = []
        while batch := queue.dequeue(10, 1):
            for delivery in batch:
                number = delivery.event.payload["number"]
                if number % 5 == 0 and delivery.attempt_number == 1:
                    queue.nack(delivery.receipt_handle, retry_after_seconds=0)
                elif number % 7 == 0 and delivery.attempt_number == 1 and number not in back:
                    back.add(number)
                    queue.abandon(delivery.receipt_handle)
                else:
                    seen.append(number)
                    queue.ack(delivery.receipt_handle)
        with lock:
            acked.update(seen)

    back: set[int] = set()
    with ThreadPoolExecutor(10) as pool:
        giving = [pool.submit(give, n * each) for n in range(5)]
        serving = [pool.submit(serve, n) for n in range(5)]
        for done in giving + serving:
            done.result(60)

    assert acked == Counter(range(5 * each))


@pytest.mark.req("EDE-047")
def test_the_dead_letters_in_memory_have_event_reason_and_attempt():
    queue = InMemoryEventQueue()
    [given] = fill(queue, 1)
    [delivery] = take(queue)

    queue.dead_letter(delivery.receipt_handle, reason="no van")

    assert queue.dead_letters == [(given, "no van", 1)]
    assert queue.describe() == "inmemory: 0 waiting, 0 in flight, 0 for later, 1 dead letters"


def test_the_receipt_of_another_queue_is_unknown():
    first, second = InMemoryEventQueue(), InMemoryEventQueue()
    fill(first, 1)
    fill(second, 1)
    take(second)

    with pytest.raises(UnknownReceiptError):
        second.ack(take(first)[0].receipt_handle)


# -- the worker -----------------------------------------------------------------------------------


class Plain:
    """A queue with what the protocol asks for and no more; and one that can be made to fail."""

    provider_key = "plain"

    def __init__(self):
        self.inner = InMemoryEventQueue()
        self.failing = []

    def _fail(self):
        if self.failing:
            raise self.failing.pop()

    def enqueue(self, event):
        self.inner.enqueue(event)

    def dequeue(self, batch_size, timeout_seconds):
        self._fail()
        self.asked = (batch_size, timeout_seconds)
        return self.inner.dequeue(batch_size, 0)

    def ack(self, receipt_handle):
        self._fail()
        self.inner.ack(receipt_handle)

    def nack(self, receipt_handle, *, retry_after_seconds):
        self._fail()
        self.inner.nack(receipt_handle, retry_after_seconds=retry_after_seconds)

    def dead_letter(self, receipt_handle, *, reason):
        self._fail()
        self.inner.dead_letter(receipt_handle, reason=reason)

    def describe(self):
        return "plain"


def worker_on(queue, *handlers, **options):
    """A worker that stops when one of its handlers says so: they are given it."""

    def bound(handler):
        return lambda event, env: handler(event, worker)

    worker = EventWorker(Env(queue, {"parcel.posted": [bound(h) for h in handlers]}), **options)
    return worker


@pytest.mark.req("EDE-056", "EDE-061")
def test_a_queue_without_extras_will_do():
    queue = Plain()
    fill(queue, 1, 2)
    seen = []

    def handle(event, worker):
        seen.append((event.payload["number"], delivered.get()))
        worker.stop()

    worker_on(queue, handle).run_forever()

    assert not isinstance(queue, CarefulQueue)
    assert queue.asked == (10, 0.5)
    [(number, handling)] = seen
    assert (number, handling.attempt, handling.claim) == (1, 1, None)
    [again] = queue.inner.dequeue(10, 0)  # handed back the only way there is: as an attempt
    assert (again.event.payload["number"], again.attempt_number) == (2, 2)


@pytest.mark.parametrize("error", [ConnectionLostError("gone"), LockContentionError("x", 1)])
def test_a_queue_that_cannot_be_asked_is_not_empty(error):
    queue = Plain()
    fill(queue, 1, 2)
    queue.failing = [error, error]
    seen = []

    worker_on(queue, lambda event, _: seen.append(event.payload["number"])).run_until_empty()

    assert (seen, queue.failing) == ([1, 2], [])
    assert queue.asked == (10, 0)


def test_where_one_attempt_is_all_there_is_events_are_taken_one_at_a_time():
    queue = Plain()
    fill(queue, 1, 2)
    worker = worker_on(
        queue, lambda event, worker: worker.stop(), retry_policy=RetryPolicy(max_attempts=1)
    )

    worker.run_forever()

    assert queue.asked == (1, 0.5)
    assert numbers(queue.inner.dequeue(10, 0)) == [2]


@pytest.mark.parametrize("error", [ConnectionLostError("gone"), LockContentionError("x", 1)])
@pytest.mark.parametrize("end", ["ack", "nack", "dead_letter", "dequeue"])
def test_a_database_that_is_away_or_busy_is_waited_for(end, error):
    queue = Plain()
    fill(queue, 1, 2)
    calls = []
    if end == "dequeue":
        queue.failing = [error, error]

    def handle(event, worker):
        calls.append(event.payload["number"])
        if len(calls) == 1:
            queue.failing = [] if end == "dequeue" else [error, error]
        if calls[-1] == 2:
            worker.stop()
        elif end in ("nack", "dead_letter"):
            raise ValueError("no van")

    policy = RetryPolicy(2 if end == "nack" else 1, 0 if end == "nack" else 1)
    worker = worker_on(queue, handle, retry_policy=policy)
    worker.run_forever()

    assert queue.failing == []
    assert 2 in calls
    assert len(queue.inner.dead_letters) == (end == "dead_letter")
    assert worker.health_snapshot()["dead_lettered"] == len(queue.inner.dead_letters)


@pytest.mark.req("EDE-060")
def test_the_snapshot_tells_what_became_of_the_events():
    queue = InMemoryEventQueue()
    fill(queue, 1, 2)
    during = []

    def handle(event, worker):
        during.append(worker.health_snapshot())
        if event.payload["number"] == 2:
            worker.stop()
            raise ValueError("no van")

    worker = worker_on(queue, handle)
    nothing = {
        "running": False,
        "processed": 0,
        "succeeded": 0,
        "retried": 0,
        "dead_lettered": 0,
        "last_error": None,
        "last_event_at": None,
    }
    assert worker.health_snapshot() == nothing
    worker.run_forever()

    assert during[0] == nothing | {"running": True}
    after = worker.health_snapshot()
    assert after.pop("last_event_at").endswith("+00:00")
    assert after == {
        "running": False,
        "processed": 2,
        "succeeded": 1,
        "retried": 1,
        "dead_lettered": 0,
        "last_error": "ValueError: no van",
    }


def test_an_interrupt_hands_back_the_event_and_the_rest():
    queue = InMemoryEventQueue()
    fill(queue, 1, 2)

    def interrupted(event, worker):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker_on(queue, interrupted).run_forever()

    assert [(n, d.attempt_number) for d in take(queue) for n in numbers([d])] == [(1, 1), (2, 1)]


def test_a_handler_that_exits_ends_the_worker_and_counts_as_a_failure():
    queue = InMemoryEventQueue()
    fill(queue, 1)

    def leave(event, worker):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        worker_on(queue, leave, retry_policy=RetryPolicy(base_delay_seconds=0)).run_forever()

    assert take(queue)[0].attempt_number == 2


def test_what_was_tried_too_often_without_an_end_is_buried_unseen(caplog):
    queue = InMemoryEventQueue()
    [given, _] = fill(queue, 1, 2)
    for _ in range(3):
        queue.nack(queue.dequeue(1, 0)[0].receipt_handle, retry_after_seconds=0)
    seen = []

    def handle(event, worker):
        seen.append(event.payload["number"])
        worker.stop()

    worker_on(queue, handle, retry_policy=RetryPolicy(max_attempts=3)).run_forever()

    assert seen == [2]
    [letter] = queue.dead_letters
    assert (letter.event, letter.reason) == (given, "it was tried 3 times, the last without an end")
    assert letter.attempt_number == 3
    assert given.event_id in caplog.text


def test_a_batch_of_which_all_crashed_too_often_does_not_end_the_work():
    queue = InMemoryEventQueue()
    fill(queue, *range(12))
    for delivery in queue.dequeue(10, 0):
        queue.nack(delivery.receipt_handle, retry_after_seconds=0)
    seen = []
    worker = worker_on(
        queue,
        lambda event, _: seen.append(event.payload["number"]),
        retry_policy=RetryPolicy(max_attempts=1),
    )

    worker.run_until_empty()

    assert seen == [10, 11]
    health = worker.health_snapshot()
    assert (health["succeeded"], health["dead_lettered"], len(queue.dead_letters)) == (2, 10, 10)


@pytest.mark.parametrize("method", ["ack", "abandon"])
def test_what_a_provider_could_not_write_at_first_is_written_later(monkeypatch, method):
    queue = InMemoryEventQueue()
    fill(queue, 1, 2, 3)
    write, calls = getattr(queue, method), []

    def away(receipt_handle):
        calls.append(receipt_handle)
        if len(calls) == 1:
            raise ConnectionLostError("gone")
        write(receipt_handle)

    def handle(event, worker):
        if method == "abandon":
            raise KeyboardInterrupt

    monkeypatch.setattr(queue, method, away)
    with pytest.raises(KeyboardInterrupt) if method == "abandon" else nullcontext():
        worker_on(queue, handle).run_until_empty()

    monkeypatch.undo()
    assert " 0 in flight" in queue.describe()
    left = queue.dequeue(10, 0)
    assert [each.attempt_number for each in left] == ([] if method == "ack" else [1, 1, 1])


def test_a_failure_is_logged_with_the_event_its_name_and_the_attempt(caplog):
    queue = InMemoryEventQueue()
    [given] = fill(queue, 1)

    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("not even that")

    def fail(event, worker):
        worker.stop()
        raise Mute

    with caplog.at_level(logging.WARNING):
        worker_on(queue, fail).run_forever()

    assert f"event {given.event_id} (parcel.posted): inmemory failed at attempt 1" in caplog.text
    assert "Mute" in caplog.text


def test_a_worker_needs_a_queue_and_runs_once():
    with pytest.raises(ConfigError, match="needs a queue"):
        EventWorker(Env(None, {}))
    queue = InMemoryEventQueue()
    fill(queue, 1)

    def again(event, worker):
        worker.stop()
        with pytest.raises(RuntimeError, match="running already"):
            worker.run_forever()

    worker = worker_on(queue, again)
    worker.run_forever()
    assert worker.health_snapshot()["succeeded"] == 1


@pytest.mark.req("EDE-038")
def test_tenant_and_delivery_are_those_from_before_when_the_worker_is_done():
    queue = InMemoryEventQueue()
    queue.enqueue(event(1, tenant_id="acme"))
    seen = []

    def handle(event, worker):
        seen.append((get_current_tenant_id(), delivered.get()))
        set_current_tenant_id("somebody else")
        worker.stop()

    def run():
        set_current_tenant_id("outside")
        worker_on(queue, handle).run_forever()
        seen.append((get_current_tenant_id(), delivered.get()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)

    (tenant, handling), after = seen
    assert tenant == "acme"
    assert isinstance(handling, Delivered)
    assert after == ("outside", None)
