"""Events, the newest first, and everything about one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ontologia import codec
from ontologia.clock import from_text, to_text
from ontologia.delivery.lifecycle import EVENT_STATUSES, ClaimState, ClaimTimes, state_of
from ontologia.errors import InvalidValueError
from ontologia.runtime.session import core_of
from ontologia.runtime.views.dead_letters import Frame, raised_in
from ontologia.runtime.views.paging import DEADLINE, PAGE, Page, cursor, place
from ontologia.store.database import ReadDeadline
from ontologia.store.events import checks
from ontologia.store.events.claims import ALL_TYPES
from ontologia.store.events.listings import ListedEvent

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

_PORTION = 200
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events are meant: those of which all is true that is said."""

    type: str | None = None
    handler: str | None = None
    """Those that this consumer has or had, or that wait for it."""
    status: str | None = None
    """`pending`, `unsubscribed`, `claimed`, `acked` or `dead_lettered`; with `handler`, of it."""
    since: datetime | None = None
    payload: tuple[tuple[str, str], ...] = ()
    """Fields of the payload, dotted, and their values as text; needs `type`."""

    def check(self) -> None:
        """InvalidValueError if it cannot be asked."""
        for what, text in (("an event's type", self.type), ("a consumer's name", self.handler)):
            if text is not None:
                checks.name(what, text, checks.LONGEST_KEY)
        if self.status is not None and self.status not in EVENT_STATUSES:
            raise InvalidValueError(
                f"an event has no status {self.status[:100]!r}",
                hint=f"It is one of {', '.join(EVENT_STATUSES)}.",
            )
        if self.since is not None:
            checks.instant("since", self.since)
        if self.payload and self.type is None:
            raise InvalidValueError(
                "a field of the payload is looked for in events of one type",
                hint="Name the type as well, type:order.placed.",
            )


@dataclass(frozen=True, slots=True)
class EventClaim:
    """How one consumer stands to an event in a list."""

    handler: str
    state: str
    """`acked`, `dead_lettered`, `claimed`, `backoff` or `reclaimable`."""
    attempts: int
    """How many have failed."""
    last_error: str | None


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event of a list, and what became of it."""

    event_id: str
    type: str
    created_at: datetime
    priority: int
    status: str
    """The gravest of what its claims say, or of the claim of the handler that was asked for."""
    handlers: tuple[str, ...]
    """The consumers that decided the status."""
    claims: tuple[EventClaim, ...]
    """By consumer; one that has it waiting has none."""


@dataclass(frozen=True, slots=True)
class Claim:
    """How one consumer stands to one event."""

    handler: str
    state: str
    """`acked`, `dead_lettered`, `claimed`, `backoff`, `reclaimable`, or `unclaimed`."""
    session_id: str | None
    attempts: int
    """How many have failed."""
    conflicts: int
    """How often it ran again because of a conflict, which counts as no attempt."""
    last_error: str | None
    claimed_at: datetime | None
    started_at: datetime | None
    lease_until: datetime | None
    available_at: datetime | None
    ended_at: datetime | None
    """When it was acked or dead-lettered."""
    read_commit: int | None
    """The head as the last attempt began."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One attempt that did not succeed."""

    handler: str
    attempt: int
    """From 1; 0 and below for those from before an operator's retry."""
    started_at: datetime | None
    ended_at: datetime
    read_commit: int | None
    outcome: str
    error: str | None
    traceback: str | None
    raised_in: Frame | None
    """The frame of the user's code that is nearest to the error."""


@dataclass(frozen=True, slots=True)
class EventDetail:
    """Everything about one event."""

    event_id: str
    namespace: str
    type: str
    payload: Any
    created_at: datetime
    occurred_at: datetime | None
    priority: int
    root_event_id: str
    chain_depth: int
    source: str | None
    correlation_id: str | None
    causation_id: str | None
    tenant_id: str | None
    dedup_key: str | None
    commit_id: int | None
    """The commit it was emitted with; None if it was emitted alone, or that is not known."""
    claims: tuple[Claim, ...]
    """By consumer, those that wait for it included."""
    attempts: tuple[FailedAttempt, ...]
    commits: tuple[int, ...]
    """The commits that its handlers made."""
    archived: str | None
    """The archive that it was found in; None if it is retained."""


def newest_events(
    session: Session,
    which: EventFilter | None = None,
    *,
    before: str | None = None,
    limit: int = PAGE,
    seconds: float = DEADLINE,
) -> Page[EventRow]:
    """A page of the namespace's events, the newest first.

    Costs the page, and a seek for each type and priority. With a filter other than `type` it costs
    the events that are looked at until the page is full, for `seconds` at most; then
    `searched_to` says how far back it came.
    """
    which = which or EventFilter()
    which.check()
    at: tuple[str, str] | None = None if before is None else place(before, str, str)
    listings = session.event_store.listings
    walked = which.handler or which.status or which.payload
    since = "" if which.since is None else to_text(which.since)
    types, every = types_walked(session, which)
    found: list[EventRow] = []
    deadline = ReadDeadline(seconds)
    portion = _PORTION if walked else limit + 1
    for events in listings.walk_back(session.namespace, types=types, before=at, portion=portion):
        recent = [each for each in events if each.created_at >= since]
        meant = with_payload(session, (each.id for each in recent), which.payload)
        for event in recent:
            row = _row(event, which, waits=every or event.type in (types or ()))
            if row is not None and event.id in meant:
                found.append(row)
        if len(found) > limit:
            return Page(tuple(found[:limit]), place_of(found[limit - 1]))
        if len(recent) < len(events):
            break
        if deadline.passed and len(events) == portion:
            last = events[-1]
            return Page(tuple(found), cursor(last.created_at, last.id), from_text(last.created_at))
    return Page(tuple(found), None)


