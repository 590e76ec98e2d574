"""`ontologia schedules …`: when a program's schedules fire."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ontologia.cli.call import Call, Commands
from ontologia.cli.models import load_models
from ontologia.cli.output import instant, show_rows

if TYPE_CHECKING:
    from ontologia.delivery.schedule import Schedule

app = Commands(help="The schedules of a program.", no_args_is_help=True)
_TIMES = 5


@app.callback()
def _group() -> None:
    """Commands below `schedules`."""


@app.command("list")
def show(
    call: Call,
    models: Annotated[
        str, typer.Option("--models", metavar="MODULE", help="The module that has the schedules.")
    ],
) -> None:
    """List the schedules of a module with the next five times of each, in UTC.

    These are the list `schedules` and every Schedule that the module has, as `ontologia run` takes
    them. No store is needed.

    Example: ontologia schedules list --models myapp.worker
    """
    from ontologia.clock import SYSTEM_CLOCK

    clock = call.config.clock or SYSTEM_CLOCK
    rows = [_row(each, clock.now(), call.json) for each in load_models(models).schedules]
    show_rows(
        call,
        ["Event", "Cron", "Zone", "Fields", "Next (UTC)"],
        rows,
        names=["type", "cron", "tz", "fields", "next"],
        nothing=f"{models} has no schedules.",
    )


def _row(schedule: Schedule, now: datetime, for_programs: bool) -> dict[str, Any]:
    times: list[datetime] = []
    tick = schedule.next_after(now)
    while tick is not None and len(times) < _TIMES:
        times.append(tick)
        tick = schedule.next_after(tick)
    return {
        "type": type(schedule.event).__event_type__,
        "cron": schedule.cron,
        "tz": schedule.tz or "UTC",
        "fields": schedule.event.model_dump(),
        "next": times if for_programs else ", ".join(map(instant, times)),
    }
