"""The pages that links and forms of the console lead to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import httpx
from starlette.routing import Route

from ontologia.web.console import actions, app
from tests.browser.world import Desk
from tests.integration.running import PATIENCE

SEARCHED = "o-1"
"""What is typed into the search box."""
_LEFT_OUT = {"as_of", "before", "after", "done", "first"}  # the same page at another place
_OF_SCRIPTS = {"commit_time"}  # no pages
_CHOSEN = {"checkbox", "radio"}
_OF_A_ROUTE = 3  # URLs


def pages_of(desk: Desk) -> dict[str, str]:
    """The paths of all pages, by the names of their routes, as the console has them."""
    routes: list[Route] = [each for module in app.PAGES for each in module.routes(desk.console)]
    routes += actions.routes(desk.console)
    read = {each.name: each.path for each in routes if "GET" in (each.methods or ())}
    return {name: path for name, path in read.items() if name not in _OF_SCRIPTS}


def crawl(desk: Desk) -> dict[str, list[str]]:
    """Some URLs of each page, by the names of routes, found on the way from the first page."""
    names = {path: name for name, path in pages_of(desk).items()}
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    waiting = deque(["/"])
    cookie = desk.cookie()
    with httpx.Client(
        base_url=desk.url, cookies={cookie["name"]: cookie["value"]}, timeout=PATIENCE
    ) as client:
        while waiting:
            url = waiting.popleft()
            name = names.get(urlsplit(url).path)
            if url in seen or name is None or len(found.get(name, ())) >= _OF_A_ROUTE:
                continue
            seen.add(url)
            answer = client.get(url, follow_redirects=True)
            assert answer.status_code == 200, f"{url}: {answer.status_code}"
            found.setdefault(name, []).append(url)
            waiting.extend(_targets(url, answer.text))
    return found


def _targets(url: str, text: str) -> Iterator[str]:
    reader = _Reader()
    reader.feed(text)
    for target in reader.targets:
        parts = urlsplit(urljoin(url, target))
        yield parts._replace(scheme="", netloc="", fragment="").geturl()


class _Reader(HTMLParser):
    """Links, and the forms that are sent by GET, with the fields that are filled in."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self._actions: list[str] = []
        self._fields: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        if tag == "a" and "href" in given:
            query = parse_qsl(urlsplit(given["href"]).query)
            if not _LEFT_OUT.intersection(key for key, _ in query):
                self.targets.append(given["href"])
        elif tag == "form" and given.get("method", "get") == "get" and "action" in given:
            self._actions.append(given["action"])
        elif tag == "button" and "formaction" in given:
            self._actions.append(given["formaction"])
        elif tag == "input" and given.get("name") == "q":
            self._fields.append(("q", SEARCHED))
        elif tag == "input" and given.get("value") and given.get("type") not in _CHOSEN:
            self._fields.append((given["name"], given["value"]))

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self.targets += [f"{action}?{urlencode(self._fields)}" for action in self._actions]
            self._actions, self._fields = [], []