def event(session: Session, event_id: str) -> EventDetail | None:
    """Everything about one event of any namespace; None if it is not in the log.

    A few reads by its id. One that is not retained is looked up in the archive that `archive_uri`
    names.
    """
    checks.name("an event's id", event_id)
    store, core = session.event_store, core_of(session)
    found = store.inspect_event(event_id)
    if found is None:
        return None
    with core.store.provenance.read() as trail:
        made = trail.commits_for([event_id])
        ready = [] if "archived" in found else trail.ready_for(event_id)
        commit_id = trail.emitting_commit(event_id, found["source"], found["causation_id"])
    now = to_text(core.clock.now())
    claims = {each["handler_id"]: _claim(each, now) for each in found["claims"]}
    for handler in ready:
        claims.setdefault(handler, _unclaimed(handler))
    return EventDetail(
        found["id"],
        found["namespace"],
        found["type"],
        found["payload"],
        from_text(found["created_at"]),
        _instant(found["occurred_at"]),
        found["priority"],
        found["root_event_id"],
        found["chain_depth"],
        found["source"],
        found["correlation_id"],
        found["causation_id"],
        found["tenant_id"],
        found["dedup_key"],
        commit_id,
        tuple(claims[handler] for handler in sorted(claims)),
        tuple(map(_attempt, found["attempts"])),
        tuple(commit.id for commit in made),
        found.get("archived"),
    )


# -- which events ---------------------------------------------------------------------------------


def types_walked(session: Session, which: EventFilter) -> tuple[list[str] | None, bool]:
    """The types to walk through, and whether the handler subscribes to every type."""
    if which.handler is None:
        return (None if which.type is None else [which.type]), True
    subscribed = session.event_store.activity.types_of(session.namespace, which.handler)
    if not subscribed:  # it was forgotten: its claims stay
        return (None if which.type is None else [which.type]), False
    if ALL_TYPES in subscribed:
        return (None if which.type is None else [which.type]), True
    return [each for each in subscribed if which.type in (None, each)], False


def with_payload(
    session: Session, ids: Iterable[str], wanted: tuple[tuple[str, str], ...]
) -> set[str]:
    """Those of these events whose payload has these values."""
    asked = set(ids)
    if not wanted or not asked:
        return asked
    payloads = session.event_store.listings.payloads(asked)
    return {
        each for each in asked if all(_has(payloads.get(each), path, text) for path, text in wanted)
    }


def _has(payload: Any, path: str, text: str) -> bool:
    value = payload
    for name in path.split("."):
        value = value.get(name, _NOTHING) if isinstance(value, dict) else _NOTHING
    if value is _NOTHING:
        return False
    return value == text if isinstance(value, str) else codec.encode(value) == text


def _row(found: ListedEvent, which: EventFilter, *, waits: bool) -> EventRow | None:
    """The event as a row; None if it is not meant."""
    status, deciding = found.status, found.deciding
    if which.handler is not None:
        mine = next((each for each in found.claims if each.handler == which.handler), None)
        if mine is None and not waits:
            return None
        status = "pending" if mine is None else _STATUS.get(mine.state, "pending")
        deciding = [which.handler]
    if which.status not in (None, status):
        return None
    return EventRow(
        found.id,
        found.type,
        from_text(found.created_at),
        found.priority,
        status,
        tuple(deciding),
        tuple(EventClaim(*each) for each in found.claims),
    )


_STATUS = {
    state.value: state.value
    for state in (ClaimState.ACKED, ClaimState.CLAIMED, ClaimState.DEAD_LETTERED)
}


def place_of(row: EventRow) -> str:
    """The cursor of what comes after an event of a list."""
    return cursor(to_text(row.created_at), row.event_id)


# -- one event ------------------------------------------------------------------------------------


def _claim(found: dict[str, Any], now: str) -> Claim:
    times = ClaimTimes(
        found["lease_until"], found["available_at"], found["ack_at"], found["dead_lettered_at"]
    )
    return Claim(
        found["handler_id"],
        state_of(times, now).value,
        found["session_id"],
        found["attempts"],
        found["conflicts"],
        found["last_error"],
        _instant(found["claimed_at"]),
        _instant(found["started_at"]),
        _instant(found["lease_until"]),
        _instant(found["available_at"]),
        _instant(found["ack_at"] or found["dead_lettered_at"]),
        found["read_commit"],
    )


def _unclaimed(handler: str) -> Claim:
    state = ClaimState.UNCLAIMED.value
    return Claim(handler, state, None, 0, 0, None, None, None, None, None, None, None)


def _attempt(found: dict[str, Any]) -> FailedAttempt:
    return FailedAttempt(
        found["handler_id"],
        found["attempt"],
        _instant(found["started_at"]),
        from_text(found["ended_at"]),
        found["read_commit"],
        found["outcome"],
        found["error"],
        found["traceback"],
        raised_in(found["traceback"]),
    )


def _instant(text: str | None) -> datetime | None:
    return None if text is None else from_text(text)
