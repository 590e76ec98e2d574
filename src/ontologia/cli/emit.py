"""`ontologia emit TYPE JSON`: store an event by hand."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from ontologia.cli.call import Call
from ontologia.cli.models import Models, load_models
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
) -> None:
    """Store an event, now or for later, and print its id.

    With --models the event is checked against the class that MODULE defines for its type; TYPE may
    be the name of the class then. Without, type and fields are taken as they are: whoever handles
    the event finds out whether they fit.

    Example: ontologia emit order.placed '{"order_id": "o-7"}' --namespace shop
    """
    payload = _checked_json(fields)
    if models is not None:
        type, payload, priority = _validated(models, type, payload, priority)
    wait, time = None if delay is None else span(delay), None if at is None else _instant(at)
    if wait is not None and time is not None:
        raise typer.BadParameter("give --delay or --at, not both")
    with call.writing() as session:
        events = session.event_store
        row = events.log.untyped_row(
            type,
            payload,
            session.namespace,
            priority=100 if priority is None else priority,
            source=_SOURCE,
            dedup_key=dedup_key,
        )
        stored = events.announce(row, delay=wait, at=time)
        namespace = session.namespace
    known = stored.id != row.id
    if call.json:
        answer: dict[str, Any] = {"id": stored.id, "type": type, "namespace": namespace}
        show_json(answer | {"stored": not known, "deferred": stored.deferred})
        return
    say(stored.id)
    if known:
        typer.echo(f"nothing was stored: that event has the key {dedup_key}", err=True)
    elif stored.deferred is not None:
        typer.echo(
            f"deferred event {stored.deferred}: it is announced when its time comes", err=True
        )
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


def _validated(
    models: str, name: str, payload: str, priority: int | None
) -> tuple[str, str, int | None]:
    """Stored type, payload and priority of an event of a class; its own error if it does not fit."""
    from ontologia import codec
    from ontologia.errors import InvalidValueError
    from ontologia.schema.event import event_of, payload_of

    cls = load_models(models).event_type(name)
    # Readers ignore what they do not know; whoever writes by hand has mistyped it.
    unknown = sorted(set(codec.decode_stored(payload)) - set(cls.__event_fields__))
    if unknown:
        raise InvalidValueError(
            f"{cls.__name__} has no field {', '.join(unknown)}; nothing was stored",
            hint=f"It has {', '.join(cls.__event_fields__) or 'none'}.",
        )
    event = event_of(cls, payload)
    return cls.__event_type__, payload_of(event), event.priority if priority is None else priority


def _instant(text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no time; write 2026-12-24T18:00+01:00") from error
    if instant.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no offset; end it with Z for UTC, or +01:00")
    return instant
