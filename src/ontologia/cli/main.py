"""The commands, put together.

A module here may import nothing but Typer at its top: what a command needs, it imports when it
runs, so that `--help` and every other command need not wait for it.

Exit codes: 0 done, 1 an error, 2 a command that was not understood, 130 interrupted.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ontologia.cli import copy, schema
from ontologia.cli.failures import Commands

app = typer.Typer(
    name="ontologia",
    cls=Commands,
    help="Typed, versioned state and a durable event bus in one database.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("copy")(copy.copy)
app.add_typer(schema.app, name="schema")


def _print_version(wanted: bool) -> None:
    if wanted:
        from ontologia import __version__

        typer.echo(f"ontologia {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """What comes before the name of a command."""


def main() -> None:
    """Run the command that the process was started with."""
    app()
