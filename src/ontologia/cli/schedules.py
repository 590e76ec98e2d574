"""`ontologia schedules …`: when schedules fire, and to have one fire now."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ontologia.cli.call import Call, Commands
from ontologia.cli.models import load_models
from ontologia.cli.operator import Reason, operating
from ontologia.cli.output import instant, say, show_json, show_rows

if TYPE_CHECKING:
    from ontologia.delivery.schedule import Schedule
    from ontologia.runtime.views.later import ScheduleRow

app = Commands(help="The schedules of a program or of a store.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Commands below `schedules`."""


@app.command("list")
def show(
    call: Call,
    models: Annotated[
        str | None,
        typer.Option("--models", metavar="MODULE", help="The module that has the schedules."),
    ] = None,
) -> None:
    """List schedules with the next five times of each, in UTC.

    With --models those of a module: the list `schedules` and every Schedule that it has, as
    `ontologia run` takes them; no store is needed. Without, those that sessions on record run or
    ran, with the key for schedules fire, the last tick, and how many live sessions run each.

    Example: ontologia schedules list --models myapp.worker
    """
    if models is not None:
        _list_module(call, models)
        return
    from ontologia.runtime.views.later import schedules

    with call.reading() as session:
        rows = [_recorded(each, call.json) for each in schedules(session)]
        show_rows(
            call,
            ["Event", "Cron", "Zone", "Fields", "Key", "Sessions", "Last (UTC)", "Next (UTC)"],
            rows,
            names=["type", "cron", "tz", "fields", "key", "sessions", "last", "next"],
            nothing=f"No session on record runs a schedule in namespace {session.namespace!r}.",
        )


@app.command("fire")
def fire(
    call: Call,
    key: Annotated[
        str,
        typer.Argument(metavar="KEY", help="Key of the schedule, or the type of its event."),
    ],
    reason: Reason = None,
) -> None:
    """Emit the event of a schedule now, beside its ticks, and print its ID.

    The schedule is one that a session on record runs or ran, see schedules list. A commit records it.

    Example: ontologia schedules fire stock.due --reason "missed while the server was down"
    """
    with operating(call, reason) as (_, by):
        event_id = by.fire(key)
    if call.json:
        show_json({"event_id": event_id})
    else:
        say(event_id)


def _list_module(call: Call, models: str) -> None:
    from ontologia.clock import SYSTEM_CLOCK

    clock = call.config.clock or SYSTEM_CLOCK
    rows = [_planned(each, clock.now(), call.json) for each in load_models(models).schedules]
    show_rows(
        call,
        ["Event", "Cron", "Zone", "Fields", "Next (UTC)"],
        rows,
        names=["type", "cron", "tz", "fields", "next"],
        nothing=f"{models} has no schedules.",
    )


def _planned(schedule: Schedule, now: datetime, for_programs: bool) -> dict[str, Any]:
    from ontologia.delivery.schedule import next_ticks
    from ontologia.runtime.views.later import TIMES

    times = next_ticks(schedule.cron, schedule.tz, now, TIMES)
    return {
        "type": type(schedule.event).__event_type__,
        "cron": schedule.cron,
        "tz": schedule.tz or "UTC",
        "fields": schedule.event.model_dump(),
        "next": times if for_programs else ", ".join(map(instant, times)),
    }


def _recorded(schedule: ScheduleRow, for_programs: bool) -> dict[str, Any]:
    last = schedule.last[0].tick if schedule.last else None
    shown: dict[str, Any] = {
        "type": schedule.type,
        "cron": schedule.cron,
        "tz": schedule.tz,
        "fields": schedule.payload,
        "key": schedule.key,
        "sessions": schedule.sessions,
        "last": last,
        "next": schedule.next,
    }
    if for_programs:
        return shown
    return shown | {
        "sessions": str(len(schedule.sessions)),
        "last": None if last is None else instant(last),
        "next": ", ".join(map(instant, schedule.next)),
    }
