"""What the pages show, and that nothing that was stored is more than text to them."""

from __future__ import annotations

import re
from html import unescape

import pytest

from ontologia.errors import ReadTimeoutError
from ontologia.runtime.views import events as views
from ontologia.web.console.pages import events, overview
from tests.integration.console.test_verbs import event_of

PAGES = ("/", "/events", "/dead-letters", "/handlers", "/sessions", "/audit")


def test_every_page_answers(desk, shop):
    for path in PAGES:
        page = desk.get(path)
        assert page.status_code == 200, path
        assert "<h1>" in page.text
        assert "style=" not in page.text
        assert not re.search(r"\son\w+=", page.text)
        assert not re.search(r"<script(?! src=)", page.text)


def test_the_overview_counts(desk, shop):
    text = desk.get("/").text
    assert '<span class="figure">3</span> <span>dead letters</span>' in text
    assert '<td data-label="Waiting" class="num">1</td>' in text


def test_an_event_has_all_that_became_of_it(desk, shop):
    text = desk.get("/event", params={"id": event_of(shop, "o-1")}).text
    assert "ValueError: o-1 owes us nothing" in text
    assert "Traceback" in text
    assert "in bill" in text
    assert 'data-state="dead_lettered"' in text
    assert 'data-state="acked"' in text


def test_numbers_are_shown_digit_by_digit(desk, shop):
    event_id = event_of(shop, "o-9")
    assert f'<span class="n">{2**53 + 1}</span>' in desk.get("/event", params={"id": event_id}).text
    plain = desk.get("/event/payload", params={"id": event_id})
    assert f'"amount":{2**53 + 1}' in plain.text
    assert plain.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize(
    ("text", "orders"),
    [
        ("type:placed", {"o-0", "o-1", "o-2", "o-3", "o-9"}),
        ("state:dead", {"o-1", "o-2", "o-3"}),
        ("handler:bill state:done", {"o-0"}),
        ("type:placed payload.order_id:o-2", {"o-2"}),
        ('type:placed payload.note:"<b>late</b>"', {"o-9"}),
        ("since:1h state:waiting handler:bill", {"o-9"}),
        ("type:other", set()),
    ],
)
def test_events_are_filtered(desk, shop, text, orders):
    page = desk.get("/events", params={"filter": text})
    assert page.status_code == 200
    shown = set(re.findall(r"/event\?id=([0-9a-f-]{36})", page.text))
    assert shown == {event_of(shop, each) for each in orders}


def test_a_search_that_takes_long_shows_what_it_found(desk, shop, monkeypatch):
    monkeypatch.setattr(events, "_SECONDS", 0)
    monkeypatch.setattr(views, "_PORTION", 2)
    page = desk.get("/events", params={"filter": "type:placed payload.order_id:o-3"})
    assert page.status_code == 200
    assert event_of(shop, "o-3") in page.text
    assert "it came back to" in page.text


@pytest.mark.parametrize(
    "text", ["state:no", "since:yesterday", "payload.a:b", 'type:"x', "a b", "type:" + "x" * 2_000]
)
def test_a_filter_that_cannot_be_read_says_so(desk, text):
    page = desk.get("/events", params={"filter": text})
    assert page.status_code == 400
    assert 'role="alert"' in page.text


def test_a_pasted_id_leads_to_what_has_it(desk, shop):
    event_id = event_of(shop, "o-0")
    answer = desk.get("/events", params={"filter": event_id})
    assert answer.headers["location"] == f"/event?id={event_id}"
    assert (
        desk.get("/events", params={"filter": "bill"}).headers["location"]
        == "/handlers?handler=bill"
    )
    assert "Nothing has the id" in desk.get("/events", params={"filter": "nothing"}).text


def test_the_next_page_goes_on(desk, shop):
    for number in range(60):
        shop.event_store.announce(
            shop.event_store.log.untyped_row(
                "other", f'{{"n":{number}}}', shop.namespace, priority=1
            )
        )
    first = desk.get("/events", params={"filter": "type:other"}).text
    link = unescape(re.search(r'rel="next" href="([^"]*)"', first)[1])
    second = desk.get(link).text
    ids = [set(re.findall(r"/event\?id=([0-9a-f-]{36})", each)) for each in (first, second)]
    assert [len(each) for each in ids] == [50, 10]
    assert not ids[0] & ids[1]
    assert "First page" in second


def test_links_keep_the_namespace_and_the_time(desk, shop):
    text = desk.get("/sessions?namespace=other&as_of=0").text
    links = [unescape(each) for each in re.findall(r'<li><a href="([^"]*)"', text)]
    assert links
    assert all("namespace=other" in each and "as_of=0" in each for each in links)
    assert "As of commit 0" in text
    assert "This page cannot show the past" in text
    assert " data-live" not in text


@pytest.mark.parametrize("as_of", ["x", "-1", "9999999999999999999999", "2026-13-01"])
def test_a_time_that_is_none_says_so(desk, as_of):
    assert desk.get("/", params={"as_of": as_of}).status_code in (200, 400)


def test_a_page_that_takes_too_long_says_so(desk, monkeypatch):
    def slow(session):
        raise ReadTimeoutError("app.db", 1.0)

    monkeypatch.setattr(overview.overview, "overview", slow)
    page = desk.get("/")
    assert page.status_code == 503
    assert "longer than a page may" in page.text
    assert page.headers["retry-after"] == "2"
    assert 'http-equiv="refresh"' in page.text
