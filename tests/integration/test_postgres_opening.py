"""What is said when a PostgreSQL store cannot be opened: what, where, what helps, no password."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg
import pytest

from ontologia import Entity, Field, Session
from ontologia.errors import DatabaseError, DiskFullError, StoreOpenError
from ontologia.store.postgres.errors import translated
from ontologia.store.postgres.place import place_of
from tests.servers import ask, own_server

if TYPE_CHECKING:
    from ontologia_conformance.servers import Postgres

PASSWORD = "s3cret%40word"  # noqa: S105 - of a role that lives as long as this module
_FEW = ("max_connections=8", "superuser_reserved_connections=1", "max_wal_senders=0")


class Book(Entity):
    id: Field[str] = Field(primary_key=True)
    year: Field[int] = Field(index=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server that asks everybody but its superuser for a password."""
    with own_server(settings=_FEW) as server:
        ask(server.uri, "CREATE ROLE app LOGIN PASSWORD 's3cret@word'")
        (server.folder / "data" / "pg_hba.conf").write_text(
            "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        )
        server.halt()
        server.start()
        yield server


def refused(uri: str) -> DatabaseError:
    with pytest.raises(DatabaseError) as error:
        Session(uri).close()
    assert "s3cret" not in str(error.value)
    return error.value


def as_app(server: Postgres, database: str = "postgres", password: str = PASSWORD) -> str:
    return f"postgresql://app:{password}@127.0.0.1:{server.port}/{database}"


def test_a_password_is_taken_from_the_uri(server: Postgres) -> None:
    ask(server.uri, "CREATE SCHEMA mine AUTHORIZATION app")

    with Session(f"{as_app(server)}?schema=mine") as session:
        session.ensure(Book(id="b1", year=1843))
        assert session.commit() == 1


@pytest.mark.parametrize(
    ("uri", "said", "helps"),
    [
        ("postgresql://app:s3cretive@127.0.0.1:{port}/postgres", "password auth", "password"),
        ("postgresql://app@127.0.0.1:{port}/postgres", "no password supplied", "password"),
        ("postgresql://nobody@127.0.0.1:{port}/postgres", "no password", "user"),
        ("postgresql://postgres@127.0.0.1:{port}/nowhere", '"nowhere" does not', "CREATE DATABASE"),
        ("postgresql://app:s3cret@127.0.0.1:1/postgres", "refused", "Nothing listens"),
        ("postgresql://app:s3cret@no-such-host.invalid/x", "resolve host", "spelling"),
        ("postgresql://postgres@127.0.0.1:{port}/x?sslmode=require", "not support SSL", "ssl=on"),
        ("postgresql://postgres@/x?host=/nowhere", "No such file", "Nothing listens"),
    ],
    ids=lambda value: value if " " in value else None,
)
def test_a_server_that_does_not_let_us_in_is_explained(
    server: Postgres, uri: str, said: str, helps: str
) -> None:
    error = refused(uri.format(port=server.port))

    assert isinstance(error, StoreOpenError)
    assert error.args[0].startswith("no connection to postgresql://")
    assert said in error.args[0]
    assert helps in (error.hint or "")


def test_a_role_that_does_not_exist_is_named(server: Postgres) -> None:
    hba = server.folder / "data" / "pg_hba.conf"
    asks = hba.read_text()
    hba.write_text("host all all 127.0.0.1/32 trust\n")
    server.halt()
    server.start()
    try:
        error = refused(f"postgresql://ghost@127.0.0.1:{server.port}/postgres")
    finally:
        hba.write_text(asks)
        server.halt()
        server.start()

    assert 'role "ghost" does not exist' in error.args[0]
    assert "CREATE ROLE" in (error.hint or "")


def test_a_server_without_a_free_connection_says_so(server: Postgres) -> None:
    with ExitStack() as stack:
        for _ in range(7):
            stack.enter_context(psycopg.connect(as_app(server)))

        error = refused(as_app(server))

    assert isinstance(error, StoreOpenError)
    assert "slots" in error.args[0]
    assert "max_connections" in (error.hint or "")


def test_rights_that_are_missing_come_with_the_grant_that_helps(server: Postgres) -> None:
    uri = f"{as_app(server)}?schema=theirs"
    assert "GRANT CREATE ON DATABASE postgres TO" in (refused(uri).hint or "")

    Session(f"{server.uri}?schema=theirs", entity_types=[Book]).close()
    assert "GRANT USAGE ON SCHEMA theirs TO" in (refused(uri).hint or "")

    ask(server.uri, "GRANT USAGE ON SCHEMA theirs TO app")
    error = refused(uri)
    assert "permission denied for table" in error.args[0]
    rights = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA theirs TO"
    assert (error.hint or "").startswith(rights)

    ask(server.uri, f"{rights} app")
    with Session(uri, entity_types=[Book]) as session:
        session.ensure(Book(id="b1", year=1843))
        assert session.commit() == 1


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://me:s3cret/word@host/db",
        "postgresql://me:12/s3cret@host/db",
        "postgresql://me:s3cret%zz@host/db",
        "postgresql://me:[s3cret@host/db",
        "postgresql://me:s3cret@host:port/db",
        "postgresql://me:p@s3cret@host/db",
        "postgresql://me:pa?s3cret@host/db",
        "postgresql://me:12?s3cret@host/db",
        "postgresql://me:12?schema=s3cret@host/db",
        "postgresql://me:12#s3cret@host/db",
        "postgresql://me:[s3cret]@host/db",
        "postgresql://host/db?s3cret",
        "postgresql://host/db?password=s3cret&s3cret=1",
        "postgresql:///host=db password=s3cret",
    ],
)
def test_a_uri_that_cannot_be_read_is_not_repeated(uri: str) -> None:
    error = refused(uri)

    assert "cannot be read" in error.args[0]
    assert "%XX" in (error.hint or "")
    assert error.__cause__ is None  # the driver's own words have the password


