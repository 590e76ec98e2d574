"""A primary that dies and a standby that takes its place: a crew with both in its URI goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ontologia import OntologiaConfig, Session, on_event
from ontologia.errors import ReadOnlyError
from tests import servers
from tests.faults.crews import (
    assert_nothing_lost_or_doubled,
    crew,
    wait_for_orders,
)
from tests.faults.workers import Order, Placed
from tests.integration.running import running, statuses, until
from tests.servers import own_server

if TYPE_CHECKING:
    from ontologia_conformance.servers import Postgres


@pytest.fixture
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    """A primary that has nothing for done before its standby has it, too."""
    with own_server(durable=True) as primary, own_server(durable=True, primary=primary) as standby:
        for setting in ("synchronous_standby_names = '*'", "synchronous_commit = remote_apply"):
            servers.ask(primary.uri, f"ALTER SYSTEM SET {setting}")
        primary.reload()
        yield primary, standby


def promote(standby: Postgres) -> None:
    assert servers.ask(standby.uri, "SELECT pg_promote()") == [(True,)]


def either(primary: Postgres, standby: Postgres, schema: str) -> str:
    """A URI of both, of whom the one that can be written is meant."""
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    options = f"schema={schema}&target_session_attrs=read-write&connect_timeout=2"
    return f"postgresql://postgres@{hosts}/postgres?{options}"


@pytest.mark.thorough
def test_a_crew_goes_on_with_the_standby_when_the_primary_dies(
    pair: tuple[Postgres, Postgres], tmp_path: Path
) -> None:
    primary, standby = pair
    uri = either(primary, standby, "failover")
    Session(uri).close()
    began = time.monotonic()

    there = f"{standby.uri}?schema=failover"
    with crew(uri, tmp_path, ask_at=there):
        wait_for_orders(tmp_path, 20)
        primary.kill()
        promote(standby)
        wait_for_orders(tmp_path, 20)

    trouble = "the primary dies, and its standby is promoted"
    assert_nothing_lost_or_doubled(there, tmp_path, trouble, 1, crashed=True, began=began)


@pytest.mark.thorough
def test_who_was_refused_by_a_standby_writes_as_soon_as_it_is_promoted(
    pair: tuple[Postgres, Postgres],
) -> None:
    primary, standby = pair
    handled: list[str] = []

    @on_event(Placed, name="standing by")
    def stand_by(ctx) -> None:
        handled.append(ctx.event.number)

    with Session(primary.uri) as session:
        session.ensure(Order(id="before"))
        session.commit(event=Placed(number="before"))
    with Session(standby.uri, config=OntologiaConfig(lock_timeout_ms=500)) as session:
        session.ensure(Order(id="after"))
        with pytest.raises(ReadOnlyError, match="read-only"):
            session.commit(event=Placed(number="after"))
        with pytest.raises(ReadOnlyError, match="read-only"):
            session.run([stand_by], max_iterations=1)
        primary.kill()
        promote(standby)

        assert session.commit(event=Placed(number="after")) == 2
        session.run([stand_by], max_iterations=1)

    assert handled == ["before", "after"]


@pytest.mark.thorough
def test_a_run_that_finds_itself_on_a_standby_goes_on_when_that_is_promoted(
    pair: tuple[Postgres, Postgres], caplog: pytest.LogCaptureFixture
) -> None:
    """A URI of both without target_session_attrs, or an address that moves to the standby."""
    primary, standby = pair
    handled: list[str] = []

    @on_event(Placed, name="moving along")
    def move_along(ctx) -> None:
        handled.append(ctx.event.number)

    Session(primary.uri).close()
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    session = Session(f"postgresql://postgres@{hosts}/postgres?connect_timeout=2")
    with session, running(session, [move_along]):
        with Session(primary.uri) as other:
            other.commit(event=Placed(number="before"))
            until(lambda: statuses(other) == ["acked"])  # nothing is left to be written
        primary.kill()
        until(lambda: "as soon as the database can be written" in caplog.text)
        promote(standby)
        with Session(standby.uri) as other:
            other.commit(event=Placed(number="after"))
        until(lambda: "after" in handled)  # the standby need not have known that "before" was done

    assert caplog.text.count("as soon as the database can be written") == 1
    assert caplog.text.count("the database is there again") == 1
