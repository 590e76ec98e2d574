"""Nothing that was stored, or is asked for, is more than text to the pages."""

from __future__ import annotations

import re
from html import unescape

import pytest

from ontologia import Entity, Event, Field, on_event
from ontologia.runtime.operator import Operator
from ontologia.runtime.views.graph import Graph, Node
from ontologia.web.console import live
from ontologia.web.console.actions import command_line
from ontologia.web.console.graph_svg import draw
from ontologia.web.console.rendering import visible
from ontologia_conformance.backends import SQLite
from tests.integration.console.conftest import Order
from tests.integration.console.test_pages import PAGES
from tests.integration.console.test_verbs import hidden
from tests.integration.console.world import browsing, opened


@pytest.fixture(scope="session")
def backend(sqlite: SQLite) -> SQLite:
    """Pages are made from the same views on every database."""
    return sqlite


EVIL = (
    '"><img src=x onerror=alert(1)>',
    "</script><script>alert(1)</script>",
    "javascript:alert(1)",
    "' onmouseover='alert(1)",
    "{{ 7*7 }}{% raw %}",
    "\u202etxt.exe\u202c",
)


@pytest.mark.parametrize("path", [*PAGES, "/event", "/ask/pause", "/ask/retry", "/ask/cancel"])
def test_parameters_may_be_anything(desk, path):
    names = ("id", "handler", "type", "before", "filter", "namespace", "as_of", "since", "group")
    for name in (*names, "letter", "operator", "done", "error"):
        for value in ("../..", "\x00", "a" * 3_000, "\U0001f980"):
            answer = desk.get(path, params={name: value})
            assert answer.status_code < 500, (name, value, answer.text)
    assert desk.get(f"{path}?id=%ff&before=%80&namespace=%ed%a0%80").status_code < 500


@pytest.fixture
def evil(open_session):
    """A store in which every text is an attack."""
    session = open_session(settings={"event_max_attempts": 1, "event_poll_interval_ms": 0})
    for number, text in enumerate(EVIL):
        kind = type(f"Evil{number}", (Event,), {"__annotations__": {"note": Field[str]}}, name=text)

        @on_event(kind, name=f"h{text}")
        def fail(ctx, text=text):
            raise ValueError(text)

        session.commit(event=kind(note=text))
        session.run([fail], max_iterations=5)
        operator = Operator(session, f"op{text}", reason=f"why {text}", via=f"via {text}")
        operator.emit(text, {text: {text: text}}, dedup_key=text)
        operator.pause(f"h{text}")
    return session


@pytest.mark.req("NEW-218")
def test_what_is_stored_is_text_to_every_page(evil):
    app = opened(evil, label='"><script>', identify=None, token="x" * 20)
    with browsing(app) as browser:
        browser.post("/login", {"token": "x" * 20, "name": '"><img src=x>'})
        paths = list(PAGES)
        paths += [
            f"/event?id={each['id']}" for each in evil.event_store.list_events("default", limit=100)
        ]
        seen = ""
        for path in paths:
            page = browser.get(path)
            assert page.status_code == 200, path
            seen += page.text
        for text in EVIL:
            for verb, name in (
                ("pause", "handler"),
                ("retry", "handler"),
                ("cancel", "id"),
                ("emit", "payload"),
            ):
                page = browser.get(f"/ask/{verb}", params={name: f"h{text}", "type": text})
                seen += page.text
                page = browser.get("/handlers", params={"handler": f"h{text}"})
                assert page.status_code == 200
                seen += page.text
            page = browser.get("/events", params={"filter": f"zz{text}"})
            seen += page.text
    app.close()
    assert "<img" not in seen
    assert "<script>" not in seen
    assert "javascript:alert(1)" in seen  # as text
    assert not re.search(r'(href|action|src)="javascript', seen)
    assert not re.search(r"<[^>]*'\s*onmouseover", seen.replace("&#39;", ""))
    shown = re.sub(r'<input type="hidden"[^>]*>|<option[^>]*>', "", seen)
    assert "\u202e" not in shown
    assert "\\u202etxt.exe" in shown
    assert "{{ 7*7 }}" in shown


