"""A bus beside a server that is away: it waits, and no handler's word is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.errors import ConnectionLostError
from ontologia.extensions.bus import EventBus
from ontologia.store.postgres import database
from tests.integration.buses import Ear, ended, until
from tests.servers import own_server

if TYPE_CHECKING:
    from ontologia_conformance.servers import Postgres


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Postgres]:
    monkeypatch.setattr(database, "_CONNECTING_MS", 300)
    with own_server() as server:
        yield server


@pytest.mark.thorough
def test_a_bus_goes_on_when_its_server_is_back_and_nothing_has_failed(server, caplog):
    async def story(session):
        bus, inside, away = EventBus(session), asyncio.Event(), asyncio.Event()
        ear = Ear()

        async def wait(event):
            if not inside.is_set():
                inside.set()
                await away.wait()
            await ear(event)

        bus.subscribe("tea.ready", wait)
        async with bus:
            numbers = [await bus.publish("tea.ready", "kitchen", {"n": n}) for n in range(5)]
            await inside.wait()
            await asyncio.to_thread(server.halt)
            with pytest.raises(ConnectionLostError):
                await bus.publish("tea.ready", "kitchen", {})
            away.set()
            await until(lambda: "as soon as the database can be reached" in caplog.text)
            server.start()  # in this thread: the server ends with the thread that starts it
            entries = await until(lambda: _ended(bus, numbers))
        return entries, ear.heard()

    with Session(server.uri, config=OntologiaConfig(lock_timeout_ms=100)) as session:
        entries, heard = asyncio.run(story(session))
    with Session(server.uri) as session:
        assert session.event_store.check() == []

    assert [entry["status"] for entry in entries] == ["done"] * 5
    assert sorted(set(heard)) == [0, 1, 2, 3, 4]


async def _ended(bus, numbers):
    try:
        return await ended(bus, *numbers)
    except ConnectionLostError:
        return None
