"""What lies in the bucket, to the letter of the documents, and what a look at it costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ontologia import OntologiaConfig
from ontologia.clock import to_text
from ontologia.errors import IntegrityError, InvalidValueError
from ontologia.store.rows import EventRow
from ontologia.store.s3 import S3EventStore
from ontologia.store.s3 import bucket as bucket_module
from ontologia.store.s3.bucket import Bucket, encoded
from ontologia.store.s3.layout import marker_of
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import (
    LEASE,
    LOST,
    OTHER,
    POST,
    POSTED,
    ParcelLost,
    ParcelPosted,
    claim,
    claim_of,
    numbers,
    post,
)

from .proxy import Proxy

Open = Callable[..., S3EventStore]


@pytest.fixture
def open_store(s3_uri: str, clock: ManualClock) -> Iterator[Open]:
    opened: list[S3EventStore] = []

    def open_(**settings: Any) -> S3EventStore:
        opened.append(S3EventStore(s3_uri, config=OntologiaConfig(clock=clock, **settings)))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def store(proxy: Proxy, open_store: Open) -> S3EventStore:
    """A store that the proxy can have fail, and whose requests it counts."""
    return open_store()


@pytest.fixture
def bucket(s3_uri: str) -> Bucket:
    """The objects under the store's prefix, past the store."""
    return Bucket(s3_uri)


def body(bucket: Bucket, key: str) -> Any:
    stored = bucket.get(key)
    assert stored is not None, key
    return json.loads(stored.body)


def keys(bucket: Bucket, folder: str = "") -> list[str]:
    return [
        each.key for name in bucket.folders() for each in bucket.listing(name) if folder in each.key
    ]


# -- the layout -----------------------------------------------------------------------------------


@pytest.mark.req("ONT-181", "ONT-182", "C-046")
def test_an_event_is_an_object_with_the_nine_keys(
    store: S3EventStore, bucket: Bucket, clock: ManualClock
) -> None:
    event = ParcelLost(number=7, remark="wet", priority=200)

    store.enqueue(event, "orders")

    now = to_text(clock.now())
    assert body(bucket, f"orders/events/{event.id}.json") == {
        "id": event.id,
        "namespace": "orders",
        "type": LOST,
        "payload": {"number": 7, "remark": "wet"},
        "created_at": now,
        "priority": 200,
        "root_event_id": event.id,
        "chain_depth": 0,
        "available_at": now,
    }


@pytest.mark.req("C-046")
def test_when_an_event_is_available_is_for_its_claims_to_say(
    store: S3EventStore, bucket: Bucket
) -> None:
    [event_id] = post(store, 1)
    key = f"{POST}/events/{event_id}.json"
    shown = body(bucket, key)
    bucket.put(key, json.dumps({**shown, "available_at": "2999-01-01T00:00:00Z"}).encode())

    assert numbers(claim(store)) == [1]


@pytest.mark.req("ONT-183")
def test_the_index_has_the_last_event_of_each_handler(
    store: S3EventStore, bucket: Bucket, clock: ManualClock
) -> None:
    first, second, _ = post(store, 1, 2, 3)
    claim(store)
    claim(store, "bill")
    store.ack("ship", first)
    early = to_text(clock.now())
    assert body(bucket, f"{POST}/index/index.json") == {
        "namespace": POST,
        "last_processed_event_id": first,
        "last_processed_at": early,
        "handlers": {"ship": {"last_ack_event_id": first, "last_ack_at": early}},
    }
    clock.advance(seconds=1)

    store.ack("bill", second)

    late = to_text(clock.now())
    assert body(bucket, f"{POST}/index/index.json") == {
        "namespace": POST,
        "last_processed_event_id": second,
        "last_processed_at": late,
        "handlers": {
            "ship": {"last_ack_event_id": first, "last_ack_at": early},
            "bill": {"last_ack_event_id": second, "last_ack_at": late},
        },
    }


@pytest.mark.req("ONT-183")
def test_the_index_is_written_at_most_once_a_second_and_at_the_end(
    store: S3EventStore, bucket: Bucket, proxy: Proxy
) -> None:
    ids = post(store, *range(5))
    claim(store)
    for event_id in ids:
        store.ack("ship", event_id)
    written = [
        each for each in proxy.seen if each.kind == "PUT" and "/index/index.json" in each.path
    ]
    assert len(written) == 1

    store.close()

    assert body(bucket, f"{POST}/index/index.json")["last_processed_event_id"] == ids[-1]


