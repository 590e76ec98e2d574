"""Claims on events in a bucket: an object for each event and consumer, changed by compare-and-swap.

What this process knows of claims it keeps, so that a look costs one listing: of markers, whose
ETags change when another process releases an event. A claim that another process holds is looked
at again when its lease ends.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from hashlib import sha256
from threading import Lock, RLock
from typing import NamedTuple

from ontologia.clock import Clock, from_text, to_text
from ontologia.delivery.dead_letter import EventDeadLetter
from ontologia.delivery.lineage import Lineage
from ontologia.delivery.retry import LEASE_EXPIRED, RetryPolicy, Verdict
from ontologia.ids import Ids
from ontologia.store.events.claims import ALL_TYPES
from ontologia.store.events.leases import Done, Settled
from ontologia.store.events.log import EventLog
from ontologia.store.rows import Claim, ConsumerRow, EventRow
from ontologia.store.s3.bucket import PAGE
from ontologia.store.s3.consumers import Consumers, Snapshot
from ontologia.store.s3.index import Index
from ontologia.store.s3.layout import ClaimDoc, Keys, Marker, marker_of
from ontologia.store.s3.objects import Objects, Versioned

log = logging.getLogger(__name__)
_ORPHAN_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds between looks for the event of a marker
_ORPHAN_ENDS = 3600.0  # seconds after which a marker without an event is deleted


@dataclass(slots=True)
class _Known:
    """What this process knows of one event for one consumer."""

    marker: Marker
    claim: Versioned | None = None
    """The claim as it was last seen or written; None before that."""
    mine: bool = False
    """Whether this process has written that, and holds the lease."""
    given: bool = False
    """Whether that claim was given to a caller, and not lost to an error before that."""
    settled: bool = False
    """Whether the end of the claim has been carried through."""
    orphaned_at: float | None = None
    """Since when its event was looked for, in vain."""
    look_at: float = 0.0
    """When to look for it again."""
    writing: Lock = field(default_factory=Lock)
    """Held while the claim is written: of two writes one would be taken for another process's."""


class _Call(NamedTuple):
    """One call of `claim`."""

    consumer: ConsumerRow
    session_id: str
    token: str
    lease_ms: float
    policy: RetryPolicy


class View:
    """The unfinished events of a namespace, listed as far as somebody looks. For one thread."""

    def __init__(self, namespace: str, listing: Iterator[Marker]) -> None:
        self.namespace = namespace
        self._listing = listing
        self._listed: list[Marker] = []

    def __iter__(self) -> Iterator[Marker]:
        """The markers, the most urgent first; those that were listed before cost nothing."""
        yield from self._listed
        for marker in self._listing:
            self._listed.append(marker)
            yield marker

    @property
    def listed(self) -> list[Marker]:
        """Those that were listed."""
        return self._listed

    @property
    def markers(self) -> list[Marker]:
        """All of them."""
        return list(self)


