"""Archived events in a bucket.

    <namespace>/events/<event id>.json       the event, as `layout` has it
    <namespace>/archive/<event id>.json      what the database kept of it besides
    <namespace>/chains/<root id>/<event id>  empty: it followed from that event

The event is written first, and only if there is none of its id, so that one of another store is
left as it is. While the record is missing, the event counts for nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar, get_type_hints

from ontologia import codec
from ontologia.clock import from_text, to_text
from ontologia.errors import InvalidValueError
from ontologia.store.events.archives import (
    ArchivedAttempt,
    ArchivedEvent,
    ArchivedLetter,
    in_event_store,
)
from ontologia.store.provenance import ClaimRow
from ontologia.store.rows import EventRow
from ontologia.store.s3.bucket import Bucket, decoded, encoded
from ontologia.store.s3.layout import EventObjects, Keys, event_objects, name_of

log = logging.getLogger(__name__)
_AT_ONCE = 16  # requests
_LINEAGE = ("source", "correlation_id", "causation_id", "tenant_id", "dedup_key", "occurred_at")
"""What the document has no key for. In metadata, too, but some services and tools drop that."""
_ANOTHER = (
    "the event of another store, or another event of this id; each store needs a prefix of its own"
)
_ENDINGS = ("_at", "_until")  # of names whose values are times
T = TypeVar("T")
R = TypeVar("R")
Row = TypeVar("Row", bound=tuple[Any, ...])


class _Written(NamedTuple):
    """An event as it is to be in the bucket."""

    event: ArchivedEvent
    objects: EventObjects
    record: bytes


class _Keys(Keys):
    """The keys of one namespace."""

    def record(self, event_id: str) -> str:
        return f"{self.records}/{encoded(event_id)}.json"

    def followers(self, root_event_id: str) -> str:
        return f"{self.root}/chains/{encoded(root_event_id)}"

    def follower(self, root_event_id: str, event_id: str) -> str:
        return f"{self.followers(root_event_id)}/{encoded(event_id)}"


class Archive:
    """Finished events under `s3://bucket/prefix`. Thread-safe.

    Two requests write an event and two read it back; one more if it followed from another event.
    """

    def __init__(self, uri: str) -> None:
        self._bucket = Bucket(uri)
        self.uri = self._bucket.uri

    # -- writing ----------------------------------------------------------------------------------

    def check(self, namespace: str) -> None:
        """See `Archive` of `store.events.archives`. One request."""
        if self._bucket.get(_Keys(namespace).consumers) is not None:
            raise in_event_store(self.uri)

    def keep(self, events: Sequence[ArchivedEvent]) -> list[ArchivedEvent]:
        """See `Archive` of `store.events.archives`."""
        made = [each for event in events if (each := _made(event)) is not None]
        written = [each for each in self._at_once(self._write, made) if each is not None]
        return [each for each in self._at_once(self._verify, written) if each is not None]

    def _write(self, made: _Written) -> _Written | None:
        row = made.event.row
        keys = _Keys(row.namespace)
        body, metadata, lineage = made.objects
        try:
            # The same event, of a run that was broken off or restored since, has this very body.
            if self._bucket.create(keys.event(row.id), body, metadata) is None:
                _tell_left(row.id, f"{self.uri}/{keys.event(row.id)} is {_ANOTHER}")
                return None
            self._bucket.put(keys.record(row.id), made.record)
            if lineage is not None:
                self._bucket.put(keys.lineage(row.id), lineage)
            if row.root_event_id != row.id:
                self._bucket.put(keys.follower(row.root_event_id, row.id), b"")
        except InvalidValueError as error:  # a key that is too long
            _tell_left(row.id, error.args[0])
            return None
        return made

    def _verify(self, written: _Written) -> ArchivedEvent | None:
        row = written.event.row
        keys = _Keys(row.namespace)
        wanted = {keys.event(row.id): written.objects.body, keys.record(row.id): written.record}
        for key, body in wanted.items():
            found = self._bucket.get(key)
            if found is None or found.body != body:
                _tell_left(row.id, f"{self.uri}/{key} was not read back as it was written")
                return None
        return written.event

    # -- reading ----------------------------------------------------------------------------------

    def find(self, namespace: str, event_ids: Iterable[str]) -> list[ArchivedEvent]:
        """See `Archive` of `store.events.archives`. Two requests an event, one if it is not there."""
        found = self._at_once(partial(self._read, namespace), event_ids)
        return [each for each in found if each is not None]

    def _read(self, namespace: str, event_id: str) -> ArchivedEvent | None:
        keys = _Keys(namespace)
        try:
            event = self._bucket.get(keys.event(event_id))
            record = None if event is None else self._bucket.get(keys.record(event_id))
        except InvalidValueError:  # a key that is too long
            return None
        if event is None or record is None:
            return None
        try:
            return _event_of(namespace, event_id, event.body, record.body)
        except InvalidValueError as error:
            raise InvalidValueError(
                f"event {event_id} in the archive {self.uri} cannot be read: {error.args[0]}"
            ) from error

    def chain(self, namespace: str, root_event_id: str) -> list[str]:
        """See `Archive` of `store.events.archives`. One request for every 1,000."""
        folder = _Keys(namespace).followers(root_event_id)
        return [decoded(listed.key.rpartition("/")[2]) for listed in self._bucket.listing(folder)]

    def ids(self, namespace: str) -> Iterator[str]:
        """See `Archive` of `store.events.archives`. One request for every 1,000."""
        yield from map(name_of, self._bucket.listing(_Keys(namespace).records))

    def namespaces(self) -> list[str]:
        """See `Archive` of `store.events.archives`. One request for every 1,000."""
        return [decoded(each) for each in self._bucket.folders()]

    def _at_once(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Call it with each item, several at once; what it returned, in the items' order."""
        listed = list(items)
        if len(listed) <= 1:
            return [function(item) for item in listed]
        with ThreadPoolExecutor(min(_AT_ONCE, len(listed)), "ontologia-archive") as threads:
            return list(threads.map(function, listed))


