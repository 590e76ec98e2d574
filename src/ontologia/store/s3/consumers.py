"""Consumers of the events in a bucket: one document for each namespace, changed by compare-and-swap.

A consumer that is new to a type gets what is retained of it through a backlog of its own: a marker
for each event. The document names it before the backlog is filled, and whoever finishes an event
reads the document after the event was written: so an event is in the backlog, or its marker stays.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ontologia.clock import from_text, to_text
from ontologia.errors import ConfigError, LockContentionError
from ontologia.store.events import checks
from ontologia.store.events.claims import ALL_TYPES
from ontologia.store.events.consumers import Start
from ontologia.store.rows import ConsumerRow
from ontologia.store.s3.layout import ClaimDoc, Keys, Marker, marker_of, name_of
from ontologia.store.s3.objects import Objects

log = logging.getLogger(__name__)
_RACES = 20  # that a change of the document may lose
_SEEN_EVERY = 3600.0  # seconds between two notes that a consumer is there
_SKIPPED = "skipped"  # the session of a claim that was made for a consumer that starts now


@dataclass(frozen=True, slots=True)
class ConsumerDoc:
    """A consumer as the document has it."""

    name: str
    types: frozenset[str]
    last_seen_at: str
    paused_at: str | None = None
    filling: frozenset[str] = frozenset()
    """Types whose retained events are not all in the backlog yet."""
    fills: int = 0
    """How often its backlog was filled."""

    def takes(self, event_type: str) -> bool:
        """Whether it subscribes to events of this type."""
        return event_type in self.types or ALL_TYPES in self.types

    def as_json(self) -> dict[str, Any]:
        """What is stored."""
        return {
            "types": sorted(self.types),
            "last_seen_at": self.last_seen_at,
            "paused_at": self.paused_at,
            "filling": sorted(self.filling),
            "fills": self.fills,
        }


@dataclass(slots=True)
class Snapshot:
    """The consumers of a namespace, as they were read."""

    consumers: dict[str, ConsumerDoc] = field(default_factory=dict[str, ConsumerDoc])
    etag: str | None = None


Change = Callable[[Snapshot], bool]
"""Changes a snapshot; whether there is anything to write."""


class Consumers:
    """Registers, pauses and counts consumers. Thread-safe."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._clock = objects.clock
        self._numbers = itertools.count(1)
        """Of consumers in this process; in the bucket they have names alone."""
        self._known: dict[tuple[str, str], tuple[ConsumerRow, frozenset[str]]] = {}
        self._lock = threading.Lock()

    # -- the document -----------------------------------------------------------------------------

    def read(self, namespace: str) -> Snapshot:
        """The consumers of a namespace. One request."""
        shown, etag = self._objects.get_document(Keys(namespace).consumers)
        found = {
            name: ConsumerDoc(
                name,
                frozenset(values["types"]),
                values["last_seen_at"],
                values["paused_at"],
                frozenset(values["filling"]),
                values["fills"],
            )
            for name, values in shown.get("consumers", {}).items()
        }
        return Snapshot(found, etag)

    def change(self, namespace: str, change: Change) -> Snapshot:
        """Have a change written, anew after each that another process made; what it is then."""
        key = Keys(namespace).consumers
        for _ in range(_RACES):
            snapshot = self.read(namespace)
            if not change(snapshot):
                return snapshot
            shown = {
                "consumers": {name: each.as_json() for name, each in snapshot.consumers.items()}
            }
            etag = self._objects.put_document(key, shown, snapshot.etag)
            if etag is not None:
                snapshot.etag = etag
                return snapshot
        raise LockContentionError(f"other processes that change {key}", 0, what="a change of it")

    # -- registering ------------------------------------------------------------------------------

    def register(
        self,
        namespace: str,
        name: str,
        types: Iterable[str],
        *,
        session_id: str = "",
        start: Start = "retained",
        afresh: bool = False,
        formerly: Sequence[str] = (),
    ) -> ConsumerRow:
        """Make sure that a consumer is subscribed to these types; types are only ever added.

        Costs nothing for what this process registered before, unless `afresh`. A consumer that is
        new to a type reads all retained events once. ConfigError with names that it had
        `formerly`, if one of them is there: claims cannot be renamed in a bucket.
        """
        wanted = frozenset(types)
        known = self._known.get((namespace, name))
        if known is not None and wanted <= known[1] and not afresh:
            return known[0]
        checks.name("a consumer's name", name, checks.LONGEST_KEY)
        new: set[str] = set()
        before: set[str] = set()
        now = to_text(self._clock.now())

        def add(snapshot: Snapshot) -> bool:
            self._check_former(snapshot, name, formerly)
            found = snapshot.consumers.get(name)
            new.clear()
            before.clear()
            before.update(() if found is None else found.types - found.filling)
            new.update(wanted if found is None else (wanted - found.types) | found.filling)
            if found is not None and wanted <= found.types:
                return False
            if found is None:
                found = ConsumerDoc(name, frozenset(), now)
            snapshot.consumers[name] = replace(
                found, types=found.types | wanted, last_seen_at=now, filling=found.filling | new
            )
            return True

        self.change(namespace, add)
        number = known[0].id if known is not None else next(self._numbers)
        consumer = ConsumerRow(number, namespace, name)
        if new:
            self._fill(consumer, frozenset(new), frozenset(before), session_id or _SKIPPED, start)
        with self._lock:
            self._known[namespace, name] = (consumer, wanted | (known[1] if known else frozenset()))
        return consumer

    def _check_former(self, snapshot: Snapshot, name: str, formerly: Sequence[str]) -> None:
        for former in formerly:
            if former in snapshot.consumers:
                raise ConfigError(
                    f"{name} cannot adopt what {former} has in a bucket; nothing was written",
                    hint="Keep the old name with @on_event(..., name=...), or forget the old "
                    "consumer once it has finished its events.",
                )

    def _fill(
        self,
        consumer: ConsumerRow,
        types: frozenset[str],
        before: frozenset[str],
        session_id: str,
        start: Start,
    ) -> None:
        """Have it get what is retained of these types, or skip what is unfinished.

        What it gets by the types that it had `before` stays as it is.
        """
        keys = Keys(consumer.namespace)

        def is_new(event_type: str) -> bool:
            return _among(types, event_type) and not _among(before, event_type)

        if start == "now":
            skipped = [each for each in self._objects.markers(keys.unfinished) if is_new(each.type)]
            self._objects.each(lambda each: self._skip(keys, consumer, each, session_id), skipped)
            count = len(skipped)
        else:
            # In this order: what is announced meanwhile is in one listing or the other, and who
            # finishes what is in neither reads of this consumer.
            coming = [m for m in self._objects.markers(keys.unfinished) if is_new(m.type)]
            listed = [name_of(each) for each in self._objects.bucket.listing(keys.events)]
            rows = self._objects.each(lambda each: self._objects.get_event(keys, each), listed)
            markers = [marker_of(row) for row in rows if row is not None and is_new(row.type)]
            markers += [each for each in coming if each.id not in set(listed)]
            folder = keys.backlog(consumer.name)
            self._objects.each(
                lambda each: self._objects.bucket.put(f"{folder}/{each.name}", b"-"), markers
            )
            count = len(markers)

        def filled(snapshot: Snapshot) -> bool:
            found = snapshot.consumers.get(consumer.name)
            if found is None:
                return False
            snapshot.consumers[consumer.name] = replace(
                found, filling=found.filling - types, fills=found.fills + 1
            )
            return True

        self.change(consumer.namespace, filled)
        log.info(
            "consumer %s is new to %s in namespace %r: %s %d retained event%s",
            *(consumer.name, ", ".join(sorted(types)), consumer.namespace),
            *("it skips" if start == "now" else "it gets", count, "" if count == 1 else "s"),
        )

    def _skip(self, keys: Keys, consumer: ConsumerRow, marker: Marker, session_id: str) -> None:
        now = to_text(self._clock.now())
        doc = ClaimDoc(marker.id, consumer.name, session_id, None, now, now, now, ack_at=now)
        self._objects.write_claim(keys, doc, None)

    def forget_known(self, namespace: str, name: str) -> None:
        """Register it anew the next time: another process has removed it."""
        with self._lock:
            self._known.pop((namespace, name), None)

    # -- operators --------------------------------------------------------------------------------

    def pause(self, namespace: str, name: str, *, paused: bool) -> bool:
        """Stop or resume deliveries; False if there is none of that name."""
        now = to_text(self._clock.now()) if paused else None
        found = False

        def change(snapshot: Snapshot) -> bool:
            nonlocal found
            consumer = snapshot.consumers.get(name)
            found = consumer is not None
            if consumer is None:
                return False
            snapshot.consumers[name] = replace(consumer, paused_at=now)
            return True

        self.change(namespace, change)
        return found

    def seen(self, numbers: Iterable[int]) -> None:
        """Write down that these are run, if that was not done within the hour."""
        wanted = set(numbers)
        with self._lock:
            rows = [row for row, _ in self._known.values() if row.id in wanted]
        for namespace in {row.namespace for row in rows}:
            self._seen(namespace, {row.name for row in rows if row.namespace == namespace})

    def _seen(self, namespace: str, names: set[str]) -> None:
        now = self._clock.now()

        def change(snapshot: Snapshot) -> bool:
            old = [
                each
                for each in snapshot.consumers.values()
                if each.name in names
                and abs((now - from_text(each.last_seen_at)).total_seconds()) >= _SEEN_EVERY
            ]
            for each in old:
                snapshot.consumers[each.name] = replace(each, last_seen_at=to_text(now))
            return bool(old)

        self.change(namespace, change)


def _among(types: frozenset[str], event_type: str) -> bool:
    return event_type in types or ALL_TYPES in types
