"""Errors, as somebody at a terminal wants them: what happened, what helps, and no traceback."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from ontologia.errors import OntologiaError


class Commands(TyperGroup):
    """Commands whose errors of the library are a message and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OntologiaError as error:
            _print(error)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as interrupt:
            typer.echo("interrupted", err=True)
            _print_notes(interrupt)
            raise typer.Exit(130) from interrupt


def _print(error: OntologiaError) -> None:
    typer.echo(f"error: {error.args[0]}", err=True)
    _print_notes(error)
    if error.hint:
        typer.echo(f"  hint: {error.hint}", err=True)


def _print_notes(error: BaseException) -> None:
    for note in getattr(error, "__notes__", ()):
        typer.echo(f"  {note}", err=True)
