"""Pages that stay open: what changes is shown, and nothing that somebody is at is lost."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import expect

from ontologia import Session
from ontologia.cli.demo_shop import OrderPlaced
from ontologia.runtime.operator import Operator
from tests.browser.world import BOTH, NAMESPACE, Desk, await_update, live, row_of

pytestmark = pytest.mark.browser

CHARGE = "ontologia.cli.demo_shop:charge"


@pytest.fixture
def shop(uri: str) -> Iterator[Session]:
    """A program of the shop, beside the console."""
    with Session(uri, NAMESPACE) as session:
        yield session


@BOTH
@pytest.mark.each_database
def test_what_somebody_does_is_seen_in_another_browser(desk: Desk):
    mine, theirs = (live(desk.browse().page) for _ in range(2))
    expect(row_of(theirs, CHARGE)).not_to_contain_text("paused")

    row_of(mine, CHARGE).get_by_role("button", name="Pause").click()
    mine.get_by_role("dialog").get_by_role("button", name="Pause").click()

    expect(row_of(mine, CHARGE)).to_contain_text("paused")
    expect(row_of(theirs, CHARGE)).to_contain_text("paused")


def test_focus_stays_on_what_it_was_on_when_rows_come_before_it(desk: Desk, shop: Session):
    page = live(desk.browse().page, "/events")
    link = page.locator("tbody tr a.id").nth(2)
    target = link.get_attribute("href")
    link.focus()

    shop.commit(event=OrderPlaced(order_id="o-1"))

    await_update(page)
    assert page.locator("tbody tr a.id").nth(3).get_attribute("href") == target
    assert page.evaluate("() => document.activeElement.getAttribute('href')") == target


def test_what_is_open_typed_and_scrolled_to_stays(desk: Desk, shop: Session):
    watched = desk.browse(viewport={"width": 1280, "height": 400})
    page = watched.page
    page.goto("/dead-letters")
    page.locator("tbody tr a.id").first.click()
    live(page, page.url)
    details = page.locator("details").last
    details.locator("summary").click()
    scrolled = page.evaluate("() => { scrollTo(0, 300); return scrollY; }")
    assert scrolled > 0

    Operator(shop, "grace").pause(CHARGE)

    await_update(page)
    assert details.evaluate("(each) => each.open")
    assert page.evaluate("() => scrollY") == scrolled


def test_what_is_typed_into_a_field_stays(desk: Desk, shop: Session):
    page = live(desk.browse().page, "/events")
    box = page.get_by_role("searchbox", name="Filter, or an id")
    box.fill("state:dead")
    box.press("ArrowLeft")

    shop.commit(event=OrderPlaced(order_id="o-1"))

    await_update(page)
    expect(box).to_be_focused()
    expect(box).to_have_value("state:dead")
    assert box.evaluate("(each) => each.selectionStart") == len("state:dead") - 1


def test_times_are_utc_wherever_the_browser_is_and_local_when_pointed_at(desk: Desk):
    page = desk.browse(timezone_id="Asia/Kolkata", locale="en-GB").page
    page.goto("/events")
    time = page.locator("td time").first
    when = datetime.fromisoformat(time.get_attribute("datetime"))

    expect(time).to_have_text(f"{when:%Y-%m-%d %H:%M:%S}")
    time.hover()

    here = when.astimezone(ZoneInfo("Asia/Kolkata"))
    page.wait_for_function("() => document.querySelector('td time').title.includes('(here)')")
    assert f"{when:%H:%M:%S.%f} UTC\n" in time.get_attribute("title")
    assert f"{here:%H:%M:%S} GMT+5:30 (here)" in time.get_attribute("title")
