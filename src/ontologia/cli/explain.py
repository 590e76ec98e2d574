"""`ontologia why` and `ontologia trace`: the way back from a value, and on from an event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ontologia.cli.call import Call
from ontologia.cli.drawing import Node, Part, draw, value
from ontologia.cli.output import cell, instant, show_json

if TYPE_CHECKING:
    from ontologia.runtime.explain import Cause, Why
    from ontologia.runtime.trace import Outcome, Trace, TracedEvent

_STYLES = {"acked": "green", "dead_lettered": "red", "backoff": "yellow", "claimed": "cyan"}
_STATES = {
    "acked": "done",
    "dead_lettered": "dead letter",
    "claimed": "in work",
    "backoff": "failed, tries again",
    "reclaimable": "waits for its next attempt",
    "unclaimed": "waits",
}


def why(
    call: Call,
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help="Of an entity or a relation.")],
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="Its key; of a relation left:right[:instance].")
    ],
    field: Annotated[
        str | None, typer.Option("--field", metavar="F", help="Ask about one field.")
    ] = None,
) -> None:
    """Tell why an object is as it is: the commit that set it, and what led to that.

    Shows the value, the commit and when it was, the handler and its attempt, the event it handled,
    and the events before that, back to the first one and the commit that announced it.

    Example: ontologia why Order o-1 --field status
    """
    from ontologia.runtime.views.why import why_by_name

    with call.reading() as session:
        found = why_by_name(session, type_name, key, field)
        if call.json:
            show_json(_why_json(found))
            return
    tree = _whole(found)
    here = tree.add("set by ", *_commit(found.commit_id, instant(found.created_at)))
    if found.handler_id is not None:
        words = [f"handler {found.handler_id}", *_within(found.metadata)]
        here.line = [*here.line, f", {', '.join(words)}, attempt {found.attempt}"]
    elif note := " ".join(f"{n}={cell(v)}" for n, v in found.metadata.items() if n != "session_id"):
        here.line = [*here.line, (f", {note}", "dim")]
    _draw_causes(here, found)
    draw(tree)


def _within(metadata: dict[str, Any]) -> list[str]:
    """Who it was, where the consumer is only the worker or the bus of many."""
    parts = {"command": "command", "extension_id": "extension"}
    return [f"{word} {cell(metadata[name])}" for name, word in parts.items() if name in metadata]


def _whole(found: Why) -> Node:
    name = f"{found.type_name} {':'.join(part for part in found.key if part)}"
    if found.field is not None:
        name += f".{found.field}"
    if found.deleted:
        return Node([(name, "bold"), " is ", ("deleted", "red")])
    return Node([(name, "bold"), " = ", (value(found.value), "green")])


def _draw_causes(here: Node, found: Why) -> None:
    if found.event_id is not None and not found.causes:
        here.add(f"for event {found.event_id}, {_gone(found.archived_to)}")
        return
    for number, cause in enumerate(found.causes):
        here = here.add("for ", *_event(cause))
        last = number == len(found.causes) - 1
        if cause.commit_id is not None:
            here.add("announced by ", (f"commit {cause.commit_id}", "yellow"))
        elif cause.source is not None:
            here.line = [*here.line, f", announced by {cause.source}"]
        if last and not found.complete:
            here.add(f"for event {cause.causation_id}, {_gone(found.archived_to)}")


def _gone(archived_to: tuple[str, ...]) -> str:
    """Of an event that was not found."""
    if not archived_to:
        return "which is not retained any more"
    places = ", ".join(archived_to)
    return f"which is not retained any more; finished events of its time were archived to {places}"


def _event(event: Cause | TracedEvent) -> list[Part]:
    archived: list[Part] = (
        [] if event.archived is None else [(f", archived in {event.archived}", "dim")]
    )
    return [
        "event ",
        (event.type, "cyan"),
        f" {event.event_id} of {instant(event.created_at)} ",
        (value(event.payload), "dim"),
        *archived,
    ]


def _commit(number: int, when: str) -> list[Part]:
    return [(f"commit {number}", "yellow"), f" of {when} UTC"]


def _why_json(found: Why) -> dict[str, Any]:
    from dataclasses import asdict

    shown = asdict(found)
    key = shown.pop("key")
    if found.kind == "relation":
        ends = {"left": key[0], "right": key[1], "instance": key[2] or None}
    else:
        ends = {"key": key[0]}
    handler = {name: getattr(found, name) for name in ("handler_id", "attempt", "event_id")}
    return {"kind": shown.pop("kind"), "type": shown.pop("type_name"), **ends, **shown, **handler}


def trace(
    call: Call,
    event_id: Annotated[str, typer.Argument(metavar="EVENT_ID", help="Any event of the chain.")],
) -> None:
    """Show everything that began with the same event, as a tree.

    Below each event stands what each consumer made of it: how it ended, attempts, how long the last
    one took, its commits and errors; and below that the events that were announced. With --json,
    each line is an event with its outcomes; causation_id says what it followed from.

    Example: ontologia trace 019b76da-a800-75e2-b58f-7d9778db15ab
    """
    with call.reading() as session:
        found = session.trace(event_id)
    if found.archived_to:
        gone = _gone(found.archived_to)
        typer.echo(f"The first event of the chain is {found.root_event_id}, {gone}", err=True)
    if call.json:
        for event in found:
            show_json(_event_json(event))
        return
    for tree in _trees(found, event_id):
        draw(tree)


def _event_json(event: TracedEvent) -> dict[str, Any]:
    """Without those that followed: they have lines of their own."""
    from dataclasses import asdict, fields

    shown = {each.name: getattr(event, each.name) for each in fields(event)}
    del shown["followers"]
    return {**shown, "outcomes": [asdict(each) for each in event.outcomes]}


def _trees(found: Trace, asked: str) -> list[Node]:
    tops: list[Node] = []
    waiting: list[tuple[TracedEvent, Node | None]] = [(top, None) for top in reversed(found.events)]
    while waiting:
        event, above = waiting.pop()
        node = Node(_event(event))
        if event.commit_id is not None:
            node.line = [*node.line, ", announced by ", (f"commit {event.commit_id}", "yellow")]
        elif above is None and event.source is not None:
            node.line = [*node.line, f", announced by {event.source}"]
        if event.event_id == asked:
            node.line = [*node.line, ("  ◀", "bold")]
        (tops if above is None else above.below).append(node)
        handlers = {each.handler_id: _draw_outcome(node, each) for each in event.outcomes}
        # What a handler announced hangs below it.
        for follower in reversed(event.followers):
            waiting.append((follower, handlers.get(follower.source or "", node)))
    return tops


def _draw_outcome(event: Node, outcome: Outcome) -> Node:
    times = "" if outcome.attempts == 0 else f", attempt {outcome.attempts}"
    took = "" if outcome.seconds is None else f", {_span(outcome.seconds)}"
    node = event.add(
        (outcome.handler_id, "bold"),
        ": ",
        (_STATES[outcome.state], _STYLES.get(outcome.state, "")),
        f"{times}{took}",
    )
    if outcome.commits:
        word = "commit" if len(outcome.commits) == 1 else "commits"
        node.line = [
            *node.line,
            ", ",
            (f"{word} {', '.join(map(str, outcome.commits))}", "yellow"),
        ]
    for failure in outcome.failures:
        took = "" if failure.seconds is None else f" after {_span(failure.seconds)}"
        which = f"attempt {failure.attempt}" if failure.attempt > 0 else "before the retry:"
        node.add(f"{which} {failure.outcome}{took}: ", (failure.error or "", "red"))
    return node


def _span(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
