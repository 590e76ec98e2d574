"""The demo's shop with a console that is served, and a browser that looks at it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    Response,
    expect,
)

from ontologia import OntologiaConfig, Session
from ontologia.cli.demo_shop import Customer, Order, OrderPlaced, Placed
from ontologia.runtime.operator import Operator
from ontologia.web import console
from ontologia.web.console.app import Console
from ontologia.web.serving import Server, listen
from ontologia_conformance.backends import NAMES

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TOKEN = "open-sesame-open-sesame"  # noqa: S105
NAMESPACE = "shop"
PATIENCE = 60.0  # seconds; only a hang takes that long
WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 390, "height": 844}
BOTH = pytest.mark.parametrize(
    "backend", [name for name in NAMES if name != "postgres16"], indirect=True, scope="session"
)
"""A mark for tests that run on each database."""


def require_chromium() -> None:
    """Skip the test where there is no Chromium; in CI that is a failure."""
    if CHROMIUM.exists():
        return
    why = f"{CHROMIUM} is missing: apt-get install chromium"
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


def launch(playwright: Any) -> Browser:
    """Debian's Chromium, without a window."""
    browser: Browser = playwright.chromium.launch(
        executable_path=CHROMIUM, args=[*FLAGS], timeout=PATIENCE * 1_000
    )
    return browser


# -- the shop -------------------------------------------------------------------------------------


def tell_shop(path: Path, library: Path | None = None) -> None:
    """Make the store of `ontologia demo`, with something on every page of the console.

    The demo leaves paid and shipped orders, a dead letter, attempts and a schedule. Here an order is
    deferred, one waits for a handler that is paused, and a customer was deleted. Tracebacks name files
    in `library`, if it is given: a folder with the package.
    """
    subprocess.run(
        [sys.executable, "-m", "ontologia", "demo", "--fast", "--path", path],
        check=True,
        env=os.environ | ({} if library is None else {"PYTHONPATH": str(library)}),
        capture_output=True,
        timeout=300,
    )
    uri = f"sqlite:///{path}"
    types: list[Any] = [Customer, Order]
    with Session(uri, NAMESPACE, entity_types=types, relation_types=[Placed]) as session:
        Operator(session, "grace", reason="the parcel service is on strike").pause(
            "ontologia.cli.demo_shop:ship"
        )
        session.ensure(
            [Customer(id="dora", name="Dora"), Order(id="o-4", item="a vase", cents=2_900)]
        )
        session.ensure(Placed(left_key="dora", right_key="o-4"))
        session.commit(event=OrderPlaced(order_id="o-4"))
        session.defer(OrderPlaced(order_id="o-5"), delay=timedelta(days=365))
        session.ensure(Customer(id="eve", name="Eve"))
        session.commit()
        session.delete(Customer(id="eve", name="Eve"))
        session.commit()


# -- a console ------------------------------------------------------------------------------------


class Desk:
    """A console that is served at a port of this machine."""

    def __init__(
        self, console: Console, server: Server, thread: threading.Thread, browser: Browser | None
    ) -> None:
        self.console = console
        self.url = server.url
        self._server = server
        self._thread = thread
        self._browser = browser
        self._opened: list[tuple[BrowserContext, Watched]] = []

    def cookie(self, name: str = "ada") -> dict[str, str]:
        """The cookie of somebody who has signed in."""
        access = self.console.access
        value = access.sign_in(name, token=TOKEN, code=None)
        return {"name": access.cookie, "value": value, "url": self.url}

    def browse(self, *, signed_in: bool = True, **options: Any) -> Watched:
        """A page in a context of its own; what it complains about is kept."""
        assert self._browser is not None
        context = self._browser.new_context(**{"viewport": WIDE, "base_url": self.url} | options)
        context.set_default_timeout(PATIENCE * 1_000)
        if signed_in:
            context.add_cookies([self.cookie()])  # type: ignore[list-item]
        watched = Watched(context.new_page(), self.url)
        watched.watch()
        self._opened.append((context, watched))
        return watched

    def stop(self) -> None:
        """End the server. Idempotent."""
        self._server.stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def close_pages(self) -> list[str]:
        """Close what was opened; what the pages complained about."""
        complaints = [each for _, watched in self._opened for each in watched.take_complaints()]
        for context, _ in self._opened:
            context.close()
        self._opened.clear()
        return complaints


@dataclass
class Watched:
    """A page, and what went wrong in it: errors, refusals by the CSP, requests that lead elsewhere."""

    page: Page
    url: str
    allowed: str = "nothing at all"
    """A part of complaints that a test is about, and which are forgotten."""
    complaints: list[str] = field(default_factory=list[str])

    def watch(self) -> None:
        """Keep what the page complains about from here on."""
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("request", self._on_request)
        self.page.on("response", self._on_response)

    def take_complaints(self) -> list[str]:
        """What the page complained about so far, once."""
        taken = [each for each in self.complaints if self.allowed not in each]
        self.complaints.clear()
        return taken

    def _on_console(self, message: ConsoleMessage) -> None:
        # Chromium looks for the icon of what is no page of HTML there, and cannot be told not to.
        if message.location["url"].endswith("/favicon.ico"):
            return
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text} at {self.page.url}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(f"{self.url}/"):
            self.complaints.append(f"asked {request.url}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            self.complaints.append(f"status {response.status} of {response.url}")


@contextmanager
def serving(
    session_or_uri: Session | str,
    browser: Browser | None = None,
    *,
    grace: float = 1.0,
    **options: Any,
) -> Iterator[Desk]:
    """Serve a console in a thread, until the end of the block. Leave the pages to `close_pages`.

    `grace` are the seconds that the server waits for clients when it ends.
    """
    made = console(session_or_uri, **{"token": TOKEN} | options)
    config = OntologiaConfig(shutdown_grace_ms=round(grace * 1_000))
    server = Server(made, listen("127.0.0.1", 0), config)
    server.on_shutdown = made.live.end
    thread = threading.Thread(target=server.serve_forever, name="console", daemon=True)
    thread.start()
    desk = Desk(made, server, thread, browser)
    try:
        yield desk
    finally:
        desk.stop()
        made.close()


# -- pages ----------------------------------------------------------------------------------------


def live(page: Page, path: str = "/") -> Page:
    """Open a page, and wait until it hears what changes."""
    with page.expect_response(lambda answer: "/live" in answer.url):
        page.goto(path)
    expect(page.locator("#live")).to_have_text("live")
    page.evaluate(
        "() => { document.addEventListener('console:morphed', () => { window.morphed = true; }); }"
    )
    return page


def await_update(page: Page) -> None:
    """Wait until it was fetched again since it was opened."""
    page.wait_for_function("() => window.morphed")


def row_of(page: Page, name: str) -> Locator:
    """The row of a handler."""
    return page.get_by_role("region", name="Handlers").get_by_role("row").filter(has_text=name)
