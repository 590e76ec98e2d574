"""Every page of the console: in light and dark, wide and narrow, and without JavaScript.

Which pages there are is asked of the console; their URLs are found by following its links.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser

from ontologia.runtime.views.reading import ReadingSession
from ontologia_conformance.tiers import QUICK, TIER
from tests.browser import axe
from tests.browser.crawl import crawl, pages_of
from tests.browser.world import NAMESPACE, NARROW, WIDE, Desk, Watched, serving

pytestmark = pytest.mark.browser

LOOKS = [
    (scheme, size)
    for scheme, size in (("light", WIDE), ("dark", NARROW), ("dark", WIDE), ("light", NARROW))
]


class Tour(NamedTuple):
    """A console that nobody changes, and URLs of all its pages."""

    desk: Desk
    found: dict[str, list[str]]


@pytest.fixture(scope="module")
def tour(chromium: Browser, told: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tour]:
    path = shutil.copy(told, tmp_path_factory.mktemp("tour") / "shop.db")
    with (
        ReadingSession(f"sqlite:///{path}", NAMESPACE) as session,
        serving(session, chromium, models="ontologia.cli.demo_shop") as desk,
    ):
        health = desk.browse().page
        health.goto("/health")
        health.get_by_role("button", name="Examine the store").click()
        health.get_by_role("button", name="Count and repair…").wait_for()
        assert desk.close_pages() == []
        yield Tour(desk, crawl(desk))


def faults(watched: Watched, url: str) -> list[str]:
    """What is wrong with a page."""
    page = watched.page
    answer = page.goto(url)
    assert answer is not None
    if not answer.headers["content-type"].startswith("text/html"):
        return watched.take_complaints()
    wide, room = page.evaluate(
        "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    found = [] if wide <= room else [f"{wide} px wide, where there are {room}"]
    if page.locator("h1").count() != 1:
        found.append("not one heading")
    found += watched.take_complaints()  # before axe, which is none of the console's own
    return [f"{url}: {each}" for each in found + axe.violations(page)]


def test_every_page_is_found_by_following_links(tour: Tour):
    assert set(pages_of(tour.desk)) == set(tour.found)


def test_axe_is_as_it_was_published():
    # package/axe.min.js of https://registry.npmjs.org/axe-core/-/axe-core-4.14.1.tgz
    published = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
    assert hashlib.sha256(axe.SCRIPT.read_bytes()).hexdigest() == published
    assert "Mozilla Public License" in (axe.HERE / "LICENSE.txt").read_text()


@pytest.mark.sampled
@pytest.mark.parametrize(("scheme", "size"), LOOKS, ids=["light", "dark, narrow", "dark", "narrow"])
def test_pages_fit_are_accessible_and_complain_about_nothing(tour: Tour, scheme, size):
    """In `make test` one URL of each page, in one of the four looks."""
    urls = [url for found in tour.found.values() for url in found]
    if TIER == QUICK:
        urls = [found[0] for found in tour.found.values()][
            LOOKS.index((scheme, size)) :: len(LOOKS)
        ]
    watched = tour.desk.browse(color_scheme=scheme, viewport=size)

    wrong = [each for url in (*urls, "/login") for each in faults(watched, url)]

    assert not wrong, "\n".join(wrong)


def test_the_page_of_an_error_fits_and_is_accessible(tour: Tour):
    watched = tour.desk.browse(color_scheme="dark", viewport=NARROW)

    answer = watched.page.goto("/no/such/page")

    assert answer.status == 404
    assert watched.take_complaints()[0].startswith("status 404")
    assert [each for each in faults(watched, "/no/such/page") if "404" not in each] == []


def test_a_page_that_breaks_its_promises_is_noticed(tour: Tour):
    """The tests above would be worth nothing otherwise."""
    watched = tour.desk.browse()
    watched.page.goto("/")

    watched.page.evaluate(
        """() => {
          const style = document.createElement("style");
          style.textContent = "h1 { color: red }";
          document.head.append(style);
          const image = document.createElement("img");
          image.src = "http://127.0.0.1:9/x.png";
          document.body.append(image);
          console.error("oh");
        }"""
    )
    watched.page.wait_for_function("() => document.images[0].complete")

    found = watched.take_complaints()
    assert any("style-src" in each for each in found)
    assert any("img-src" in each for each in found)
    assert any("error: oh" in each for each in found)
    assert any(each.startswith("image-alt") for each in axe.violations(watched.page))
