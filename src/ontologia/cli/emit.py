"""`ontologia emit TYPE JSON`: store an event by hand."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from ontologia.cli.call import Call
from ontologia.cli.models import Models, load_models
from ontologia.cli.operator import Reason, operating
from ontologia.cli.output import say, show_json
from ontologia.cli.times import span

_SOURCE = "ontologia emit"


def emit(
    call: Call,
    type: Annotated[
        str, typer.Argument(metavar="TYPE", help="As it is stored: order.placed for OrderPlaced.")
    ],
    fields: Annotated[str, typer.Argument(metavar="JSON", help="The event's fields, an object.")],
    models: Models = None,
    delay: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Announce it after 45s, 30m, 12h or 7d.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Announce it at 2026-12-24T18:00+01:00.")
    ] = None,
    dedup_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Not again while an event has this key.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option(help="Higher ones first.", show_default="100, or the class's")
    ] = None,
    reason: Reason = None,
) -> None:
    """Store an event, now or for later, and print its id.

    With --models the event is checked against the class that MODULE defines for its type; TYPE may
    be the name of the class then. Without, type and fields are taken as they are: whoever handles
    the event finds out whether they fit.

    With --reason a commit records who emitted it and why, and is its source.

    Example: ontologia emit order.placed '{"order_id": "o-7"}' --namespace shop
    """
    from ontologia.runtime.operator import fitting

    payload = _checked_json(fields)
    cls = None if models is None else load_models(models).event_type(type)
    wait, time = None if delay is None else span(delay), None if at is None else _instant(at)
    if wait is not None and time is not None:
        raise typer.BadParameter("give --delay or --at, not both")
    with operating(call, reason) as (session, by):
        namespace = session.namespace
        if reason is not None:
            event_id, deferred, commit_id = by.emit(
                type, payload, cls=cls, delay=wait, at=time, dedup_key=dedup_key, priority=priority
            )
            known = commit_id is None
        else:
            if cls is not None:
                type, payload, priority = fitting(cls, payload, priority)
            events = session.event_store
            row = events.log.untyped_row(
                type,
                payload,
                namespace,
                priority=100 if priority is None else priority,
                source=_SOURCE,
                dedup_key=dedup_key,
            )
            event_id, deferred, _ = events.announce(row, delay=wait, at=time)
            known = event_id != row.id
    if call.json:
        stored_as = type if cls is None else cls.__event_type__
        answer: dict[str, Any] = {"id": event_id, "type": stored_as, "namespace": namespace}
        show_json(answer | {"stored": not known, "deferred": deferred})
        return
    say(event_id)
    if known:
        typer.echo(f"nothing was stored: that event has the key {dedup_key}", err=True)
    elif deferred is not None:
        typer.echo(f"deferred event {deferred}: it is announced when its time comes", err=True)
    if models is None and type[:1].isupper():
        _warn_of_class_name(type)


def _warn_of_class_name(name: str) -> None:
    from ontologia.schema.event import derive_event_type

    typer.echo(
        f"its type is {name}, as you wrote it; events of a class {name} have the type "
        f"{derive_event_type(name)}, and --models MODULE takes the name of the class",
        err=True,
    )


def _checked_json(text: str) -> str:
    """The same object as the store writes it; a usage error if it is none."""
    from ontologia import codec
    from ontologia.errors import InvalidValueError

    try:
        value = codec.decode(text)
        if isinstance(value, dict):
            return codec.encode(value)
    except InvalidValueError as error:
        raise typer.BadParameter(str(error.args[0]), param_hint="JSON") from error
    raise typer.BadParameter(f'the fields are an object, {{"name": "value"}}, got {text:.100}')


def _instant(text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no time; write 2026-12-24T18:00+01:00") from error
    if instant.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no offset; end it with Z for UTC, or +01:00")
    return instant
