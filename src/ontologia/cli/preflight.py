"""`ontologia preflight`: what a program would meet in a store, before it is deployed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ontologia.cli.call import Call
from ontologia.cli.models import Upgraders, load_models, load_upgraders
from ontologia.cli.output import counted, progress, say, show_json, show_rows

if TYPE_CHECKING:
    from ontologia.runtime.preflight import Preflight

BREAKS = 3


def preflight(
    call: Call,
    modules: Annotated[
        list[str],
        typer.Argument(metavar="MODULE", help="Modules with types, handlers and schedules."),
    ],
    upgraders: Upgraders = None,
    all: Annotated[
        bool, typer.Option("--all", help="Read every payload, instead of 200 of a type.")
    ] = False,
) -> None:
    """Say what a program would meet in the store if it were deployed now. Writes nothing.

    Compares types, handlers and schedules of the modules with what the store has, lets the
    program's event classes read payloads that wait for its handlers, and lists the sessions that
    are alive. Name the modules of all programs of the namespace. The exit code is 3 if something
    would break: migrate could not go on, events could not be read or would wait for ever, or the
    store cannot be opened as it is. Warnings and the rest leave it at 0.

    Example: ontologia preflight shop.models shop.handlers --datastore-uri sqlite:///app.db
    """
    from ontologia.runtime.modules import together
    from ontologia.runtime.preflight import SAMPLE, of_layout
    from ontologia.runtime.preflight import preflight as examine
    from ontologia.runtime.views.reading import refused_layout

    found = together([load_models(module) for module in modules])
    load_upgraders(upgraders)
    layout = refused_layout(call.uri, call.config)
    if layout is not None:
        result = of_layout(*layout)
    else:
        types = {"entity_types": found.entity_types, "relation_types": found.relation_types}
        sample = None if all else SAMPLE
        with call.reading(**types) as session, progress("looking at") as told:
            result = examine(session, found, sample=sample, progress=told)
    if call.json:
        show_json(_as_json(result))
    else:
        _show(call, result)
    if result.breaks:
        raise typer.Exit(BREAKS)


def _as_json(result: Preflight) -> dict[str, Any]:
    from dataclasses import asdict

    facts = asdict(result)
    facts["read"] = [each._asdict() for each in result.read]
    return {"breaks": result.breaks} | facts


def _show(call: Call, result: Preflight) -> None:
    from ontologia.runtime.preflight import Effect

    counts = dict.fromkeys(Effect, 0)
    rows: list[dict[str, Any]] = []
    for about, finding in result.findings():
        counts[finding.effect] += 1
        shown = {"effect": finding.effect.value, "what": finding.what, "remedy": finding.remedy}
        rows.append({"about": about} | shown)
    show_rows(
        call,
        ["Effect", "About", "What", "What helps"],
        rows,
        names=["effect", "about", "what", "remedy"],
    )
    read = sum(each.read for each in result.read)
    if read:
        part = "" if all(each.complete for each in result.read) else ", a sample: --all reads all"
        types = counted(len({each.type for each in result.read}), "type")
        say(f"Read {counted(read, 'payload')} of {types}{part}.")
    breaks, warns = counts[Effect.breaks], counts[Effect.warns]
    said = (
        f"{counted(breaks, 'finding')} would break the deployment" if breaks else "Nothing breaks"
    )
    say(f"{said}; {counted(warns, 'warning')}." if warns else f"{said}.")
