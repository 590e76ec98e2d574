"""What other designs get wrong where many write at once: only PostgreSQL can show it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from ontologia.errors import LockContentionError
from ontologia.store.events.claims import Peek
from ontologia.store.events.leases import Done
from ontologia.store.events.store import EventStore
from ontologia.store.postgres.wire import Last, Wire
from ontologia.store.rows import Claim, ConsumerRow
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import (
    LEASE,
    POST,
    POSTED,
    ParcelPosted,
    claim,
    claim_of,
    numbers,
    post,
)

Open = Callable[..., EventStore]
Ask = Callable[[str], list[Any]]
WAITING = (
    "SELECT COUNT(*) FROM pg_stat_activity"
    " WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


def until_it_waits(future: Future[Any], ask: Ask) -> None:
    """Until the other thread waits for a lock, or is done."""
    deadline = time.monotonic() + 10
    while ask(WAITING) == [(0,)] and not future.done():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def take(store: EventStore, tx: Any, limit: int) -> list[str]:
    """The taking step of a claim, in a transaction of the test's; the events."""
    consumer = store.consumers.register(POST, "ship", [POSTED])
    lease = store.claims.lease("s1", LEASE, 0)
    rows = store.claims.dialect.take(tx, consumer, None, limit, lease, guess=False)
    return [row[0] for row in rows]


def held(store: EventStore, handler: str = "ship") -> list[Claim]:
    consumer = store.consumers.register(POST, handler, [POSTED])
    return store.claims.claim(
        consumer, [POSTED], session_id="s1", limit=9, lease_ms=LEASE, policy=store.policy
    )


@pytest.mark.req("ONT-130", "SQL-128")
def test_a_producer_that_commits_late_loses_nothing_and_blocks_nobody(open_events: Open) -> None:
    store, another = open_events(), open_events()
    claim(another)

    with store.transaction() as tx:
        store.log.add(tx, [store.log.given_row(ParcelPosted(number=1), POST)])
        tx.all("SELECT 1")  # it is sent when somebody asks
        post(another, 2)
        assert numbers(claim(another)) == [2]
        post(another, 3)
        assert numbers(claim(another)) == [3]

    assert numbers(claim(another)) == [1]


@pytest.mark.req("ONT-140")
def test_a_consumer_that_registers_during_an_enqueue_gets_the_event(open_events: Open) -> None:
    store, another = open_events(), open_events()

    with store.transaction() as tx:
        store.log.add(tx, [store.log.given_row(ParcelPosted(number=1), POST)])
        assert claim(another, "late") == []

    assert numbers(claim(another, "late")) == [1]
    assert numbers(claim(another, "later")) == [1]


@pytest.mark.req("SQL-128", "ONT-133")
def test_takers_at_the_same_time_neither_wait_nor_share(open_events: Open) -> None:
    store, another = open_events(lock_timeout_ms=1000), open_events(lock_timeout_ms=1000)
    ids = post(store, *range(6))
    claim(store, "somebody")  # everything is dispatched
    claim(another, limit=1)

    with store.transaction() as tx:
        assert take(store, tx, 2) == ids[1:3]
        assert numbers(claim(another, limit=2)) == [3, 4]

    assert numbers(claim(another)) == [5]


@pytest.mark.req("ONT-121")
@pytest.mark.parametrize("question", ["fence", "lock_claim"])
def test_a_claim_that_was_checked_is_held_until_the_transaction_ends(
    open_events: Open, clock: ManualClock, question: str
) -> None:
    store, another = open_events(), open_events()
    [event_id] = post(store, 1)
    [mine] = held(store)
    whose = {"event_id": event_id, "handler_id": "ship", "token": mine.token, "session_id": None}
    now = claim_of(store, event_id)["claimed_at"]

    with store.transaction() as tx:
        assert tx.one(store._sql[question], {**whose, "now": now}) is not None
        clock.advance(seconds=LEASE / 1000)
        assert claim(another, session="s2") == []

    assert numbers(claim(another, session="s2")) == [1]


