"""Events, markers and claims as objects of a bucket."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from ontologia import codec
from ontologia.clock import Clock
from ontologia.errors import DatabaseError, InvalidValueError
from ontologia.ids import Ids
from ontologia.store.rows import EventRow
from ontologia.store.s3.bucket import PAGE, Bucket, Stored
from ontologia.store.s3.layout import (
    ClaimDoc,
    Keys,
    Marker,
    claim_doc,
    event_objects,
    event_row,
    has_lineage_object,
    listed_marker,
    marker_of,
    name_of,
)

_AT_ONCE = 8  # requests of one call
_THREADS = "ontologia-s3"  # which wait for none of their own kind
_STALE_MARKER = 60.0  # seconds after which the marker of an event is written once more

UNREADABLE = "unreadable"
"""The token of a claim that cannot be read."""
_FOR_EVER = "9999-12-31T23:59:59.999999+00:00"
log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


class Versioned(NamedTuple):
    """A claim as it was read or written, with what stands for this version."""

    doc: ClaimDoc
    etag: str


class Rewritten(NamedTuple):
    """What came of writing a claim."""

    written: Versioned | None
    """None if another process was first."""
    found: Versioned | None
    """What that has written."""


class Objects:
    """Reads and writes the objects of the layout. Thread-safe."""

    def __init__(self, bucket: Bucket, clock: Clock, ids: Ids) -> None:
        self.bucket = bucket
        self.clock = clock
        self.ids = ids
        self._pool: ThreadPoolExecutor | None = None
        self._starting = threading.Lock()

    def each(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Call it with each item, up to eight at once; what it returned, in the items' order."""
        listed = list(items)
        if len(listed) <= 1 or threading.current_thread().name.startswith(_THREADS):
            return [function(item) for item in listed]
        with self._starting:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix=_THREADS)
            pool = self._pool
        return list(pool.map(function, listed))

    def close(self) -> None:
        """End the threads."""
        with self._starting:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    # -- events -----------------------------------------------------------------------------------

    def put_event(self, row: EventRow) -> bool:
        """Store an event, after its marker; False if there was one of this id. Two requests.

        Idempotent: the same event again is no other.
        """
        keys, marker = Keys(row.namespace), marker_of(row)
        body, metadata, lineage = event_objects(row)
        began = self.clock.monotonic()
        self.put_marker(keys, marker)
        if lineage is not None:
            self.bucket.put(keys.lineage(row.id), lineage)
        created = self.bucket.create(keys.event(row.id), body, metadata) is not None
        if not created:
            found = self.bucket.get(keys.event(row.id))
            if found is None or found.body != body:
                self._drop_marker(keys, marker, found)
                return False
        elif self.clock.monotonic() - began > _STALE_MARKER:
            # Meanwhile it may have been deleted, as one without an event.
            self.put_marker(keys, marker)
        return True

    def _drop_marker(self, keys: Keys, marker: Marker, found: Stored | None) -> None:
        """Take back the marker of an event that was refused, unless it is that of the first one."""
        first = None if found is None else event_row(keys.namespace, marker.id, found)
        if first is None or marker_of(first).name != marker.name:
            self.bucket.delete(keys.marker(marker))

    def get_event(self, keys: Keys, event_id: str) -> EventRow | None:
        """One event; None if there is none. One request, or two if its lineage is long."""
        try:
            stored = self.bucket.get(keys.event(event_id))
            if stored is None:
                return None
            far = has_lineage_object(stored)
            lineage = self.bucket.get(keys.lineage(event_id)) if far else None
        except InvalidValueError as error:  # too large; for its handlers to dead-letter
            stored, lineage = Stored(str(error).encode(), "", {}), None
        return event_row(keys.namespace, event_id, stored, lineage)

    # -- markers ----------------------------------------------------------------------------------

    def put_marker(self, keys: Keys, marker: Marker) -> None:
        """Have the event looked at, by all consumers, with claims that may have changed."""
        self.bucket.put(keys.marker(marker), self.ids.new().encode())

    def each_marker(self, folder: str) -> Iterator[Marker]:
        """The markers in a folder, the most urgent first. One request for every 1,000 taken."""
        listed = self.bucket.listing(folder)
        while page := list(islice(listed, PAGE)):
            # By the names themselves: some are listed in the order of their encoded form.
            yield from sorted(filter(None, map(listed_marker, page)))

    def markers(self, folder: str) -> list[Marker]:
        """All of them. One request for every 1,000."""
        return list(self.each_marker(folder))

    # -- claims -----------------------------------------------------------------------------------

    def get_claim(self, keys: Keys, event_id: str, handler_id: str) -> Versioned | None:
        """A consumer's claim on an event; None if there is none. One request."""
        stored = self.bucket.get(keys.claim(event_id, handler_id))
        return None if stored is None else _versioned(stored, event_id, handler_id)

    def claims_of(self, keys: Keys, event_id: str) -> list[ClaimDoc]:
        """All claims on an event, by consumer. One request, and one for each."""
        listed = list(self.bucket.listing(keys.claims_of(event_id)))
        found = self.each(self.bucket.get, [each.key for each in listed])
        docs = [
            _versioned(stored, event_id, name_of(each)).doc
            for each, stored in zip(listed, found, strict=True)
            if stored is not None
        ]
        return sorted(docs, key=lambda doc: doc.handler_id)

    def write_claim(self, keys: Keys, doc: ClaimDoc, etag: str | None) -> Rewritten:
        """Write a claim that is still as `etag` says; without one, a claim that is new.

        One request, or two if another process was first.
        """
        key = keys.claim(doc.event_id, doc.handler_id)
        done = self.bucket.contend(key, doc.body(self.ids.new()), etag)
        if done.etag is not None:
            return Rewritten(Versioned(doc, done.etag), None)
        if done.found is None:
            return Rewritten(None, None)
        return Rewritten(None, _versioned(done.found, doc.event_id, doc.handler_id))

    # -- documents --------------------------------------------------------------------------------

    def get_document(self, key: str) -> tuple[dict[str, Any], str | None]:
        """A JSON object, with what stands for this version; {} and None if there is none."""
        stored = self.bucket.get(key)
        if stored is None:
            return {}, None
        try:
            value = codec.decode(stored.body)
        except InvalidValueError as error:
            raise DatabaseError(f"{key} in {self.bucket.uri} cannot be read: {error}") from error
        if not isinstance(value, dict):
            raise DatabaseError(f"{key} in {self.bucket.uri} is no JSON object")
        return value, stored.etag

    def put_document(self, key: str, value: dict[str, Any], etag: str | None) -> str | None:
        """Write it if it is still as it was read; what stands for it now, or None. One request."""
        body = codec.encode(value, where=key).encode()
        if etag is None:
            return self.bucket.create(key, body)
        return self.bucket.replace(key, body, etag)

    def put_documents(self, values: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Write JSON objects, whether there were some or not. One request each."""
        self.each(
            lambda each: self.bucket.put(each[0], codec.encode(each[1], where=each[0]).encode()),
            values,
        )


def _versioned(stored: Stored, event_id: str, handler_id: str) -> Versioned:
    """A claim as it was read. One that cannot be is left alone, as if another process had it."""
    try:
        return Versioned(claim_doc(stored.body), stored.etag)
    except InvalidValueError as error:
        log.error("the claim of %s on event %s: %s", handler_id, event_id, error.args[0])
        held = ClaimDoc(event_id, handler_id, "", UNREADABLE, "", _FOR_EVER, _FOR_EVER)
        return Versioned(held, stored.etag)
