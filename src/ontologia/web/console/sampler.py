"""What the charts show: how many events came, were done and failed, and how long they took.

A sampler looks at a namespace every few seconds and keeps one figure for each minute of the last
24 hours, for each handler and in all. One runs in a process for each store and namespace, however
many browsers watch; it knows nothing from before it began.

Each look reads what is new alone: events by their number in the log, then the claims and failed
attempts, by their keys, of events that were not finished at the last look. What waited before the
sampler began comes from the ready lists and the index of claims that wait, as it comes to the front.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from ontologia.clock import from_text, to_text
from ontologia.errors import OntologiaError
from ontologia.forking import in_forked_child
from ontologia.runtime.session import core_of
from ontologia.store.database import reading_within
from ontologia.store.events.claims import ALL_TYPES
from ontologia.store.provenance import AttemptRow, ClaimRow

if TYPE_CHECKING:
    from ontologia.runtime.session import Session
    from ontologia.store.events.activity import Activity, Numbered

log = logging.getLogger(__name__)
INTERVAL = 5.0
"""Seconds between two looks."""
MINUTES = 24 * 60
_SECONDS = 2.0  # that the reads of a look take at most
_NEW = 20_000  # new events that are read in a look
_WATCHED = 20_000  # unfinished events that are kept, though nothing happens to them
_LOOKED = 2_000  # of them in a look; more while something happened to at least half of them
_MOST_LOOKED = 50_000
_FRONT = 500  # of each handler, of what is not kept; more while most of it goes
_OLDEST = 200  # claims of a handler that are looked at for the oldest that waits
_PORTION = 500
_UNSETTLED = 500  # numbers before the last one that may still be given to a transaction
_AHEAD = timedelta(hours=1)  # that the clocks of those who emit may be
_HANDLERS = 100  # that have figures of their own
_CLOSED = 15  # minutes after which the times of a minute become two figures
_GROWTH = math.log(1.02)  # times are kept to 2%


@dataclass(frozen=True, slots=True)
class Figures:
    """One minute."""

    at: datetime
    """Its beginning."""
    came: int
    done: int
    failed: int
    """Attempts that failed."""
    oldest: float | None
    """Seconds that the oldest event had waited, at most; None if none waited."""
    p50: float | None
    """Seconds from the emit to the ack, of half of what was done; None if nothing was."""
    p95: float | None


@dataclass(frozen=True, slots=True)
class Series:
    """The last minutes of a handler, or of all."""

    handler: str | None
    began: datetime
    """Since when the sampler looks."""
    minutes: tuple[Figures, ...]
    """The oldest first; none from before it began."""


@dataclass(slots=True)
class _Minute:
    came: int = 0
    done: int = 0
    failed: int = 0
    oldest: float | None = None
    took: Counter[int] | None = field(default_factory=Counter[int])
    """How many took how long; None once `p50` and `p95` are made of it."""
    p50: float | None = None
    p95: float | None = None


@dataclass(slots=True)
class _Watched:
    """An event that was not finished at the last look."""

    type: str
    created_at: str
    since: str
    """What ended before is not counted."""
    done: tuple[str, ...] = ()
    counted: dict[str, int] | None = None
    """How many failed attempts of each handler were counted."""

    def failures(self, handler: str) -> int:
        """How many failed attempts of a handler were counted."""
        return 0 if self.counted is None else self.counted.get(handler, 0)


class _LogCursor:
    """A place in the log, behind which events are new.

    On a server an event may come later than one with a greater number. So the last 500 numbers are
    looked at again.
    """

    def __init__(self, activity: Activity) -> None:
        self._last = activity.last_number()
        before = activity.numbered_after(self._last - _UNSETTLED, _UNSETTLED)
        self._known = {each.seq for each in before}
        self.reached = max((each.created_at for each in before), default="")
        """When the last of the events before it was emitted."""

    def next(self, activity: Activity, most: int) -> list[Numbered]:
        """The next new events, and go on behind them."""
        rows = activity.numbered_after(self._last - _UNSETTLED, _UNSETTLED + most)
        fresh = [each for each in rows if each.seq not in self._known][:most]
        self._known.update(each.seq for each in fresh)
        self.reached = max([self.reached, *(each.created_at for each in fresh)])
        self._last = max([self._last, *(each.seq for each in fresh)])
        self._known = {each for each in self._known if each > self._last - _UNSETTLED}
        return fresh


class Sampler:
    """The figures of one namespace. Thread-safe.

    `sample` looks once; between `start` and `stop` a thread does, every `INTERVAL` seconds. It reads
    through the first of its sessions that is open.
    """

    def __init__(self, session: Session) -> None:
        self.sessions = [session]
        self.namespace = session.namespace
        self._clock = core_of(session).clock
        self.began = self._clock.now()
        self._lock = threading.Lock()  # of the rings
        self._looking = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._rings: dict[str | None, dict[int, _Minute]] = {None: {}}
        self._watched: dict[str, _Watched] = {}
        self._log = _LogCursor(session.event_store.activity)
        self._front = set[str]()
        self._front_size = _FRONT

    # -- the figures ----------------------------------------------------------------------------

    @property
    def handlers(self) -> list[str]:
        """The handlers that have figures, by name."""
        with self._lock:
            return sorted(name for name in self._rings if name is not None)

    def counts(self, handler: str | None) -> bool:
        """Whether a handler has figures of its own; of more than 100, some have none."""
        with self._lock:
            return handler in self._rings or len(self._rings) <= _HANDLERS

    def series(self, handler: str | None = None, *, minutes: int = 60) -> Series:
        """The last minutes of a handler, or of all; those since it began."""
        last = _minute(self._clock.now())
        first = max(last - min(minutes, MINUTES) + 1, _minute(self.began))
        with self._lock:
            ring = self._rings.get(handler, {})
            shown = [_figures(number, ring.get(number)) for number in range(first, last + 1)]
        return Series(handler, self.began, tuple(shown))

    # -- looking --------------------------------------------------------------------------------

    def start(self) -> None:
        """Look every few seconds, in a thread of its own. Idempotent."""
        if self._thread is None:
            self._stopped.clear()
            self._thread = threading.Thread(target=self._run, name="ontologia-sampler", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for the look that it is at. Idempotent."""
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        failing = False
        while not self._stopped.wait(INTERVAL):
            try:
                self.sample()
                failing = False
            except OntologiaError as error:
                if not failing:
                    log.warning("the figures of the console wait: %s", error.args[0])
                failing = True

    def sample(self) -> None:
        """Look once.

        Reads at most 20,000 new events, the front of each handler's list, and the claims of 2,000
        unfinished events; more of both while most of it moves. Events that nothing happens to are
        kept up to 20,000; of more than that, some may be done unseen.
        """
        session = next((each for each in self.sessions if not core_of(each).closed), None)
        if session is None:
            return
        with self._looking, reading_within(_SECONDS):
            pairs = session.event_store.activity.subscriptions(self.namespace)
            self._count_new(session, pairs)
            self._watch_front(session)
            self._look(session, pairs)
            self._see_oldest(session)
            self._trim()

    def _count_new(self, session: Session, pairs: list[tuple[str, str]]) -> None:
        """Count what came, and watch it."""
        fresh = [
            each
            for each in self._log.next(session.event_store.activity, _NEW)
            if each.namespace == self.namespace
        ]
        with self._lock:
            for each in fresh:
                consumers = _consumers(pairs, each.type)
                for name in (None, *consumers):
                    self._at(name, each.created_at).came += 1
                if consumers:
                    self._watched[each.id] = _Watched(each.type, each.created_at, "")

    def _watch_front(self, session: Session) -> None:
        """Watch what waited before, was retried, or is not kept: as it comes to the front."""
        now = self._clock.now()
        activity = session.event_store.activity
        found = activity.unfinished(self.namespace, now + _AHEAD, self._front_size)
        front = {each.id: each for each in found if each.created_at <= self._log.reached}
        for each in front.values():
            watched = _Watched(each.type, each.created_at, to_text(now))
            self._watched.setdefault(each.id, watched)
        gone = len(self._front - front.keys())
        if 2 * gone >= len(self._front) >= self._front_size:
            self._front_size = min(4 * self._front_size, _NEW)
        elif 8 * gone <= len(self._front):
            self._front_size = _FRONT
        self._front = set(front)

    def _look(self, session: Session, pairs: list[tuple[str, str]]) -> None:
        """What became of those that are watched, in turn."""
        left, looked, more = len(self._watched), 0, True
        while left > 0 and (looked < _LOOKED or (more and looked < _MOST_LOOKED)):
            ids = list(islice(self._watched, min(_PORTION, left)))
            claims, attempts = self._read(session, ids)
            news = 0
            for each in ids:
                event = self._watched.pop(each)
                with self._lock:
                    is_news, is_done = self._count_one(
                        event, claims.get(each, []), attempts.get(each, []), pairs
                    )
                news += is_news
                room = each in self._front or len(self._watched) < _WATCHED
                if not is_done and (is_news or room):
                    self._watched[each] = event  # the last in turn
            more = 2 * news >= len(ids) or len(self._watched) > _WATCHED
            looked, left = looked + len(ids), left - len(ids)

    def _read(
        self, session: Session, ids: list[str]
    ) -> tuple[dict[str, list[ClaimRow]], dict[str, list[AttemptRow]]]:
        """Claims of these events, and the attempts of those that failed anew. One snapshot."""
        claims: dict[str, list[ClaimRow]] = {}
        attempts: dict[str, list[AttemptRow]] = {}
        with core_of(session).store.provenance.read() as trail:
            for claim in trail.claims(ids):
                claims.setdefault(claim.event_id, []).append(claim)
            failed = [
                each
                for each, rows in claims.items()
                if any(row.attempts != self._watched[each].failures(row.handler_id) for row in rows)
            ]
            for attempt in trail.attempts(failed) if failed else ():
                attempts.setdefault(attempt.event_id, []).append(attempt)
        return claims, attempts

    def _count_one(
        self,
        event: _Watched,
        claims: list[ClaimRow],
        attempts: list[AttemptRow],
        pairs: list[tuple[str, str]],
    ) -> tuple[bool, bool]:
        """Count what is new of an event; whether anything is, and whether it is finished."""
        news = bool(attempts)
        for attempt in attempts:
            known = event.failures(attempt.handler_id)
            if attempt.attempt > known and attempt.ended_at >= event.since:
                for name in (None, attempt.handler_id):
                    self._at(name, attempt.ended_at).failed += 1
        ended: set[str] = set()
        for claim in claims:
            if claim.attempts != event.failures(claim.handler_id):
                event.counted = (event.counted or {}) | {claim.handler_id: claim.attempts}
            if claim.ack_at is not None:
                ended.add(claim.handler_id)
                if claim.handler_id not in event.done and claim.ack_at >= event.since:
                    self._count_done(claim.handler_id, event.created_at, claim.ack_at)
                    news = True
                    event.done += (claim.handler_id,)
            elif claim.dead_lettered_at is not None:
                ended.add(claim.handler_id)
        return news, ended >= set(_consumers(pairs, event.type))

    def _count_done(self, handler: str, created_at: str, ack_at: str) -> None:
        took = (from_text(ack_at) - from_text(created_at)).total_seconds()
        for name in (None, handler):
            minute = self._at(name, ack_at)
            minute.done += 1
            if minute.took is not None:
                minute.took[_bin(took)] += 1

    def _see_oldest(self, session: Session) -> None:
        now = self._clock.now()
        loads = session.event_store.activity.loads(self.namespace, _OLDEST)
        with self._lock:
            self._at(None, to_text(now))
            for load in loads:
                if load.oldest_waiting is None:
                    continue
                age = max(0.0, (now - from_text(load.oldest_waiting)).total_seconds())
                for name in (None, load.name):
                    minute = self._at(name, to_text(now))
                    minute.oldest = max(age, minute.oldest or 0.0)

    # -- the rings ------------------------------------------------------------------------------

    def _at(self, name: str | None, instant: str) -> _Minute:
        """The minute of an instant; one that is counted nowhere, if it is not kept."""
        number = _minute(from_text(instant))
        if number < _minute(self.began) or (
            name not in self._rings and len(self._rings) > _HANDLERS
        ):
            return _Minute()
        return self._rings.setdefault(name, {}).setdefault(number, _Minute())

    def _trim(self) -> None:
        now = _minute(self._clock.now())
        with self._lock:
            for ring in self._rings.values():
                for number in [each for each in ring if each <= now - MINUTES]:
                    del ring[number]
                for number in [each for each in ring if each < now - _CLOSED]:
                    _close(ring[number])


