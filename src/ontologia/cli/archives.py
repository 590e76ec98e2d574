"""`ontologia events archive` and `restore`: finished events move to a bucket, and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated

import typer

from ontologia.cli.call import Call
from ontologia.cli.operator import Reason, operating
from ontologia.cli.output import counted, say, show_json, show_rows
from ontologia.cli.times import span
from ontologia.runtime.views.times import in_words

Type = Annotated[
    str | None, typer.Option("--type", metavar="TYPE", help="Only events of this type.")
]


def archive(
    call: Call,
    to: Annotated[
        str, typer.Option("--to", metavar="URI", help="The archive: s3://bucket/prefix.")
    ],
    before: Annotated[
        str, typer.Option("--before", metavar="AGE", help="Move what is older: 45s, 12h, 30d.")
    ],
    type: Type = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be moved, and change nothing.")
    ] = False,
    reason: Reason = None,
) -> None:
    """Move finished events older than this to a bucket, with claims, attempts and dead letters.

    An event is deleted here when the archive has read back what it wrote; dead letters stay on the
    list. Broken off, the same command goes on where it stopped; the record is written at the end.
    Set event_retention_ms to more than this age, or events are collected before it.

    Example: ontologia events archive --namespace orders --to s3://backups/orders --before 30d
    """
    length = span(before)
    _warn_of_collection(call, length)
    if dry_run:
        _show_finished(call, to, length, type)
        return
    with _shown_progress("archived") as progress, operating(call, reason) as (session, by):
        done = by.archive(to, length, lambda batch: progress(batch.moved), event_type=type)
    if call.json:
        show_json({"archived": done.moved, "left": done.left})
        return
    say(
        f"Archived {_events(done.moved, type)} older than {in_words(length)} of namespace "
        f"{session.namespace!r}"
    )
    if done.left:
        say(f"{counted(done.left, 'event')} left as they are: the log says why")


def _warn_of_collection(call: Call, length: timedelta) -> None:
    retention = timedelta(milliseconds=call.config.event_retention_ms)
    if length >= retention:
        typer.echo(
            f"Finished events are collected when they are {in_words(retention)} old "
            f"(event_retention_ms), so few are left to archive after {in_words(length)}",
            err=True,
        )


def _show_finished(call: Call, to: str, length: timedelta, type: str | None) -> None:
    from ontologia.store.events import checks
    from ontologia.store.open import open_archive

    if type is not None:
        checks.name("an event's type", type)
    uri = open_archive(to).uri
    with call.reading() as session:
        archives = session.event_store.archives
        counts = archives.count(session.namespace, length, event_type=type)
    rows = [{"type": event_type, "events": count} for event_type, count in counts.items()]
    show_rows(call, ("Type", "Events"), rows, names=("type", "events"))
    typer.echo(
        f"Would move {_events(sum(counts.values()), type)} older than {in_words(length)} of "
        f"namespace {session.namespace!r} to {uri}; nothing was changed",
        err=True,
    )


def restore(
    call: Call,
    source: Annotated[
        str, typer.Option("--from", metavar="URI", help="The archive: s3://bucket/prefix.")
    ],
    event_id: Annotated[
        str | None,
        typer.Option("--event-id", metavar="ID", help="Only this event.", show_default="all"),
    ] = None,
    reason: Reason = None,
) -> None:
    """Bring archived events of the namespace back, with claims, attempts and dead letters.

    Those that are in the store are left alone. A consumer that subscribes to an event's type and has
    not finished it gets it, as a new consumer gets retained events. They are retained for
    event_retention_ms from now on, and stay in the archive.

    Example: ontologia events restore --namespace orders --from s3://backups/orders --event-id evt_1
    """
    with _shown_progress("restored") as progress, operating(call, reason) as (session, by):
        done = by.restore(source, lambda batch: progress(batch.restored), event_id=event_id)
    if call.json:
        show_json(done._asdict())
        return
    say(f"Restored {counted(done.restored, 'event')} of namespace {session.namespace!r}")
    if done.known:
        say(f"{counted(done.known, 'event')} in the store already")
    if done.left:
        say(f"{counted(done.left, 'event')} cannot be read: the log says why")


def _events(count: int, type: str | None) -> str:
    return counted(count, "event") + ("" if type is None else f" of type {type}")


@contextmanager
def _shown_progress(done: str) -> Generator[Callable[[int], None]]:
    """A line on a terminal that counts events, on stderr, as it is no result; gone at the end."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    total = 0
    with Console(stderr=True).status(f"0 events {done}") as status:

        def show(count: int) -> None:
            nonlocal total
            total += count
            status.update(f"{counted(total, 'event')} {done}")

        yield show


COMMANDS: dict[str, Callable[..., None]] = {"archive": archive, "restore": restore}
