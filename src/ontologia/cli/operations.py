"""`ontologia events cancel`, `replay`, `pause` …: what an operator changes, which is recorded.

Each change leaves a commit, in the same transaction, that says who made it, when and why.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated

import typer

from ontologia.cli.call import Call
from ontologia.cli.operator import Reason, operating
from ontologia.cli.output import counted, say, show_json, show_rows
from ontologia.cli.times import span
from ontologia.runtime.views.times import in_words

EventId = Annotated[str, typer.Option("--event-id", metavar="ID", help="Of the event.")]
Name = Annotated[str, typer.Argument(metavar="HANDLER", help="Its whole name.")]


def cancel(
    call: Call,
    which: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Number of a deferred event, or event ID."),
    ] = None,
    dedup_key: Annotated[
        str | None, typer.Option("--dedup-key", metavar="KEY", help="Dedup key of the event.")
    ] = None,
    type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Event type of the dedup key.")
    ] = None,
    reason: Reason = None,
) -> None:
    """Take back an event that no consumer has finished: by number, event ID or dedup key.

    A deferred event is never announced. One that waits, also after failed attempts for the next
    one, is taken out of the log, for all its consumers; the record keeps what it was. One that is
    claimed at this moment, or that a consumer has finished or buried, is left as it is (exit code
    6).

    Example: ontologia events cancel 17 --namespace orders --reason "ordered by mistake"
    """
    if (which is None) == (dedup_key is None):
        raise typer.BadParameter("name the event by its ID or by --dedup-key, and not both")
    if type is not None and dedup_key is None:
        raise typer.BadParameter("--type goes with --dedup-key")
    with operating(call, reason) as (session, by):
        done = (
            by.cancel(which)
            if which is not None
            else by.cancel_key(dedup_key or "", event_type=type)
        )
    if call.json:
        show_json(done)
    elif done["kind"] == "deferred":
        say(
            f"Cancelled deferred event {done['number']} ({done['type']}, due {done['fire_at']}) "
            f"of namespace {session.namespace!r}: it is never announced"
        )
    else:
        say(
            f"Cancelled event {done['id']} ({done['type']}) of namespace {session.namespace!r}: "
            f"no consumer gets it"
        )
        for handler, how in done["failed"].items():
            say(f"{handler} had tried it: {counted(how['attempts'], 'failed attempt')}")


def replay(call: Call, event_id: EventId, reason: Reason = None) -> None:
    """Announce an event once more, under a new id, to all its consumers.

    Also those that have finished the first one process it again.

    Example: ontologia events replay --namespace orders --event-id evt_123
    """
    with operating(call, reason) as (session, by):
        new_id = by.replay(event_id)
    if call.json:
        show_json({"event_id": event_id, "new_event_id": new_id})
        return
    say(f"Event {event_id} re-enqueued for namespace {session.namespace!r}")
    say("Available for processing immediately")
    say(f"New event ID: {new_id}")


def cleanup(
    call: Call,
    before: Annotated[
        str, typer.Option("--before", metavar="AGE", help="Delete what is older: 45s, 12h, 7d.")
    ],
    type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Only events of this type.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what is older, and change nothing.")
    ] = False,
    reason: Reason = None,
) -> None:
    """Delete events older than this, finished or not, except those being worked on.

    Deletes in portions, so that nobody waits for all of it; the record is written at the end.

    Example: ontologia events cleanup --namespace orders --before 7d --dry-run
    """
    length = span(before)
    if dry_run:
        _show_old(call, length, type)
        return
    with operating(call, reason) as (session, by):
        deleted = by.cleanup(length, event_type=type)
    if call.json:
        show_json({"deleted": deleted})
        return
    say(
        f"Deleted {_events(deleted, type)} older than {in_words(length)} "
        f"for namespace {session.namespace!r}"
    )


def _show_old(call: Call, length: timedelta, type: str | None) -> None:
    from ontologia.store.events import checks

    if type is not None:
        checks.name("an event's type", type)
    with call.reading() as session:
        retention = session.event_store.retention
        counts = retention.count_old(session.namespace, length, event_type=type)
    rows = [{"type": event_type, "events": count} for event_type, count in counts.items()]
    show_rows(call, ("Type", "Events"), rows, names=("type", "events"))
    typer.echo(
        f"Would delete {_events(sum(counts.values()), type)} older than {in_words(length)} of "
        f"namespace {session.namespace!r}, except those being worked on; nothing was changed",
        err=True,
    )


def _events(count: int, type: str | None) -> str:
    return counted(count, "event") + ("" if type is None else f" of type {type}")


def pause(call: Call, handler: Name, reason: Reason = None) -> None:
    """Stop deliveries to a handler until events resume. What it has at the moment it finishes.

    Kept in the store: it survives restarts, and holds for every process that runs the handler.

    Example: ontologia events pause shop.handlers:charge --namespace orders
    """
    with operating(call, reason) as (_, by):
        changed = by.pause(handler)
    _say_paused(call, handler, paused=True, changed=changed)


def resume(call: Call, handler: Name, reason: Reason = None) -> None:
    """Deliver to a paused handler again.

    Example: ontologia events resume shop.handlers:charge --namespace orders
    """
    with operating(call, reason) as (_, by):
        changed = by.resume(handler)
    _say_paused(call, handler, paused=False, changed=changed)


def _say_paused(call: Call, handler: str, *, paused: bool, changed: bool) -> None:
    if call.json:
        show_json({"handler": handler, "paused": paused, "changed": changed})
    elif changed:
        say(f"Paused {handler}" if paused else f"Resumed {handler}")
    else:
        say(f"{handler} was paused already" if paused else f"{handler} was not paused")


def forget(call: Call, handler: Name, reason: Reason = None) -> None:
    """Remove a consumer, and what waits for it; what it finished stays on record.

    Refused while a live session runs it (exit code 6). If it comes back, it is new.

    Example: ontologia events forget shop.handlers:old_name --namespace orders
    """
    with operating(call, reason) as (session, by):
        by.forget(handler)
    if call.json:
        show_json({"handler": handler, "forgotten": True})
        return
    say(f"Forgot {handler} in namespace {session.namespace!r}, with what waited for it")


COMMANDS: dict[str, Callable[..., None]] = {
    "cancel": cancel,
    "replay": replay,
    "cleanup": cleanup,
    "pause": pause,
    "resume": resume,
    "forget": forget,
}