def _consumers(pairs: Iterable[tuple[str, str]], event_type: str) -> list[str]:
    return sorted({name for each, name in pairs if each in (event_type, ALL_TYPES)})


def _minute(instant: datetime) -> int:
    return int(instant.timestamp() // 60)


def _bin(seconds: float) -> int:
    return round(math.log(max(seconds, 1e-4)) / _GROWTH)


def _percentile(took: Counter[int], share: float) -> float | None:
    wanted, seen = share * took.total(), 0
    for number in sorted(took):
        seen += took[number]
        if seen >= wanted:
            return math.exp(number * _GROWTH)
    return None


def _close(minute: _Minute) -> None:
    if minute.took is not None:
        minute.p50, minute.p95 = _percentile(minute.took, 0.5), _percentile(minute.took, 0.95)
        minute.took = None


def _figures(number: int, minute: _Minute | None) -> Figures:
    at = datetime.fromtimestamp(60 * number, UTC)
    if minute is None:
        return Figures(at, 0, 0, 0, None, None, None)
    p50, p95 = minute.p50, minute.p95
    if minute.took is not None:
        p50, p95 = _percentile(minute.took, 0.5), _percentile(minute.took, 0.95)
    return Figures(at, minute.came, minute.done, minute.failed, minute.oldest, p50, p95)


# -- one for a process ----------------------------------------------------------------------------

_running: dict[tuple[str, str], Sampler] = {}
_sharing = threading.Lock()


@contextmanager
def running_sampler(session: Session) -> Generator[Sampler]:
    """The sampler of the session's store and namespace, which runs until its last user leaves."""
    store = core_of(session).store
    shared = "" if store.uri.partition("://")[2].strip("/") not in ("", ":memory:") else id(store)
    key = (f"{store.uri}{shared}", session.namespace)
    with _sharing:
        sampler = _running.get(key)
        if sampler is None:
            sampler = _running[key] = Sampler(session)
            sampler.start()
        else:
            sampler.sessions.append(session)
    try:
        yield sampler
    finally:
        with _sharing:
            sampler.sessions.remove(session)
            ends = not sampler.sessions
            if ends:
                del _running[key]
        if ends:
            sampler.stop()


in_forked_child(_running.clear)