@pytest.mark.req("ONT-184", "C-040")
@pytest.mark.parametrize("namespace", ["a/b", "ü!%2F.."])
def test_a_namespace_is_a_folder_whatever_its_name(
    store: S3EventStore, bucket: Bucket, namespace: str
) -> None:
    post(store, 1, namespace=namespace)
    post(store, 2, namespace=OTHER)

    assert numbers(claim(store, namespace=namespace)) == [1]
    assert {each["namespace"] for each in store.list_namespaces()} == {namespace, OTHER}
    assert len(bucket.folders()) == 2
    assert store.check() == []


@pytest.mark.req("ONT-184")
def test_a_look_at_a_namespace_asks_for_nothing_of_another(
    store: S3EventStore, proxy: Proxy
) -> None:
    post(store, 1, namespace=OTHER)
    claim(store)
    proxy.seen.clear()

    assert claim(store) == []
    assert store.list_events(POST) == []

    assert all("another" not in each.path for each in proxy.seen)


@pytest.mark.req("ONT-181")
def test_lineage_is_in_the_metadata_of_the_event(
    store: S3EventStore, bucket: Bucket, clock: ManualClock
) -> None:
    now = to_text(clock.now())
    row = EventRow(
        *("e1", POST, POSTED, '{"number":1}', now, 100, "root", 3),
        *("shop:place", "Übergabe 7", "command:c1", "tenant a", "key/1", now),
    )

    store.put(row)

    stored = bucket.get(f"{POST}/events/e1.json")
    assert stored is not None
    assert stored.metadata == {
        "source": "shop:place",
        "correlation": "%C3%9Cbergabe%207",
        "causation": "command:c1",
        "tenant": "tenant%20a",
        "dedup-key": "key/1",
        "occurred-at": now,
    }
    assert store.operations.find("e1") == row


@pytest.mark.req("ONT-181")
def test_lineage_that_is_too_long_for_metadata_is_an_object_of_its_own(
    store: S3EventStore, bucket: Bucket, clock: ManualClock
) -> None:
    now = to_text(clock.now())
    row = EventRow(
        *("e1", POST, POSTED, '{"number":1}', now, 100, "root", 3),
        *("ü" * 200, "correlation", None, None, "ü" * 500, None),
    )

    store.put(row)

    assert store.operations.find("e1") == row
    assert body(bucket, f"{POST}/lineage/e1.json")["dedup-key"] == "ü" * 500


@pytest.mark.req("ONT-181")
def test_names_that_make_too_long_a_key_are_refused(store: S3EventStore, proxy: Proxy) -> None:
    with pytest.raises(InvalidValueError, match="S3 allows 1024"):
        store.enqueue(ParcelPosted(number=1), "ü" * 190)

    assert proxy.seen == []


@pytest.mark.req("ONT-181")
def test_the_same_event_again_is_no_other(store: S3EventStore, clock: ManualClock) -> None:
    row = store.log.given_row(ParcelPosted(number=1), POST)
    store.put(row)
    store.put(row)

    with pytest.raises(IntegrityError):
        store.put(row._replace(payload='{"number":2}', priority=7))

    assert [each["id"] for each in store.list_events(POST)] == [row.id]
    assert numbers(claim(store)) == [1]
    assert store.check() == []


@pytest.mark.req("ONT-185")
def test_a_claim_is_an_object_of_event_and_handler_with_a_fresh_body_each_time(
    store: S3EventStore, bucket: Bucket
) -> None:
    [event_id] = post(store, 1)
    claim(store)
    key = f"{POST}/claims/{event_id}/ship.json"
    first = bucket.get(key)

    assert store.renew("ship", event_id, lease_ms=LEASE)

    second = bucket.get(key)
    assert first is not None
    assert second is not None
    before, after = json.loads(first.body), json.loads(second.body)
    assert before.pop("nonce") != after.pop("nonce")
    assert before == after  # the clock stood still
    assert first.etag != second.etag


