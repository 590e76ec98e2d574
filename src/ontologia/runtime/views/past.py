"""The queue as it was: what waited, was in work, done or dead at a commit, or at any instant.

Nothing is kept for it. Events have the time they came, claims have that of their last claim and of
their end, and attempts that failed have both. From these follows where each event stood with each
consumer. `LIMITS` says what cannot be known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from ontologia.clock import from_text, to_text
from ontologia.delivery.lifecycle import UNSUBSCRIBED, ClaimState
from ontologia.errors import NotFoundError
from ontologia.runtime.session import core_of
from ontologia.runtime.views.events import (
    Claim,
    EventClaim,
    EventDetail,
    EventFilter,
    EventRow,
    FailedAttempt,
    event,
    place_of,
    types_walked,
    with_payload,
)
from ontologia.runtime.views.paging import (
    DEADLINE,
    PAGE,
    Count,
    Page,
    bounded,
    cursor,
    place,
)
from ontologia.store.database import ReadDeadline
from ontologia.store.events import checks
from ontologia.store.events.claims import ALL_TYPES
from ontologia.store.provenance import AttemptRow, ClaimRow

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

T = TypeVar("T")
State: TypeAlias = Literal["waiting", "claimed", "acked", "dead_lettered"]
LIMITS = (
    "Only retained events are known, and consumers that were not forgotten.",
    "Subscriptions are those of now.",
    "Times are those of the clocks of the processes that wrote them.",
    "A claim is known until the event is claimed again; of one before that, its attempt alone is, "
    + "from the time it last began, if it failed.",
    "An attempt whose lease ran out counts as in work until the event was claimed again.",
    "A dead letter that an operator retried counts as dead until the event was claimed again, and "
    + "one from before an earlier retry as waiting.",
    "Dead letters that were dismissed count as dead as far as their events were looked at.",
)
"""What is not known of the past."""
_MOST = 2_000  # of each that is looked at; 5,000 took longer than a page may
_PORTION = 500
_AFTER_EVERY_ID = "\U0010ffff"
_WAITING: State = "waiting"
_CLAIMED: State = "claimed"
_ACKED: State = "acked"
_DEAD: State = "dead_lettered"


@dataclass(frozen=True, slots=True)
class Past(Generic[T]):
    """Something as it was."""

    found: T
    as_of: datetime
    commit_id: int
    """The last commit by then; 0 if there was none."""
    limits: tuple[str, ...] = LIMITS


@dataclass(frozen=True, slots=True)
class HandlerThen:
    """One consumer, and how busy it was."""

    name: str
    types: tuple[str, ...]
    """What it subscribes to now."""
    waiting: Count
    """Also those that waited for their next attempt."""
    oldest_waiting: datetime | None
    claimed: Count
    failing: Count
    """Of those that waited or were claimed: what had failed before."""
    dead: Count


@dataclass(frozen=True, slots=True)
class OverviewThen:
    """A namespace as it was."""

    namespace: str
    handlers: tuple[HandlerThen, ...]
    searched_to: datetime | None
    """If the bound or the deadline ended the search: how far back events were looked at that are
    finished by now. Counts are at least what they say then."""


@dataclass(frozen=True, slots=True)
class CommitsAround:
    """A commit, and its neighbours."""

    commit_id: int
    created_at: datetime
    before: int | None
    before_at: datetime | None
    after: int | None
    after_at: datetime | None
    head: int


def commits_around(session: Session, commit_id: int) -> CommitsAround:
    """A commit with the one before and the one after it; NotFoundError if there is none.

    Two seeks.
    """
    found = {}
    if 0 < commit_id < 2**62:
        with core_of(session).store.provenance.read() as trail:
            found = {each.id: each.created_at for each in trail.commits_near(commit_id)}
    head = session.head
    if commit_id not in found:
        raise NotFoundError(f"there is no commit {commit_id}", hint=f"The last one is {head}.")
    before, after = commit_id - 1, commit_id + 1
    return CommitsAround(
        commit_id,
        found[commit_id],
        before if before in found else None,
        found.get(before),
        after if after in found else None,
        found.get(after),
        head,
    )


def overview_at(
    session: Session,
    as_of: int | datetime,
    *,
    most: int = _MOST,
    seconds: float = DEADLINE,
) -> Past[OverviewThen]:
    """What waited, was in work and was dead, per consumer, at a commit or an instant.

    Looks at what is unfinished now, `most` for each consumer and kind; then at events of any state
    from that time back, `most` of them and for `seconds` at most; then at `most` dead letters.
    """
    then = _Then.of(session, as_of)
    deadline = ReadDeadline(seconds)
    store, counted = session.event_store, _Counted(then)
    unfinished = store.activity.unfinished(session.namespace, then.at, most + 1)
    for start in range(0, len(unfinished), _PORTION):
        if start and deadline.passed:
            break
        counted.add(
            [_Came(each.id, each.type, each.created_at) for each in unfinished[start:][:_PORTION]]
        )
    searched_to, looked_at = None, 0
    portion = min(_PORTION, most)
    for logged in store.listings.log_back(session.namespace, before=then.end, portion=portion):
        looked_at += len(logged)
        counted.add([_Came(each.id, each.type, each.created_at) for each in logged])
        if len(logged) == portion and (deadline.passed or looked_at >= most):
            searched_to = from_text(logged[-1].created_at)
            break
    letters = store.activity.dead_until(session.namespace, then.at, most + 1)
    counted.dead.update((event_id, handler) for event_id, handler in letters)
    exact = searched_to is None and len(letters) <= most
    return then.of_it(
        OverviewThen(session.namespace, counted.handlers(most, exact=exact), searched_to)
    )


def newest_events_at(
    session: Session,
    which: EventFilter | None = None,
    *,
    as_of: int | datetime,
    before: str | None = None,
    limit: int = PAGE,
    seconds: float = DEADLINE,
) -> Past[Page[EventRow]]:
    """A page of the events that had come by a commit or an instant, the newest first.

    Each has a claim for every consumer, whose state is `waiting`, `claimed`, `acked` or
    `dead_lettered`. Filters and costs as in `newest_events`.
    """
    which = which or EventFilter()
    which.check()
    then = _Then.of(session, as_of)
    at = then.end
    if before is not None:
        at = min(at, place(before, str, str))
    types, _ = types_walked(session, which)
    since = "" if which.since is None else to_text(which.since)
    walked = which.handler or which.status or which.payload
    portion = _PORTION if walked else limit + 1
    deadline, found = ReadDeadline(seconds), list[EventRow]()
    listings = session.event_store.listings
    for logged in listings.log_back(session.namespace, types=types, before=at, portion=portion):
        recent = [each for each in logged if each.created_at >= since]
        meant = with_payload(session, (each.id for each in recent), which.payload)
        stood = then.claims([_Came(each.id, each.type, each.created_at) for each in recent])
        for each, claims in zip(recent, stood, strict=True):
            status = _status(claims, which.handler, subscribed=then.is_subscribed(each.type))
            if each.id not in meant or status is None or which.status not in (None, status):
                continue
            deciding = tuple(claim.handler for claim in claims if claim.state == status)
            found.append(
                EventRow(
                    each.id,
                    each.type,
                    from_text(each.created_at),
                    each.priority,
                    status,
                    deciding if which.handler is None else (which.handler,),
                    claims,
                )
            )
        if len(found) > limit:
            return then.of_it(Page(tuple(found[:limit]), place_of(found[limit - 1])))
        if len(recent) < len(logged):
            break
        if deadline.passed and len(logged) == portion:
            last = logged[-1]
            reached = from_text(last.created_at)
            return then.of_it(Page(tuple(found), cursor(last.created_at, last.id), reached))
    return then.of_it(Page(tuple(found), None))


def event_at(session: Session, event_id: str, as_of: int | datetime) -> Past[EventDetail] | None:
    """Everything about one event at a commit or an instant; None if it had not come by then.

    Of a claim that is over or was made again since, fields that were overwritten are None. Costs
    what `event` costs, and a search for the last commit.
    """
    then, detail = _Then.of(session, as_of), event(session, event_id)
    if detail is None or detail.created_at > then.at:
        return None
    rows = [_claim_row(event_id, each) for each in detail.claims if each.claimed_at is not None]
    tried = [_attempt_row(event_id, each) for each in detail.attempts]
    came = _Came(event_id, detail.type, to_text(detail.created_at))
    known = {each.handler: each for each in detail.claims}
    subscribed = then.subscribed(detail.type) if detail.archived is None else set[str]()
    claims = tuple(
        _claim_then(known.get(handler), handler, stood)
        for handler, stood in _stood(came, rows, tried, subscribed | known.keys(), then.text)
    )
    attempts = tuple(each for each in detail.attempts if each.ended_at <= then.at)
    commits = tuple(each for each in detail.commits if each <= then.commit_id)
    return then.of_it(replace(detail, claims=claims, attempts=attempts, commits=commits))


# -- when ----------------------------------------------------------------------------------------


class _Came(NamedTuple):
    """An event."""

    id: str
    type: str
    created_at: str


class _Then:
    """An instant of a namespace."""

    def __init__(self, session: Session, at: datetime, commit_id: int) -> None:
        self._session = session
        self.at = at
        self.text = to_text(at)
        self.end = (self.text, _AFTER_EVERY_ID)
        """Where the walk back through the log begins."""
        self.commit_id = commit_id
        self.subscriptions = session.event_store.activity.subscriptions(session.namespace)

    @staticmethod
    def of(session: Session, as_of: int | datetime) -> _Then:
        """The time of a commit, or an instant with the last commit by then."""
        if isinstance(as_of, datetime):
            return _Then(session, checks.instant("as_of", as_of), session.commit_at(as_of))
        return _Then(session, commits_around(session, as_of).created_at, as_of)

    def of_it(self, found: T) -> Past[T]:
        """What was found, with the time that it is of."""
        return Past(found, self.at, self.commit_id)

    def subscribed(self, event_type: str) -> set[str]:
        """The consumers of a type."""
        return {name for each, name in self.subscriptions if each in (event_type, ALL_TYPES)}

    def is_subscribed(self, event_type: str) -> bool:
        """Whether events of a type wait for anybody; for anybody at all while there are none."""
        return not self.subscriptions or bool(self.subscribed(event_type))

    def claims(self, events: Sequence[_Came]) -> list[tuple[EventClaim, ...]]:
        """How each consumer stood to each of these events. One snapshot."""
        ids = [each.id for each in events]
        if not ids:
            return []
        claims: dict[str, list[ClaimRow]] = {each: [] for each in ids}
        tried: dict[str, list[AttemptRow]] = {each: [] for each in ids}
        with core_of(self._session).store.provenance.read() as trail:
            for claim in trail.claims(ids):
                claims[claim.event_id].append(claim)
            for attempt in trail.attempts(ids):
                tried[attempt.event_id].append(attempt)
        consumers = {each.type: self.subscribed(each.type) for each in events}
        return [
            tuple(
                EventClaim(handler, stood.state, stood.failures, stood.error)
                for handler, stood in _stood(
                    each, claims[each.id], tried[each.id], consumers[each.type], self.text
                )
            )
            for each in events
        ]


# -- where an event stood with a consumer ----------------------------------------------------------


class _Stood(NamedTuple):
    """How a consumer stood to an event."""

    state: State
    failures: int = 0
    """How many attempts had failed, from the last retry by an operator on."""
    error: str | None = None
    last: bool = False
    """Whether the claim on record was made by then."""
    attempt: AttemptRow | None = None
    """The attempt that ran, if it failed later, or else the last that had failed."""


def _stood(
    came: _Came,
    claims: Iterable[ClaimRow],
    attempts: Iterable[AttemptRow],
    consumers: Iterable[str],
    at: str,
) -> list[tuple[str, _Stood]]:
    """Every consumer that the event had come to, by name; [] if it had not come."""
    if came.created_at > at:
        return []
    tried: dict[str, list[AttemptRow]] = {}
    for attempt in attempts:
        tried.setdefault(attempt.handler_id, []).append(attempt)
    rows = {claim.handler_id: claim for claim in claims}
    return [
        (name, _stand(rows.get(name), tried.get(name, []), at))
        for name in sorted({*consumers, *rows})
    ]


def _stand(claim: ClaimRow | None, attempts: list[AttemptRow], at: str) -> _Stood:
    """Where a consumer stood with an event; its attempts in the order of their numbers."""
    if claim is None:
        return _Stood(_WAITING)
    ended = [each for each in attempts if each.ended_at <= at]
    last = ended[-1] if ended else None
    failures, error = len(ended), None if last is None else last.error or last.outcome
    begun = claim.claimed_at <= at
    if (running := _running(claim, attempts, at)) is not None:
        before = _since_retry(ended, running.attempt)
        return _Stood(_CLAIMED, before, error, begun, running)
    if last is not None and last.attempt < 1:
        # From before the last retry by an operator; the next attempt ended that.
        last_aside = attempts[failures] if failures < len(attempts) else None
        if last_aside is None or last_aside.attempt > 0:
            again = _again_at(claim, last, last_aside)
            if at < again:
                return _Stood(_DEAD, failures, error, begun, last)
            failures = 0
    elif last is not None:
        failures = sum(each.attempt > 0 for each in ended)
    if claim.ack_at is not None and claim.ack_at <= at:
        return _Stood(_ACKED, failures, error, begun, last)
    if claim.dead_lettered_at is not None and claim.dead_lettered_at <= at:
        return _Stood(_DEAD, failures, claim.last_error, begun, last)
    if begun and at < claim.lease_until:  # which every end of an attempt moves to itself
        return _Stood(_CLAIMED, failures, error, begun, last)
    return _Stood(_WAITING, failures, error, begun, last)


def _running(claim: ClaimRow, attempts: list[AttemptRow], at: str) -> AttemptRow | None:
    """The attempt that ran, of those that failed; of the last claim its lease is known."""
    for each in attempts:
        if each.started_at is not None and each.started_at <= at < each.ended_at:
            lapsed = claim.claimed_at <= each.started_at and claim.lease_until <= at
            return None if lapsed else each
    return None


def _since_retry(ended: list[AttemptRow], number: int) -> int:
    return sum((each.attempt > 0) is (number > 0) for each in ended)


def _again_at(claim: ClaimRow, last: AttemptRow, following: AttemptRow | None) -> str:
    """When an event was taken up again after a retry, as far as it is known."""
    if claim.claimed_at > last.ended_at:
        begun = [claim.claimed_at]
        if following is not None and following.started_at is not None:
            begun.append(following.started_at)
        return min(begun)
    return claim.available_at  # not since: that is the time of the retry


def _status(claims: tuple[EventClaim, ...], handler: str | None, *, subscribed: bool) -> str | None:
    """The gravest of what the claims say, or that of one consumer; None if it has nothing of it."""
    states = {each.state for each in claims if handler in (None, each.handler)}
    if handler is not None and not states:
        return None
    for state in (_DEAD, _ACKED, _CLAIMED):
        if state in states:
            return state
    return "pending" if subscribed or handler is not None else UNSUBSCRIBED


# -- an overview ----------------------------------------------------------------------------------


class _Counted:
    """How many events waited for each consumer, were in work, and were dead."""

    def __init__(self, then: _Then) -> None:
        self._then = then
        self._seen = set[str]()
        self.states: dict[str, Counter[str]] = {}
        self.oldest: dict[str, str] = {}
        self.dead = set[tuple[str, str]]()

    def add(self, events: Iterable[_Came]) -> None:
        """Count these events, if they are not counted."""
        fresh = [each for each in events if each.id not in self._seen]
        self._seen.update(each.id for each in fresh)
        for came, claims in zip(fresh, self._then.claims(fresh), strict=True):
            for each in claims:
                count = self.states.setdefault(each.handler, Counter())
                if each.state == _DEAD:
                    self.dead.add((came.id, each.handler))
                    continue
                count[each.state] += 1
                if each.state != _ACKED and each.attempts:
                    count["failing"] += 1
                if each.state == _WAITING:
                    known = self.oldest.get(each.handler, came.created_at)
                    self.oldest[each.handler] = min(known, came.created_at)

    def handlers(self, most: int, *, exact: bool) -> tuple[HandlerThen, ...]:
        """The consumers there are, and those that had something."""
        types: dict[str, list[str]] = {}
        for event_type, name in sorted(self._then.subscriptions):
            types.setdefault(name, []).append(event_type)
        dead = Counter(handler for _, handler in self.dead)

        def count(number: int) -> Count:
            found = bounded(number, most)
            return found if exact else Count(found.number, exact=False)

        return tuple(
            HandlerThen(
                name,
                tuple(types.get(name, ())),
                count(states[_WAITING]),
                from_text(self.oldest[name]) if name in self.oldest else None,
                count(states[_CLAIMED]),
                count(states["failing"]),
                count(dead[name]),
            )
            for name in sorted({*types, *self.states, *dead})
            for states in [self.states.get(name, Counter())]
        )


# -- one event -----------------------------------------------------------------------------------


def _claim_row(event_id: str, claim: Claim) -> ClaimRow:
    ended = None if claim.ended_at is None else to_text(claim.ended_at)
    return ClaimRow(
        event_id,
        claim.handler,
        claim.session_id or "",
        claim.attempts,
        claim.last_error,
        _text(claim.claimed_at),
        None if claim.started_at is None else to_text(claim.started_at),
        _text(claim.lease_until),
        _text(claim.available_at),
        ended if claim.state == ClaimState.ACKED else None,
        ended if claim.state == ClaimState.DEAD_LETTERED else None,
        claim.read_commit,
        None,
        claim.conflicts,
    )


def _attempt_row(event_id: str, attempt: FailedAttempt) -> AttemptRow:
    return AttemptRow(
        event_id,
        attempt.handler,
        attempt.attempt,
        None if attempt.started_at is None else to_text(attempt.started_at),
        to_text(attempt.ended_at),
        attempt.read_commit,
        attempt.outcome,
        attempt.error,
    )


def _claim_then(claim: Claim | None, handler: str, stood: _Stood) -> Claim:
    """What was known of a claim."""
    attempt = stood.attempt
    started = None if attempt is None or attempt.started_at is None else attempt.started_at
    read_commit = None if attempt is None else attempt.read_commit
    last = claim if stood.last else None
    over = stood.state in (_ACKED, _DEAD)
    return Claim(
        handler,
        stood.state,
        None if last is None else last.session_id,
        stood.failures,
        0 if last is None else last.conflicts,
        stood.error,
        None if last is None else last.claimed_at,
        last.started_at if last and last.started_at else from_text(started) if started else None,
        last.lease_until if last and stood.state == _CLAIMED else None,
        None,
        last.ended_at if last and over else None,
        read_commit if last is None or last.read_commit is None else last.read_commit,
    )


def _text(instant: datetime | None) -> str:
    return "" if instant is None else to_text(instant)
