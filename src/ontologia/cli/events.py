"""`ontologia events …`: what happens in a namespace. What changes something is in `operations`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ontologia.cli import archives, letters, operations, tail
from ontologia.cli.call import Call, Commands, core_of
from ontologia.cli.misnamed import tell_of_other_namespaces
from ontologia.cli.output import age, instant, say, show_json, show_rows
from ontologia.cli.times import span

if TYPE_CHECKING:
    from ontologia.runtime.views.handlers import HandlerRow

app = Commands(help="Events, and those who process them.", no_args_is_help=True)
EventId = Annotated[str, typer.Option("--event-id", metavar="ID", help="Of the event.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=0, max=1_000_000, help="At most.")]


@app.command("list-namespaces")
def list_namespaces(call: Call) -> None:
    """List the namespaces that have events, sessions or dead letters.

    Pending is an event that no consumer has claimed, finished or dead-lettered. Unsubscribed is one
    that no consumer subscribes to, where the namespace has consumers. Counts all retained events.

    Example: ontologia events list-namespaces
    """
    with call.reading() as session:
        show_rows(
            call,
            ("Namespace", "Sessions", "Pending Events", "Unsubscribed", "Dead Letters"),
            session.event_store.list_namespaces(),
            names=("namespace", "sessions", "pending", "unsubscribed", "dead_letters"),
            nothing="There are no events, sessions or dead letters.",
        )


@app.command("sessions")
def sessions(call: Call) -> None:
    """List the sessions of a namespace, those that ended as well, the newest first.

    One that was not heard of for longer than session_ttl_ms, and did not say that it ended, is DEAD.

    Example: ontologia events sessions --namespace orders
    """
    with call.reading() as session:
        rows = session.event_store.list_sessions(session.namespace)
        now = core_of(session).clock.now()
        show_rows(
            call,
            ("Session ID", "Hostname", "PID", "Started At", "Last Heartbeat"),
            rows if call.json else [_session(row, now) for row in rows],
            names=("session_id", "hostname", "pid", "started_at", "last_heartbeat"),
            nothing=f"There are no sessions in namespace {session.namespace!r}.",
        )


def _session(row: dict[str, Any], now: datetime) -> dict[str, Any]:
    heard = age(now - _instant(row["last_heartbeat"]))
    state = " (DEAD)" if row["is_dead"] else " (stopped)" if row["stopped_at"] else ""
    pid = None if row["pid"] is None else str(row["pid"])
    started = instant(_instant(row["started_at"]))
    return {**row, "pid": pid, "started_at": started, "last_heartbeat": heard + state}


@app.command("show")
def show(
    call: Call,
    type: letters.Type = None,
    status: Annotated[
        Literal["pending", "unsubscribed", "claimed", "acked", "dead_lettered"] | None,
        typer.Option("--status", help="Status of the events; reads events until there are enough."),
    ] = None,
    limit: Limit = 100,
) -> None:
    """List events, the newest first, with what became of them.

    Status is pending, unsubscribed, claimed, acked or dead_lettered, and Handler the consumer that
    decided it; an event that one handler has acked may be pending for another: inspect shows all of
    them. Unsubscribed is an event that no consumer subscribes to, where the namespace has consumers.

    Example: ontologia events show --namespace orders --status pending --limit 10
    """
    from ontologia.store.events import checks

    if type is not None:
        checks.name("an event's type", type)
    of_type = ("" if type is None else f" of type {type}") + (f" {status}" if status else "")
    with call.reading() as session:
        listings = session.event_store.listings
        rows = listings.newest(session.namespace, limit, event_type=type, status=status)
        shown = show_rows(
            call,
            ("Event ID", "Type", "Created At", "Priority", "Status", "Handler"),
            rows if call.json else map(_event, rows),
            names=("id", "type", "created_at", "priority", "status", "handler"),
            nothing=f"There are no events{of_type} in namespace {session.namespace!r}.",
        )
        if not shown:
            tell_of_other_namespaces(call, session)


def _event(row: dict[str, Any]) -> dict[str, Any]:
    created_at = instant(_instant(row["created_at"]))
    return {**row, "created_at": created_at, "priority": str(row["priority"])}


@app.command("deferred")
def deferred(call: Call, type: letters.Type = None, limit: Limit = 100) -> None:
    """List deferred events that wait for their time, the earliest first.

    Number names one for events cancel, and so do Event ID and Dedup Key. Due At is in UTC; --json has
    the payload as well.

    Example: ontologia events deferred --namespace orders --type order.reminder
    """
    from ontologia.store.events import checks

    if type is not None:
        checks.name("an event's type", type)
    of_type = "" if type is None else f" of type {type}"
    with call.reading() as session:
        listings = session.event_store.listings
        rows = listings.deferred(session.namespace, limit, event_type=type)
        shown = show_rows(
            call,
            ("Number", "Event ID", "Type", "Due At", "Dedup Key"),
            rows if call.json else map(_deferred, rows),
            names=("number", "id", "type", "due_at", "dedup_key"),
            nothing=f"There are no deferred events{of_type} in namespace {session.namespace!r}.",
        )
        if not shown:
            tell_of_other_namespaces(call, session)


def _deferred(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "number": str(row["number"]), "due_at": instant(_instant(row["due_at"]))}


@app.command("inspect")
def inspect(call: Call, event_id: EventId) -> None:
    """Print everything about one event, as JSON: its payload, claims and failed attempts.

    Attempts from before an operator's retry are numbered 0 and down. Each has the traceback of its
    error (setting keep_tracebacks); a terminal shows them once more below, line by line.

    Example: ontologia events inspect --event-id 01932f4e-7b1c-7d3a-9c55-0242ac120002
    """
    from ontologia.store.events import checks

    checks.name("an event's id", event_id)
    with call.reading() as session:
        found = session.event_store.inspect_event(event_id)
        if found is None:
            raise session.event_store.archives.missing(
                f"there is no event {event_id} in the log, in any namespace",
                event_id,
                session.namespace,
                hint="An event that is not due yet is in `ontologia events deferred`.",
            )
    show_json(found, indent=not call.json)
    if sys.stdout.isatty() and not call.json:
        for attempt in found["attempts"]:
            if attempt["traceback"]:
                of = f"{attempt['handler_id']}, attempt {attempt['attempt']}"
                say("")
                say(f"{of}:\n{attempt['traceback'].rstrip()}")


@app.command("consumers")
def consumers(call: Call) -> None:
    """List who processes events of which types, and what waits for each.

    Example: ontologia events consumers --namespace orders
    """
    from ontologia.runtime.views.handlers import handlers

    with call.reading() as session:
        now = core_of(session).clock.now()
        rows = [_consumer(row, now, call) for row in handlers(session, most=None)]
        shown = show_rows(
            call,
            ("Name", "Types", "Waiting", "Oldest", "Claimed", "Backoff", "Last Seen", "Paused"),
            rows,
            names=(
                *("name", "types", "waiting", "oldest_waiting", "claimed", "backoff"),
                *("last_seen_at", "paused_at"),
            ),
            nothing=f"There are no consumers in namespace {session.namespace!r}.",
        )
        if not shown:
            tell_of_other_namespaces(call, session)


def _consumer(row: HandlerRow, now: datetime, call: Call) -> dict[str, Any]:
    from ontologia.clock import to_text

    oldest, seen, paused = row.oldest_waiting, row.last_seen_at, row.paused_at
    shown: dict[str, Any] = {
        "name": row.name,
        "types": list(row.types),
        "last_seen_at": to_text(seen),
        "paused_at": None if paused is None else to_text(paused),
        "waiting": row.waiting.number,
        "claimed": row.claimed.number,
        "backoff": row.backoff.number,
        "oldest_waiting": None if oldest is None else to_text(oldest),
    }
    if call.json:
        return shown
    return shown | {
        "types": ", ".join(row.types),
        "oldest_waiting": None if oldest is None else age(now - oldest),
        "last_seen_at": age(now - seen),
        "paused_at": None if paused is None else f"since {instant(paused)}",
    }


@app.command("stats")
def stats(
    call: Call,
    window: Annotated[
        str, typer.Option("--window", metavar="SPAN", help="How far back to count: 45s, 30m, 12h.")
    ] = "5m",
) -> None:
    """Count what waits, since when, and what came, was done and failed lately, by type and handler.

    Overdue are events that a handler began, and did not end before their lease did; they wait
    to be claimed again.

    A relay is a handler here, relay:URI; of each intake a line below says what was left of its source
    when it last stored something.

    Came and Done are per minute; Done and Conflicts are of the events that came within the window.
    Unsubscribed are the retained events of a type that no consumer subscribes to; where the
    namespace has no consumers yet, they wait. Costs what waits or is claimed, the unsubscribed
    events, those of the window, and the failed attempts of retained events; finished events from
    before cost nothing.

    Example: ontologia events stats --namespace orders --window 1h
    """
    from ontologia.runtime.views.store import intakes

    length = span(window)
    if not length:
        raise typer.BadParameter("--window must be longer than nothing")
    with call.reading() as session:
        rows = session.event_store.activity.stats(session.namespace, length)
        now = core_of(session).clock.now()
        shown = show_rows(
            call,
            (
                *("Type", "Handler", "Waiting", "Oldest", "Unsubscribed", "Claimed", "Overdue"),
                *("Backoff", "Came/min", "Done/min", "Conflicts", "Failures", "Dead Letters"),
            ),
            rows if call.json else _figures(rows, now),
            names=(
                *("type", "handler", "waiting", "oldest_waiting", "unsubscribed", "claimed"),
                *(
                    "overdue",
                    "backoff",
                    "came_per_minute",
                    "done_per_minute",
                    "conflicts",
                    "failures",
                ),
                "dead_letters",
            ),
            nothing=f"There are no events and no consumers in namespace {session.namespace!r}.",
        )
        if not shown:
            tell_of_other_namespaces(call, session)
        if not call.json:
            for each in intakes(session):
                typer.echo(
                    f"intake {each.uri}: {each.lag:,} messages were left at {instant(each.as_of)}",
                    err=True,
                )
            for row in session.event_store.list_sessions(session.namespace):
                threads = row["metadata"].get("abandoned_threads")
                if threads and not (row["stopped_at"] or row["is_dead"]):
                    typer.echo(
                        f"{threads} threads of session {row['session_id']} are stuck in handlers "
                        "past their timeouts",
                        err=True,
                    )


def _figures(rows: Iterable[dict[str, Any]], now: datetime) -> Iterator[dict[str, Any]]:
    for row in rows:
        paused = " (paused)" if row["paused"] else ""
        handler = None if row["handler"] is None else row["handler"] + paused
        yield row | {"handler": handler, "oldest_waiting": _age(row["oldest_waiting"], now)}


def _age(text: str | None, now: datetime) -> str | None:
    return None if text is None else age(now - _instant(text))


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


for name, command in (letters.COMMANDS | operations.COMMANDS | archives.COMMANDS).items():
    app.command(name)(command)
app.command("tail")(tail.tail)
