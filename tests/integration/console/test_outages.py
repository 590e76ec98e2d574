"""A database that goes away while pages are open, and comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.store.postgres import database
from tests.integration.console.world import browsing, opened
from tests.integration.running import until
from tests.servers import own_server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    monkeypatch.setattr(database, "_CONNECTING_MS", 300)
    with own_server(version=18) as server:
        yield server


@pytest.mark.thorough
def test_a_page_says_that_the_database_is_away_and_is_there_again_with_it(server):
    with Session(server.uri, config=OntologiaConfig(lock_timeout_ms=100)) as session:
        app = opened(session)
        with browsing(app) as browser:
            assert browser.get("/").status_code == 200
            server.halt()
            page = browser.get("/events?filter=type:x")
            assert page.status_code == 503
            assert "does not answer" in page.text
            assert 'http-equiv="refresh"' in page.text
            assert server.uri not in page.text
            server.start()
            until(lambda: browser.get("/").status_code == 200)
        app.close()
