"""`ontologia events retry`, `cancel`, `replay` …: what an operator changes, which is recorded.

Each change leaves a commit, in the same transaction, that says who made it, when and why.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ontologia.cli.call import Call
from ontologia.cli.operator import operator
from ontologia.cli.output import say, show_json, show_rows
from ontologia.cli.spans import in_words, span

if TYPE_CHECKING:
    from ontologia.runtime.operator import Operator
    from ontologia.runtime.session import Session
    from ontologia.store.events.operations import DeadLetter, Selection

Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="For the record.")]
EventId = Annotated[str, typer.Option("--event-id", metavar="ID", help="Of the event.")]
Handler = Annotated[str | None, typer.Option("--handler", metavar="NAME", help="Of this handler.")]
Type = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Of this event type.")]
Error = Annotated[
    str | None, typer.Option("--error", metavar="TEXT", help="With this in their last error.")
]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="SPAN", help="That died longer ago: 12h, 7d.")
]
NewerThan = Annotated[
    str | None, typer.Option("--newer-than", metavar="SPAN", help="That died since: 30m, 12h.")
]
Name = Annotated[str, typer.Argument(metavar="HANDLER", help="Its whole name.")]


def retry(
    call: Call,
    event_id: Annotated[
        str | None, typer.Option("--event-id", metavar="ID", help="Of this event.")
    ] = None,
    handler: Handler = None,
    type: Type = None,
    error: Error = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    all: Annotated[bool, typer.Option("--all", help="All of the namespace.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which those are, and change nothing.")
    ] = False,
    reason: Reason = None,
) -> None:
    """Give dead letters back to their handlers, each with a fresh set of attempts.

    Of several conditions all must hold. The attempts so far stay on record, under numbers from 0
    down. One transaction, and one record, for every 5,000.

    Example: ontologia events retry --namespace orders --error "SMTP timeout" --dry-run
    """
    chosen = (event_id, handler, type, error, older_than, newer_than)
    if all == any(each is not None for each in chosen):
        raise typer.BadParameter(
            "say which dead letters: --event-id, --handler, --type, --error, --older-than, "
            "--newer-than, or else --all"
        )
    with _operator(call, reason, reading=dry_run) as (session, by):
        which = selection(session, *chosen)
        if dry_run:
            _show_retry(call, by, which, session.namespace)
            return
        done = by.retry(which)
        if event_id is not None and not done.retried:
            raise _not_retried(event_id, session.namespace, done.left)
    if call.json:
        show_json(done._asdict())
        return
    say(f"Retried {_letters(done.retried)} of namespace {session.namespace!r}")
    if done.retried:
        say("Available for processing immediately")
    if done.left:
        say(f"{_letters(done.left)} left as they are: {_WHY_LEFT}")


_WHY_LEFT = "the event is not retained any more, or nobody of that name is subscribed to it"


def _show_retry(call: Call, by: Operator, which: Selection, namespace: str) -> None:
    counts = {True: 0, False: 0}

    def rows() -> Generator[dict[str, Any]]:
        for letter, possible in by.dead_letters(which):
            counts[possible] += 1
            yield letter_row(letter) | {"retriable": possible}

    show_rows(
        call,
        ("Event ID", "Type", "Handler", "Attempts", "Last Error", "Retriable"),
        rows(),
        names=("event_id", "type", "handler", "attempts", "last_error", "retriable"),
    )
    text = f"Would retry {_letters(counts[True])} of namespace {namespace!r}; nothing was changed"
    typer.echo(text, err=True)
    if counts[False]:
        typer.echo(f"{_letters(counts[False])} would be left: {_WHY_LEFT}", err=True)


def _not_retried(event_id: str, namespace: str, left: int) -> Exception:
    from ontologia.errors import NotFoundError

    if left:
        return NotFoundError(
            f"event {event_id} was not retried: {_WHY_LEFT}",
            hint="Its payload is kept with the dead letter; ontologia emit announces it anew.",
        )
    return NotFoundError(
        f"there is no dead letter of event {event_id} in namespace {namespace!r} that is meant; "
        f"nothing was changed"
    )


def cancel(
    call: Call,
    which: Annotated[
        str, typer.Argument(metavar="ID", help="The number of a deferred event, or an event's id.")
    ],
    reason: Reason = None,
) -> None:
    """Take back an event that nobody has started.

    A deferred event is never announced. A pending one is taken out of the log, for all its
    consumers, if none has claimed it; the record keeps what it was. One that a consumer has
    started, or finished, cannot be cancelled (exit code 6).

    Example: ontologia events cancel 17 --namespace orders --reason "ordered by mistake"
    """
    with _operator(call, reason) as (session, by):
        done = by.cancel(which)
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


def replay(call: Call, event_id: EventId, reason: Reason = None) -> None:
    """Announce an event once more, under a new id, to all its consumers.

    Also those that have finished the first one process it again.

    Example: ontologia events replay --namespace orders --event-id evt_123
    """
    with _operator(call, reason) as (session, by):
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
    reason: Reason = None,
) -> None:
    """Delete events older than this, finished or not, except those being worked on.

    Deletes in portions, so that nobody waits for all of it; the record is written at the end.

    Example: ontologia events cleanup --namespace orders --before 7d
    """
    length = span(before)
    with _operator(call, reason) as (session, by):
        deleted = by.cleanup(length)
    if call.json:
        show_json({"deleted": deleted})
        return
    events = "event" if deleted == 1 else "events"
    say(
        f"Deleted {deleted:,} {events} older than {in_words(length)} "
        f"for namespace {session.namespace!r}"
    )


def pause(call: Call, handler: Name, reason: Reason = None) -> None:
    """Stop deliveries to a handler until events resume. What it has at the moment it finishes.

    Kept in the store: it survives restarts, and holds for every process that runs the handler.

    Example: ontologia events pause shop.handlers:charge --namespace orders
    """
    with _operator(call, reason) as (_, by):
        changed = by.pause(handler)
    _say_paused(call, handler, paused=True, changed=changed)


def resume(call: Call, handler: Name, reason: Reason = None) -> None:
    """Deliver to a paused handler again.

    Example: ontologia events resume shop.handlers:charge --namespace orders
    """
    with _operator(call, reason) as (_, by):
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
    with _operator(call, reason) as (session, by):
        by.forget(handler)
    if call.json:
        show_json({"handler": handler, "forgotten": True})
        return
    say(f"Forgot {handler} in namespace {session.namespace!r}, with what waited for it")


COMMANDS: dict[str, Callable[..., None]] = {
    "retry": retry,
    "cancel": cancel,
    "replay": replay,
    "cleanup": cleanup,
    "pause": pause,
    "resume": resume,
    "forget": forget,
}


@contextmanager
def _operator(
    call: Call, reason: str | None, *, reading: bool = False
) -> Generator[tuple[Session, Operator]]:
    from ontologia.runtime.operator import Operator

    with call.reading() if reading else call.writing() as session:
        yield session, Operator(session, operator(), reason=reason)


def selection(
    session: Session,
    event_id: str | None,
    handler: str | None,
    type: str | None,
    error: str | None,
    older_than: str | None,
    newer_than: str | None,
) -> Selection:
    """The dead letters that these options mean."""
    from ontologia.store.events import checks
    from ontologia.store.events.operations import Selection

    for text in filter(None, (event_id, handler, type, error)):
        checks.name("what a dead letter is chosen by", text, checks.LONGEST_KEY)
    now = session._clock.now()
    try:
        until = None if older_than is None else now - span(older_than)
        since = None if newer_than is None else now - span(newer_than)
    except OverflowError as failure:
        raise typer.BadParameter("no event is that old") from failure
    return Selection(event_id, handler, type, error, since, until)


def letter_row(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as a row."""
    row = letter._asdict()
    del row["number"]
    return row


def _letters(count: int) -> str:
    return f"{count:,} dead letter{'' if count == 1 else 's'}"