def _tell_left(event_id: str, why: str) -> None:
    log.warning("event %s is not archived and stays in the store: %s", event_id, why)


# -- documents ------------------------------------------------------------------------------------


def _made(event: ArchivedEvent) -> _Written | None:
    """The objects of an event; None, and a warning, if they cannot be made."""
    row = event.row
    try:
        payload = codec.decode(row.payload)
        if not isinstance(payload, dict):
            raise InvalidValueError("its payload is no JSON object")
        record: dict[str, Any] = {
            "event": {name: getattr(row, name) for name in _LINEAGE},
            "claims": list(map(_shown, event.claims)),
            "attempts": list(map(_shown, event.attempts)),
            "dead_letters": list(map(_shown, event.dead_letters)),
        }
        if codec.encode(payload, where="payload") != row.payload:
            record["payload"] = row.payload  # other spaces, or another order of keys
        rest = codec.encode_checked(record, where="record")
        return _Written(event, event_objects(row), rest.encode())
    except InvalidValueError as error:
        _tell_left(row.id, error.args[0])
        return None


def _shown(row: Any) -> dict[str, Any]:
    """A row of what is kept of an event, whose id is in its key."""
    return {name: value for name, value in row._asdict().items() if name != "event_id"}


def _event_of(namespace: str, event_id: str, body: bytes, rest: bytes) -> ArchivedEvent:
    """The event of two objects; InvalidValueError, with what is wrong, if they are not its."""
    document, record = codec.decode(body), codec.decode(rest)
    if not isinstance(document, dict) or not isinstance(record, dict):
        raise InvalidValueError("it is no JSON object")
    if (document.get("id"), document.get("namespace")) != (event_id, namespace):
        raise InvalidValueError("the object is of another event")
    payload = document.get("payload")
    if not isinstance(payload, dict):
        raise InvalidValueError("its payload is no JSON object")
    text = record.get("payload", codec.encode(payload, where="payload"))
    if not isinstance(text, str) or codec.decode(text) != payload:
        raise InvalidValueError("its two payloads differ")
    row = _row(EventRow, {**_object(record.get("event")), **document, "payload": text})
    return ArchivedEvent(
        row,
        tuple(_rows(ClaimRow, record, "claims", event_id)),
        tuple(_rows(ArchivedAttempt, record, "attempts", event_id)),
        tuple(_rows(ArchivedLetter, record, "dead_letters", event_id)),
    )


def _rows(cls: type[Row], record: Mapping[str, Any], name: str, event_id: str) -> Iterator[Row]:
    listed = record.get(name, [])
    if not isinstance(listed, list):
        raise InvalidValueError(f"{name} is no list")
    for each in listed:
        yield _row(cls, {**_object(each), "event_id": event_id})


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValueError("a part of it is no JSON object")
    return value


def _row(cls: type[Row], values: Mapping[str, Any]) -> Row:
    """A named tuple of these values, each of the type that is declared; others are ignored."""
    found = {name: values.get(name) for name in _types(cls)}
    for name, kind in _types(cls).items():
        value = found[name]
        if isinstance(value, bool) or not isinstance(value, kind):
            raise InvalidValueError(f"{name} is of a wrong type")
        codec.check(value, name)
        if isinstance(value, str) and name.endswith(_ENDINGS) and not _is_time(value):
            raise InvalidValueError(f"{name} is no time")
    return cls(**found)


@cache
def _types(cls: type[Any]) -> dict[str, Any]:
    return get_type_hints(cls)


def _is_time(text: str) -> bool:
    try:
        return to_text(from_text(text)) == text
    except (ValueError, TypeError, OverflowError):
        return False
