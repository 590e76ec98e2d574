"""`ontologia schema …`: the types of a store, and its tables."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ontologia.cli.call import Call, Commands, core_of
from ontologia.cli.output import show_json, show_rows

if TYPE_CHECKING:
    from ontologia.runtime.session import Session
    from ontologia.schema.diff import FieldChange
    from ontologia.store.inventory import TypeVersion

app = Commands(help="The types of a store, and its tables.", no_args_is_help=True)


class Dialect(StrEnum):
    """Whose SQL."""

    postgresql = "postgresql"
    sqlite = "sqlite"


class Kind(StrEnum):
    """What a type is of."""

    entity = "entity"
    relation = "relation"


TypeName = Annotated[str, typer.Argument(metavar="TYPE", help="The name of the type.")]
KindOption = Annotated[
    Kind | None,
    typer.Option("--kind", help="Which is meant, if an entity and a relation have the name."),
]


@app.callback()
def _group() -> None:
    """Commands below `schema`."""


@app.command("sql")
def sql(
    dialect: Annotated[Dialect, typer.Option(help="For which database.")] = Dialect.postgresql,
    schema: Annotated[
        str | None,
        typer.Option(help="Schema of the tables on PostgreSQL.", show_default="ontologia"),
    ] = None,
    roles: Annotated[
        bool, typer.Option("--roles", help="Add the roles of workers and readers.")
    ] = False,
) -> None:
    """Print the statements that make a store's tables, or bring them up to date.

    For those whose programs may not make tables: let the owner of the database apply them, and
    opening a store writes nothing.

    Example: ontologia schema sql --dialect sqlite
    """
    if dialect is Dialect.sqlite:
        if schema is not None or roles:
            raise typer.BadParameter("SQLite has neither schemas nor roles")
        from ontologia.store.sqlite.ddl import ddl

        typer.echo(ddl(), nl=False)
        return
    from ontologia.store.open import check_driver

    check_driver()
    from ontologia.store.postgres import ddl as postgres
    from ontologia.store.postgres.place import DEFAULT_SCHEMA

    name = DEFAULT_SCHEMA if schema is None else schema
    typer.echo(postgres.ddl(name), nl=False)
    if roles:
        typer.echo("\n" + postgres.roles(name), nl=False)


@app.command("export")
def export(
    call: Call,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only this type; may be repeated."),
    ] = None,
) -> None:
    """Print the schemas of the registered types, in their current version, as JSON.

    One list; with --json, one type a line.

    Example: ontologia schema export --type Customer
    """
    from ontologia import codec
    from ontologia.errors import NotFoundError

    with call.reading() as session, core_of(session).store.inventory.read() as contents:
        found = contents.types()
    chosen = [each for each in found if not types or each.name in types]
    if unknown := sorted(set(types or ()) - {each.name for each in chosen}):
        raise NotFoundError(f"there is no type {', '.join(unknown)}", hint=_known(found))
    shown = [
        {
            "kind": each.kind,
            "name": each.name,
            "version": each.version,
            "schema": codec.decode_stored(each.schema_json),
        }
        for each in chosen
    ]
    if call.json:
        for each in shown:
            show_json(each)
    else:
        show_json(shown, indent=True)


@app.command("history")
def history(call: Call, type: TypeName, kind: KindOption = None) -> None:
    """List the versions of a type: when each came, from whom, and what changed.

    Example: ontologia schema history Customer
    """
    with call.reading() as session:
        key, versions = find_type(session, type, kind, dropped=True)
        pending = session.pending_migration()
    rows = [
        {
            "version": each.version,
            "created_at": each.created_at,
            "reason": each.reason,
            "by": each.host or each.runtime_id,
            "changes": [change._asdict() for change in changes]
            if call.json
            else _words(each, changes),
        }
        for each, changes in _steps(versions)
    ]
    show_rows(
        call,
        ["Version", "When", "Reason", "By", "Changes"],
        rows,
        names=["version", "created_at", "reason", "by", "changes"],
    )
    if pending is not None and key in pending.keys and not call.json:
        typer.echo(f"{pending}", err=True)


@app.command("show")
def show(
    call: Call,
    type: TypeName,
    version: Annotated[
        int | None,
        typer.Option(
            "--version", metavar="N", min=1, help="Schema version.", show_default="the current one"
        ),
    ] = None,
    kind: KindOption = None,
) -> None:
    """Print the schema of a type as JSON, in its current version or in an older one.

    The versions of dropped types can be printed, too. With --json it is one line.

    Example: ontologia schema show Customer --version 2
    """
    from ontologia import codec
    from ontologia.errors import NotFoundError

    with call.reading() as session:
        (kind_name, name), versions = find_type(session, type, kind, dropped=version is not None)
    wanted = versions[-1].version if version is None else version
    found = next((each for each in versions if each.version == wanted), None)
    if found is None:
        known = ", ".join(str(each.version) for each in versions)
        raise NotFoundError(f"{name} has no version {wanted}", hint=f"It has {known}.")
    shown = {
        "kind": kind_name,
        "name": name,
        "version": found.version,
        "created_at": found.created_at.isoformat(),
        "dropped": found.dropped,
        "schema": codec.decode_stored(found.schema_json),
    }
    show_json(shown, indent=not call.json)


def find_type(
    session: Session, name: str, kind: Kind | None, *, dropped: bool = False
) -> tuple[tuple[str, str], list[TypeVersion]]:
    """The type that is meant, and its versions; NotFoundError if there is none."""
    from ontologia.errors import NotFoundError

    with core_of(session).store.inventory.read() as contents:
        known = contents.types()
        found = {
            (each.value, name): contents.history(each.value, name)
            for each in ([kind] if kind else Kind)
        }
    there = {
        key: versions
        for key, versions in found.items()
        if versions and (dropped or not versions[-1].dropped)
    }
    if not there:
        raise NotFoundError(f"there is no type {name}", hint=_known(known))
    if len(there) > 1:
        raise typer.BadParameter(f"an entity and a relation are called {name}; say --kind")
    return there.popitem()


def _known(types: list[Any]) -> str:
    return f"There are {', '.join(sorted({each.name for each in types})) or 'none'}."


def _steps(versions: list[TypeVersion]) -> list[tuple[TypeVersion, list[FieldChange]]]:
    """Each version with what changed since the one before."""
    from ontologia.schema.diff import field_changes
    from ontologia.schema.typespec import TypeSpec

    specs = [None if each.dropped else TypeSpec.from_json(each.schema_json) for each in versions]
    return [
        (each, field_changes(before, after))
        for each, before, after in zip(versions, [None, *specs], specs, strict=False)
    ]


def _words(version: TypeVersion, changes: list[FieldChange]) -> str:
    return "dropped" if version.dropped else ", ".join(map(str, changes)) or "none"
