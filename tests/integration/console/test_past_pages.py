"""Pages of the queue as it was say what the pages of that moment said."""

from __future__ import annotations

from datetime import datetime

import pytest

from ontologia import Session
from ontologia.clock import to_text
from ontologia.runtime.views import past
from ontologia.testing import ManualClock
from ontologia.web.console.pages import handlers
from tests.integration.console.conftest import Placed, bill, pack
from tests.integration.console.test_verbs import event_of
from tests.integration.console.world import Browser, browsing, opened, table

pytestmark = [pytest.mark.req("NEW-240"), pytest.mark.each_database]
QUEUE = ("Handler", "Waiting", "Claimed", "Failing")
FILTERS = ("", "type:placed", "handler:bill", "state:dead", "state:waiting", "since:45s")
FIELDS = ("Handler", "State", "Failed")


def queue(desk: Browser, **query: object) -> list[list[str]]:
    return [[row[name] for name in QUEUE] for row in table(desk.get("/", params=query), "Handlers")]


def events(desk: Browser, text: str, **query: object) -> list[tuple[str, str]]:
    page = desk.get("/events", params={"filter": text} | query)
    if "<caption" not in page.text:
        assert "No event" in page.text
        return []
    return [(row["Event"], row["State"]) for row in table(page, "Events")]


def claims(desk: Browser, event_id: str, **query: object) -> list[list[str]]:
    """What each handler did to an event, of those that began."""
    page = desk.get("/event", params={"id": event_id} | query)
    if "No handler has it" in page.text:
        return []
    found = [[row[name] for name in FIELDS] for row in table(page, "Handlers")]
    return [row for row in found if row[1] not in ("unclaimed", "waiting")]


@pytest.fixture
def story(open_session, clock: ManualClock) -> Session:
    session: Session = open_session(settings={"event_max_attempts": 1, "event_poll_interval_ms": 0})
    session.commit(event=Placed(order_id="o-0", amount=5))
    session.run([bill, pack], max_iterations=5)
    return session


def test_pages_of_a_moment_say_what_they_said_then(story: Session, clock: ManualClock) -> None:
    told: list[tuple[datetime, object]] = []

    def tell() -> None:
        clock.advance(seconds=20)
        ids = [event_of(story, f"o-{number}") for number in range(emitted)]
        said = (
            queue(desk),
            {text: events(desk, text) for text in FILTERS},
            {each: claims(desk, each) for each in ids},
        )
        told.append((clock.now(), said))
        clock.advance(seconds=20)

    app = opened(story)
    with browsing(app) as desk:
        emitted = 1
        tell()
        for amount in (-1, 7, 0):
            story.commit(event=Placed(order_id=f"o-{emitted}", amount=amount))
            emitted += 1
            tell()
            story.run([bill] if amount > 0 else [bill, pack], max_iterations=10)
            tell()
        for at, said in told:
            then = {"as_of": to_text(at)}
            overview, lists, details = said  # type: ignore[misc]
            assert queue(desk, **then) == overview, at
            assert {text: events(desk, text, **then) for text in FILTERS} == lists, at
            for event_id, told_claims in details.items():
                assert claims(desk, event_id, **then) == told_claims, (at, event_id)
            listed = table(desk.get("/handlers", params=then), "Handlers")
            assert [[row[name] for name in QUEUE] for row in listed] == overview
    app.close()


def test_a_commit_names_a_moment_and_0_is_before_all(shop: Session, desk: Browser) -> None:
    first = event_of(shop, "o-0")
    found = desk.get("/event", params={"id": first, "as_of": 1})
    assert "As of commit 1" in found.text
    assert "This page cannot show the past" not in found.text
    assert "What is not known of the past" in found.text
    assert past.LIMITS[1] in found.text
    assert events(desk, "", as_of=0) == []
    unborn = desk.get("/event", params={"id": first, "as_of": 0})
    assert unborn.status_code == 404
    assert "had not come by then" in unborn.text


def test_the_past_is_not_changed(shop: Session, desk: Browser, clock: ManualClock) -> None:
    dead = event_of(shop, "o-1")
    for url in (f"/event?id={dead}", "/", "/handlers", "/handlers?handler=bill", "/dead-letters"):
        assert 'class="verb"' in desk.get(url).text or "Retry the chosen" in desk.get(url).text
        page = desk.get(
            f"{url}{'&' if '?' in url else '?'}as_of={clock.now():%Y-%m-%dT%H:%M:%S.%f}"
        )
        assert page.status_code == 200
        assert 'class="verb"' not in page.text
        assert "Retry the chosen" not in page.text
    assert "Dead letters are listed as they are now" in page.text
    assert "This page cannot show the past" in page.text


def test_a_handler_that_was_not_there_is_not_found(shop: Session, desk: Browser) -> None:
    then = {"as_of": shop.head}
    assert desk.get("/handlers", params={"handler": "bill"} | then).status_code == 200
    assert desk.get("/handlers", params={"handler": "no"} | then).status_code == 404


def test_a_search_that_ended_early_says_how_far_it_came(
    shop: Session, desk: Browser, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "_SECONDS", 0)
    monkeypatch.setattr(past, "_PORTION", 2)
    page = desk.get("/", params={"as_of": to_text(clock.now())})
    assert "Searched back to" in page.text
    assert 'class="num">1+<' in page.text
