"""`ontologia copy SOURCE TARGET`: move a store to another database."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ontologia.cli.call import Call
from ontologia.cli.output import show_rows

if TYPE_CHECKING:
    from ontologia.store.copying import Progress, Report

_STORE = "A path, sqlite:///app.db or postgresql://user@host/database."


def copy(
    call: Call,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=f"The store to copy. {_STORE}")],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help=f"An empty place to copy it to. {_STORE}")
    ],
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin an unfinished copy anew; empties the target.")
    ] = False,
) -> None:
    """Copy a store to another database, and compare both.

    Everything is kept: ids, commit numbers, history, pending events, claims, dead letters and
    schedules. Broken off, the same command goes on where it stopped. The source is only read, and
    may be in use; what is written to it after the copy began is not copied.

    Example: ontologia copy app.db postgresql://shop@db.example.com/shop
    """
    from ontologia.store.copying import copy_store

    with _shown_progress() as progress:
        report = copy_store(source, target, progress=progress, restart=restart)
    if call.json:
        _print_json(report)
    else:
        _print_table(call, report)


@contextmanager
def _shown_progress() -> Generator[Callable[[Progress], None]]:
    """A bar on a terminal, a line for each table elsewhere; on stderr, as it is no result."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn())
    with Bars(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        bar = bars.add_task("reading")

        def show(now: Progress) -> None:
            bars.update(
                bar, description=f"{now.step} {now.table}", completed=now.done, total=now.total
            )

        yield show


def _lines() -> Callable[[Progress], None]:
    last: list[tuple[str, str]] = []

    def show(now: Progress) -> None:
        if [(now.step, now.table)] != last:
            last[:] = [(now.step, now.table)]
            typer.echo(f"{now.step} {now.table}: {now.done:,} of {now.total:,} rows", err=True)

    return show


def _print_json(report: Report) -> None:
    from dataclasses import asdict

    import orjson

    typer.echo(orjson.dumps(asdict(report) | {"rows": report.rows}).decode())


def _print_table(call: Call, report: Report) -> None:
    typer.echo(f"{report.source} → {report.target}", err=True)
    rows = [(each.name, each.rows, each.hash[:16]) for each in report.tables]
    names: list[str] = ["table", "rows", "hash, equal on both sides"]
    shown = [dict(zip(names, row, strict=True)) for row in (*rows, ("all", report.rows, ""))]
    show_rows(call, names, shown, names=names)
    if report.resumed:
        typer.echo("This went on with a copy that had been broken off.")
    if report.moved_on:
        typer.echo(
            f"The source was written to meanwhile, in {', '.join(report.moved_on)}: the copy is of "
            f"the moment it began. Stop what writes there, and copy to another place."
        )
