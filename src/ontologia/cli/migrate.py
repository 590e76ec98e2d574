"""`ontologia migrate`: bring a store to the types of a program."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ontologia.cli.call import Call, core_of
from ontologia.cli.models import Upgraders, load_models, load_upgraders
from ontologia.cli.operator import Reason, record
from ontologia.cli.output import counted, say, show_json

if TYPE_CHECKING:
    from ontologia.migration.background import MigrationProgress
    from ontologia.migration.plan import MigrationPreview, MigrationResult
    from ontologia.runtime.session import Session
    from ontologia.store.staging import PendingMigration

NEEDED = 3


def migrate(
    call: Call,
    models: Annotated[
        str | None,
        typer.Option("--models", metavar="MODULE", help="The module that defines the types."),
    ] = None,
    upgraders: Upgraders = None,
    apply: Annotated[bool, typer.Option("--apply", help="Do what the preview says.")] = False,
    token: Annotated[
        str | None, typer.Option("--token", metavar="TOKEN", help="The token of the preview.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Apply without a token, whatever the plan is by then.")
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="N", help="The most objects to upgrade in a second."),
    ] = None,
    abort: Annotated[
        bool, typer.Option("--abort", help="Take back a migration that was broken off.")
    ] = False,
    reason: Reason = None,
) -> None:
    """Show how a program's types differ from the store's, or bring the store to them.

    Without --apply nothing is written: every change of a field is shown, how many objects would be
    written anew, and the token that applies this plan, whatever else is committed meanwhile. A change
    is compatible, and needs nothing, or breaking, with the reason. The exit code is 3
    while a migration is needed, and 0 when there is nothing to do. The commit says who applied it.
    --apply --force applies what the plan is at that moment, for programs in which nobody looks.

    Many objects are upgraded while others go on, and become current at one moment. Ctrl-C breaks
    that off; the same command goes on where it stopped. --abort, without --models, takes back what
    was upgraded.

    Example: ontologia migrate --models shop.models --apply --token 5fb0…
    """
    if abort:
        if apply or models is not None or rate is not None:
            raise typer.BadParameter("it stands alone", param_hint="--abort")
        _abort(call)
        return
    if models is None:
        raise typer.BadParameter("it is needed", param_hint="--models")
    if rate is not None and not (apply and rate > 0):
        raise typer.BadParameter("more than 0, and with --apply", param_hint="--rate")
    if force and token is not None:
        raise typer.BadParameter("--token applies the plan that was seen, --force any; give one")
    if apply != (force or token is not None):
        raise typer.BadParameter(
            "--apply goes with --token or --force; without them, it is a preview"
        )
    found = load_models(models)
    load_upgraders(upgraders)
    types: dict[str, Any] = {
        "entity_types": found.entity_types,
        "relation_types": found.relation_types,
    }
    if not (found.entity_types or found.relation_types):
        raise typer.BadParameter(f"{models} defines no types", param_hint="--models")
    again = call.again("migrate", "--models", models, *_options("--upgraders", upgraders))
    if apply:
        with call.writing(**types) as session:
            said = record("migrate", reason, models=models)
            _show_result(call, _applied(session, again, token, force, said, rate))
        return
    with call.reading(**types) as session:
        preview, pending = session.migrate(), session.pending_migration()
        _show_preview(call, session, preview, again, pending)
    if preview or pending is not None:
        raise typer.Exit(NEEDED)


def _abort(call: Call) -> None:
    with call.writing() as session:
        pending = session.abort_migration()
    if call.json:
        show_json({"aborted": pending is not None})
    elif pending is None:
        say("no migration is pending")
    else:
        names = ", ".join(name for _, name, _ in pending.types)
        upgraded = counted(pending.staged, "upgraded object")
        say(f"the migration of {names} was taken back, with {upgraded}")


def _options(name: str, values: list[str] | None) -> list[str]:
    return [word for value in values or () for word in (name, value)]


def _applied(
    session: Session,
    again: str,
    token: str | None,
    force: bool,
    said: dict[str, object],
    rate: float | None,
) -> MigrationResult:
    from ontologia.errors import MigrationTokenError

    try:
        with _shown_progress() as progress:
            return core_of(session).migrate(
                token, force, record=said, follow=True, progress=progress, rate=rate
            )
    except KeyboardInterrupt:
        if (pending := session.pending_migration()) is not None:
            typer.echo(f"Broken off: {pending}.", err=True)
            typer.echo("The same command goes on with it.", err=True)
            if not pending.switched:
                typer.echo("ontologia migrate --abort takes it back.", err=True)
        raise
    except MigrationTokenError as error:
        error.hint = f"See what it is now, with its token: {again}"
        raise


@contextmanager
def _shown_progress() -> Generator[Callable[[MigrationProgress], None]]:
    """A bar on a terminal, a line for each tenth elsewhere; on stderr, as it is no result."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn())
    rate = TextColumn("{task.fields[rate]:,.0f} objects a second")
    with Progress(*columns, rate, console=console, transient=True) as bars:
        bar = bars.add_task("", rate=0.0)

        def show(now: MigrationProgress) -> None:
            bars.update(
                bar, description=now.step, completed=now.done, total=now.objects, rate=now.rate
            )

        yield show


