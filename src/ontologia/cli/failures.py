"""Errors, as somebody at a terminal wants them: what happened, what helps, and no traceback."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from ontologia import errors
from ontologia.cli.call import Call
from ontologia.errors import OntologiaError

EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (errors.NotFoundError, 4),
    (errors.SchemaOutdatedError, 3),
    (errors.MigrationError, 3),
    (errors.HeadMismatchError, 6),
    (errors.ImportConflictError, 6),
    (errors.ConsumerBusyError, 6),
    (errors.AlreadyStartedError, 6),
    (errors.LockContentionError, 6),
    (errors.DatabaseError, 5),
    (OntologiaError, 1),
)
"""The first that fits counts. 0 is success, 2 a command that was not understood."""
INTERRUPTED = 130
_CLOSED_PIPE = 141  # what a program gets that is ended by SIGPIPE


class Failures(TyperGroup):
    """Commands whose errors of the library are a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OntologiaError as error:
            if (ctx.find_root().obj or Call()).debug:
                raise
            _print(error)
            code = next(code for kind, code in EXIT_CODES if isinstance(error, kind))
            raise typer.Exit(code) from error
        except KeyboardInterrupt as interrupt:
            typer.echo("interrupted", err=True)
            _print_notes(interrupt)
            raise typer.Exit(INTERRUPTED) from interrupt
        except BrokenPipeError as error:  # whoever was reading has seen enough
            _close_quietly()
            raise typer.Exit(_CLOSED_PIPE) from error


def _print(error: OntologiaError) -> None:
    typer.echo(f"error: {error.args[0]}", err=True)
    _print_notes(error)
    if error.hint:
        typer.echo(f"  hint: {error.hint}", err=True)


def _print_notes(error: BaseException) -> None:
    for note in getattr(error, "__notes__", ()):
        typer.echo(f"  {note}", err=True)


def _close_quietly() -> None:
    """Python flushes stdout at its end, and would complain about the pipe once more."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
