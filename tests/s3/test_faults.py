"""A bucket that is busy, slow, out of date, or goes away in the middle of something."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from ontologia import OntologiaConfig
from ontologia.errors import ConnectionLostError, DatabaseError
from ontologia.store.s3 import S3EventStore
from ontologia.store.s3 import bucket as bucket_module
from ontologia.store.s3.layout import marker_of
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import (
    DEAD,
    LEASE,
    POST,
    POSTED,
    ParcelPosted,
    claim,
    claim_of,
    numbers,
    post,
)
from ontologia_conformance.tiers import samples
from tests.s3.proxy import Fault, Proxy, Seen

Open = Callable[..., S3EventStore]
PATIENCE = 60.0  # seconds; only a hang takes that long


@pytest.fixture
def open_store(
    proxy: Proxy, s3_uri: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """Open stores that ask through the proxy, each as another process would."""
    monkeypatch.setattr(bucket_module, "_FIRST_PAUSE", 0.001)
    opened: list[S3EventStore] = []

    def open_(**settings: Any) -> S3EventStore:
        opened.append(S3EventStore(s3_uri, config=OntologiaConfig(clock=clock, **settings)))
        return opened[-1]

    yield open_
    proxy.faults.clear()
    assert S3EventStore(s3_uri, clock=clock).check() == []
    for store in opened:
        store.close()


class Troubles(list[Fault]):
    """Faults that meet requests by chance."""

    def __init__(self, seed: int, share: float) -> None:
        super().__init__()
        self._random = Random(seed)
        self._share = share

    def __iter__(self) -> Iterator[Fault]:
        if self._random.random() < self._share:
            yield _AnyRequest(self._random.choice(_KINDS))


class _AnyRequest(Fault):
    def __init__(self, how: dict[str, Any]) -> None:
        super().__init__("", **how)

    def meets(self, seen: Seen) -> bool:
        return not self.stale or (seen.kind == "LIST" and "unfinished" in seen.path)


_KINDS: list[dict[str, Any]] = [
    {"status": 503},
    {"status": 500, "done": True},
    {"status": 409},
    {"silent": True},
    {"silent": True, "done": True},
    {"stale": True},
]


@pytest.mark.sampled
@pytest.mark.req("ONT-185")
@pytest.mark.parametrize("seed", range(samples(12)))
def test_every_event_is_acked_once_by_every_consumer_whatever_fails(
    open_store: Open, proxy: Proxy, seed: int
) -> None:
    number, consumers = 12, ("ship", "bill")
    stores = [open_store() for _ in range(3)]
    for name in consumers:
        stores[0].consumers.register(POST, name, [POSTED])
    proxy.faults = Troubles(seed, 0.1)
    acked: Counter[tuple[str, str]] = Counter()

    def work(which: int) -> None:
        store, name = stores[which], consumers[which % 2]
        consumer = store.consumers.register(POST, name, [POSTED])
        wanted = {(each, name) for each in ids}
        deadline = time.monotonic() + PATIENCE
        while not wanted <= acked.keys():
            assert time.monotonic() < deadline, f"{name} has not {wanted - acked.keys()}"
            claims = store.claims.claim(
                consumer,
                [POSTED],
                session_id=f"s{which}",
                limit=3,
                lease_ms=LEASE,
                policy=store.policy,
            )
            lost = store.claims.acknowledge(claims)
            acked.update((each.event.id, name) for each in claims if each not in lost)

    ids = post(stores[0], *range(number))
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(work, range(3)))

    assert acked == {(event_id, name): 1 for event_id in ids for name in consumers}
    proxy.faults = []
    late = open_store()
    for name in consumers:
        assert claim(late, name) == []
    assert late.claims.look(POST).markers == []


@pytest.mark.req("ONT-185")
def test_a_listing_that_is_out_of_date_shows_new_events_later_and_old_ones_not_again(
    open_store: Open, proxy: Proxy
) -> None:
    store = open_store()
    [done, held] = post(store, 1, 2)
    claim(store)
    store.ack("ship", done)
    other = open_store()
    proxy.fail("LIST", "unfinished", stale=True, times=4)
    post(store, 3)

    assert claim(store) == []
    assert claim(other) == []
    assert claim_of(store, done)["ack_at"] is not None
    proxy.faults.clear()
    assert numbers(claim(other)) == [3]
    assert claim_of(store, held)["session_id"] == "s1"


@pytest.mark.req("ONT-185")
def test_a_claim_whose_answer_took_longer_than_its_lease_is_another_processs(
    open_store: Open, proxy: Proxy, clock: ManualClock
) -> None:
    store, other = open_store(), open_store()
    [event_id] = post(store, 1)
    claim(store, types=[DEAD])
    proxy.fail("PUT", "/claims/", first=lambda: clock.advance(seconds=LEASE / 1000))

    assert numbers(claim(store)) == [1]
    assert numbers(claim(other, session="s2")) == [1]

    store.ack("ship", event_id, session_id="s1")
    assert claim_of(store, event_id)["ack_at"] is None
    other.ack("ship", event_id, session_id="s2")
    assert claim_of(store, event_id)["ack_at"] is not None


@pytest.mark.req("ONT-185", "ONT-139")
def test_a_claim_that_was_cut_off_is_had_by_the_next_call_and_counts_no_attempt(
    open_store: Open, proxy: Proxy, clock: ManualClock
) -> None:
    """Also of the events whose claims had been written, and long after their leases."""
    store = open_store()
    ids = post(store, 1, 2)
    consumer = store.consumers.register(POST, "ship", [POSTED])
    call: dict[str, Any] = {
        "session_id": "s1",
        "limit": 2,
        "lease_ms": LEASE,
        "policy": store.policy,
        "start": 2,
    }
    for seconds in (0, LEASE):
        proxy.fail("GET", f"/events/{ids[0]}", status=503, times=6)
        with pytest.raises(ConnectionLostError):
            store.claims.claim(consumer, [POSTED], **call)
        clock.advance(seconds=seconds)

    claims = store.claims.claim(consumer, [POSTED], **call)

    assert [(each.event.id, each.attempts, each.started) for each in claims] == [
        (ids[0], 0, True),
        (ids[1], 0, True),
    ]
    assert store.claims.claim(consumer, [POSTED], **call) == []
    assert store.claims.acknowledge(claims) == []


@pytest.mark.req("ONT-133")
def test_threads_of_one_store_never_get_the_same_event(open_store: Open) -> None:
    store = open_store()
    post(store, *range(20))
    store.consumers.register(POST, "ship", [POSTED])

    def work(_: int) -> list[int]:
        return numbers(claim(store, limit=6))

    with ThreadPoolExecutor(4) as threads:
        taken = [number for got in threads.map(work, range(4)) for number in got]

    assert sorted(taken) == list(range(20))


@pytest.mark.req("ONT-185")
def test_an_ack_that_was_cut_off_is_carried_through_by_the_next_look(
    open_store: Open, proxy: Proxy, s3_uri: str
) -> None:
    store = open_store()
    [event_id] = post(store, 1)
    claim(store)
    proxy.fail("DELETE", status=403)
    with pytest.raises(DatabaseError):
        store.ack("ship", event_id)
    assert len(store.claims.look(POST).markers) == 1

    assert claim(open_store()) == []

    assert store.claims.look(POST).markers == []
    assert claim_of(store, event_id)["ack_at"] is not None


@pytest.mark.req("ONT-185")
@pytest.mark.parametrize("holds", ["/dead-letters/", "/events/dead-letter-", "/unfinished/"])
def test_a_dead_letter_that_was_cut_off_is_written_and_told_once(
    open_store: Open, proxy: Proxy, holds: str
) -> None:
    store = open_store(event_max_attempts=1)
    [event_id] = post(store, 1)
    claim(store)
    proxy.fail("PUT", holds, status=403)
    with pytest.raises(DatabaseError):
        store.release("ship", event_id, error="OSError: no van")

    other = open_store()
    assert claim(other) == []
    assert claim(store) == []

    [letter] = store.list_dead_letters(POST)
    assert (letter["event_id"], letter["last_error"]) == (event_id, "OSError: no van")
    assert [each.event_id for each in claim(other, "tell", types=[DEAD])] == [event_id]


@pytest.mark.req("ONT-185")
def test_a_marker_without_an_event_holds_nothing_up_and_goes_after_an_hour(
    open_store: Open, proxy: Proxy, clock: ManualClock
) -> None:
    store = open_store()
    claim(store)
    proxy.fail("PUT", "/events/", status=403)
    with pytest.raises(DatabaseError):
        post(store, 1)
    [event_id] = post(store, 2)

    assert numbers(claim(store)) == [2]
    store.ack("ship", event_id)
    proxy.seen.clear()
    assert claim(store) == []
    assert proxy.kinds() == ["LIST"]  # it is not looked for each time
    for _ in range(60):
        assert len(store.claims.look(POST).markers) == 1
        clock.advance(seconds=60)
        assert claim(store) == []

    assert store.claims.look(POST).markers == []


@pytest.mark.req("ONT-185")
def test_an_event_that_comes_after_its_marker_was_looked_at_is_claimed(
    open_store: Open, proxy: Proxy, clock: ManualClock
) -> None:
    store, other = open_store(), open_store()
    claim(store)
    proxy.fail("PUT", "/events/", first=lambda: claim(store))

    post(other, 1)

    assert claim(store) == []
    clock.advance(seconds=1)
    assert numbers(claim(store)) == [1]


@pytest.mark.req("ONT-140")
def test_a_consumer_that_comes_while_an_event_is_stored_gets_it(
    open_store: Open, proxy: Proxy
) -> None:
    """Also if another has listed the marker before that, and finishes the event after it."""
    store, other, late = open_store(), open_store(), open_store()
    claim(store)
    row = other.log.given_row(ParcelPosted(number=1), POST)
    other.bucket.put(f"{POST}/unfinished/{marker_of(row).name}", b"marker")

    def meanwhile() -> None:
        late.consumers.register(POST, "late", [POSTED])
        other.put(row)

    proxy.fail("PUT", "/claims/", first=meanwhile)
    consumer = store.consumers.register(POST, "ship", [POSTED])

    [claimed] = store.claims.claim(
        consumer, [POSTED], session_id="s1", limit=9, lease_ms=LEASE, policy=store.policy
    )
    assert store.claims.acknowledge([claimed]) == []
    assert numbers(claim(late, "late")) == [1]


@pytest.mark.req("ONT-140")
def test_an_event_that_waited_for_a_forgotten_consumer_is_finished(open_store: Open) -> None:
    store, other = open_store(), open_store()
    claim(store, "bill")
    claim(store)
    [event_id] = post(store, 1)
    claim(store)
    store.ack("ship", event_id)
    assert len(store.claims.look(POST).markers) == 1
    other.forget(POST, "bill")
    post(store, 2)

    assert numbers(claim(store)) == [2]

    assert len(store.claims.look(POST).markers) == 1


@pytest.mark.req("ONT-185")
def test_an_event_that_is_given_back_is_another_processs_at_once(
    open_store: Open, clock: ManualClock
) -> None:
    """Though that has seen the lease, and does not look at the claim before its end."""
    store, other = open_store(), open_store()
    abandoned, failed = post(store, 1, 2)
    claim(store)
    assert claim(other, session="s2") == []

    store.abandon("ship", abandoned)
    assert numbers(claim(other, session="s2")) == [1]
    store.release("ship", failed, error="OSError: no van")
    clock.advance(seconds=1)
    assert numbers(claim(other, session="s2")) == [2]


@pytest.mark.req("ONT-140")
def test_a_consumer_whose_beginning_was_cut_off_begins_again(
    open_store: Open, proxy: Proxy
) -> None:
    store = open_store()
    ids = post(store, 1, 2, 3)
    claim(store)
    for event_id in ids:
        store.ack("ship", event_id)
    proxy.fail("PUT", "/backlog/", status=403)
    with pytest.raises(DatabaseError):
        claim(store, "late")

    assert numbers(claim(open_store(), "late")) == [1, 2, 3]


def test_a_put_that_took_long_writes_its_marker_once_more(
    open_store: Open, proxy: Proxy, clock: ManualClock
) -> None:
    """Meanwhile another process may have deleted it, as one without an event."""
    store, event = open_store(), ParcelPosted(number=1)
    claim(store)

    def meanwhile() -> None:
        clock.advance(seconds=61)
        [marker] = store.claims.look(POST).markers
        store.bucket.delete(f"{POST}/unfinished/{marker.name}")

    proxy.fail("PUT", "/events/", first=meanwhile)

    store.enqueue(event, POST)

    assert numbers(claim(store)) == [1]