def _lines() -> Callable[[MigrationProgress], None]:
    last: list[tuple[str, int]] = []

    def show(now: MigrationProgress) -> None:
        tenth = (now.step, 10 * now.done // max(1, now.objects))
        if [tenth] != last:
            last[:] = [tenth]
            said = f"{now.step}: {now.done:,} of {now.objects:,} objects, {now.rate:,.0f} a second"
            typer.echo(said, err=True)

    return show


def _show_result(call: Call, result: MigrationResult) -> None:
    if call.json:
        show_json({"versions": result.versions, "commit_id": result.commit_id})
    elif not result:
        say("nothing to migrate")
    else:
        for name, version in result.versions.items():
            say(f"{name} is at version {version}")
        if result.commit_id is not None:
            anew = f", with {counted(result.objects, 'object')} written anew"
            say(f"recorded in commit {result.commit_id}{anew if result.objects else ''}")


def _show_preview(
    call: Call,
    session: Session,
    preview: MigrationPreview,
    again: str,
    pending: PendingMigration | None,
) -> None:
    if call.json:
        types = [_as_json(session, preview, each) for each in preview.diffs]
        said = {"needed": bool(preview), "token": preview.token, "types": types}
        show_json(said | ({} if pending is None else {"pending": _pending_as_json(pending)}))
        return
    if pending is not None:
        say(f"{pending}")
        if pending.switched:
            say(f"To finish it: {again} --apply --force")
        else:
            say("To take it back: ontologia migrate --abort")
    if not preview:
        if pending is None:
            say("nothing to migrate")
        return
    for diff, name in zip(preview.diffs, preview.objects, strict=True):
        objects = preview.objects[name]
        say(f"{diff.kind} {diff.name}, version {diff.from_version} → {diff.from_version + 1}")
        for change in _changes(session, diff):
            say(f"  {change} ({diff.verdict(change.name)})")
        say(f"  {counted(objects, 'object')} to write anew")
        for version in preview.missing_upgraders.get(name, ()):
            say(f'  missing: @upgrader("{diff.name}", from_version={version})')
        for each in preview.duplicates.get(name, ()):
            say(f"  not unique: {each}")
    if preview.missing_upgraders:
        say("Write what is missing first; then this command gives the token that applies it.")
        return
    if preview.duplicates:
        say("Change these values first; then this command gives the token that applies it.")
        return
    say(f"token: {preview.token}")
    say(f"To apply it: {again} --apply --token {preview.token}")


def _pending_as_json(pending: PendingMigration) -> dict[str, Any]:
    return {
        "types": [name for _, name, _ in pending.types],
        "objects": pending.objects,
        "staged": pending.staged,
        "commit_id": pending.commit_id,
        "owner": pending.owner_id,
        "holder": pending.holder,
        "started_at": pending.started_at,
        "updated_at": pending.updated_at,
    }


def _as_json(session: Session, preview: MigrationPreview, diff: Any) -> dict[str, Any]:
    from ontologia.schema.diff import serialize_diff

    name = next(n for n, each in zip(preview.objects, preview.diffs, strict=True) if each is diff)
    return {
        **serialize_diff(diff),
        "objects": preview.objects[name],
        "missing_upgraders": preview.missing_upgraders.get(name, []),
        "duplicates": [each._asdict() for each in preview.duplicates.get(name, [])],
        "compatible": diff.compatible,
        "changes": [
            {**change._asdict(), "verdict": diff.verdict(change.name)}
            for change in _changes(session, diff)
        ],
    }


def _changes(session: Session, diff: Any) -> list[Any]:
    """Every field that changes, with its types."""
    from ontologia.schema.diff import field_changes
    from ontologia.schema.typespec import TypeSpec, spec_of

    shape = core_of(session).registry.find(diff.kind, diff.name)
    stored = core_of(session).store.get_current_schema_version(diff.kind, diff.name)
    assert shape is not None and stored is not None  # noqa: S101, PT018 - a diff is of both
    return field_changes(TypeSpec.from_json(stored["schema_json"]), spec_of(shape))
