"""On PostgreSQL all machines go by the server's clock, whatever their own say."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from ontologia import Event, Field, OntologiaConfig, Session
from ontologia.clock import SystemClock, from_text
from ontologia.runtime.session import core_of
from ontologia.store.postgres import clock as clocks
from ontologia.store.postgres.clock import ServerClock
from ontologia.store.postgres.place import place_of
from ontologia.testing import ManualClock
from tests.servers import ask, own_server

HOUR = 3600.0
_CLOSE = 0.5  # seconds: what is an hour off is not this close


class Noted(Event):
    number: Field[int]


class Off(SystemClock):
    """The clock of a machine that is set wrong; its monotonic clock begins anywhere."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.slept = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return super().monotonic() + 12_345 - self.slept


@pytest.fixture(scope="module")
def server_uri() -> Iterator[str]:
    with own_server() as server:
        Session(server.uri).close()
        yield server.uri


@pytest.fixture
def machine(server_uri: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the sessions of this process run on a machine with another clock."""

    def be(local: Any) -> ServerClock:
        place = place_of(server_uri)
        clock = ServerClock(place.shown, local)
        monkeypatch.setattr(clocks, "_clocks", {place.conninfo: clock})
        return clock

    return be


def distance(instant: datetime) -> float:
    """From the server's time, which here is that of the machine."""
    return abs((instant - datetime.now(UTC)).total_seconds())


@pytest.mark.parametrize("seconds", [-HOUR, HOUR], ids=["behind", "ahead"])
def test_a_machine_whose_clock_is_an_hour_off_writes_the_servers_time(
    server_uri: str, machine: Any, seconds: float
) -> None:
    clock = machine(Off(seconds))
    assert distance(clock.now()) > HOUR - _CLOSE

    with Session(server_uri) as session:
        event = Noted(number=1)
        session.commit(event=event)
        shown = session.event_store.inspect_event(str(event.id))
        [me] = [
            each
            for each in session.event_store.list_sessions("default")
            if each["session_id"] == session.session_id
        ]

    assert abs(clock.skew + seconds) < _CLOSE
    assert distance(clock.now()) < _CLOSE
    assert distance(from_text(shown["created_at"])) < _CLOSE
    assert distance(from_text(me["last_heartbeat"])) < _CLOSE


def test_a_lease_taken_on_one_machine_is_respected_on_another(
    server_uri: str, machine: Any
) -> None:
    machine(Off(-HOUR))
    with Session(server_uri, "leases") as behind:
        behind.commit(event=Noted(number=1))
        mine = behind.event_store.claim(
            "leases", "h", behind.session_id, [Noted.__event_type__], 1, 30_000
        )
        machine(Off(HOUR))
        with Session(server_uri, "leases") as ahead:
            theirs = ahead.event_store.claim(
                "leases", "h", ahead.session_id, [Noted.__event_type__], 1, 30_000
            )

    assert (len(mine), theirs) == (1, [])


def test_a_clock_of_ones_own_is_left_alone(server_uri: str) -> None:
    clock = ManualClock()

    with Session(server_uri, config=OntologiaConfig(clock=clock)) as session:
        event = Noted(number=1)
        session.commit(event=event)

        assert core_of(session).clock is clock
        shown = session.event_store.inspect_event(str(event.id))
        assert shown["created_at"].startswith("2026-01-01T00:00:00.0")


def test_sessions_of_a_process_share_one_clock_and_one_row_of_stamps(
    server_uri: str, machine: Any
) -> None:
    clock = machine(Off(0))
    stamps: list[str] = []

    def note(session: Session) -> None:
        event = Noted(number=len(stamps))
        session.commit(event=event)
        stamps.append(session.event_store.inspect_event(str(event.id))["created_at"])

    with Session(server_uri) as one, Session(server_uri) as two:
        for _ in range(3):
            note(one)
            note(two)
            clock._offset -= 60  # the server was measured again, and corrected backwards
            note(one)
    with Session(server_uri) as three:
        note(three)

    assert stamps == sorted(set(stamps))


def test_the_server_is_asked_at_most_once_a_minute_and_with_a_transaction_that_is_made_anyway(
    server_uri: str, machine: Any
) -> None:
    local = Off(0)
    clock, asked = machine(local), []
    measure = clock.measure
    clock.measure = lambda connection: (asked.append(1), measure(connection))

    with Session(server_uri) as session:
        for number in range(5):
            session.commit(event=Noted(number=number))
        assert len(asked) == 1
        local.slept = -61  # a minute goes by
        session.commit(event=Noted(number=5))
        session.commit(event=Noted(number=6))
        assert len(asked) == 2
        local.seconds += HOUR  # somebody sets this machine's clock, or it has slept
        assert session.head == 0
        assert len(asked) == 3
        assert distance(clock.now()) < _CLOSE


def test_a_clock_that_stood_still_while_the_machine_slept_is_right_with_the_next_transaction(
    server_uri: str, machine: Any
) -> None:
    local = Off(0)
    clock = machine(local)
    with Session(server_uri) as session:
        local.slept = local.seconds = HOUR  # against the server, an hour is missing
        assert distance(clock.now()) > HOUR - _CLOSE

        session.event_store.heartbeat(session.session_id)

        [[beat]] = ask(
            server_uri,
            "SELECT last_heartbeat FROM sessions WHERE session_id = %s",
            session.session_id,
        )
    assert distance(from_text(beat)) < _CLOSE


def test_what_is_within_the_error_of_the_measurement_changes_nothing(server_uri: str) -> None:
    clock = ServerClock("here", Off(0))
    with psycopg.connect(server_uri, autocommit=True) as connection:
        clock.measure(connection)
        before = clock._offset
        clock._sample = lambda _: (0.5, before + 0.2)  # half a second there and back
        clock.measure(connection)
        assert clock._offset == before
        clock._sample = lambda _: (0.01, before + 0.2)
        clock.measure(connection)
        assert clock._offset == before + 0.2


@pytest.mark.parametrize(
    ("seconds", "lease_ms", "said"),
    [(-HOUR, 30_000, "3600.0 s behind"), (4, 30_000, "4.0 s ahead of"), (4, 60_000, None)],
    ids=["far behind", "a tenth of the lease ahead", "less than a tenth"],
)
def test_a_skew_above_a_tenth_of_the_lease_is_said_once(
    server_uri: str,
    machine: Any,
    caplog: pytest.LogCaptureFixture,
    seconds: float,
    lease_ms: int,
    said: str | None,
) -> None:
    local = Off(seconds)
    clock = machine(local)
    config = OntologiaConfig(event_claim_lease_ms=lease_ms)

    def warnings() -> list[str]:
        return [each.message for each in caplog.records if "clock of this" in each.message]

    with caplog.at_level(logging.INFO, "ontologia"), psycopg.connect(server_uri) as connection:
        Session(server_uri, config=config).close()
        Session(server_uri, config=config).close()
        if said is None:
            assert warnings() == []
            return
        [warning] = warnings()
        assert said in warning
        assert "127.0.0.1" in warning
        assert "NTP" in warning
        local.seconds = 0
        clock.measure(connection)
        assert "agree again" in warnings()[-1]
        local.seconds = 2 * HOUR
        clock.measure(connection)
        assert "7200.0 s ahead" in warnings()[-1]
        assert len(warnings()) == 3
