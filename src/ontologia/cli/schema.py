"""`ontologia schema …`: what a store's tables are."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from ontologia.cli.call import Commands

app = Commands(help="The tables of a store.", no_args_is_help=True)


class Dialect(StrEnum):
    """Whose SQL."""

    postgresql = "postgresql"
    sqlite = "sqlite"


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
    """
    if dialect is Dialect.sqlite:
        if schema is not None or roles:
            raise typer.BadParameter("SQLite has neither schemas nor roles")
        from ontologia.store.sqlite.ddl import ddl

        typer.echo(ddl(), nl=False)
        return
    from ontologia.store.open import _check_driver

    _check_driver()
    from ontologia.store.postgres import ddl as postgres
    from ontologia.store.postgres.place import DEFAULT_SCHEMA

    name = DEFAULT_SCHEMA if schema is None else schema
    typer.echo(postgres.ddl(name), nl=False)
    if roles:
        typer.echo("\n" + postgres.roles(name), nl=False)
