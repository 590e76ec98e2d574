"""Behind PgBouncer in transaction mode everything works; events are found by looking."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ontologia import Entity, Event, Field, OntologiaConfig, Schedule, Session, on_event
from ontologia.runtime.session import core_of
from tests.integration.processes import Process
from tests.integration.running import running, until
from tests.servers import ask, own_bouncer, own_server

if TYPE_CHECKING:
    from ontologia_conformance.servers import PgBouncer, Postgres

WORKER = """
from ontologia import Entity, Event, Field, Session, on_event

class Parcel(Entity):
    id: Field[str] = Field(primary_key=True)
    weight: Field[int] = Field(index=True)
    by: Field[str] = ""

class Posted(Event):
    __event_type__ = "pooler.posted"
    number: Field[int]

class Delivered(Event):
    __event_type__ = "pooler.delivered"
    number: Field[int]

@on_event(Posted, name="carry")
def carry(ctx):
    ctx.ensure(Parcel(id=str(ctx.event.number), weight=ctx.event.number, by=sys.argv[2]))
    ctx.emit(Delivered(number=ctx.event.number))
    ctx.commit()

with Session(sys.argv[1], entity_types=[Parcel]) as session:
    say("ready")
    session.run([carry], workers=2)
"""


class Parcel(Entity):
    id: Field[str] = Field(primary_key=True)
    weight: Field[int] = Field(index=True)
    by: Field[str] = ""


class Posted(Event):
    __event_type__ = "pooler.posted"
    number: Field[int]


class Delivered(Event):
    __event_type__ = "pooler.delivered"
    number: Field[int]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with own_server() as server:
        yield server


@pytest.fixture
def bouncer(server: Postgres) -> Iterator[PgBouncer]:
    with own_bouncer(server) as bouncer:
        yield bouncer


def test_a_pooler_is_found_out_by_itself(server: Postgres, bouncer: PgBouncer) -> None:
    for uri, pooled in ((bouncer.uri, True), (server.uri, False)):
        with Session(uri) as session:
            database: Any = core_of(session).store.database  # type: ignore[attr-defined]
            assert database.pooled is pooled


@pytest.mark.req("ONT-161")
def test_two_workers_and_a_producer_do_their_work_through_it(
    server: Postgres, bouncer: PgBouncer, caplog: pytest.LogCaptureFixture
) -> None:
    delivered: list[int] = []

    @on_event(Delivered, name="thank")
    def thank(ctx: Any) -> None:
        delivered.append(ctx.event.number)

    uri = f"{bouncer.uri}?schema=pooled"
    ticks = Schedule(Posted(number=1_000), "* * * * *")
    with (
        caplog.at_level(logging.INFO, "ontologia"),
        Session(uri, entity_types=[Parcel]) as session,
        Process(WORKER, uri, "one") as one,
        Process(WORKER, uri, "two") as two,
        running(session, [thank], schedules=[ticks]),
    ):
        one.hear("ready")
        two.hear("ready")
        for number in range(100):
            session.ensure(Parcel(id=str(number), weight=number))
            session.commit(event=Posted(number=number))
        session.defer(Posted(number=100), delay=0.2)
        until(lambda: set(range(101)) <= set(delivered))
        heavy = session.query().entities(Parcel).where(Parcel.weight >= 50).collect()
        until(lambda: "pooler" in caplog.text)
        straight = f"{server.uri}?schema=pooled"
        until(lambda: ask(straight, "SELECT 1 FROM event_claims WHERE ack_at IS NULL") == [])
        assert session.event_store.check() == []

    assert len(delivered) == len(set(delivered))
    assert {parcel.by for parcel in heavy} <= {"one", "two"}
    assert {int(parcel.id) for parcel in heavy} >= set(range(50, 101))
    assert caplog.text.count("is behind a pooler") == 1


def test_in_session_mode_notifications_arrive(server: Postgres) -> None:
    heard: list[int] = []

    @on_event(Posted, name="hear")
    def hear(ctx: Any) -> None:
        heard.append(ctx.event.number)

    an_hour = OntologiaConfig(event_poll_interval_ms=3_600_000)
    with own_bouncer(server, mode="session", size=40) as bouncer:
        uri = f"{bouncer.uri}?schema=by_session"
        with Session(uri, config=an_hour) as session, running(session, [hear]):
            channel: Any = core_of(session).store._channel  # type: ignore[attr-defined]
            until(lambda: channel.hears)
            with Session(f"{server.uri}?schema=by_session") as other:
                other.commit(event=Posted(number=1))
            until(lambda: heard == [1])
