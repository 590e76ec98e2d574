"""`ontologia events dead-letters`, `retry` and `dismiss`: what could not be processed, and then."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ontologia.cli.call import Call, core_of
from ontologia.cli.misnamed import tell_of_other_namespaces, tell_of_unknown_handler
from ontologia.cli.operator import Reason, operating
from ontologia.cli.output import counted, say, show_json, show_rows
from ontologia.cli.times import ago

if TYPE_CHECKING:
    from ontologia.runtime.operator import Operator
    from ontologia.runtime.session import Session
    from ontologia.store.events.operations import DeadLetter, Selection

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
EventId = Annotated[str | None, typer.Option("--event-id", metavar="ID", help="Of this event.")]
All = Annotated[bool, typer.Option("--all", help="All of the namespace.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show which those are, and change nothing.")
]
_COLUMNS = ("Event ID", "Type", "Handler", "Attempts", "Last Error")
_NAMES = ("event_id", "type", "handler", "attempts", "last_error")


def dead_letters(
    call: Call,
    handler: Handler = None,
    type: Type = None,
    error: Error = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
) -> None:
    """List events that a handler could not process, the newest first.

    events retry gives them back to their handlers, events dismiss takes them off the list.

    Example: ontologia events dead-letters --namespace orders
    """
    with call.reading() as session:
        which = _selection(session, None, handler, type, error, older_than, newer_than)
        found = session.event_store.operations.dead_letters(session.namespace, which, 500)
        such = "such " if any(which) else ""
        shown = show_rows(
            call,
            _COLUMNS,
            (_row(letter) for letters in found for letter in letters),
            names=_NAMES,
            nothing=f"There are no {such}dead letters in namespace {session.namespace!r}.",
        )
        if not shown:
            tell_of_other_namespaces(call, session)
            tell_of_unknown_handler(call, session, handler)


def retry(
    call: Call,
    event_id: EventId = None,
    handler: Handler = None,
    type: Type = None,
    error: Error = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    all: All = False,
    dry_run: DryRun = False,
    reason: Reason = None,
) -> None:
    """Give dead letters back to their handlers, each with a fresh set of attempts.

    Of several conditions all must hold. The attempts so far stay on record, under numbers from 0
    down. One transaction, and one record, for every 5,000.

    Example: ontologia events retry --namespace orders --error "SMTP timeout" --dry-run
    """
    chosen = (event_id, handler, type, error, older_than, newer_than)
    _check_chosen(chosen, all=all)
    with operating(call, reason, reading=dry_run) as (session, by):
        which = _selection(session, *chosen)
        if dry_run:
            _show_retry(call, by, which, session)
            return
        done = by.retry(which)
        if event_id is not None and not done.retried:
            raise _not_retried(which, session.namespace, done.left)
        if not any(done):
            tell_of_unknown_handler(call, session, handler)
    if call.json:
        show_json(done._asdict())
        return
    say(f"Retried {_letters(done.retried)} of namespace {session.namespace!r}")
    if done.retried:
        say("Available for processing immediately")
    if done.left:
        say(f"{_letters(done.left)} left as they are: {_WHY_LEFT}")


def dismiss(
    call: Call,
    event_id: EventId = None,
    handler: Handler = None,
    type: Type = None,
    error: Error = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    all: All = False,
    dry_run: DryRun = False,
    reason: Reason = None,
) -> None:
    """Take dead letters off the list, when nothing is to be done about them.

    Of several conditions all must hold. Their handlers never get those events again; events replay
    announces one anew while it is retained. One transaction, and one record, for every 5,000.

    Example: ontologia events dismiss --namespace orders --older-than 90d --dry-run
    """
    chosen = (event_id, handler, type, error, older_than, newer_than)
    _check_chosen(chosen, all=all)
    with operating(call, reason, reading=dry_run) as (session, by):
        which = _selection(session, *chosen)
        if dry_run:
            _show_dismiss(call, by, which, session)
            return
        dismissed = by.dismiss(which)
        if event_id is not None and not dismissed:
            raise _no_letter(which, session.namespace)
        if not dismissed:
            tell_of_unknown_handler(call, session, handler)
    if call.json:
        show_json({"dismissed": dismissed})
    else:
        say(f"Dismissed {_letters(dismissed)} of namespace {session.namespace!r}")


def _check_chosen(chosen: tuple[str | None, ...], *, all: bool) -> None:
    if all == any(each is not None for each in chosen):
        raise typer.BadParameter(
            "say which dead letters: --event-id, --handler, --type, --error, --older-than, "
            "--newer-than, or else --all"
        )


_WHY_LEFT = "the event is not retained any more, or nobody of that name is subscribed to it"


def _show_retry(call: Call, by: Operator, which: Selection, session: Session) -> None:
    counts = {True: 0, False: 0}

    def rows() -> Generator[dict[str, Any]]:
        for letter, possible in by.dead_letters(which):
            counts[possible] += 1
            yield _row(letter) | {"retriable": possible}

    if not show_rows(call, (*_COLUMNS, "Retriable"), rows(), names=(*_NAMES, "retriable")):
        tell_of_unknown_handler(call, session, which.handler)
    typer.echo(
        f"Would retry {_letters(counts[True])} of namespace {session.namespace!r}; "
        f"nothing was changed",
        err=True,
    )
    if counts[False]:
        typer.echo(f"{_letters(counts[False])} would be left: {_WHY_LEFT}", err=True)


def _show_dismiss(call: Call, by: Operator, which: Selection, session: Session) -> None:
    count = 0

    def rows() -> Generator[dict[str, Any]]:
        nonlocal count
        for letter, _ in by.dead_letters(which):
            count += 1
            yield _row(letter)

    if not show_rows(call, _COLUMNS, rows(), names=_NAMES):
        tell_of_unknown_handler(call, session, which.handler)
    typer.echo(
        f"Would dismiss {_letters(count)} of namespace {session.namespace!r}; nothing was changed",
        err=True,
    )


def _not_retried(which: Selection, namespace: str, left: int) -> Exception:
    from ontologia.errors import NotFoundError

    if left:
        return NotFoundError(
            f"event {which.event_id} was not retried: {_WHY_LEFT}",
            hint="Its payload is kept with the dead letter; ontologia emit announces it anew.",
        )
    return _no_letter(which, namespace)


def _no_letter(which: Selection, namespace: str) -> Exception:
    from ontologia.errors import NotFoundError

    conditions = sum(value is not None for value in which)
    fits = " that fits" if conditions > 1 else ""
    return NotFoundError(
        f"there is no dead letter of event {which.event_id} in namespace {namespace!r}{fits}; "
        f"nothing was changed"
    )


def _selection(
    session: Session,
    event_id: str | None,
    handler: str | None,
    type: str | None,
    error: str | None,
    older_than: str | None,
    newer_than: str | None,
) -> Selection:
    """The dead letters that these options mean."""
    from ontologia.runtime.views.dead_letters import selection

    now = core_of(session).clock.now()
    return selection(
        *(event_id, handler, type, error),
        since=ago(now, newer_than),
        until=ago(now, older_than),
    )


def _row(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as a row."""
    row = letter._asdict()
    del row["number"]
    return row


def _letters(count: int) -> str:
    return counted(count, "dead letter")


COMMANDS: dict[str, Callable[..., None]] = {
    "dead-letters": dead_letters,
    "retry": retry,
    "dismiss": dismiss,
}
