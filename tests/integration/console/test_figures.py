"""Charts on the pages: they begin with the first page, and end with the console."""

from __future__ import annotations

import re
import threading

import pytest
from markupsafe import escape

from ontologia import Event, Field, HandlerContext, Session, on_event
from ontologia.testing import ManualClock
from ontologia.web.console import figures
from tests.integration.console.conftest import Placed, bill, pack
from tests.integration.console.world import Browser, browsing, opened, table

pytestmark = [pytest.mark.req("NEW-241"), pytest.mark.each_database]
HOSTILE = '"><img src=x onerror=alert(1)></title>\u202e'


class Weighed(Event):
    grams: Field[int] = 1


@on_event(Weighed, name=HOSTILE)
def hostile(ctx: HandlerContext[Weighed]) -> None:
    """Has a name that is not to be trusted."""


def samplers() -> int:
    return sum(each.name == "ontologia-sampler" for each in threading.enumerate())


def test_charts_show_what_happened_since_the_first_page(
    shop: Session, desk: Browser, clock: ManualClock
) -> None:
    before = desk.get("/")
    assert before.text.count('<figure class="chart">') == 3
    assert f"since {clock.now():%H:%M} UTC" in before.text
    desk.console.samplers.of(shop).sample()
    shop.commit(event=Placed(order_id="o-10"))
    shop.run([bill, pack], max_iterations=10)
    desk.console.samplers.of(shop).sample()
    clock.advance(seconds=60)

    [minute] = table(desk.get("/"), "Events")
    assert minute["came"] == "1"
    [minute] = table(desk.get("/handlers", params={"handler": "bill"}), "Events of bill")
    assert (minute["came"], minute["done"], minute["failed"]) == ("1", "2", "0")
    rows = table(desk.get("/handlers"), "Handlers")
    assert [row["Done"].split()[0] for row in rows] == ["2", "2"]


def test_charts_show_the_time_that_is_chosen(
    shop: Session, desk: Browser, clock: ManualClock
) -> None:
    desk.get("/")
    shop.commit(event=Placed(order_id="o-10"))
    desk.console.samplers.of(shop).sample()
    clock.advance(seconds=4 * 3600)
    for minutes, came in (("60", {"0"}), ("360", {"0", "0.5"}), ("no", {"0"})):
        rows = table(desk.get("/", params={"minutes": minutes}), "Events")
        assert {row["came"] for row in rows} == came, minutes


def test_a_name_in_a_chart_is_text(open_session) -> None:
    session: Session = open_session(settings={"event_poll_interval_ms": 0})
    session.commit(event=Weighed())
    session.run([hostile], max_iterations=5)
    app = opened(session)
    with browsing(app) as desk:
        for url in ("/", "/handlers"):
            assert "<img" not in desk.get(url).text
        text = desk.get("/handlers", params={"handler": HOSTILE}).text
        assert f"Events of {escape(HOSTILE[:-1])}\\u202e" in text
        assert "<img" not in text
        assert "\u202e" not in "".join(re.findall(r"<figure.*?</figure>", text, re.DOTALL))
    app.close()


def test_samplers_are_bounded_and_end_with_the_console(
    open_session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "_MOST", 1)
    session, there = open_session(), open_session(namespace="elsewhere")
    for each in (session, there):
        each.commit(event=Placed(order_id="o"))
    app = opened(session)
    with browsing(app) as desk:
        before = samplers()
        assert 'class="chart"' not in desk.get("/?namespace=invented").text
        assert samplers() == before
        for _ in range(2):
            for url in ("/", "/handlers", "/?namespace=elsewhere"):
                desk.get(url)
                assert samplers() == before + 1
    app.close()
    assert samplers() == before
    app.samplers.of(session)
    assert samplers() == before
