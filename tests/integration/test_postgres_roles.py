"""Roles with as few rights as can be: the owner makes tables, workers write rows, readers read."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from ontologia import Entity, Event, Field, Session, on_event
from ontologia.errors import ReadOnlyError, StoreOpenError
from ontologia.runtime.session import core_of
from ontologia.store.copying import copy_store
from ontologia.store.postgres.ddl import ddl, roles
from ontologia.store.postgres.place import place_of
from ontologia.web import console
from tests.integration.console.world import ada, browsing
from tests.integration.moving import contents


class Book(Entity):
    isbn: Field[str] = Field(primary_key=True)
    title: Field[str] = Field(index=True)


class Lent(Event):
    isbn: Field[str]


@on_event(Lent, name="note")
def note(ctx):
    ctx.ensure(Book(isbn=ctx.event.isbn, title="lent"))
    ctx.commit()


class Roles(NamedTuple):
    """The same schema, by role."""

    owner: str
    worker: str
    reader: str
    schema: str


@pytest.fixture
def as_roles(place) -> Iterator[Roles]:
    """A schema that its owner has made from the printed statements, and those who may use it."""
    uri = place("postgres")
    schema = place_of(uri).schema
    names = {kind: f"{schema}_{kind}_login" for kind in ("owner", "worker", "reader")}
    with psycopg.connect(place_of(uri).conninfo, autocommit=True) as admin:
        for name in names.values():
            admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
        admin.execute(f"GRANT CREATE ON DATABASE {admin.info.dbname} TO {names['owner']}")
        admin.execute(f"ALTER ROLE {names['owner']} CREATEROLE")
        found = Roles(*(_as(uri, name) for name in names.values()), schema)
        apply(found.owner, ddl(schema))
        apply(found.owner, roles(schema))
        for kind in ("worker", "reader"):
            admin.execute(f"GRANT {schema}_{kind} TO {names[kind]}")
        yield found
        for name in (f"{schema}_worker", f"{schema}_reader", *names.values()):
            admin.execute(f"DROP OWNED BY {name} CASCADE")
            admin.execute(f"DROP ROLE {name}")


def _as(uri: str, name: str) -> str:
    parts = urlsplit(uri)
    server = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{name}:secret@{server}"))


def apply(uri: str, text: str) -> None:
    """Run statements as `psql -f` would."""
    with psycopg.connect(place_of(uri).conninfo, autocommit=True) as connection:
        connection.execute(text.encode())


# -- the statements -------------------------------------------------------------------------------


def test_printed_statements_make_what_opening_makes(place, ask_store):
    printed, opened = place("postgres"), place("postgres")
    apply(printed, ddl(place_of(printed).schema))
    Session(opened).close()

    assert _described(ask_store, printed) == _described(ask_store, opened)


def _described(ask_store, uri):
    """Columns, indexes, settings and rules of all tables, without the name of the schema."""
    asked = """
        SELECT c.relname, c.relkind::text, c.reloptions::text, a.attname, a.attidentity::text,
               a.attnotnull, format_type(a.atttypid, a.atttypmod), a.attcollation::regcollation::text,
               pg_get_expr(d.adbin, d.adrelid),
               CASE WHEN c.relkind = 'i' THEN pg_get_indexdef(c.oid) END
          FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
          LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
         WHERE c.relnamespace = current_schema()::regnamespace ORDER BY 1, a.attnum"""
    rows = ask_store(uri, asked) + ask_store(uri, "SELECT version FROM ontologia_layout")
    return repr(rows).replace(f"{place_of(uri).schema}.", "")


def test_printed_statements_can_be_applied_again(place, ask_store):
    uri = place("postgres")
    schema = place_of(uri).schema
    for _ in range(2):
        apply(uri, ddl(schema))

    assert len(ask_store(uri, "SELECT version FROM ontologia_layout")) == 1


def test_a_schema_whose_name_could_end_a_statement_is_refused():
    for name in ("a; DROP TABLE x", 'a"b', "", "a.b", "é"):
        with pytest.raises(StoreOpenError):
            ddl(name)
        with pytest.raises(StoreOpenError):
            roles(name)


def test_roles_are_not_cut_off_to_the_same_name():
    with pytest.raises(StoreOpenError, match="too long"):
        roles("s" * 60)


# -- workers --------------------------------------------------------------------------------------


def test_a_worker_needs_no_right_to_make_anything(as_roles):
    with Session(as_roles.worker) as session:
        session.ensure(Book(isbn="1", title="Emma"))
        session.commit(event=Lent(isbn="2"))
        session.run([note], max_iterations=1)
        session.event_store.cleanup_events(session.namespace, core_of(session).clock.now())

        assert [book.title for book in session.query().entities(Book).collect()] == ["Emma", "lent"]
        assert session.event_store.check() == []


def test_a_worker_cannot_change_tables_or_say_which_layout_they_have(as_roles):
    for statement in (
        "CREATE TABLE {0}.more(x int)",
        "DROP TABLE {0}.events",
        "ALTER TABLE {0}.events ADD COLUMN x int",
        "TRUNCATE {0}.events",
        "UPDATE {0}.ontologia_layout SET version = 99",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            apply(as_roles.worker, statement.format(as_roles.schema))


def test_a_worker_without_the_right_to_make_an_index_says_once_how_to_make_it(as_roles, caplog):
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        with Session(as_roles.worker, entity_types=[Book]) as session:
            session.ensure(Book(isbn="1", title="Emma"))
            session.commit()
    [said] = [record.getMessage() for record in caplog.records]

    assert said.startswith("Book.title has no index")
    apply(as_roles.owner, re.search("can run: (.*)", said)[1])
    with Session(as_roles.owner, entity_types=[Book]):  # finds it, and makes no other
        pass
    with psycopg.connect(place_of(as_roles.owner).conninfo) as connection:
        found = connection.execute(
            "SELECT indexdef FROM pg_indexes WHERE schemaname = %s AND indexdef LIKE '%%Book%%'",
            (as_roles.schema,),
        ).fetchall()
    assert len(found) == 1


def test_a_worker_of_a_newer_version_says_that_the_owner_comes_first(as_roles):
    apply(as_roles.owner, f"UPDATE {as_roles.schema}.ontologia_layout SET version = 1")

    with pytest.raises(StoreOpenError, match=r"has layout 1, .* may not change tables") as refused:
        Session(as_roles.worker)

    assert "ontologia schema sql" in refused.value.hint
    apply(as_roles.owner, ddl(as_roles.schema))
    Session(as_roles.worker).close()


def test_tables_that_the_owner_adds_later_are_the_workers_too(as_roles):
    apply(as_roles.owner, f"CREATE TABLE {as_roles.schema}.later(x int)")

    apply(as_roles.worker, f"INSERT INTO {as_roles.schema}.later VALUES (1)")


# -- readers --------------------------------------------------------------------------------------


def test_a_reader_can_ask_everything_and_write_nothing(as_roles, caplog):
    with Session(as_roles.owner, entity_types=[Book]) as session:
        session.ensure(Book(isbn="1", title="Emma"))
        session.commit(event=Lent(isbn="2"))

    with Session(as_roles.reader, entity_types=[Book]) as session:
        [book] = session.query().entities(Book).where(Book.title == "Emma").collect()
        assert book.isbn == "1"
        assert session.head == 1
        assert len(session.event_store.list_events(session.namespace)) == 1
        assert session.event_store.check() == []
        session.ensure(Book(isbn="2", title="Ulysses"))
        with pytest.raises(ReadOnlyError, match="permission denied") as refused:
            session.commit()
        session.discard()

    assert "GRANT" in refused.value.hint
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_a_reader_can_copy_a_store_away(as_roles, place, ask_store):
    with Session(as_roles.owner) as session:
        session.ensure(Book(isbn="1", title="Emma"))
        session.commit(event=Lent(isbn="2"))
    target = place("sqlite")

    copy_store(as_roles.reader, target)

    assert contents(ask_store, target) == contents(ask_store, as_roles.owner)


def test_whoever_opens_an_unfinished_copy_is_told_so_whatever_their_rights(as_roles, place):
    source = place("sqlite")
    with Session(source) as session:
        session.ensure(Book(isbn="1", title="Emma"))
        session.commit()

    apply(  # somebody who gave the rights by hand has no such rule for tables to come
        as_roles.owner,
        f"ALTER DEFAULT PRIVILEGES IN SCHEMA {as_roles.schema} "
        f"REVOKE SELECT ON TABLES FROM {as_roles.schema}_worker, {as_roles.schema}_reader",
    )

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_store(source, as_roles.owner, progress=stop)

    for uri in (as_roles.owner, as_roles.worker, as_roles.reader):
        with pytest.raises(StoreOpenError, match="unfinished copy"):
            Session(uri)


def test_the_console_of_a_reader_has_no_verbs(as_roles):
    Session(as_roles.worker).close()
    for uri, read_only in ((as_roles.reader, True), (as_roles.worker, False)):
        app = console(uri, identify=ada)
        with browsing(app) as browser:
            assert browser.get("/").status_code == 200
            assert ("read-only" in browser.get("/").text) is read_only
            assert (browser.get("/ask/emit").status_code == 404) is read_only
        app.close()
