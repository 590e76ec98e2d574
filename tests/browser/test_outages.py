"""What pages say while the server or the database is away, and how they recover."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from ontologia import Session
from ontologia.runtime.operator import Operator
from ontologia.runtime.views.reading import ReadingSession
from ontologia.store.copying import copy_store
from ontologia.store.postgres import database
from ontologia.web.console import live as streams
from tests.browser.world import NAMESPACE, Desk, live, row_of
from tests.integration.running import PATIENCE
from tests.servers import own_server

pytestmark = pytest.mark.browser

CHARGE = "ontologia.cli.demo_shop:charge"


def test_a_server_that_stops_does_not_wait_for_open_pages(
    serve: Callable[..., Desk], uri: str, caplog: pytest.LogCaptureFixture
):
    """Its grace is longer than the patience of the test: only the end of the streams ends it.

    The pages do not ask from time to time, either: they hear it from their streams.
    """
    with ReadingSession(uri, NAMESPACE) as session:
        desk = serve(session, grace=10 * PATIENCE)
        pages = [desk.browse() for _ in range(3)]
        for each in pages:
            each.page.add_init_script("window.setInterval = () => 0")
            each.allowed = "ERR_"
            live(each.page)

        desk.stop()

        for each in pages:
            expect(each.page.locator("#live")).to_have_text("server away, retrying")


def test_a_stream_that_is_refused_is_asked_for_again(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streams, "_MOST", 0)
    watched = desk.browse()
    watched.allowed = "503"
    page = watched.page
    page.clock.install()
    page.goto("/")
    state = page.locator("#live")
    expect(state).to_have_text("updated every 15 s")
    monkeypatch.undo()

    with page.expect_response(lambda answer: "/live" in answer.url and answer.ok):
        page.clock.fast_forward(15_000)

    expect(state).to_have_text("live")


@pytest.fixture
def outage(
    told: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Any, str]]:
    """A server of the test's own with the shop on it."""
    monkeypatch.setattr(database, "_CONNECTING_MS", 300)
    with own_server() as server:
        uri = f"{server.uri}?schema=shop"
        copy_store(f"sqlite:///{shutil.copy(told, tmp_path / 'source.db')}", uri)
        yield server, uri


def test_a_page_says_that_the_database_is_away_and_recovers(
    serve: Callable[..., Desk], outage: tuple[Any, str], caplog: pytest.LogCaptureFixture
):
    server, uri = outage
    caplog.set_level(logging.CRITICAL)
    with ReadingSession(uri, NAMESPACE) as session:
        watched = serve(session).browse()
        watched.allowed = "503"
        page = live(watched.page)

        server.halt()
        expect(page.locator("#live")).to_have_text("database away, retrying")
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()

        server.start()
        expect(page.locator("#live")).to_have_text("live")
        with Session(uri, NAMESPACE) as shop:
            Operator(shop, "grace").pause(CHARGE)
        expect(row_of(page, CHARGE)).to_contain_text("paused")


@pytest.mark.thorough
def test_a_page_that_is_asked_for_during_an_outage_comes_when_it_is_over(
    serve: Callable[..., Desk], outage: tuple[Any, str], caplog: pytest.LogCaptureFixture
):
    server, uri = outage
    caplog.set_level(logging.CRITICAL)
    with ReadingSession(uri, NAMESPACE) as session:
        watched = serve(session).browse()
        watched.allowed = "503"
        page = watched.page
        server.halt()

        answer = page.goto("/")

        assert answer.status == 503
        expect(page.get_by_role("heading", name="The database does not answer")).to_be_visible()
        server.start()
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
