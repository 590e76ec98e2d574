"""Errors, as somebody at a terminal wants them: what happened, what helps, and no traceback."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from ontologia import errors
from ontologia.cli.call import Call
from ontologia.cli.output import harmless
from ontologia.cli.start import CLOSED_PIPE, INTERRUPTED
from ontologia.errors import OntologiaError

EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (errors.NotFoundError, 4),
    (errors.CommandHandlerNotFound, 4),
    (errors.SchemaOutdatedError, 3),
    (errors.MigrationError, 3),
    (errors.HeadMismatchError, 6),
    (errors.StateConflictError, 6),
    (errors.ObjectExistsError, 6),
    (errors.ImportConflictError, 6),
    (errors.UniqueViolationError, 6),
    (errors.ConsumerBusyError, 6),
    (errors.AlreadyStartedError, 6),
    (errors.LockContentionError, 6),
    (errors.LockLostError, 6),
    (errors.LeaseExpiredError, 6),
    (errors.AbandonedThreadsError, 7),
    (errors.DatabaseError, 5),
    (OntologiaError, 1),
)
"""The first that fits counts. 0 is success, 2 a command that was not understood."""
# Of Click, which Typer brought along as a package at first, and has as a part of itself now.
_NotUnderstood: type[Exception] = next(
    each
    for each in typer.BadParameter.__mro__
    if issubclass(each, Exception) and each.__name__ == "ClickException"
)


class Failures(TyperGroup):
    """Commands whose errors of the library are a message and an exit code."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _told_like_the_others():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        try:
            try:
                with _told_like_the_others():
                    return super().invoke(ctx)
            finally:
                sys.stdout.flush()  # here a full disk, or a closed pipe, is still an error of ours
        except OntologiaError as error:
            if (ctx.find_root().obj or Call()).debug:
                _print_traceback()
            _print(error)
            code = next(code for kind, code in EXIT_CODES if isinstance(error, kind))
            raise typer.Exit(code) from error
        except KeyboardInterrupt as interrupt:
            typer.echo("interrupted", err=True)
            _print_notes(interrupt)
            raise typer.Exit(INTERRUPTED) from interrupt
        except BrokenPipeError as error:  # whoever was reading has seen enough
            _drop_output()
            raise typer.Exit(CLOSED_PIPE) from error


@contextmanager
def _told_like_the_others() -> Generator[None]:
    """A command that was not understood: Click writes `Error:` where we write `error:`."""
    try:
        yield
    except _NotUnderstood as error:
        show: Callable[..., None] = getattr(error, "show")  # noqa: B009 - the class is not known

        def show_ours(file: Any = None) -> None:
            shown = io.StringIO()
            show(shown)
            text = re.sub("^Error: ", "error: ", shown.getvalue(), flags=re.MULTILINE)
            typer.echo(text, file=file, err=True, nl=False)

        error.__dict__["show"] = show_ours
        raise


def give_up(error: Exception) -> int:
    """Tell of an error that no command expects, and say with which code to end."""
    if "--debug" in sys.argv:
        _print_traceback()
    name = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
    typer.echo(harmless(f"error: {name}{error}"), err=True)
    if "--debug" not in sys.argv:
        typer.echo("  hint: --debug shows where it comes from.", err=True)
    if isinstance(error, OSError):
        _drop_output()
    return 1


def _print(error: OntologiaError) -> None:
    typer.echo(harmless(f"error: {error.args[0]}"), err=True)
    _print_notes(error)
    if error.hint:
        typer.echo(harmless(f"  hint: {error.hint}"), err=True)


def _print_notes(error: BaseException) -> None:
    for note in getattr(error, "__notes__", ()):
        typer.echo(harmless(f"  {note}"), err=True)


def _print_traceback() -> None:
    import traceback

    typer.echo(harmless(traceback.format_exc().rstrip()), err=True)


def _drop_output() -> None:
    """What cannot be written: Python would try it again at its end, and complain once more."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
