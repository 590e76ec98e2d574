"""What an operator does when something fails, from the overview to the record of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from ontologia import HandlerContext, OntologiaConfig, Session, on_event
from ontologia.cli.demo_shop import Order, OrderPlaced
from tests.browser.world import BOTH, NAMESPACE, Desk
from tests.integration.running import running

pytestmark = pytest.mark.browser

PAPER = {"a lamp": "blue"}
REASON = "there is paper for harps now"


@contextmanager
def wrapping(uri: str, paper: dict[str, str]) -> Iterator[Session]:
    """A worker that wraps orders, as far as it knows how."""

    @on_event(OrderPlaced, name="wrap")
    def wrap(ctx: HandlerContext[OrderPlaced]) -> None:
        order: Any = ctx.get(Order, ctx.event.order_id)
        order.status = f"wrapped in {paper[order.item]}"
        ctx.ensure(order)
        ctx.commit()

    config = OntologiaConfig(event_max_attempts=2, event_backoff_base_ms=1)
    with (
        Session(uri, NAMESPACE, config=config, entity_types=[Order]) as session,
        running(session, [wrap], start="now"),
    ):
        yield session


def group(page: Page) -> Any:
    """The failures of this story, in the table of groups."""
    return page.get_by_role("region", name="By failure").get_by_role("row").filter(has_text="wrap")


@BOTH
@pytest.mark.each_database
def test_what_failed_is_found_understood_fixed_retried_and_recorded(desk: Desk, uri: str):
    page = desk.browse().page
    page.goto("/")

    # It fails, and the overview says so.
    with wrapping(uri, PAPER) as shop:
        page.get_by_role("region", name="Handlers").get_by_text("wrap").wait_for()
        shop.ensure(Order(id="o-6", item="a harp", cents=90_000))
        placed = shop.commit(event=OrderPlaced(order_id="o-6"))
        letters = page.get_by_role("region", name="Newest dead letters")
        expect(letters.get_by_role("row").filter(has_text="KeyError: 'a harp'")).to_be_visible()

    # The group says where, the attempt how and on what.
    page.get_by_role("link", name="All dead letters").click()
    expect(group(page)).to_contain_text("KeyError")
    expect(group(page)).to_contain_text("test_story.py")
    listed = page.get_by_role("region", name="Dead letters").get_by_role("row")
    listed.filter(has_text="a harp").get_by_role("link").first.click()
    event = page.url
    failed = page.get_by_role("region", name="Failed attempts").get_by_role("row")
    failed.nth(1).get_by_role("link", name=re.compile(r"^[12]$")).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("of wrap")
    expect(page.locator(".trace")).to_contain_text("paper[order.item]")

    # Why the order is as it is.
    page.get_by_role("searchbox", name="Search for an id").fill("o-6")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("o-6")
    expect(page.locator("#main")).to_contain_text("a harp")
    expect(page.get_by_role("link", name=str(placed), exact=True).first).to_be_visible()

    # It is fixed, and given back: a number first, then a reason.
    with wrapping(uri, PAPER | {"a harp": "gold"}):
        page.goto("/dead-letters")
        group(page).get_by_role("button", name="Retry").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("1 dead letter goes back")
        expect(dialog).to_contain_text("ontologia events retry")
        dialog.get_by_label("Reason").fill(REASON)
        dialog.get_by_role("button", name="Retry 1").click()
        expect(page.get_by_role("status").filter(has_text=REASON)).to_contain_text("1 retried")
        expect(group(page)).to_have_count(0)

        page.goto(event)
        claim = page.get_by_role("region", name="Handlers").get_by_role("row")
        expect(claim.filter(has_text="wrap")).to_contain_text(re.compile("done|acked"))

    # Who did it, and why, is on record.
    page.get_by_role("link", name="Audit").click()
    done = page.get_by_role("row").filter(has_text=REASON)
    expect(done).to_contain_text("ada@console")
    expect(done).to_contain_text("events retry")
    with Session(uri, NAMESPACE) as shop:
        [order] = shop.query().entities(Order).where(Order.id == "o-6").collect()
        assert order.status == "wrapped in gold"
        [record] = [
            each["metadata"]
            for each in shop.list_commits(limit=5)
            if each["metadata"].get("operator")
        ]
    assert record["via"] == "console"
    assert record["reason"] == REASON
    assert record["counts"] == {"retried": 1}
