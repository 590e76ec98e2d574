"""`ontologia bench`: how fast it is beside what a user would pick instead, on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ontologia.cli.call import Call
from ontologia.cli.output import show_json, show_rows

if TYPE_CHECKING:
    from ontologia.bench.places import Databases
    from ontologia.bench.results import Figure


def bench(
    call: Call,
    scenarios: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCENARIO", help="What to measure.", show_default="all"),
    ] = None,
    contenders: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME", help="Who takes part.", show_default="all installed"),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="How often, each in turn.", show_default="3, small: 1"),
    ] = None,
    size: Annotated[
        Literal["small", "full"],
        typer.Option(help="A minute that shows that it works, or figures to go by."),
    ] = "small",
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the results as bars.")
    ] = None,
    write_results: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page (Markdown), and its picture beside it."),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List the scenarios; nothing is measured.")
    ] = False,
) -> None:
    """Measure it beside a bare loop and beside other queues and histories, each in turn.

    SQLite files are made in the temporary folder (TMPDIR). With --datastore-uri
    postgresql://user@host/database databases are made on that server, and dropped again.

    Example: ontologia bench drain latency --contenders ontologia,bare,huey
    """
    from ontologia.bench.scenarios import SCENARIOS
    from ontologia.bench.sizes import ROUNDS

    if list_:
        rows = [{"scenario": each.name, "about": each.about} for each in SCENARIOS.values()]
        show_rows(call, ("SCENARIO", "ABOUT"), rows, names=("scenario", "about"))
        return
    chosen = _known("scenario", scenarios or list(SCENARIOS), list(SCENARIOS))
    names = _names()
    taking_part = _known("contender", contenders.split(",") if contenders else names, names)
    server = _server(call.datastore_uri)
    often = ROUNDS[size] if rounds is None else rounds
    _measure(call, chosen, taking_part, often, size, server, svg, write_results)


def _measure(
    call: Call,
    scenarios: list[str],
    contenders: list[str],
    rounds: int,
    size: str,
    server: Databases | None,
    svg: Path | None,
    page: Path | None,
) -> None:
    from ontologia.bench.picture import drawn
    from ontologia.bench.running import absent, run
    from ontologia.bench.written import write_results

    figures: list[Figure] = []
    missing = absent(contenders, server)

    def measured() -> Iterator[Figure]:
        for figure in run(scenarios, contenders, rounds=rounds, size=size, server=server):
            figures.append(figure)
            yield figure

    _show(call, measured(), missing)
    if svg is not None:
        svg.write_text(drawn(figures), encoding="utf-8")
    if page is not None:
        version = None if server is None else server.version
        write_results(page, figures, missing, size=size, rounds=rounds, server=version)


def _show(call: Call, figures: Iterator[Figure], missing: dict[str, str]) -> None:
    from ontologia.bench.table import COLUMNS, NAMES, absent_rows, rows

    if call.json:
        for figure in figures:
            for record in figure.records():
                show_json(record)
        for name, why in missing.items():
            show_json({"contender": name, "left_out": why})
        return

    def every() -> Iterator[dict[str, Any]]:
        yield from rows(figures)
        yield from absent_rows(missing)

    show_rows(call, COLUMNS, every(), names=NAMES)


def _names() -> list[str]:
    from ontologia.bench.contenders import everyone

    return list(dict.fromkeys(each.name for each in everyone()))


def _known(what: str, given: list[str], known: list[str]) -> list[str]:
    for name in given:
        if name not in known:
            raise typer.BadParameter(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return given


def _server(uri: str | None) -> Databases | None:
    if uri is None:
        return None
    if not uri.startswith(("postgresql://", "postgres://")):
        raise typer.BadParameter(
            "SQLite files are made in the temporary folder; --datastore-uri names a PostgreSQL "
            "server, postgresql://user@host/database"
        )
    from ontologia.bench.places import Databases

    return Databases(uri)
