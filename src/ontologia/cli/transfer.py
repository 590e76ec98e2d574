"""`ontologia export` and `ontologia import`: state as JSON lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import Enum
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from ontologia.cli.call import Call
from ontologia.cli.models import Models, load_models
from ontologia.cli.output import counted, say, show_json
from ontologia.cli.times import FORMS, METAVAR, commit_or_time
from ontologia.runtime.views.times import CommitOrTime

if TYPE_CHECKING:
    from ontologia.runtime.transfer import ImportReport

_TELL = 1_000  # lines between two words on the progress
Progress = Callable[[int, int | None], None]


class OnConflict(Enum):
    """What becomes of an object that is there with other fields."""

    fail = "fail"
    skip = "skip"
    replace = "replace"


def export(
    call: Call,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only this type; may be repeated."),
    ] = None,
    as_of: Annotated[
        CommitOrTime | None,
        typer.Option(
            "--as-of",
            parser=commit_or_time,
            metavar=METAVAR,
            help=f"The state after this commit, or at this time. {FORMS}",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write it there.", show_default="stdout"
        ),
    ] = None,
) -> None:
    """Write the state as JSON lines: what it is in the first, then one object a line.

    History, events and commits are not in it; ontologia copy takes all of a store. Everything is of
    one moment, and memory does not grow with the store. A FILE is there when it is complete, and
    not before.

    Example: ontologia export --type Customer -o customers.jsonl
    """
    from ontologia.runtime.transfer import export_state

    with call.reading() as session:
        found = export_state(session, types=types or (), as_of=as_of and as_of.commit(session))
        total = found.header.objects
        with _written(output) as file, _progress("exporting") as progress:
            file.write(found.header.line())
            file.writelines(_counted(found.lines(), lambda done: progress(done, total)))
    what = f"{counted(total or 0, 'object')} of {counted(len(found.header.types), 'type')}"
    said = f"{what} at commit {found.header.head}"
    if output is None:
        typer.echo(f"exported {said}", err=True)
    elif call.json:
        names = [each.spec.name for each in found.header.types]
        head = found.header.head
        show_json({"file": str(output), "objects": total, "types": names, "head": head})
    else:
        say(f"exported {said} to {output}")


def import_(
    call: Call,
    file: Annotated[Path, typer.Argument(metavar="FILE|-", help="What export wrote; - is stdin.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check it and count; write nothing.")
    ] = False,
    on_conflict: Annotated[
        OnConflict, typer.Option(help="What to do with objects that are there and differ.")
    ] = OnConflict.fail,
    expected_head: Annotated[
        int | None,
        typer.Option(metavar="COMMIT", help="Only if the store is still at this commit."),
    ] = None,
    models: Models = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")
    ] = None,
) -> None:
    """Make the objects of a file true, all of them in one commit, or none.

    Every line is checked against its type first: the class in --models, else the type as the store
    has it, else as the file has it. An object that is there with the same fields is unchanged; with
    others, it is a conflict. Objects that are not in the file stay. Other commits wait while the
    import compares and writes.

    Example: ontologia import customers.jsonl --on-conflict replace
    """
    from ontologia.cli.operator import record
    from ontologia.runtime.transfer import import_state, lines_of

    loaded = None if models is None else load_models(models)
    classes = [] if loaded is None else [*loaded.entity_types, *loaded.relation_types]
    source = "stdin" if str(file) == "-" else file.name
    said = record("import", reason)
    with (
        _opened(file) as opened,
        call.reading() if dry_run else call.writing() as session,
        _progress("checking") as progress,
    ):
        report = import_state(
            session,
            lines_of(opened),
            source=source,
            models=classes,
            on_conflict=on_conflict.value,
            expected_head=expected_head,
            dry_run=dry_run,
            metadata=said,
            progress=progress,
        )
    _show(call, report, dry_run)


def _show(call: Call, report: ImportReport, dry_run: bool) -> None:
    if call.json:
        show_json(asdict(report) | {"dry_run": dry_run})
        return
    counts = {
        "created": report.created,
        "updated": report.updated,
        "unchanged": report.unchanged,
        "skipped": report.skipped,
    }
    said = ", ".join(
        f"{number:,} {word}" for word, number in counts.items() if number or word != "skipped"
    )
    where = "" if report.commit_id is None else f", in commit {report.commit_id}"
    say(f"{said}{'; nothing was written (dry run)' if dry_run else where}")
    if report.types:
        say(f"new types: {', '.join(report.types)}")


@contextmanager
def _written(path: Path | None) -> Generator[IO[bytes]]:
    """Where to write; a file appears under its name when all of it is there.

    Until then it has a random name and must be new: others may have put a link there. It has the mode
    of the file that it replaces, if that is this user's, else what the umask leaves.
    """
    import secrets

    from ontologia.errors import OntologiaError, TransferError

    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    at_once = path.exists() and not path.is_file()  # a pipe, or /dev/null
    part = path if at_once else path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    made = False
    try:
        mode = None if at_once else _own_mode(path)
        created = partial(os.open, mode=0o666 if mode is None else mode & 0o600)
        with open(part, "wb" if at_once else "xb", opener=created) as file:
            made = not at_once
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
        if made:
            part.replace(path)
    except BaseException as error:
        if made:
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, OntologiaError):
            raise TransferError(f"{path} cannot be written: {error.strerror}") from error
        raise


def _own_mode(path: Path) -> int | None:
    """The mode of a file of this user; None for a link, or one that another user has put there."""
    import stat

    if not hasattr(os, "fchmod"):  # on Windows, where modes say little
        return None
    try:
        found = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return None
    return stat.S_IMODE(found.st_mode) & 0o777


@contextmanager
def _opened(path: Path) -> Generator[IO[bytes]]:
    from ontologia.errors import NotFoundError, TransferError

    if str(path) == "-":
        yield sys.stdin.buffer
        return
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {path}; nothing was written") from error
    except OSError as error:
        raise TransferError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        yield file


def _counted(lines: Iterable[bytes], tell: Callable[[int], None]) -> Iterator[bytes]:
    done = 0
    for done, line in enumerate(lines, 1):
        yield line
        if done % _TELL == 0:
            tell(done)
    tell(done)


@contextmanager
def _progress(word: str) -> Generator[Progress]:
    """A bar on a terminal; elsewhere nothing, since what came of it is said at the end."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Bars(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        bar = bars.add_task(word, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)
