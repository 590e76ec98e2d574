"""What came of that? Everything that began with one event, as a tree.

Events under one root are found by an index, and so are the commits that answer them: a trace costs
what it shows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ontologia import codec
from ontologia.clock import from_text, to_text
from ontologia.delivery.lifecycle import ClaimState, ClaimTimes, state_of
from ontologia.errors import InvalidTypeError, OntologiaError
from ontologia.runtime.explain import payload_of
from ontologia.store.events.archives import ArchivedEvent
from ontologia.store.protocol import Store
from ontologia.store.provenance import AttemptRow, Chain, ClaimRow, Trail, emitting_commit
from ontologia.store.rows import CommitRow, EventRow

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failure:
    """One attempt that did not succeed."""

    attempt: int
    """From 1; 0 and below for those from before an operator's retry."""
    outcome: str
    started_at: datetime | None
    ended_at: datetime
    seconds: float | None
    error: str | None
    commits: tuple[int, ...]
    """What it had committed before."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one consumer made of one event."""

    handler_id: str
    state: str
    """`acked`, `dead_lettered`, `claimed`, `backoff`, `reclaimable`, or `unclaimed`."""
    attempts: int
    """How many were made, one that is running included."""
    started_at: datetime | None
    """Of the last attempt."""
    ended_at: datetime | None
    seconds: float | None
    """How long the last attempt took."""
    error: str | None
    commits: tuple[int, ...]
    """All commits of the handler for this event, in order."""
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class TracedEvent:
    """An event, what its consumers made of it, and the events that they announced."""

    event_id: str
    type: str
    created_at: datetime
    payload: Any
    source: str | None
    commit_id: int | None
    """The commit it was announced with, unless a handler announced it."""
    causation_id: str | None
    outcomes: tuple[Outcome, ...]
    followers: tuple[TracedEvent, ...] = field(repr=False)
    archived: str | None = None
    """The archive that the event was found in; None if it is retained."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything that began with one event."""

    root_event_id: str
    events: tuple[TracedEvent, ...]
    """The first event, and below it the others; several if the first is retained no more."""
    archived_to: tuple[str, ...] = ()
    """If the first event was not found: the archives that it may be in."""

    def __iter__(self) -> Iterator[TracedEvent]:
        """Every event, each before those that followed from it."""
        waiting = list(reversed(self.events))
        while waiting:
            event = waiting.pop()
            yield event
            waiting += reversed(event.followers)


def trace_event(store: Store, event_id: str, now: str, namespace: str) -> Trace:
    """See `Session.trace`. In messages an event that is nowhere is taken for one of `namespace`."""
    if not isinstance(event_id, str):
        raise InvalidTypeError(f"an event's id is text, got {event_id!r}")
    codec.check(event_id, "an event's id")
    archives = store.events.archives
    with store.provenance.read() as trail:
        found = trail.event(event_id)
    archived: list[ArchivedEvent] = []
    if found is not None:
        reached = True
        try:
            archived = archives.chain(found.namespace, found.root_event_id)
        except OntologiaError as error:  # what is retained is an answer, too
            log.warning("archived events of the chain were not looked up: %s", error.args[0])
            reached = False
    else:
        kept = archives.find(event_id)
        if kept is None:
            raise archives.missing(
                f"there is no event {event_id}",
                event_id,
                namespace,
                hint="Events are deleted some time after all their consumers have finished them; "
                "commits keep the id of the event they answer.",
            )
        found, reached = kept.row, True
        archived = archives.chain(found.namespace, found.root_event_id)
    root = found.root_event_id
    with store.provenance.read() as trail:
        chain, added = _together(trail, root, archived)
    if any(event.id == root for event in chain.events):
        return Trace(root, _tree(chain, now, added, archives.uri))
    places = archives.places_of(root, found.namespace)
    others = tuple(each for each in places if not reached or each != archives.uri)
    return Trace(root, _tree(chain, now, added, archives.uri), others)


def _together(
    trail: Trail, root: str, archived: list[ArchivedEvent]
) -> tuple[Chain, frozenset[str]]:
    """What is retained of a chain and what is archived, and the ids of the archived events."""
    chain = trail.chain(root)
    retained = {event.id for event in chain.events}
    older = [each for each in archived if each.row.id not in retained]
    if not older:
        return chain, frozenset()
    older.sort(key=lambda each: (each.row.created_at, each.row.id))
    ids = [each.row.id for each in older]
    return Chain(
        [each.row for each in older] + chain.events,
        [claim for each in older for claim in each.claims] + chain.claims,
        [AttemptRow(*row[:-1]) for each in older for row in each.attempts] + chain.attempts,
        sorted(trail.commits_for(ids) + chain.commits, key=lambda commit: commit.id),
        chain.ready,
    ), frozenset(ids)


