"""No statement takes forever, and no server that vanished is waited for forever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from ontologia import OntologiaConfig
from ontologia.clock import SYSTEM_CLOCK
from ontologia.errors import DatabaseError
from ontologia.store.open import open_store
from ontologia.store.postgres.place import place_of
from tests.servers import own_bouncer, own_server

if TYPE_CHECKING:
    from ontologia.store.postgres.database import Database
    from ontologia.testing.servers import Postgres

LONG = "SELECT pg_sleep(60)"
Open = Callable[..., "Database"]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with own_server() as server:
        yield server


@pytest.fixture
def open_(server: Postgres) -> Iterator[Open]:
    opened: list[Any] = []

    def database(uri: str = server.uri, **settings: Any) -> Database:
        opened.append(open_store(uri, OntologiaConfig(**settings), SYSTEM_CLOCK, Random(1)))
        found: Database = opened[-1]._database
        return found

    yield database
    for store in opened:
        store.close()


def within(transaction: Callable[[], AbstractContextManager[Any]]) -> None:
    with transaction() as tx:
        tx.one(LONG)


def outside(database: Database) -> None:
    database.all(LONG)


WAYS: dict[str, Callable[[Any], None]] = {
    "a read": lambda database: within(database.read),
    "a write": lambda database: within(database.write),
    "a write of state": lambda database: within(database.write_state),
    "alone": outside,
}


@pytest.mark.parametrize("ask", WAYS.values(), ids=WAYS)
def test_a_statement_that_takes_too_long_is_ended_and_the_setting_is_named(
    open_: Open, ask: Callable[[Any], None]
) -> None:
    database = open_(statement_timeout_ms=50)

    with pytest.raises(DatabaseError, match="statement_timeout_ms") as error:
        ask(database)

    assert "statement_timeout_ms=..." in (error.value.hint or "")
    assert database.all("SELECT 1") == [(1,)]


@pytest.mark.parametrize("ask", WAYS.values(), ids=WAYS)
def test_so_it_is_behind_a_pooler(
    server: Postgres, open_: Open, ask: Callable[[Any], None]
) -> None:
    with own_bouncer(server) as bouncer:
        database = open_(bouncer.uri, statement_timeout_ms=50)
        with pytest.raises(DatabaseError, match="statement_timeout_ms"):
            ask(database)
        with database.read() as tx:
            assert tx.one("SHOW statement_timeout") == ("50ms",)
        database.close()


def test_so_it_is_in_any_language_of_the_server(open_: Open) -> None:
    database = open_(statement_timeout_ms=50)
    german = """
        DO $$ BEGIN
            PERFORM pg_sleep(60);
        EXCEPTION WHEN query_canceled THEN
            RAISE EXCEPTION 'storniere Anfrage' USING ERRCODE = 'query_canceled';
        END $$"""

    with pytest.raises(DatabaseError, match=r"statement_timeout_ms allows \(storniere Anfrage\)"):
        database.all(german)


def test_what_makes_tables_and_indexes_may_take_as_long_as_it_takes(open_: Open) -> None:
    database = open_(statement_timeout_ms=50)

    with database.write(unlimited=True) as tx:
        assert tx.one("SHOW statement_timeout") == ("0",)
    with database.write() as tx:
        assert tx.one("SHOW statement_timeout") == ("50ms",)


def test_0_is_no_limit_and_a_setting_in_the_uri_wins(server: Postgres, open_: Open) -> None:
    assert open_(statement_timeout_ms=0).all("SHOW statement_timeout") == [("0",)]
    assert open_().all("SHOW statement_timeout") == [("10min",)]
    own = f"{server.uri}?options=-c%20statement_timeout%3D77s"
    assert open_(own).all("SHOW statement_timeout") == [("77s",)]


def test_a_server_that_vanished_is_noticed_within_half_a_minute() -> None:
    ours = conninfo_to_dict(place_of("postgresql://h/d").conninfo)
    silence = int(ours["keepalives_idle"]) + int(ours["keepalives_interval"]) * int(
        ours["keepalives_count"]
    )

    assert silence <= 30
    assert int(ours["tcp_user_timeout"]) <= 30_000
    theirs = place_of("postgresql://h/d?tcp_user_timeout=1000&keepalives_idle=99").conninfo
    assert conninfo_to_dict(theirs)["tcp_user_timeout"] == "1000"
    assert conninfo_to_dict(theirs)["keepalives_idle"] == "99"