def test_hidden_fields_come_back_as_they_are(evil):
    """A handler whose name turns text around is paused under its own name."""
    app = opened(evil)
    with browsing(app) as browser:
        for text in EVIL:
            page = browser.get("/ask/resume", params={"handler": f"h{text}"})
            answer = browser.post("/do/resume", hidden(page))
            assert answer.status_code == 303, answer.text
    app.close()


@pytest.mark.req("NEW-218")
def test_what_is_redacted_is_shown_nowhere(shop):
    operator = Operator(shop, "ada", reason="r")
    made = operator.emit("secretive", {"card": "4111", "deep": [{"Card": {"n": "4111"}}], "ok": 7})
    app = opened(shop, redact=["card"])
    with browsing(app) as browser:
        for path in (f"/event?id={made.event_id}", f"/event/payload?id={made.event_id}", "/audit"):
            page = browser.get(path)
            assert "4111" not in page.text
            assert page.status_code == 200
        assert "hidden here" in browser.get(f"/event?id={made.event_id}").text
        probe = browser.get("/events", params={"filter": "type:secretive payload.card:4111"})
        assert probe.status_code == 400
        probe = browser.get("/events", params={"filter": "type:secretive payload.deep.CARD.n:4111"})
        assert probe.status_code == 400
    app.close()


def test_a_long_payload_is_clipped_and_whole_as_text(desk, shop):
    text = "x" * 900_000
    made = Operator(shop, "ada").emit("large", {"text": text})
    page = desk.get("/event", params={"id": made.event_id})
    assert len(page.text) < 60_000
    assert "characters in all" in page.text
    assert text in desk.get("/event/payload", params={"id": made.event_id}).text


@pytest.mark.parametrize("path", ["/objects?type=Order&{}", "/events?{}", "/ask/pause?{}"])
def test_a_page_takes_so_many_parameters(desk, path):
    many = "&".join(f"x=id+eq+{n}" for n in range(101 - path.count("=")))
    answer = desk.get(path.format(many))
    assert answer.status_code == 400
    assert "at most 100 parameters, got 101" in answer.text


def test_a_list_takes_so_many_filters_and_builds_no_page_of_more(desk):
    filters = [f"id ne {n}" for n in range(21)]
    answer = desk.get("/objects", params={"type": "Order", "filter": filters})
    assert answer.status_code == 400
    assert "at most 20 filters, got 21" in answer.text
    assert "/objects?" not in answer.text
    assert desk.get("/objects", params={"type": "Order", "filter": filters[:20]}).status_code == 200
    answer = desk.get("/events", params={"filter": "type:x " + "payload.a:1 " * 21})
    assert (answer.status_code, "at most 20" in answer.text) == (400, True)
    words = " ".join(f"x{n}:1" for n in range(21))
    answer = desk.get("/commits", params={"filter": words})
    assert (answer.status_code, "at most 20" in answer.text) == (400, True)