@pytest.mark.req("ONT-121")
def test_whoever_waits_for_a_claim_sees_what_became_of_it(open_events: Open, ask: Ask) -> None:
    store, another = open_events(), open_events()
    [event_id] = post(store, 1)
    [mine] = held(store)

    with ThreadPoolExecutor(1) as threads:
        with store.transaction() as tx:
            assert store.claims.check(tx, mine)
            released = threads.submit(another.release, "ship", event_id, error="too late")
            until_it_waits(released, ask)
            assert list(store.claims.fenced(tx, "ack", [mine], "2026")) == [(event_id,)]
        released.result()

    row = claim_of(store, event_id)
    assert (row["attempts"], row["last_error"]) == (0, None)
    assert row["ack_at"] is not None


@pytest.mark.req("ONT-116")
def test_refused_at_hand_out_is_not_empty(open_events: Open, ask: Ask) -> None:
    store, another = open_events(), open_events()
    claim(another)  # registered
    post(store, 1)

    with ThreadPoolExecutor(1) as threads:
        with store.transaction() as tx:
            assert tx.lock_dispatch(wait=False)
            store.claims.dispatch_all(tx)
            got = threads.submit(claim, another)
            until_it_waits(got, ask)
        assert numbers(got.result()) == [1]


def test_hand_out_by_another_does_not_keep_a_taker_from_what_is_ready(open_events: Open) -> None:
    store, another = open_events(), open_events(lock_timeout_ms=1000)
    post(store, 1, 2)
    assert numbers(claim(another, limit=1)) == [1]

    with store.transaction() as tx:
        assert tx.lock_dispatch(wait=True)
        post(another, 3)  # and nobody keeps a producer waiting
        assert numbers(claim(another)) == [2]

    assert numbers(claim(another)) == [3]


def test_only_one_hands_out_at_a_time_within_a_schema(
    open_events: Open, postgres_uri: str, uri: str
) -> None:
    store, another = open_events(), open_events(lock_timeout_ms=50)

    with store.transaction() as tx, another.transaction() as theirs:
        assert tx.lock_dispatch(wait=False)
        assert not theirs.lock_dispatch(wait=False)
        with pytest.raises(LockContentionError):
            claim(another, "new")  # registration needs it as well

    assert claim(another, "new") == []


# -- handing out on the way of a claim ----------------------------------------------------------


def looked(store: EventStore, limit: int = 9) -> list[Claim]:
    """Look, and claim by what was seen: as a run does."""
    consumer = store.consumers.register(POST, "ship", [POSTED])
    peek = store.claims.peek([consumer.id])
    span = {"session_id": "s1", "limit": limit, "lease_ms": LEASE, "policy": store.policy}
    return store.claims.claim(consumer, [POSTED], peek=peek, **span)  # type: ignore[arg-type]


