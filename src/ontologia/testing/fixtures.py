"""What the fixtures of the pytest plugin give to a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar, cast

from ontologia.clock import SystemClock, from_text
from ontologia.config import OntologiaConfig
from ontologia.runtime.handlers import ordered
from ontologia.runtime.session import Session, core_of
from ontologia.schema.event import Event, types_of
from ontologia.store.events.claims import Peek
from ontologia.store.events.decoding import read_event
from ontologia.testing.clock import ManualClock

E = TypeVar("E", bound=Event)
_SEED = 1
_ALL = 1_000_000


def open_session(path: Path, clock: ManualClock) -> Session:
    """A session on this file, with this clock, and with the same ids in each run.

    Its settings are the defaults: what the working directory's files and the environment say is
    meant for the program, and a test must not depend on where it is run.
    """
    config = OntologiaConfig.model_construct(clock=clock, random=Random(_SEED))
    return Session(str(path), config=config)


class Drained(NamedTuple):
    """What became of the events that handlers were given, counted for each event and handler."""

    done: int
    failed: int = 0
    """Waiting for their next attempt."""
    dead: int = 0
    """Dead letters now."""


class Drain:
    """Runs handlers on a session, in the thread of the test."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._core = core_of(session)

    def __call__(
        self, handlers: Sequence[Callable[..., Any]], *, within: float | timedelta = 0
    ) -> Drained:
        """Run until nothing can be claimed, also of what handlers announce on the way.

        What waits for a time (a backoff, a delay, a tick of a schedule that was added to the
        session) is waited for if it comes within so many seconds: the clock is moved there. At the
        end the clock has moved by all of `within`, so two calls with 30 reach what one with 60 does.
        """
        clock = self._core.clock
        length = within if isinstance(within, timedelta) else timedelta(seconds=within)
        until = clock.now() + length
        before = self._claims()
        while True:
            self._session.run(handlers, max_iterations=1)
            peek = self._peek(handlers)
            if peek.claimable:
                continue  # max_events_per_iteration came first
            due = self._next(peek)
            if due is None or due > until:
                break
            clock.sleep(max(0.0, (due - clock.now()).total_seconds()))
            self._core.scheduler.fire_due()  # a run begins with the tick after now
        if not isinstance(clock, SystemClock):
            clock.sleep(max(0.0, (until - clock.now()).total_seconds()))
        return _became(before, self._claims())

    def _claims(self) -> dict[tuple[str, str], _Claim]:
        """What became of each event so far, for each consumer that was given it."""
        listed = self._core.store.events.list_events(self._core.namespace, limit=_ALL)
        with self._core.store.provenance.read() as trail:
            claims = trail.claims([each["id"] for each in listed])
        return {
            (each.event_id, each.handler_id): _Claim(
                each.attempts, bool(each.ack_at), bool(each.dead_lettered_at)
            )
            for each in claims
        }

    def _peek(self, handlers: Sequence[Callable[..., Any]]) -> Peek:
        events = self._core.store.events
        consumers = [
            events.consumers.register(self._core.namespace, each.id, each.event_types)
            for each in ordered(handlers)
        ]
        return events.claims.peek(each.id for each in consumers)

    def _next(self, peek: Peek) -> datetime | None:
        """When something comes due."""
        times = [self._core.scheduler.next_tick()]
        times.append(from_text(peek.next_due) if peek.next_due else None)
        times.append(datetime.fromtimestamp(peek.next_fire, UTC) if peek.next_fire else None)
        return min((each for each in times if each is not None), default=None)


class _Claim(NamedTuple):
    attempts: int
    done: bool
    dead: bool


def _became(before: Mapping[Any, _Claim], after: Mapping[Any, _Claim]) -> Drained:
    new = _Claim(0, done=False, dead=False)
    changed = [(before.get(key, new), now) for key, now in after.items()]
    changed = [(was, now) for was, now in changed if was != now]
    done = sum(now.done for _, now in changed)
    dead = sum(now.dead for _, now in changed)
    failed = sum(now.attempts > was.attempts for was, now in changed if not (now.done or now.dead))
    return Drained(done, failed, dead)


class Emitted:
    """Finds events that are stored in a session's namespace."""

    def __init__(self, session: Session) -> None:
        self._core = core_of(session)

    def __call__(self, event_cls: type[E]) -> list[E]:
        """The events of this class, in the order in which they were stored.

        One that was deferred is among them when its time has come.
        """
        if not (isinstance(event_cls, type) and issubclass(event_cls, Event)):
            raise TypeError(f"emitted takes an Event class, got {event_cls!r}")
        store = self._core.store
        entries = [
            entry
            for topic in types_of(event_cls)
            for entry in store.events.journal.entries(self._core.namespace, topic=topic, limit=_ALL)
        ]
        entries.sort(key=itemgetter("id"))
        with store.provenance.read() as trail:
            rows = [trail.event(entry["event_id"]) for entry in entries]
        return [
            cast("E", read_event(event_cls, row, store.events.upgraders))
            for row in rows
            if row is not None
        ]


class DeadLetters:
    """Finds the dead letters of a session's namespace."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __call__(self) -> list[dict[str, Any]]:
        """`event_id type handler attempts last_error failed_at` of each, the newest first."""
        return self._session.event_store.list_dead_letters(self._session.namespace, limit=_ALL)
