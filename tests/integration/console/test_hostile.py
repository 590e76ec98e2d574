"""Nothing that was stored, or is asked for, is more than text to the pages."""

from __future__ import annotations

import re

import pytest

from ontologia import Event, Field, on_event
from ontologia.runtime.operator import Operator
from ontologia_conformance.backends import SQLite
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
