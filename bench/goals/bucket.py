"""Events in a bucket, on SeaweedFS: how many requests they cost, and how fast they are."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from unittest.mock import patch

from bench.goals.figures import Amount, Count, Figure, Note
from bench.measure import progress, same, seconds
from bench.orders import placed
from bench.workload import NAMESPACE, NOTHING, TYPE
from ontologia.store.s3 import S3EventStore

_RETAINED = 200
_CLAIMED = 10
_LEASE = 60_000
_ROUNDS = 5


def figures() -> Iterator[Figure]:
    from ontologia_conformance.seaweed import BUCKET, started

    try:
        with progress("starting SeaweedFS"):
            server = started()
    except FileNotFoundError as error:
        yield Note(f"events in a bucket were not measured: {error}")
        return
    try:
        with (
            patch.dict(os.environ, server.environment),
            S3EventStore(f"s3://{BUCKET}/bench") as store,
        ):
            _claim(store)  # registers the consumer
            yield from _requests(store)
            yield from _rates(store)
    finally:
        server.stop()


def _requests(store: S3EventStore) -> Iterator[Figure]:
    _store(store, _CLAIMED)
    store.bucket.requests.clear()
    claimed = _claim(store)
    sent = store.bucket.requests.total()
    same("events that were claimed", _CLAIMED, len(claimed))
    yield Count("requests to claim 10 events that are ready", sent, 25)

    store.bucket.requests.clear()
    for event_id in claimed:
        store.ack(NOTHING, event_id)
    yield Amount("  to ack one of them", store.bucket.requests.total() / _CLAIMED, "requests")

    with progress(f"storing and finishing {_RETAINED} events"):
        _store(store, _RETAINED)
        while claimed := _claim(store):
            for event_id in claimed:
                store.ack(NOTHING, event_id)
    store.bucket.requests.clear()
    same("events that are left", [], _claim(store))
    title = f"requests to find nothing, {_RETAINED + _CLAIMED} events retained"
    yield Count(title, store.bucket.requests.total(), 2)


def _rates(store: S3EventStore) -> Iterator[Figure]:
    stored, finished = list[float](), list[float]()
    for number in range(_ROUNDS):
        with progress(f"events in a bucket, round {number + 1} of {_ROUNDS}"):
            stored.append(seconds(lambda: _store(store, _CLAIMED)))
            finished.append(seconds(lambda: _finish(store)))
    yield Amount("storing one event", statistics.median(stored) / _CLAIMED * 1000, "ms")
    yield Amount("claim and ack of one event", statistics.median(finished) / _CLAIMED * 1000, "ms")


def _store(store: S3EventStore, count: int) -> None:
    for number in range(count):
        store.enqueue(placed(number), NAMESPACE)


def _claim(store: S3EventStore) -> list[str]:
    claimed = store.claim(NAMESPACE, NOTHING, "bench", [TYPE], _CLAIMED, _LEASE)
    return [str(event.id) for event in claimed]


def _finish(store: S3EventStore) -> None:
    for event_id in _claim(store):
        store.ack(NOTHING, event_id)