class Claims:
    """Claims events and ends them. Thread-safe."""

    def __init__(
        self,
        objects: Objects,
        consumers: Consumers,
        events: EventLog,
        index: Index,
        draw: Callable[[int, int], int],
    ) -> None:
        self._objects = objects
        self._consumers = consumers
        self.events = events
        self._index = index
        self._draw = draw
        self.clock: Clock = objects.clock
        self._ids: Ids = objects.ids
        self._lock = RLock()
        self._known: dict[tuple[str, str], dict[str, _Known]] = {}
        """By namespace and consumer, and then by event."""
        self._claiming: dict[tuple[str, str], Lock] = {}
        """Held while a consumer claims: of two threads one would resume what the other has."""
        self._snapshots: dict[str, Snapshot] = {}
        self._backlogs: dict[tuple[str, str], int] = {}
        """How often a consumer's backlog was filled when it was found empty."""

    # -- what there is ----------------------------------------------------------------------------

    def look(self, namespace: str) -> View:
        """What is unfinished. One request for every 1,000 events that are looked at."""
        return View(namespace, self._objects.each_marker(Keys(namespace).unfinished))

    def due_in(self, view: View, consumer: ConsumerRow, types: Sequence[str]) -> float | None:
        """Seconds until something of this view can be claimed; None if no time is known."""
        now = self.clock.now()
        waits: list[float] = []
        with self._lock:
            known = self._known.get((consumer.namespace, consumer.name), {})
            for marker in view.listed:
                each = known.get(marker.id)
                if not _among(types, marker.type) or each is None or each.claim is None:
                    continue
                if not each.claim.doc.ended and each.orphaned_at is None:
                    waits.append((from_text(each.claim.doc.due_at) - now).total_seconds())
        return max(0.0, min(waits)) if waits else None

    def _candidates(
        self, view: View, consumer: ConsumerRow, types: Sequence[str], most: int
    ) -> Iterator[list[_Known]]:
        """What can be claimed by all that is known here, the most urgent first, `most` at a time."""
        place = (consumer.namespace, consumer.name)
        merged = heapq.merge(view, self._backlog(consumer), key=lambda marker: marker[:4])
        seen: set[str] = set()
        found: list[_Known] = []
        for marker in merged:
            if marker.id in seen:
                continue  # it is in the backlog, too
            seen.add(marker.id)
            if _among(types, marker.type) and (each := self._claimable(place, marker)):
                found.append(each)
                if len(found) == most:
                    yield found
                    found = []
        if found:
            yield found
        self._prune(place, seen)

    def _claimable(self, place: tuple[str, str], marker: Marker) -> _Known | None:
        """What is known of an event, if it can be claimed by that."""
        with self._lock:
            each = self._known.setdefault(place, {}).setdefault(marker.id, _Known(marker))
            if each.marker.etag != marker.etag:
                each.marker = marker
                if not each.mine:
                    each.claim, each.settled = None, False
            if each.look_at > self.clock.monotonic() or each.settled:
                return None
            doc = None if each.claim is None else each.claim.doc
            if doc is None or (doc.ended and not each.mine) or (each.mine and not each.given):
                return each
            return each if not doc.ended and doc.due_at <= self.now() else None

    def _prune(self, place: tuple[str, str], listed: set[str]) -> None:
        """Know no more of what is finished: its marker is gone. For after a complete listing."""
        with self._lock:
            known = self._known.get(place, {})
            for event_id in [key for key, each in known.items() if not each.mine]:
                if event_id not in listed:
                    del known[event_id]

    def _backlog(self, consumer: ConsumerRow) -> Iterator[Marker]:
        """What the consumer has not finished of the events from before it came.

        No request once it is done, until the consumer subscribes to more.
        """
        place = (consumer.namespace, consumer.name)
        doc = self.snapshot_of(consumer.namespace).consumers.get(consumer.name)
        fills = 0 if doc is None else doc.fills
        if self._backlogs.get(place) == fills:
            return
        empty = True
        for marker in self._objects.each_marker(Keys(consumer.namespace).backlog(consumer.name)):
            empty = False
            yield marker
        if empty and doc is not None and not doc.filling:
            self._backlogs[place] = fills

    def snapshot_of(self, namespace: str) -> Snapshot:
        """The consumers of a namespace as they were when they were last read."""
        return self._snapshots.get(namespace) or self.snapshot(namespace)

    def snapshot(self, namespace: str) -> Snapshot:
        """The consumers of a namespace as they are now. One request."""
        before = self._snapshots.get(namespace)
        found = self._snapshots[namespace] = self._consumers.read(namespace)
        if before is not None and before.consumers.keys() - found.consumers.keys():
            with self._lock:  # what waited for a consumer that was forgotten waits no more
                for (place, _), events in self._known.items():
                    for known in events.values() if place == namespace else ():
                        known.settled = False
        return found

    # -- claim ------------------------------------------------------------------------------------

    def claim(
        self,
        consumer: ConsumerRow,
        types: Sequence[str],
        *,
        session_id: str,
        limit: int,
        lease_ms: float,
        policy: RetryPolicy,
        start: int = 0,
        view: View | None = None,
    ) -> list[Claim]:
        """Up to `limit` events, the most urgent first. The first `start` of them come started.

        Costs a listing, unless a `view` is given; if there is something to claim, also one request
        for the consumers, and two for each event.
        """
        if limit <= 0 or not types:
            return []
        call = _Call(consumer, session_id, self._ids.new(), lease_ms, policy)
        with self._lock:
            claiming = self._claiming.setdefault((consumer.namespace, consumer.name), Lock())
        with claiming:
            return self._claim(call, types, limit, start, view or self.look(consumer.namespace))

    def _claim(
        self, call: _Call, types: Sequence[str], limit: int, start: int, view: View
    ) -> list[Claim]:
        consumer = call.consumer
        claims: list[Claim] = []
        tried, seen = False, -1
        for waiting in self._candidates(view, consumer, types, min(limit, PAGE)):
            if seen != len(view.listed):
                # After the listing: a consumer that is not there yet then has what was listed in
                # its backlog, and whoever finishes that need not wait for it.
                seen = len(view.listed)
                doc = self.snapshot(consumer.namespace).consumers.get(consumer.name)
                if doc is None or doc.paused_at is not None:
                    break
            while waiting and len(claims) < limit:
                first = len(claims)
                some, waiting = waiting[: limit - first], waiting[limit - first :]
                numbered = [
                    (known, not tried and first + place < start) for place, known in enumerate(some)
                ]
                made = self._objects.each(lambda each: self._claim_one(call, *each), numbered)
                for claim in filter(None, made):
                    tried = tried or claim.attempts > 0
                    if claim.started and tried:
                        self._unstart(claim)
                    claims.append(claim)
            if len(claims) >= limit:
                break
        if seen >= 0:
            self._settle_ended(consumer)
            self._note_given(claims)
        return claims

    def _note_given(self, claims: Sequence[Claim]) -> None:
        with self._lock:
            for claim in claims:
                known = self._known.get((claim.event.namespace, claim.handler_id), {})
                if claim.event.id in known:
                    known[claim.event.id].given = True

    def _claim_one(self, call: _Call, known: _Known, start: bool) -> Claim | None:
        """Claim one event; None if another process has it, or it has come to an end."""
        keys = Keys(call.consumer.namespace)
        with known.writing:
            written = self._take(call, keys, known, start)
        if written is None or written.doc.ended:
            return None
        row = self._objects.get_event(keys, known.marker.id)
        if row is None:
            self._note_orphan(keys, known)
            return None
        known.orphaned_at = None
        doc = written.doc
        if not row.type:  # it cannot be read, and is for the handler that its marker names
            row = row._replace(type=known.marker.type, created_at=doc.claimed_at)
        return Claim(
            row,
            doc.handler_id,
            call.consumer.id,
            call.token,
            doc.attempts,
            doc.lease_until,
            crashed=doc.last_error == LEASE_EXPIRED,
            started=doc.started_at is not None,
            read_commit=doc.read_commit,
            lease_ms=call.lease_ms,
            outside=True,
        )

    def _take(self, call: _Call, keys: Keys, known: _Known, start: bool) -> Versioned | None:
        """Write a claim; None if it cannot be had now. One request, or two if there is one."""
        now, until = to_text(self.clock.now()), self._until(call.lease_ms)
        new = ClaimDoc(
            known.marker.id,
            call.consumer.name,
            call.session_id,
            call.token,
            now,
            until,
            now,
            started_at=now if start else None,
            read_commit=0 if start else None,
        )
        written: Versioned | None = None
        before = known.claim
        if before is None:
            written, before = self._objects.write_claim(keys, new, None)
        if before is not None:
            doc = before.doc
            # An error came between its claim and its caller: nobody has begun with it.
            unbegun = known.mine and not known.given and not doc.ended
            if doc.ended or (doc.due_at > now and not unbegun):
                known.claim, known.mine = before, False
                return None
            doc = doc if unbegun else self._after_crash(doc, now, call.policy)
            if not doc.ended:
                first = start and doc.attempts == 0
                doc = replace(
                    doc,
                    session_id=call.session_id,
                    token=call.token,
                    claimed_at=now,
                    lease_until=until,
                    available_at=now,
                    started_at=now if first else None,
                    read_commit=0 if first else None,
                )
            written, found = self._objects.write_claim(keys, doc, before.etag)
            if written is None:  # another process was faster
                known.claim, known.mine = found, False
                return None
        known.claim, known.given = written, False
        known.mine = written is not None and not written.doc.ended
        return written

    def _after_crash(self, doc: ClaimDoc, now: str, policy: RetryPolicy) -> ClaimDoc:
        """The claim that comes due again: a started attempt whose lease ran out counts."""
        if doc.started_at is None or doc.token is None:
            return doc
        verdict = policy.after_crash(doc.attempts)
        doc = doc.failed(now, verdict.attempts, LEASE_EXPIRED, None)
        if not verdict.buried:
            return replace(doc, attempts=verdict.attempts, last_error=LEASE_EXPIRED)
        log.error(
            "event %s is buried for %s: its lease ran out %d times",
            *(doc.event_id, doc.handler_id, verdict.attempts),
        )
        return _dead(doc, now, verdict.attempts, LEASE_EXPIRED)

    def _note_orphan(self, keys: Keys, known: _Known) -> None:
        """A marker without an event: it is about to be written, or never was."""
        now = self.clock.monotonic()
        if known.orphaned_at is None:
            known.orphaned_at = now
        since = now - known.orphaned_at
        known.look_at = now + min(max(_ORPHAN_PAUSE, since), _LONGEST_PAUSE)
        claim, known.claim, known.mine = known.claim, None, False
        if claim is None:
            return
        doomed = [keys.claim(claim.doc.event_id, claim.doc.handler_id)]
        if since >= _ORPHAN_ENDS:
            folder = keys.backlog(claim.doc.handler_id)
            doomed += [keys.marker(known.marker), f"{folder}/{known.marker.name}"]
        self._objects.bucket.delete(*doomed)

    def _unstart(self, claim: Claim) -> None:
        """One that was tried before is started alone, and what comes after it later."""
        claim.started, claim.read_commit = False, None
        self._rewrite(claim, lambda doc: replace(doc, started_at=None, read_commit=None))

    def _settle_ended(self, consumer: ConsumerRow) -> None:
        """Carry the ends through that were found, and that a process left half done."""
        with self._lock:
            ended = [
                each
                for each in self._known.get((consumer.namespace, consumer.name), {}).values()
                if each.claim is not None and each.claim.doc.ended and not each.settled
            ]
        self._finish(Keys(consumer.namespace), consumer.name, ended)

    # -- what one has -----------------------------------------------------------------------------

    def renew(self, claims: Iterable[Claim], lease_ms: float | None = None) -> list[Claim]:
        """Extend leases, by their own length unless another is given; those that were lost."""

        def extend(claim: Claim) -> Claim | None:
            until = self._until(lease_ms or claim.lease_ms)
            kept = self._rewrite(claim, lambda doc: replace(doc, lease_until=until))
            return None if kept else claim

        return [lost for lost in self._objects.each(extend, claims) if lost is not None]

    def run_again(self, claim: Claim) -> bool:
        """Count a conflict and start the same claim anew; False if it was lost."""
        now, until = to_text(self.clock.now()), self._until(claim.lease_ms)
        kept = self._rewrite(
            claim,
            lambda doc: replace(
                doc, conflicts=doc.conflicts + 1, lease_until=until, started_at=now, read_commit=0
            ),
        )
        if kept:
            claim.moved = False
        return kept

    def start(self, claims: Sequence[Claim], lease_ms: float) -> None:
        """Mark attempts as begun, with leases from now; `started` says which are still held."""
        now, until = to_text(self.clock.now()), self._until(lease_ms)

        def begin(claim: Claim) -> None:
            claim.started = self._rewrite(
                claim, lambda doc: replace(doc, started_at=now, read_commit=0, lease_until=until)
            )
            claim.read_commit = 0 if claim.started else None

        self._objects.each(begin, claims)

    def abandon(self, claims: Iterable[Claim]) -> int:
        """Give claims back untried; how many were still held."""
        now = to_text(self.clock.now())

        def give_back(claim: Claim) -> bool:
            kept = self._rewrite(claim, lambda doc: _given_back(doc, now))
            if kept:
                self._tell(claim.event.namespace, claim.handler_id, claim.event.id)
            return kept

        return sum(self._objects.each(give_back, claims))

    def settle(
        self, done: Sequence[Done], starting: Sequence[Claim] = (), lease_ms: float = 0
    ) -> Settled:
        """Ack what succeeded, after what it announced is stored, and start what is next.

        An announcement of an event that is lost in this very moment is stored all the same.
        """
        held = [each for each in done if self._mine(each.claim) or self._is_acked(each.claim)]
        announced = [each.row for one in held for each in one.announcements]
        self._objects.each(self._objects.put_event, announced)
        lost = self.acknowledge([each.claim for each in done])
        if starting:
            self.start(starting, lease_ms)
        return Settled(lost, bool(announced))

    def acknowledge(self, claims: Sequence[Claim]) -> list[Claim]:
        """Mark events as processed; the claims that were lost. Idempotent.

        One request for each, and one for all that are finished by it.
        """
        now = self.now()

        def ack(claim: Claim) -> bool:
            return self._is_acked(claim) or self._rewrite(
                claim,
                lambda doc: replace(
                    doc, ack_at=now, read_commit=claim.read_commit or doc.read_commit
                ),
            )

        kept = self._objects.each(ack, claims)
        acked = [claim for claim, is_ in zip(claims, kept, strict=True) if is_]
        self.carry_through(acked)
        for claim in acked:
            self._index.note(claim.event.namespace, claim.handler_id, claim.event.id, now)
        return [claim for claim, is_ in zip(claims, kept, strict=True) if not is_]

    def carry_through(self, claims: Iterable[Claim]) -> None:
        """Delete the markers of events that are finished by these ends."""
        groups: dict[tuple[str, str], list[_Known]] = {}
        with self._lock:
            for claim in claims:
                place = (claim.event.namespace, claim.handler_id)
                known = self._known.get(place, {}).get(claim.event.id)
                if known is not None:
                    groups.setdefault(place, []).append(known)
        for (namespace, handler_id), ended in groups.items():
            self._finish(Keys(namespace), handler_id, ended)

    # -- when it went wrong -----------------------------------------------------------------------

    def release(
        self,
        handler_id: str,
        event_id: str,
        *,
        error: str,
        policy: RetryPolicy,
        session_id: str | None = None,
        token: str | None = None,
        after_ms: float | None = None,
        outcome: str = "failed",
        final: bool = False,
        tried: bool = True,
        lapsed: bool = False,
        claim: Claim,
        traceback: str | None = None,
    ) -> Verdict | None:
        """End an attempt that did not succeed; None if the claim is not held (any more).

        With `final` the event is dead-lettered. Unless it was `tried`, no attempt is counted. With
        `lapsed` the lease may have ended, as long as no other session has claimed the event.
        """
        instant = self.clock.now()
        now = to_text(instant)
        verdicts: list[Verdict] = []

        def fail(doc: ClaimDoc) -> ClaimDoc:
            verdict = policy.after_failure(doc.attempts, self._draw, after_ms=after_ms)
            if not tried:
                verdict = Verdict(doc.attempts, False, policy.backoff.delay_ms(1, self._draw))
            if final:
                verdict = Verdict(verdict.attempts if tried else doc.attempts, buried=True)
            verdicts.append(verdict)
            doc = replace(doc, read_commit=claim.read_commit or doc.read_commit)
            if tried:
                doc = doc.failed(now, verdict.attempts, outcome, error, traceback)
            if verdict.buried:
                return _dead(doc, now, verdict.attempts, error)
            available = to_text(instant + timedelta(milliseconds=verdict.delay_ms))
            return replace(
                _given_back(doc, now),
                attempts=verdict.attempts,
                last_error=error,
                available_at=available,
            )

        if not self._rewrite(claim, fail, lapsed=lapsed):
            return None
        if verdicts[-1].buried:
            self.carry_through([claim])
        else:
            self._tell(claim.event.namespace, handler_id, event_id)
        return verdicts[-1]

    def forget(self, namespace: str, handler_id: str) -> None:
        """Know nothing of a consumer any more."""
        with self._lock:
            self._known.pop((namespace, handler_id), None)
            self._backlogs.pop((namespace, handler_id), None)
            self._snapshots.pop(namespace, None)

    # -- one claim --------------------------------------------------------------------------------

    def now(self) -> str:
        """The time as it is stored."""
        return to_text(self.clock.now())

    def find(self, row: EventRow, handler_id: str) -> Versioned | None:
        """A claim as it is now, also one of another process; None if there is none."""
        found = self._objects.get_claim(Keys(row.namespace), row.id, handler_id)
        if found is not None:
            with self._lock:
                place = self._known.setdefault((row.namespace, handler_id), {})
                known = place.setdefault(row.id, _Known(marker_of(row)))
                known.claim = found
        return found

    def _mine(self, claim: Claim, *, lapsed: bool = False) -> _Known | None:
        """What is known of a claim that is held, by all that is known here."""
        now = to_text(self.clock.now())
        with self._lock:
            place = self._known.get((claim.event.namespace, claim.handler_id), {})
            known = place.get(claim.event.id)
            if known is None or known.claim is None:
                return None
            doc = known.claim.doc
            if lapsed:
                return None if doc.ended or doc.token != claim.token else known
            return known if doc.is_held(now, token=claim.token) else None

    def holds(self, claim: Claim) -> bool:
        """Whether a claim is held, by all that is known here. No request."""
        return self._mine(claim) is not None

    def _is_acked(self, claim: Claim) -> bool:
        """Whether this very claim is acked: by a call that was cut off, and is made again."""
        with self._lock:
            place = self._known.get((claim.event.namespace, claim.handler_id), {})
            known = place.get(claim.event.id)
            doc = None if known is None or known.claim is None else known.claim.doc
            return doc is not None and doc.ack_at is not None and doc.token == claim.token

    def _rewrite(
        self, claim: Claim, change: Callable[[ClaimDoc], ClaimDoc], *, lapsed: bool = False
    ) -> bool:
        """Write a claim that is held anew; False if it was lost. One request."""
        with self._lock:
            place = self._known.get((claim.event.namespace, claim.handler_id), {})
            known = place.get(claim.event.id)
        if known is None:
            return False
        with known.writing:
            if self._mine(claim, lapsed=lapsed) is None or known.claim is None:
                claim.lease_until = ""  # nothing is written in its name from here on
                return False
            keys = Keys(claim.event.namespace)
            new = change(known.claim.doc)
            written, found = self._objects.write_claim(keys, new, known.claim.etag)
            if written is None:  # another process has it
                known.claim, known.mine = found, False
                claim.lease_until = ""
                return False
            known.claim = written
            known.mine = known.mine and not written.doc.ended and written.doc.token is not None
            claim.lease_until = written.doc.lease_until
            return True

    def _tell(self, namespace: str, handler_id: str, event_id: str) -> None:
        """Have other processes look at an event before its lease would have ended."""
        with self._lock:
            known = self._known.get((namespace, handler_id), {}).get(event_id)
        if known is not None:
            self._objects.put_marker(Keys(namespace), known.marker)

    def _until(self, lease_ms: float) -> str:
        return to_text(self.clock.now() + timedelta(milliseconds=lease_ms))

    # -- ends -------------------------------------------------------------------------------------

    def _finish(self, keys: Keys, handler_id: str, ended: Sequence[_Known]) -> None:
        """Carry ends through: dead letters, and the markers of what all have finished. Idempotent.

        One request for all markers, and one for each other consumer whose end is not known here.
        """
        if not ended:
            return
        for each in ended:
            if each.claim is not None and each.claim.doc.dead_lettered_at is not None:
                self._bury(keys, each.claim.doc)
        snapshot = self.snapshot_of(keys.namespace)
        finished = self._objects.each(
            lambda each: self._is_finished(keys, snapshot, handler_id, each), ended
        )
        folder = keys.backlog(handler_id)
        doomed = [
            keys.marker(each.marker) for each, is_ in zip(ended, finished, strict=True) if is_
        ]
        if self._backlogs.get((keys.namespace, handler_id)) != _fills(snapshot, handler_id):
            doomed += [f"{folder}/{each.marker.name}" for each in ended]
        if doomed:
            self._objects.bucket.delete(*doomed)
        with self._lock:
            for each in ended:
                each.settled, each.mine = True, False

    def _is_finished(self, keys: Keys, snapshot: Snapshot, handler_id: str, known: _Known) -> bool:
        """Whether every other consumer of the event has ended it, too."""
        for other in snapshot.consumers.values():
            if other.name == handler_id or not other.takes(known.marker.type):
                continue
            with self._lock:
                theirs = self._known.get((keys.namespace, other.name), {}).get(known.marker.id)
            if theirs is not None and theirs.claim is not None and theirs.claim.doc.ended:
                continue
            found = self._objects.get_claim(keys, known.marker.id, other.name)
            if found is None or not found.doc.ended:
                return False
        return True

    def _bury(self, keys: Keys, doc: ClaimDoc) -> None:
        """Write the dead letter, and announce it, under the same names each time."""
        row = self._objects.get_event(keys, doc.event_id)
        failed_at = doc.dead_lettered_at or ""
        if row is None:
            log.warning("event %s of %s is gone; no dead letter", doc.event_id, doc.handler_id)
            return
        event_type = row.type or "undecodable"
        letter = {
            "event_id": doc.event_id,
            "type": event_type,
            "handler": doc.handler_id,
            "attempts": doc.attempts,
            "last_error": doc.last_error,
            "failed_at": failed_at,
            "root_event_id": row.root_event_id,
            "chain_depth": row.chain_depth,
        }
        key = keys.dead_letter(failed_at, doc.event_id, doc.handler_id)
        self._objects.put_documents([(key, letter)])
        if event_type == EventDeadLetter.__event_type__:  # or a failing handler would never end
            return
        told = EventDeadLetter(
            event_id=doc.event_id,
            handler_id=doc.handler_id,
            attempts=doc.attempts,
            last_error=doc.last_error or "",
        )
        lineage = Lineage(
            row.root_event_id, row.chain_depth + 1, row.correlation_id, row.id, doc.handler_id
        )
        self._objects.put_event(
            self.events.row(
                told,
                keys.namespace,
                lineage,
                id=_letter_id(doc),
                created_at=failed_at,
                limited=False,
            )
        )


def _among(types: Sequence[str], event_type: str) -> bool:
    return event_type in types or ALL_TYPES in types


def _fills(snapshot: Snapshot, handler_id: str) -> int:
    doc = snapshot.consumers.get(handler_id)
    return 0 if doc is None else doc.fills


def _given_back(doc: ClaimDoc, now: str) -> ClaimDoc:
    return replace(
        doc, token=None, lease_until=now, available_at=now, started_at=None, read_commit=None
    )


def _dead(doc: ClaimDoc, now: str, attempts: int, error: str) -> ClaimDoc:
    return replace(
        doc,
        token=None,
        lease_until=now,
        available_at=now,
        dead_lettered_at=now,
        attempts=attempts,
        last_error=error,
    )


def _letter_id(doc: ClaimDoc) -> str:
    """The id of the event that tells of a dead letter: the same, however often it is told."""
    said = "\0".join((doc.event_id, doc.handler_id, doc.dead_lettered_at or ""))
    return f"dead-letter-{sha256(said.encode()).hexdigest()[:32]}"
