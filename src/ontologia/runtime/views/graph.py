"""What came of an event, as a forest: event, handler, attempt, commit, and the events from there.

Each event has one cause, so there are no two ways to a node. What does not fit into a tree is a
link: an event that repeats another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ontologia.delivery.lineage import follows_event
from ontologia.runtime.session import core_of
from ontologia.runtime.trace import Outcome, TracedEvent
from ontologia.runtime.views.commits import Maker, makers

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

NodeKind: TypeAlias = Literal["event", "handler", "attempt", "commit"]


@dataclass(slots=True)
class Node:
    """One node; which of its fields say something depends on its kind."""

    kind: NodeKind
    id: str
    """Of an event its id, of a handler its name, else a number as text."""
    label: str
    """Of an event its type, of a handler its name, of an attempt its error."""
    state: str | None = None
    """Of a handler `acked`, `dead_lettered`, `claimed`, `backoff`, `reclaimable` or `unclaimed`; of an
    attempt how it ended."""
    at: datetime | None = None
    """When the event or commit was made, or the attempt began."""
    seconds: float | None = None
    """How long the attempt, or the last one of the handler, took."""
    attempts: int = 0
    payload: Any = None
    event_id: str | None = None
    """The event that a handler, an attempt or a commit is about."""
    handler: str | None = None
    repeats: str | None = None
    """A link: the event that this one repeats."""
    asked: bool = False
    """Whether this is the event that was asked for."""
    archived: str | None = None
    children: list[Node] = field(default_factory=list["Node"], repr=False)

    @property
    def waits(self) -> bool:
        """Whether this is a handler that has not had the event yet."""
        return self.kind == "handler" and self.state == "unclaimed"


@dataclass(frozen=True, slots=True)
class Graph:
    """Everything that began with one event."""

    root_event_id: str
    roots: tuple[Node, ...]
    archived_to: tuple[str, ...]
    """If the first event was not found: the archives that it may be in."""

    def __iter__(self) -> Iterator[Node]:
        """Every node, each before those below it."""
        waiting = list(reversed(self.roots))
        while waiting:
            node = waiting.pop()
            yield node
            waiting += reversed(node.children)


def graph(session: Session, event_id: str) -> Graph:
    """Everything that began with the same event as this one; NotFoundError if it is not there.

    Costs what it shows: the events of the chain, and a read for each commit.
    """
    found = session.trace(event_id)
    events = list(found)
    numbers = {number for each in events for out in each.outcomes for number in out.commits}
    numbers.update(each.commit_id for each in events if each.commit_id is not None)
    with core_of(session).store.provenance.read() as trail:
        made = makers(trail, sorted(numbers))
    nodes: dict[str, Node] = {}
    handlers: dict[tuple[str, str], Node] = {}
    emitted: dict[str, Node] = {}
    for each in events:
        node = nodes[each.event_id] = _event(each, event_id, found.root_event_id)
        for outcome in each.outcomes:
            handler = _handler(each, outcome)
            handlers[each.event_id, outcome.handler_id] = handler
            node.children.append(handler)
            for commit in _add_work(handler, each, outcome, made):
                emitted |= dict.fromkeys(made[int(commit.id)].emitted, commit)
    roots: list[Node] = []
    firsts: dict[int, Node] = {}
    for each in events:
        node = nodes[each.event_id]
        above = emitted.get(each.event_id)
        if above is None and node.repeats is None and each.causation_id in nodes:
            cause = each.causation_id
            above = handlers.get((cause, each.source or ""), nodes[cause])
        if above is None and each.commit_id in made:
            above = firsts.get(each.commit_id)
            if above is None:
                above = firsts[each.commit_id] = _commit(made[each.commit_id], None)
                roots.append(above)
        if above is None:
            roots.append(node)
        else:
            above.children.append(node)
    return Graph(found.root_event_id, tuple(roots), found.archived_to)


def _event(found: TracedEvent, asked: str, root: str) -> Node:
    repeats = found.event_id == root and follows_event(found.causation_id)
    return Node(
        "event",
        found.event_id,
        found.type,
        at=found.created_at,
        payload=found.payload,
        event_id=found.event_id,
        repeats=found.causation_id if repeats else None,
        asked=found.event_id == asked,
        archived=found.archived,
    )


def _handler(event: TracedEvent, outcome: Outcome) -> Node:
    return Node(
        "handler",
        outcome.handler_id,
        outcome.handler_id,
        state=outcome.state,
        at=outcome.started_at,
        seconds=outcome.seconds,
        attempts=outcome.attempts,
        event_id=event.event_id,
        handler=outcome.handler_id,
    )


def _add_work(
    handler: Node, event: TracedEvent, outcome: Outcome, made: dict[int, Maker]
) -> list[Node]:
    """Put the failed attempts and the commits below a handler; the commits."""
    commits = {
        number: _commit(made[number], event.event_id)
        for number in outcome.commits
        if number in made
    }
    placed = set[int]()
    for failure in outcome.failures:
        stub = Node(
            "attempt",
            str(failure.attempt),
            failure.error or failure.outcome,
            state=failure.outcome,
            at=failure.started_at,
            seconds=failure.seconds,
            event_id=event.event_id,
            handler=outcome.handler_id,
        )
        stub.children += (commits[number] for number in failure.commits if number in commits)
        placed.update(failure.commits)
        handler.children.append(stub)
    handler.children += (node for number, node in commits.items() if number not in placed)
    return list(commits.values())


def _commit(made: Maker, event_id: str | None) -> Node:
    return Node(
        "commit",
        str(made.commit_id),
        made.by,
        at=made.created_at,
        event_id=event_id,
        handler=made.handler,
        attempts=made.attempt or 0,
    )
