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
_OF_A_ROUTE = 3  # URLs


def pages_of(desk: Desk) -> dict[str, str]:
    """The paths of all pages, by the names of their routes, as the console has them."""
    routes: list[Route] = [each for module in app.PAGES for each in module.routes(desk.console)]
    routes += actions.routes(desk.console)
    return {each.name: each.path for each in routes if "GET" in (each.methods or ())}


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
        query = parse_qsl(parts.query)
        if not _LEFT_OUT.intersection(key for key, _ in query):
            yield parts._replace(scheme="", netloc="", query=urlencode(query), fragment="").geturl()


class _Reader(HTMLParser):
    """Links, and the forms that are sent by GET, with the fields that are filled in."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self._action: str | None = None
        self._actions: list[str] = []
        self._fields: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        if tag == "a" and "href" in given:
            self.targets.append(given["href"])
        elif tag == "form" and given.get("method", "get") == "get" and "action" in given:
            self._action = given["action"]
        elif tag == "input" and given.get("name") == "q":
            self._fields.append(("q", SEARCHED))
        elif tag == "input" and given.get("type") == "hidden":
            self._fields.append((given["name"], given["value"]))
        elif tag == "button" and "formaction" in given:
            self._actions.append(given["formaction"])

    def handle_endtag(self, tag: str) -> None:
        if tag != "form":
            return
        for action in (self._action, *self._actions) if self._action is not None else ():
            self.targets.append(f"{action}?{urlencode(self._fields)}")
        self._action, self._actions, self._fields = None, [], []