def of(claims: list[Claim]) -> list[str]:
    return [claim.event.id for claim in claims]


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many statements went with each message."""
    sent: list[int] = []
    exchange = Wire._exchange

    def counted(wire: Wire, then: Last | None = None) -> bool:
        sent.append(len(wire._queue))
        return exchange(wire, then)

    monkeypatch.setattr(Wire, "_exchange", counted)
    return sent


def test_a_claim_of_what_is_new_is_a_look_and_one_message(
    open_events: Open, messages: list[int]
) -> None:
    store = open_events()
    looked(store)
    ids = post(store, 1, 2)
    consumer = store.consumers.register(POST, "ship", [POSTED])
    peek = store.claims.peek([consumer.id])
    assert (peek.fresh, peek.little) == (True, True)
    messages.clear()

    span = {"session_id": "s1", "limit": 9, "lease_ms": LEASE, "policy": store.policy}
    got = store.claims.claim(consumer, [POSTED], peek=peek, **span)  # type: ignore[arg-type]

    assert of(got) == ids
    assert len(messages) == 1
    assert not store.claims.peek([consumer.id]).fresh


def test_starts_renewals_conflicts_and_acks_are_one_message_each(
    open_events: Open, messages: list[int]
) -> None:
    store = open_events()
    post(store, 1, 2)
    claims = held(store)
    messages.clear()

    store.claims.settle([], claims, LEASE)
    store.claims.renew(claims)
    store.claims.run_again(claims[0])
    store.claims.settle([Done(each) for each in claims])

    assert len(messages) == 4


@pytest.mark.req("ONT-116")
def test_refused_at_hand_out_on_the_way_is_not_empty(open_events: Open, ask: Ask) -> None:
    store, another = open_events(), open_events()
    looked(another)
    ids = post(store, 1)

    with ThreadPoolExecutor(1) as threads:
        with store.transaction() as tx:
            assert tx.lock_dispatch(wait=False)
            got = threads.submit(looked, another)
            until_it_waits(got, ask)
            store.claims.dispatch_all(tx)
        assert of(got.result()) == ids


@pytest.mark.req("ONT-116")
def test_what_another_hands_out_is_not_handed_out_on_the_way(open_events: Open) -> None:
    store, another = open_events(), open_events()
    [first] = post(store, 1)
    assert of(looked(another, limit=1)) == [first]
    [second, third] = post(store, 2, 3)
    assert len(claim(store, "other")) == 3  # handed out to both
    post(store, 4)

    with store.transaction() as tx:
        assert tx.lock_dispatch(wait=False)
        assert of(looked(another)) == [second, third]

    consumer = another.consumers.register(POST, "ship", [POSTED])
    assert another.claims.peek(
        [consumer.id]
    ).fresh  # the fourth is still there, for whoever is next
    assert len(looked(another)) == 1


def test_of_a_large_backlog_the_most_urgent_is_claimed_first(open_events: Open) -> None:
    store = open_events()
    looked(store)
    rows = [store.log.given_row(ParcelPosted(number=n), POST) for n in range(5_001)]
    with store.transaction() as tx:
        store.log.add(tx, rows)
    [urgent] = post(store, 9, priority=900)
    consumer = store.consumers.register(POST, "ship", [POSTED])
    assert not store.claims.peek([consumer.id]).little

    assert of(looked(store, limit=1)) == [urgent]


# -- claiming on a guess ------------------------------------------------------------------------


def guessed(store: EventStore, consumer: ConsumerRow, limit: int = 9) -> list[Claim]:
    """Claim without a look: as a run of one handler does that was woken."""
    return store.claims.claim(
        consumer,
        [POSTED],
        session_id="s1",
        limit=limit,
        lease_ms=LEASE,
        policy=store.policy,
        peek=Peek.guess(consumer.id),
    )


def test_a_guess_is_one_message(open_events: Open, messages: list[int]) -> None:
    store = open_events()
    ship = store.consumers.register(POST, "ship", [POSTED])
    first, second = post(store, 1, 2)
    messages.clear()

    assert of(guessed(store, ship, limit=1)) == [first]
    assert len(messages) == 1
    assert of(guessed(store, ship)) == [second]


def test_a_guess_takes_nothing_for_a_consumer_that_is_paused(open_events: Open) -> None:
    store = open_events()
    ship = store.consumers.register(POST, "ship", [POSTED])
    ids = post(store, 1)
    store.pause(POST, "ship")

    assert guessed(store, ship) == []
    store.resume(POST, "ship")
    assert of(guessed(store, ship)) == ids


def test_a_guess_for_a_consumer_that_was_forgotten_takes_nothing(open_events: Open) -> None:
    store = open_events()
    ship = store.consumers.register(POST, "ship", [POSTED])
    assert store.forget(POST, "ship")
    post(store, 1)

    assert guessed(store, ship) == []
    assert numbers(claim(store, "ship")) == [1]
    assert store.check() == []


def test_a_guess_does_not_wait_for_another_session_that_dispatches(open_events: Open) -> None:
    """Nor takes what is ready: there may be something more urgent that is not dispatched."""
    store, another = open_events(), open_events(lock_timeout_ms=50)
    ship = another.consumers.register(POST, "ship", [POSTED])
    first, second = post(store, 1, 2)
    assert of(guessed(another, ship, limit=1)) == [first]
    post(store, 3, priority=900)

    with store.transaction() as tx:
        assert tx.lock_dispatch(wait=False)
        assert guessed(another, ship) == []

    assert of(looked(another))[1:] == [second]


@pytest.mark.thorough
def test_of_a_large_backlog_a_guess_takes_nothing(open_events: Open) -> None:
    store = open_events()
    ship = store.consumers.register(POST, "ship", [POSTED])
    post(store, 1, 2)
    assert len(guessed(store, ship, limit=1)) == 1  # the other one is ready
    rows = [store.log.given_row(ParcelPosted(number=n), POST) for n in range(5_001)]
    with store.transaction() as tx:
        store.log.add(tx, rows)

    assert guessed(store, ship) == []
