"""A worker beside a server that is away: it waits, and goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.queues import EventWorker, StoreEventQueue
from ontologia.store.postgres import database
from ontologia_conformance.queue_world import Env, event, fill
from tests.integration.running import PATIENCE, until
from tests.servers import own_server

if TYPE_CHECKING:
    from ontologia_conformance.servers import Postgres


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Postgres]:
    monkeypatch.setattr(database, "_CONNECTING_MS", 300)
    with own_server() as server:
        yield server


@pytest.mark.thorough
def test_a_worker_waits_for_its_server_with_what_it_has_to_say(server, caplog):
    """The server goes while an event is handled; what became of the event is written afterwards."""
    inside, away = threading.Event(), threading.Event()
    seen: list[int] = []

    def handle(given, env) -> None:
        number = given.payload["number"]
        seen.append(number)
        if number <= 2 and seen.count(number) == 1:
            inside.set()
            assert away.wait(PATIENCE)
            if number == 1:
                raise ValueError("once")

    config = OntologiaConfig(lock_timeout_ms=100)
    with Session(server.uri, config=config) as session:
        queue = StoreEventQueue(session)
        fill(queue, 1, 2)
        worker = EventWorker(Env(queue, {"parcel.posted": [handle]}))
        thread = threading.Thread(target=worker.run_forever)
        thread.start()
        assert inside.wait(PATIENCE)
        server.halt()
        away.set()
        until(lambda: "as soon as the database can be reached" in caplog.text)
        server.start()
        until(lambda: worker.health_snapshot()["succeeded"] >= 2)
        queue.enqueue(event(3))
        until(lambda: worker.health_snapshot()["succeeded"] >= 3)
        worker.stop()
        thread.join(PATIENCE)

        assert not thread.is_alive()
        assert sorted(set(seen)) == [1, 2, 3]
        assert worker.health_snapshot()["dead_lettered"] == 0
        assert session.event_store.check() == []
        [names] = session.event_store.list_namespaces()
        assert (names["pending"], names["dead_letters"]) == (0, 0)
