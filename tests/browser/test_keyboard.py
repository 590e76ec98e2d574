"""The console by keyboard alone, and without JavaScript."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.crawl import crawl
from tests.browser.world import Desk

pytestmark = pytest.mark.browser

CHARGE = "ontologia.cli.demo_shop:charge"


def path_of(page: Page) -> str:
    return str(page.evaluate("() => location.pathname"))


def test_the_first_key_leads_past_the_navigation(desk: Desk):
    page = desk.browse().page
    page.goto("/")

    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")

    expect(page.locator("#main")).to_be_focused()


def test_keys_lead_to_pages_rows_the_search_and_their_list(desk: Desk):
    page = desk.browse().page
    page.goto("/")

    page.keyboard.type("gd")
    expect(page.get_by_role("heading", name="Dead letters", level=1)).to_be_visible()
    page.keyboard.type("ge")
    expect(page.get_by_role("heading", name="Events", level=1)).to_be_visible()

    links = page.locator("#main tbody tr td:first-child a")
    page.keyboard.press("j")
    expect(links.nth(0)).to_be_focused()
    page.keyboard.press("j")
    expect(links.nth(1)).to_be_focused()
    page.keyboard.press("k")
    expect(links.nth(0)).to_be_focused()

    page.keyboard.press("/")
    expect(page.locator("input[type=search]:focus")).to_be_visible()
    page.keyboard.type("gd")  # is typed, and leads nowhere
    expect(page.locator("input[type=search]:focus")).to_have_value("gd")
    page.keyboard.press("Tab")

    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="order.placed")).to_be_visible()
    assert path_of(page) == "/event"


def test_a_verb_is_done_by_keyboard_and_focus_comes_back(desk: Desk):
    page = desk.browse().page
    page.goto("/")
    row = page.get_by_role("region", name="Handlers").get_by_role("row").filter(has_text=CHARGE)
    button = row.get_by_role("button", name="Pause")
    button.focus()

    page.keyboard.press("Enter")
    expect(page.get_by_label("Reason")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Reason")).to_be_focused()
    page.keyboard.type("the bank is closed")
    page.keyboard.press("Enter")

    expect(page.get_by_role("status").filter(has_text="the bank is closed")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text=CHARGE).first).to_contain_text("paused")


def test_the_theme_that_was_switched_to_stays(desk: Desk):
    page = desk.browse(color_scheme="light").page
    page.goto("/")
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)

    page.get_by_role("button", name="Switch between light and dark").click()
    dark = page.evaluate(ground)
    page.reload()

    assert dark != light
    assert page.evaluate(ground) == dark


@pytest.mark.thorough
def test_without_javascript_every_page_is_there(desk: Desk):
    page = desk.browse(java_script_enabled=False).page

    for url in (url for found in crawl(desk).values() for url in found):
        answer = page.goto(url)
        assert answer is not None
        assert answer.status == 200, url
        if answer.headers["content-type"].startswith("text/html"):
            expect(page.locator("h1")).to_be_visible()


def test_without_javascript_a_dead_letter_is_retried(desk: Desk):
    page = desk.browse(java_script_enabled=False).page
    page.goto("/dead-letters")

    group = page.get_by_role("region", name="By failure").get_by_role("row").nth(1)
    group.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("heading", name=re.compile("^Confirm"))).to_be_visible()
    page.get_by_label("Reason").fill("another card")
    page.get_by_role("button", name="Retry 1").click()

    assert path_of(page) == "/dead-letters"
    expect(page.get_by_role("status").filter(has_text="another card")).to_contain_text("1 retried")
    expect(page.get_by_text("There are no dead letters.")).to_be_visible()
    page.get_by_role("link", name="Audit").click()
    expect(page.get_by_role("row").filter(has_text="another card")).to_contain_text("ada@console")


def test_somebody_signs_in_by_the_one_time_url_and_out(desk: Desk):
    page = desk.browse(signed_in=False).page
    page.goto(desk.console.login_path())

    expect(page.get_by_label("Your name")).to_be_focused()
    page.keyboard.type("ada")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()

    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto("/")
    assert path_of(page) == "/login"
