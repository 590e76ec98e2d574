"""However a server, a database or a role is set up, a store on it is the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from ontologia import Entity, Event, Field, OntologiaConfig, Session, on_event
from ontologia.errors import ReadOnlyError
from ontologia.runtime.session import core_of
from ontologia.store.copying.tables import TABLES
from ontologia.store.postgres.copying import PostgresTarget
from ontologia.store.postgres.errors import translated
from tests.integration.running import running, until
from tests.servers import ask, own_bouncer, own_server

if TYPE_CHECKING:
    from ontologia_conformance.servers import Postgres

_SERIALIZABLE = "default_transaction_isolation=serializable"
_ODD = (
    _SERIALIZABLE,
    "default_transaction_read_only=on",
    "default_transaction_deferrable=on",
    "statement_timeout=1s",
    "idle_in_transaction_session_timeout=5s",
    "search_path=nowhere",
    "row_security=off",
    "TimeZone=Asia/Kolkata",
    "DateStyle=German",
    "extra_float_digits=-15",
    "bytea_output=escape",
    "standard_conforming_strings=off",
    "array_nulls=off",
    "transform_null_equals=on",
    "plan_cache_mode=force_custom_plan",
    "synchronous_commit=remote_apply",
)


class Parcel(Entity):
    id: Field[str] = Field(primary_key=True)
    weight: Field[float] = Field(index=True)
    note: Field[str | None] = None


class Posted(Event):
    __event_type__ = "settings.posted"
    parcel: Field[str]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with own_server(settings=_ODD) as server:
        yield server


@pytest.fixture(params=["straight", "pooled"])
def uri(server: Postgres, request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "straight":
        yield f"{server.uri}?schema=straight"
        return
    with own_bouncer(server) as bouncer:
        yield f"{bouncer.uri}?schema=pooled"


def test_a_store_works_whatever_the_defaults_of_transactions_are(uri: str) -> None:
    carried: list[str] = []

    @on_event(Posted, name="carry")
    def carry(ctx: Any) -> None:
        ctx.ensure(Parcel(id=ctx.event.parcel, weight=0.1 + 0.2, note="\\'"))
        ctx.commit()
        carried.append(ctx.event.parcel)

    with Session(uri, entity_types=[Parcel]) as session, running(session, [carry]):
        session.ensure(Parcel(id="c", weight=1e300))
        session.commit(event=Posted(parcel="a"))
        session.defer(Posted(parcel="b"), delay=0.01)
        until(lambda: sorted(carried) == ["a", "b"])
        light = session.query().entities(Parcel).where(Parcel.weight < 1).collect()
        assert [(each.id, each.weight, each.note) for each in light] == [
            ("a", 0.1 + 0.2, "\\'"),
            ("b", 0.1 + 0.2, "\\'"),
        ]

    with Session(uri, entity_types=[Parcel]) as session:
        assert session.event_store.check() == []
        assert session.event_store.cleanup_events(session.namespace, timedelta(0)) == 2


def test_a_time_is_read_to_the_last_digit(uri: str) -> None:
    at = datetime(2050, 1, 1, 0, 0, 0, 123_457, tzinfo=UTC)

    with Session(f"{uri}_later") as session:
        session.defer(Posted(parcel="c"), at=at)

        assert core_of(session).store.events.claims.peek([]).next_fire == at.timestamp()


@pytest.mark.thorough
def test_a_statement_alone_may_take_as_long_as_the_session_says(uri: str) -> None:
    with Session(uri, config=OntologiaConfig(statement_timeout_ms=0)) as session:
        database: Any = core_of(session).store.database  # type: ignore[attr-defined]

        assert database.all("SELECT pg_sleep(1.2)::text") == [("",)]
        assert database.all("SHOW transaction_isolation") == [("read committed",)]


def test_the_end_of_a_copy_waits_for_the_disk(server: Postgres) -> None:
    target: Any = PostgresTarget(
        f"{server.uri}?options=-c%20synchronous_commit%3Doff", OntologiaConfig()
    )

    with target._writing():
        assert target._one("SHOW synchronous_commit") == ("on",)
    with target._writing(durable=False):
        assert target._one("SHOW synchronous_commit") == ("off",)
    target.close()


@pytest.mark.thorough
def test_a_copy_reads_a_large_table_for_as_long_as_it_takes(server: Postgres) -> None:
    uri = f"{server.uri}?schema=copied"
    Session(uri).close()
    target = PostgresTarget(uri, OntologiaConfig())
    with psycopg.connect(server.uri) as other:
        other.read_only = False
        other.execute(f"LOCK TABLE copied.{TABLES[0].name}".encode())
        end = threading.Timer(1.3, other.rollback)  # the server would end a statement before
        end.start()

        assert list(target.rows(TABLES[0])) == []

        end.join()
    target.close()


@pytest.mark.thorough
def test_a_standby_whose_default_it_does_not_know_can_be_read() -> None:
    with (
        own_server(settings=(_SERIALIZABLE,)) as primary,
        own_server(primary=primary, settings=(_SERIALIZABLE,)) as standby,
    ):
        with Session(primary.uri, entity_types=[Parcel]) as session:
            session.ensure(Parcel(id="a", weight=1.0))
            session.commit()
        [[here]] = ask(primary.uri, "SELECT pg_current_wal_lsn()::text")
        caught_up = f"SHOW transaction_read_only; SELECT pg_last_wal_replay_lsn() >= '{here}'"
        until(lambda: _read(standby.uri, caught_up))

        with Session(standby.uri, entity_types=[Parcel]) as session:
            assert [parcel.id for parcel in session.query().entities(Parcel).collect()] == ["a"]


def _read(uri: str, statement: str) -> Any:
    with psycopg.connect(uri) as connection:
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        cursor = connection.execute(statement.encode())
        while cursor.nextset():
            pass
        return cursor.fetchall()[0][0]


@pytest.mark.thorough
def test_what_returned_survives_a_crash_of_a_server_that_confirms_too_early() -> None:
    """It writes its log ten seconds later, unless a commit waits for it."""
    with own_server(settings=("synchronous_commit=off", "wal_writer_delay=10s")) as server:
        with Session(server.uri, entity_types=[Parcel]) as session:
            session.ensure(Parcel(id="a", weight=1.0))
            session.commit()
            session.event_store.enqueue(Posted(parcel="a"), session.namespace)

            server.kill()

        server.start()
        with Session(server.uri, entity_types=[Parcel]) as session:
            assert [parcel.id for parcel in session.query().entities(Parcel).collect()] == ["a"]
            [kept] = session.event_store.list_events(session.namespace)
            assert kept["type"] == "settings.posted"


def test_a_role_that_may_only_read_is_known_in_any_language_of_the_server() -> None:
    denied = psycopg.errors.InsufficientPrivilege("keine Berechtigung für Tabelle commits")

    error = translated(denied, "postgresql://h/db", schema="shop")

    assert isinstance(error, ReadOnlyError)
    assert "IN SCHEMA shop TO its role" in (error.hint or "")
