"""A shop with a console, and browsers that are signed in to it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from typing import Any

import httpx

from ontologia.web.console import User
from ontologia.web.console.app import Console
from tests.integration.running import PATIENCE

TOKEN = "open-sesame-open-sesame"  # noqa: S105
HOST = "http://127.0.0.1:8000"
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin", "Origin": HOST}


class Browser:
    """A client of a console, without a server between them. Keeps cookies; follows no redirect."""

    def __init__(self, app: Any, base: str = HOST) -> None:
        self._app = app
        self._base = base
        self._loop = asyncio.new_event_loop()
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url=base, timeout=PATIENCE
        )

    @property
    def cookies(self) -> httpx.Cookies:
        return self._client.cookies

    def get(self, url: str, **options: Any) -> httpx.Response:
        return self._loop.run_until_complete(self._client.get(url, **options))

    def post(self, url: str, fields: dict[str, Any], **options: Any) -> httpx.Response:
        """Send a form, as a page of the console sends it."""
        options.setdefault("headers", SAME_ORIGIN)
        return self._loop.run_until_complete(self._client.post(url, data=fields, **options))

    def request(self, method: str, url: str, **options: Any) -> httpx.Response:
        return self._loop.run_until_complete(self._client.request(method, url, **options))

    def sign_in(self, name: str = "ada", given: str = TOKEN) -> httpx.Response:
        return self.post("/login", {"token": given, "name": name})

    def close(self) -> None:
        self._loop.run_until_complete(self._client.aclose())
        self._loop.close()


@contextmanager
def browsing(app: Any, base: str = HOST) -> Iterator[Browser]:
    browser = Browser(app, base)
    try:
        yield browser
    finally:
        browser.close()


def field(page: httpx.Response, name: str) -> str:
    """The value of a hidden field of a page."""
    found = re.search(rf'name="{name}" value="([^"]*)"', page.text)
    assert found is not None, f"there is no field {name}"
    return found[1]


def ada(_scope: Any) -> User:
    return User("ada", "operator")


def vic(_scope: Any) -> User:
    return User("vic", "viewer")


def opened(session: Any, **options: Any) -> Console:
    """A console of a session, in which ada is an operator."""
    from ontologia.web import console

    return console(session, **({"identify": ada} | options))


def table(page: httpx.Response, caption: str) -> list[dict[str, str]]:
    """The rows of a table of a page: what a reader sees, by the names of the columns."""
    found = re.search(rf"<caption[^>]*>{caption}</caption>(.*?)</table>", page.text, re.DOTALL)
    assert found is not None, f"there is no table {caption}"
    head, _, body = found[1].partition("</thead>")
    names = [_read(cell) for cell in re.findall(_CELL, head, re.DOTALL)]
    return [
        dict(zip(names, map(_read, re.findall(_CELL, row, re.DOTALL)), strict=True))
        for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL)
    ]


_CELL = r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>"


def _read(cell: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", cell)).split())