@pytest.mark.req("ONT-185")
def test_a_finished_event_leaves_no_marker_and_an_unfinished_one_does(
    store: S3EventStore, bucket: Bucket
) -> None:
    ids = post(store, 1, 2)
    claim(store)
    claim(store, "bill")

    store.ack("ship", ids[0])
    assert len(keys(bucket, "/unfinished/")) == 2
    store.ack("bill", ids[0])

    [left] = keys(bucket, "/unfinished/")
    assert ids[1] in left


# -- what it costs --------------------------------------------------------------------------------


@pytest.mark.req("ONT-185")
def test_a_claim_of_ten_ready_events_costs_22_requests(store: S3EventStore, proxy: Proxy) -> None:
    claim(store)  # registers
    post(store, *range(10))
    proxy.seen.clear()
    store.bucket.requests.clear()

    assert len(claim(store, limit=10)) == 10

    assert sorted(proxy.kinds()) == ["GET"] * 11 + ["LIST"] + ["PUT"] * 10
    assert store.bucket.requests == {"GET": 11, "LIST": 1, "PUT": 10}


@pytest.mark.req("ONT-185")
def test_an_idle_look_costs_one_request_however_much_is_retained_or_held(
    store: S3EventStore, open_store: Open, proxy: Proxy
) -> None:
    claim(store)
    for event_id in post(store, *range(30)):
        claim(store)
        store.ack("ship", event_id)
    post(store, *range(5))
    other = open_store()
    assert len(claim(other, session="s2")) == 5
    assert claim(store) == []  # it learns of the claims of the other
    proxy.seen.clear()

    for _ in range(3):
        assert claim(store) == []

    assert proxy.kinds() == ["LIST"] * 3


@pytest.mark.req("ONT-185")
def test_an_event_costs_seven_requests_from_its_storing_to_its_ack(
    store: S3EventStore, proxy: Proxy
) -> None:
    claim(store)
    proxy.seen.clear()
    post(store, 1)
    assert proxy.kinds() == ["PUT", "PUT"]  # marker and event
    [marker] = store.claims.look(POST).markers
    assert (marker.priority, marker.type) == (100, POSTED)
    consumer = store.consumers.register(POST, "ship", [POSTED])
    proxy.seen.clear()

    claims = store.claims.claim(
        consumer, [POSTED], session_id="s1", limit=10, lease_ms=LEASE, policy=store.policy, start=1
    )
    assert sorted(proxy.kinds()) == ["GET", "GET", "LIST", "PUT"]
    proxy.seen.clear()
    assert store.claims.acknowledge(claims) == []

    assert proxy.kinds() == ["PUT", "DELETE"]


@pytest.mark.thorough
@pytest.mark.req("ONT-185")
def test_a_claim_lists_no_further_than_it_has_to(
    store: S3EventStore, bucket: Bucket, proxy: Proxy
) -> None:
    claim(store)
    waiting = marker_of(store.log.given_row(ParcelLost(number=1, priority=1), POST))
    others = [waiting._replace(id=f"{number:05}").name for number in range(1_100)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda each: bucket.put(f"{POST}/unfinished/{each}", b"x"), others))
    post(store, *range(10))
    proxy.seen.clear()

    claimed = claim(store, limit=10)
    assert proxy.kinds().count("LIST") == 1
    assert claim(store) == []  # all of it is looked at
    assert proxy.kinds().count("LIST") == 1 + 2

    assert numbers(claimed) == list(range(10))
    bucket.delete(*(f"{POST}/unfinished/{each}" for each in others))