@pytest.mark.parametrize("end", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"])
def test_times_at_the_ends_of_the_calendar_are_refused(desk, end):
    for path, query in (
        ("/events", {"as_of": end}),
        ("/objects", {"type": "Order", "as_of": end}),
        ("/events", {"filter": f"since:{end}"}),
        ("/ask/cleanup", {"before": "1d", "until": end}),
    ):
        assert desk.get(path, params=query).status_code == 400, path


class Person(Entity):
    __open__ = True
    id: Field[str] = Field(primary_key=True)
    profile: Field[dict[str, object]] = Field(default_factory=dict)


@pytest.fixture
def people(open_session):
    """Keys with dots, and reasons, that are redacted."""
    session = open_session()
    for n in range(2):
        profile = {"user.email": f"hush-{n}", "deep": {"user.email": f"hush-{n}"}, "n": n}
        session.ensure(Person(id="p", profile=profile, **{"user.email": f"hush-{n}"}))
        session.commit()
    return session


def test_redacted_keys_may_have_dots(people):
    app = opened(people, redact=["User.Email"])
    with browsing(app) as browser:
        for path in (
            "/commit?id=1",
            "/commit?id=2",
            "/object?type=Person&key=p",
            "/object?type=Person&key=p&a=1&b=2",
            "/objects?type=Person",
        ):
            page = browser.get(path)
            assert page.status_code == 200, path
            assert "hush" not in page.text, path
        page = browser.get("/commit?id=2")
        assert "profile.deep.user.email" in page.text
        for path in ("user.email", "profile.user.email", "profile.deep.user.email.x"):
            query = {"type": "Person", "filter": f"{path} eq hush-1"}
            page = browser.get("/objects", params=query)
            assert (page.status_code, "is hidden here" in page.text) == (400, True), path
    app.close()


def test_what_holds_a_redacted_value_is_not_compared_or_sorted_as_a_whole(people):
    made = Operator(people, "ada").emit("noted", {"deep": {"card": "4111"}, "list": [1]})
    query = {"type": "Person", "order": "profile"}
    app = opened(people, redact=["card", "user.email"])
    with browsing(app) as browser:
        for order in ("profile", "profile.deep:desc"):
            page = browser.get("/objects", params=query | {"order": order})
            assert (page.status_code, "is not sorted by" in page.text) == (400, True)
        assert browser.get("/objects", params=query | {"order": "id:desc"}).status_code == 200
        for words in ("contains hush", "startswith {", 'ge "{"', "ilike %hush%"):
            answers = [
                browser.get("/objects", params={"type": "Person", "filter": f"{path} {words}"})
                for path in ("profile", "profile.deep")
            ]
            assert all('href="/object?' not in each.text for each in answers), words
        text = 'type:noted payload.deep:"{\\"card\\":\\"4111\\"}"'
        page = browser.get("/events", params={"filter": text})
        assert (page.status_code, "whole object" in page.text) == (400, True)
    app.close()
    app = opened(people)
    with browsing(app) as browser:
        assert browser.get("/objects", params=query).status_code == 200
        page = browser.get("/events", params={"filter": text})
        assert made.event_id in page.text
    app.close()


@pytest.mark.parametrize("key", ["reason", "counts", "arguments", "action"])
def test_what_is_redacted_of_a_commit_is_hidden_in_notices_and_the_audit(shop, key):
    operator = Operator(shop, "ada", reason="hush", via="console")
    operator.pause("pack")
    app = opened(shop, redact=[key])
    with browsing(app) as browser:
        for path in ("/audit", f"/handlers?done={operator.recorded[0]}"):
            page = browser.get(path)
            assert page.status_code == 200
            assert ("hush" not in page.text) == (key == "reason"), path
        assert browser.get("/audit?operator=ada").status_code == 200
    app.close()
    app = opened(shop, redact=["operator"])
    with browsing(app) as browser:
        assert browser.get("/audit?operator=ada").status_code == 400
    app.close()


def test_streams_are_of_namespaces_that_can_be_and_of_so_many(desk, caplog, monkeypatch):
    for name in ("\x00", "a" * 3_000):
        assert desk.get("/live", params={"namespace": name}).status_code == 400
    monkeypatch.setattr(live, "_MOST_FOLLOWERS", 0)
    assert desk.get("/live", params={"namespace": "other"}).status_code == 503
    assert not caplog.records


def test_characters_that_cannot_be_seen_are_written_out():
    unseen = "\xad\u180e\u200c\u200d\u2028\u2029\u2060\u206f\ufff9\U000e0041\u115f\u3164\uffa0"
    shown = visible(f"a{unseen}é")
    assert shown.isascii() is False
    assert shown.startswith("a\\u00ad\\u180e\\u200c\\u200d\\u2028\\u2029\\u2060\\u206f\\ufff9")
    assert shown.endswith("\\U000e0041\\u115f\\u3164\\uffa0é")


def test_a_graph_shows_no_character_that_cannot_be_seen():
    told = Node("handler", "h", "h\x1b\u202e", state="dead\x07lettered")
    root = Node("event", "e", "t\x1b\u200d" + "x" * 10, event_id="e", children=[told])
    drawn = str(draw(Graph("e", (root,), ()), lambda _: None))
    assert not set("\x1b\x07\u200d\u202e") & set(drawn)
    assert "\\u001b\\u202e" in drawn


def test_a_command_that_is_copied_takes_any_key_and_filter(desk, shop):
    shop.ensure(Order(id="-rf"))
    shop.commit()
    assert "ontologia why -- Order -rf" in unescape(desk.get("/object?type=Order&key=-rf").text)
    said = command_line(("query", "entities"), ["Order"], [("--filter", "-x eq 1")])
    assert said == "ontologia query entities '--filter=-x eq 1' Order"
