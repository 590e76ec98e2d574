"""One Chromium for the tests of a process; a store, a console and pages for each test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from ontologia.runtime.views.reading import ReadingSession
from ontologia.store.copying import copy_store
from ontologia_conformance.backends import Backend
from tests.browser.world import NAMESPACE, Desk, launch, require_chromium, serving, tell_shop
from tests.integration.running import PATIENCE


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """Ended with the folder: while it is there, asyncio.run() cannot be called in this thread."""
    require_chromium()
    expect.set_options(timeout=PATIENCE * 1_000)
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Backend:
    """SQLite, unless a test is marked `BOTH`."""
    found: Backend = request.getfixturevalue(getattr(request, "param", "sqlite"))
    return found


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the shop, which is copied for each test."""
    path = tmp_path_factory.mktemp("shop") / "shop.db"
    tell_shop(path)
    return path


@pytest.fixture
def uri(told: Path, backend: Backend, tmp_path: Path) -> str:
    """A shop of the test's own."""
    if backend.name == "sqlite":
        return f"sqlite:///{shutil.copy(told, tmp_path / 'shop.db')}"
    made: Any = backend
    target: str = made.unmade()
    copy_store(f"sqlite:///{shutil.copy(told, tmp_path / 'source.db')}", target)
    return target


@pytest.fixture
def serve(chromium: Browser) -> Iterator[Callable[..., Desk]]:
    """Serve consoles. At the end no page must have complained."""
    with ExitStack() as stack:
        desks: list[Desk] = []

        def open_(session_or_uri: Any, **options: Any) -> Desk:
            desks.append(stack.enter_context(serving(session_or_uri, chromium, **options)))
            return desks[-1]

        yield open_
        complaints = [each for desk in desks for each in desk.close_pages()]
    assert complaints == []


@pytest.fixture
def desk(serve: Callable[..., Desk], uri: str) -> Iterator[Desk]:
    """A console of the shop."""
    with ReadingSession(uri, NAMESPACE) as session:
        yield serve(session)