def _tree(
    chain: Chain, now: str, archived: frozenset[str], uri: str | None
) -> tuple[TracedEvent, ...]:
    """The events as trees, without recursion: a chain may be long."""
    outcomes = _outcomes(chain, now)
    known = {event.id for event in chain.events}
    below: dict[str | None, list[EventRow]] = {}
    for event in chain.events:
        parent = event.causation_id if event.causation_id in known else None
        if event.id == event.root_event_id:
            parent = None  # a replayed event begins a chain of its own
        below.setdefault(parent, []).append(event)
    waiting, order = list(below.get(None, ())), list[EventRow]()
    while waiting:
        event = waiting.pop()
        order.append(event)
        waiting += below.get(event.id, ())
    made: dict[str, TracedEvent] = {}
    for event in reversed(order):  # each after those that followed from it
        made[event.id] = TracedEvent(
            event.id,
            event.type,
            from_text(event.created_at),
            payload_of(event),
            event.source,
            emitting_commit(event.source),
            event.causation_id,
            tuple(outcomes.get(event.id, ())),
            tuple(made[each.id] for each in below.get(event.id, ())),
            uri if event.id in archived else None,
        )
    return tuple(made[event.id] for event in below.get(None, ()))


def _outcomes(chain: Chain, now: str) -> dict[str, list[Outcome]]:
    commits: dict[tuple[str, str], list[CommitRow]] = {}
    for commit in chain.commits:
        place = (commit.metadata["event_id"], str(commit.metadata.get("handler_id")))
        commits.setdefault(place, []).append(commit)
    failures: dict[tuple[str, str], list[Failure]] = {}
    for row in chain.attempts:
        place = (row.event_id, row.handler_id)
        failures.setdefault(place, []).append(_failure(row, commits.get(place, [])))
    found: dict[str, list[Outcome]] = {}
    claimed: set[tuple[str, str]] = set()
    for claim in chain.claims:
        place = (claim.event_id, claim.handler_id)
        claimed.add(place)
        outcome = _outcome(claim, commits.get(place, []), failures.get(place, []), now)
        found.setdefault(claim.event_id, []).append(outcome)
    for event_id, consumer in chain.ready:
        if (event_id, consumer) not in claimed:
            waiting = Outcome(
                consumer, ClaimState.UNCLAIMED.value, 0, None, None, None, None, (), ()
            )
            found.setdefault(event_id, []).append(waiting)
    return found


def _outcome(
    claim: ClaimRow, commits: list[CommitRow], failures: list[Failure], now: str
) -> Outcome:
    times = ClaimTimes(claim.lease_until, claim.available_at, claim.ack_at, claim.dead_lettered_at)
    state = state_of(times, now)
    succeeded = state is ClaimState.ACKED
    running = state is ClaimState.CLAIMED and claim.started_at is not None
    started = _instant(claim.started_at or (claim.claimed_at if succeeded else None))
    ended = _instant(claim.ack_at or claim.dead_lettered_at)
    if failures and not (succeeded or running):
        started, ended = failures[-1].started_at, failures[-1].ended_at
    return Outcome(
        claim.handler_id,
        state.value,
        # The claim counts the attempts that failed; one that succeeded or is running comes on top.
        claim.attempts + (succeeded or running),
        started,
        ended,
        None if started is None or ended is None else (ended - started).total_seconds(),
        None if succeeded else claim.last_error,
        tuple(commit.id for commit in commits),
        tuple(failures),
    )


def _failure(row: AttemptRow, commits: list[CommitRow]) -> Failure:
    started, ended = _instant(row.started_at), from_text(row.ended_at)
    return Failure(
        row.attempt,
        row.outcome,
        started,
        ended,
        None if started is None else (ended - started).total_seconds(),
        row.error,
        tuple(each.id for each in commits if _is_by(row, each)),
    )


def _is_by(row: AttemptRow, commit: CommitRow) -> bool:
    """Whether the attempt made the commit. One from before a retry has lost its number."""
    if row.started_at is None or not row.started_at <= to_text(commit.created_at) <= row.ended_at:
        return False
    return row.attempt < 1 or commit.metadata.get("attempt") == row.attempt


def _instant(text: str | None) -> datetime | None:
    return None if text is None else from_text(text)
