"""`python -m bench.beside`: how fast it is beside what a user would pick instead, on this machine."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bench.beside.contenders import everyone
from bench.beside.picture import drawn
from bench.beside.report import write_results
from bench.beside.results import Figure
from bench.beside.run import absent, run
from bench.beside.scenarios import SCENARIOS
from bench.beside.sizes import ROUNDS
from bench.beside.table import COLUMNS, NAMES, absent_rows, rows
from bench.measure import BenchError
from bench.stores import Databases, missing_for_a_server, own_server
from ontologia.cli.call import Call
from ontologia.cli.output import show_json, show_rows

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def beside(
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
        typer.Option(min=1, help="Number of rounds.", show_default="3, small: 1"),
    ] = None,
    size: Annotated[
        Literal["small", "full"],
        typer.Option(help="A minute that shows that it works, or figures to go by."),
    ] = "small",
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="PostgreSQL server on which databases are made, and dropped again; `none` for SQLite alone.",
            show_default="one that is started for the run",
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the results as bars.")
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write-results",
            metavar="FILE",
            help="Write a page (Markdown), and its picture beside it.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one value a line.")] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="List the scenarios; nothing is measured.")
    ] = False,
) -> None:
    """Measure Ontologia beside a bare loop and beside other queues and histories, each in turn.

    SQLite files are made in the temporary folder (TMPDIR).

    Example: python -m bench.beside drain latency --contenders ontologia,bare,huey
    """
    call = Call(json=json)
    if list_:
        about = [{"scenario": each.name, "about": each.about} for each in SCENARIOS.values()]
        show_rows(call, ("SCENARIO", "ABOUT"), about, names=("scenario", "about"))
        return
    chosen = _known("scenario", scenarios or list(SCENARIOS), list(SCENARIOS))
    names = list(dict.fromkeys(each.name for each in everyone()))
    taking_part = _known("contender", contenders.split(",") if contenders else names, names)
    often = ROUNDS[size] if rounds is None else rounds
    with _databases(server) as databases:
        missing = absent(taking_part, databases)
        figures: list[Figure] = []
        _show(call, _kept(figures, run(chosen, taking_part, often, size, databases)), missing)
        version = None if databases is None else databases.version
    if svg is not None:
        svg.write_text(drawn(figures), encoding="utf-8")
    if write is not None:
        write_results(write, figures, missing, size=size, rounds=often, server=version)


def _kept(figures: list[Figure], measured: Iterator[Figure]) -> Iterator[Figure]:
    for figure in measured:
        figures.append(figure)
        yield figure


def _show(call: Call, figures: Iterator[Figure], missing: dict[str, str]) -> None:
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


def _known(what: str, given: list[str], known: list[str]) -> list[str]:
    for name in given:
        if name not in known:
            raise typer.BadParameter(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return given


@contextmanager
def _databases(server: str | None) -> Generator[Databases | None]:
    """Where databases can be made, if anywhere."""
    if server is None and not missing_for_a_server():
        with own_server() as databases:
            yield databases
    elif server in (None, "none"):
        yield None
    elif server.startswith(("postgresql://", "postgres://")):
        yield Databases(server)
    else:
        raise typer.BadParameter("--server is postgresql://user@host/database, or none")


def main() -> None:
    try:
        app()
    except BenchError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
