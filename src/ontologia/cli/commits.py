"""`ontologia commits …` and `ontologia diff`: what was written, and what it changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ontologia.cli.call import Call, Commands, Debug, Json, Namespace, Uri, core_of
from ontologia.cli.drawing import change_json, change_lines, print_lines
from ontologia.cli.output import cell, instant, say, show_json, show_rows
from ontologia.cli.times import FORMS, METAVAR, commit_or_time
from ontologia.runtime.views.times import CommitOrTime

if TYPE_CHECKING:
    from ontologia.runtime.delta import Change, Delta
    from ontologia.store.rows import CommitRow

app = Commands(short_help="List commits, and show what each of them changed.")
_SHOWN = ("namespace", "session_id", "event_id", "handler_id", "attempt", "emitted")
_MOST = 2**63 - 1  # that a database counts to


@app.callback(invoke_without_command=True)
def commits(
    ctx: typer.Context,
    last: Annotated[
        int | None, typer.Option("--last", min=1, metavar="N", help="So many.", show_default="20")
    ] = None,
    since: Annotated[
        CommitOrTime | None,
        typer.Option(
            "--since",
            parser=commit_or_time,
            metavar=METAVAR,
            help=f"All after this commit, or this time. {FORMS}",
        ),
    ] = None,
    meta: Annotated[
        list[str] | None,
        typer.Option("--meta", metavar="K=V", help="Only with this metadata; may be repeated."),
    ] = None,
    datastore_uri: Uri = None,
    namespace: Namespace = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List commits, the newest first: number, time, who made it, and its metadata.

    With --meta, commits are looked through until enough of them fit; those of one event are found
    at once with --meta event_id=ID.

    Example: ontologia commits --last 5 --meta handler_id=ship
    """
    root = ctx.find_root()
    root.obj = call = (root.obj or Call()).refined(Call(datastore_uri, namespace, json, debug))
    if ctx.invoked_subcommand is not None:
        return
    from ontologia.runtime.explain import find_commits

    wanted = dict(_pair(each) for each in meta or ())
    most = last if last is not None or since is not None else 20
    with call.reading() as session:
        after = 0 if since is None else min(since.commit(session), _MOST)
        found = find_commits(core_of(session).store, since=after, metadata=wanted)
        show_rows(
            call,
            ("commit", "created", "handler", "event", "metadata"),
            map(_row(call), islice(found, most)),
            names=("id", "created_at", "handler_id", "event_id", "rest"),
            nothing="no such commit" if wanted or after else "nothing was committed yet",
        )


@app.command("show")
def show(
    call: Call,
    commit_id: Annotated[int, typer.Argument(metavar="ID", help="The number of the commit.")],
) -> None:
    """Show a commit: its metadata, and every object it changed, before and after.

    With --json, the first line is the commit and each further one a change.

    Example: ontologia commits show 12
    """
    from ontologia.errors import NotFoundError

    with call.reading() as session:
        commit = session.get_commit(commit_id)
        if commit is None:
            raise NotFoundError(
                f"there is no commit {commit_id}", hint=f"The last one is {session.head}."
            )
        delta = session.diff(commit_id - 1, commit_id)
    if call.json:
        show_json(commit)
    else:
        say(f"commit {commit_id} of {instant(commit['created_at'])} UTC")
        for name, value in commit["metadata"].items():
            print_lines([(f"    {name}: {cell(value)}",)])
    _show_delta(call, delta)


def diff(
    call: Call,
    a: Annotated[
        CommitOrTime,
        typer.Argument(parser=commit_or_time, metavar="A", help="A commit or a time; 0 is empty."),
    ],
    b: Annotated[
        CommitOrTime,
        typer.Argument(parser=commit_or_time, metavar="B", help="Another commit or time."),
    ],
) -> None:
    """Show how the state after commit B differs from that after commit A, per field.

    A may be the later one: then it is what going back would mean. Nothing in between is shown that
    was taken back again. A time, as 2026-11-16 or 2026-11-16T18:00+01:00, stands for the last commit
    made by then.

    Example: ontologia diff 3 12
    """
    from ontologia.errors import NotFoundError

    with call.reading() as session:
        first, last = a.commit(session), b.commit(session)
        head = session.head  # asked for last: a time may mean a commit that was made just now
        for number in (first, last):
            if number > head:
                raise NotFoundError(f"there is no commit {number}", hint=f"The last one is {head}.")
        delta = session.diff(first, last)
    _show_delta(call, delta)


def _show_delta(call: Call, delta: Delta) -> None:
    changes = list(_changes(delta))
    if call.json:
        for word, change in changes:
            show_json(change_json(word, change))
        return
    for word, change in changes:
        print_lines(change_lines(word, change))
    figures = ", ".join(
        f"{len(group)} {word}"
        for word in ("created", "updated", "deleted")
        if (group := getattr(delta, word))
    )
    say(figures or "nothing differs")


def _changes(delta: Delta) -> Iterator[tuple[str, Change]]:
    for word in ("created", "updated", "deleted"):
        for change in getattr(delta, word):
            yield word, change


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{text!r} is no metadata; write --meta handler_id=ship")
    return name, value


def _row(call: Call) -> Callable[[CommitRow], dict[str, Any]]:
    def row(commit: CommitRow) -> dict[str, Any]:
        shown = {"id": commit.id, "created_at": commit.created_at, "metadata": commit.metadata}
        if call.json:
            return shown
        metadata = commit.metadata
        rest = " ".join(f"{n}={cell(v)}" for n, v in metadata.items() if n not in _SHOWN)
        known = {name: metadata.get(name) for name in ("handler_id", "event_id")}
        return {**shown, **known, "id": str(commit.id), "rest": rest}

    return row