def test_what_somebody_else_wrote_into_the_bucket_holds_nothing_up(
    store: S3EventStore,
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(bucket_module, "LARGEST", 10_000)
    claim(store)
    unreadable, broken, huge, long, sound = post(store, 1, 2, 3, 4, 5)
    for noise in ("x", "!!", "1-2!a!b", "2147483547-20260101000000000000!a"):
        bucket.put(f"{POST}/unfinished/{noise}", b"noise")
    bucket.put(f"{POST}/claims/{encoded(unreadable)}/ship.json", b"{}")
    bucket.put(f"{POST}/events/{broken}.json", b'{"id": 1}')
    bucket.put(f"{POST}/events/{huge}.json", b"x" * 10_001)
    stored = bucket.get(f"{POST}/events/{long}.json")
    assert stored is not None
    past_64_bits = stored.body.replace(b'"number":4', b'"number":%d' % 2**64)
    bucket.put(f"{POST}/events/{long}.json", past_64_bits)

    assert numbers(claim(store)) == [5]

    letters = {each["event_id"]: each["last_error"] for each in store.list_dead_letters(POST)}
    assert letters.keys() == {broken, huge, long}
    assert letters[long] == letters[broken], "its payload is no event's, and no float's"
    assert "cannot be read" in caplog.text
    assert store.check() == [f"claim that cannot be read: {unreadable} of ship"]
    assert claim_of(store, sound)["session_id"] == "s1"


@pytest.mark.req("ONT-185")
def test_what_each_step_costs_is_as_the_reference_says(
    store: S3EventStore, bucket: Bucket, proxy: Proxy, clock: ManualClock
) -> None:
    def cost(step: Callable[[], object]) -> str:
        proxy.seen.clear()
        step()
        kinds = proxy.kinds()
        return ", ".join(
            f"{kinds.count(kind)} {kind}"
            for kind in ("LIST", "GET", "PUT", "DELETE")
            if kind in kinds
        )

    def claimed() -> Any:
        [one] = store.claims.claim(
            consumer, [POSTED], session_id="s", limit=1, lease_ms=LEASE, policy=store.policy
        )
        return one

    assert cost(lambda: claim(store)) == "4 LIST, 3 GET, 2 PUT"
    assert cost(lambda: claim(store)) == "1 LIST"
    consumer = store.consumers.register(POST, "ship", [POSTED])
    first, _ = post(store, 1, 2)
    one = claimed()
    assert cost(lambda: store.claims.start([one], LEASE)) == "1 PUT"
    assert cost(lambda: store.claims.renew([one])) == "1 PUT"
    assert cost(lambda: store.claims.run_again(one)) == "1 PUT"
    failing = {"error": "OSError: no van", "policy": store.policy}
    assert cost(lambda: store.claims.release("ship", first, claim=one, **failing)) == "2 PUT"
    other = claimed()
    assert cost(lambda: store.claims.acknowledge([other])) == "1 PUT, 1 DELETE"
    clock.advance(seconds=1)
    again = claimed()
    dead = "1 GET, 4 PUT, 1 DELETE"
    assert (
        cost(lambda: store.claims.release("ship", first, claim=again, final=True, **failing))
        == dead
    )


# -- namespaces with an event of one id -----------------------------------------------------------


@pytest.mark.parametrize("verb", ["ack", "release", "abandon", "renew", "start"])
def test_what_is_done_to_a_claim_is_done_in_the_namespace_that_has_it(
    store: S3EventStore, verb: str
) -> None:
    for namespace in (OTHER, POST):  # whichever is listed first
        event = ParcelPosted(number=1)
        event.id = "parcel-1"
        store.enqueue(event, namespace)
    claim(store, namespace=OTHER, session="s2")
    store.abandon("ship", "parcel-1")
    claim(store, namespace=POST)
    before = {each: shown_claim(store, each) for each in (OTHER, POST)}
    more = {"lease_ms": 7_000} if verb in ("renew", "start") else {}

    assert getattr(store, verb)("ship", "parcel-1", **more) in (None, True)

    assert shown_claim(store, OTHER) == before[OTHER]
    assert shown_claim(store, POST) != before[POST]
    ended = shown_claim(store, POST)["ack_at"] is not None
    assert ended == (verb == "ack")


def test_of_two_claims_of_a_consumer_one_is_ended_by_its_token(store: S3EventStore) -> None:
    for namespace in (OTHER, POST):
        event = ParcelPosted(number=1)
        event.id = "parcel-1"
        store.enqueue(event, namespace)
        claim(store, namespace=namespace)

    with pytest.raises(InvalidValueError, match="of each of the namespaces") as raised:
        store.ack("ship", "parcel-1")

    assert "lease_token=" in (raised.value.hint or "")
    for namespace in (POST, OTHER):
        assert shown_claim(store, namespace)["ack_at"] is None
        token = shown_claim(store, namespace)["lease_token"]
        store.ack("ship", "parcel-1", lease_token=token)
        assert shown_claim(store, namespace)["ack_at"] is not None


def shown_claim(store: S3EventStore, namespace: str) -> dict[str, Any]:
    found = store.inspect_event("parcel-1", namespace)
    assert found is not None
    [shown] = found["claims"]
    claimed: dict[str, Any] = shown
    return claimed