def test_of_an_option_that_does_not_exist_the_number_is_said() -> None:
    """Its name may be the rest of a password."""
    error = refused("postgresql://me:s3cret@host/db?sslmode=require&colour=red")

    assert "option 2 after the ? has a name that libpq does not know" in error.args[0]
    assert "colour" not in str(error)


@pytest.mark.parametrize(
    ("option", "stands_for"),
    [("user=me%40corp", "user=me@corp"), ("ssl=true", "sslmode=require")],
)
def test_what_libpq_knows_may_follow_the_question_mark(option: str, stands_for: str) -> None:
    assert stands_for in place_of(f"postgresql://host/db?{option}").conninfo


def test_a_database_whose_text_is_not_utf8_is_refused(server: Postgres) -> None:
    ask(
        server.uri,
        "CREATE DATABASE western ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0",
    )

    error = refused(as_app(server, "western"))

    assert isinstance(error, StoreOpenError)
    assert "keeps text as LATIN1, and Ontologia needs UTF8" in error.args[0]
    assert "ENCODING 'UTF8'" in (error.hint or "")


def test_a_server_that_is_too_old_is_refused() -> None:
    """There is no such server to be had, so one says that it is."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        greeting = threading.Thread(target=_greet_as, args=(listening, "14.9"))
        greeting.start()
        port = listening.getsockname()[1]
        error = refused(f"postgresql://me@127.0.0.1:{port}/db?sslmode=disable&gssencmode=disable")
        greeting.join()

    assert isinstance(error, StoreOpenError)
    assert "is PostgreSQL 14, and Ontologia needs 15" in error.args[0]


def _greet_as(listening: socket.socket, version: str) -> None:
    """Let one client in, as a server of this version would, and wait until it leaves."""
    client, _ = listening.accept()
    with client:
        client.recv(4096)
        said = f"server_version\0{version}\0".encode()
        welcome = struct.pack("!cII", b"R", 8, 0)
        parameter = struct.pack("!cI", b"S", 4 + len(said)) + said
        key = struct.pack("!cIII", b"K", 12, 1, 2)
        client.sendall(welcome + parameter + key + b"Z\0\0\0\5I")
        while client.recv(4096):
            pass


def test_a_full_disk_is_said() -> None:
    error = translated(psycopg.errors.DiskFull("could not extend file"), "postgresql://h/db")

    assert isinstance(error, DiskFullError)
    assert "could not extend file" in str(error)
