"""`ontologia run MODULE[:ATTR]`: a worker for the handlers and schedules of a module."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ontologia.cli.call import Call
from ontologia.cli.models import load_models
from ontologia.cli.outdated import refused
from ontologia.cli.output import say, show_json

if TYPE_CHECKING:
    from ontologia.runtime.modules import Contents

log = logging.getLogger(__name__)


def run(
    call: Call,
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE[:ATTR]", help="A module, or a list of handlers in one."),
    ],
    workers: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many handlers may run at once.")
    ] = 1,
    start: Annotated[
        Literal["now", "retained"],
        typer.Option(help="Events that a handler new to the store begins with."),
    ] = "retained",
    event_store: Annotated[
        str | None,
        typer.Option(metavar="URI", help="A bucket to get events from, as s3://bucket/prefix."),
    ] = None,
    migrate: Annotated[
        Literal["none", "compatible"] | None,
        typer.Option(help="Changes of types that are applied at the start."),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when a file of the program changes.")
    ] = False,
) -> None:
    """Give events to the handlers of a module until stopped.

    Handlers are the functions decorated with @on_event that the module has, or those of the list
    ATTR; schedules are the list `schedules` and every Schedule in it. Its entity and relation types
    are registered. A type whose changes are breaking is an error, as long as they are not migrated;
    compatible changes are applied at the start with --migrate compatible, and are an error without.
    An older program runs beside a newer one whose changes are compatible.
    The working directory is looked at first. The log, with the ids of events and handlers, goes to
    stderr, and a terminal has a status line.

    A handler that is new to the store gets all retained events of its type; with --start now it
    gets those emitted from now on. A handler whose chain of events is longer than
    max_event_chain_depth has its event dead-lettered, which is logged.

    With --event-store the handlers get their events from a bucket, and those that are committed
    in the database are carried there.

    Ctrl+C or SIGTERM lets running handlers come to their end, with several workers for at most
    shutdown_grace_ms; a second one does not wait.

    Example: ontologia run myapp.worker --workers 4 --namespace shop
    """
    if reload:
        from ontologia.cli.reload import supervise

        options = {"workers": workers, "start": start, "event-store": event_store}
        raise typer.Exit(supervise(call, target, {**options, "migrate": migrate}))
    from ontologia.cli.worklog import Counters, shown
    from ontologia.runtime.observed import observed

    found = _checked(load_models(target))
    counters = Counters()
    types = {"entity_types": found.entity_types, "relation_types": found.relation_types}
    config = call.config
    if migrate is not None:
        config = config.model_copy(update={"auto_migrate": migrate})
    with (
        call.writing(**types, event_store=event_store, config=config) as session,
        refused(call, session, [found]),
        shown(session, counters),
    ):
        if ":" not in target:  # where a list says which, that is what is meant
            for lost, kept in found.lost_handlers():
                log.warning(
                    "%s is not run, since %s took its name in the module; rename one of them",
                    *(lost.place, kept.place),
                )
        handlers = observed(found.handlers, counters.tell)
        session.run(
            handlers, schedules=found.schedules, workers=workers, start=start, on_chain_limit="log"
        )
    if call.json:
        show_json({"done": counters.done, "failed": counters.failed})
    else:
        say(f"stopped: {counters.done:,} done, {counters.failed:,} failed attempts")


def _checked(found: Contents) -> Contents:
    from ontologia.errors import NotFoundError

    if not found.handlers and not found.schedules:
        raise NotFoundError(
            f"{found.name} has neither handlers nor schedules",
            hint="Decorate functions with @on_event(SomeEvent), or name a list: module:handlers.",
        )
    return found
