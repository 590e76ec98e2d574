"""A standby can be read, and says what it is to those who write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from ontologia import Session
from ontologia.errors import ReadOnlyError, StoreOpenError
from tests.integration.running import until
from tests.servers import ask, own_server
from tests.shop import Customer, Product

if TYPE_CHECKING:
    from ontologia_conformance.servers import Postgres


@pytest.fixture(scope="module")
def primary() -> Iterator[Postgres]:
    with own_server() as server:
        yield server


@pytest.fixture(scope="module")
def standby(primary: Postgres) -> Iterator[Postgres]:
    with own_server(primary=primary) as server:
        yield server


def catch_up(primary: Postgres, standby: Postgres) -> None:
    """Wait until the standby has what the primary has."""
    [[here]] = ask(primary.uri, "SELECT pg_current_wal_lsn()::text")
    there = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
    until(lambda: ask(standby.uri, there, here) == [(True,)])


@pytest.mark.thorough
def test_a_standby_without_tables_says_where_to_make_them(standby: Postgres) -> None:
    with pytest.raises(StoreOpenError, match="schema none has no tables") as error:
        Session(f"{standby.uri}?schema=none")

    assert "on the primary" in (error.value.hint or "")


def test_a_standby_is_read_like_any_other_and_refuses_to_be_written(
    primary: Postgres, standby: Postgres
) -> None:
    with Session(primary.uri, entity_types=[Customer]) as session:
        session.ensure(Customer(id="c1", name="Ada"))
        session.commit()
    catch_up(primary, standby)

    # Product is new there: neither it nor its index can be written down.
    with Session(standby.uri, entity_types=[Customer, Product]) as session:
        [found] = session.query().entities(Customer).collect()
        assert (found.name, session.head) == ("Ada", 1)
        assert session.query().entities(Product).collect() == []
        session.ensure(Customer(id="c2", name="Bob"))
        with pytest.raises(ReadOnlyError, match=f"127.0.0.1:{standby.port}") as error:
            session.commit()
        assert "primary" in (error.value.hint or "")
        assert session.discard() == 1


def test_of_several_hosts_the_primary_is_found(primary: Postgres, standby: Postgres) -> None:
    hosts = f"127.0.0.1:{standby.port},127.0.0.1:{primary.port}"

    with Session(
        f"postgresql://postgres@{hosts}/postgres?schema=several&target_session_attrs=read-write"
    ) as session:
        session.ensure(Customer(id="c1", name="Ada"))
        assert session.commit() == 1
