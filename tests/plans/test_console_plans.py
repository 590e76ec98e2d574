"""No page of the console reads a growing table, whatever else is on it."""

from __future__ import annotations

import pytest

from tests.integration.console.world import browsing, opened
from tests.plans.test_view_plans import _BOUNDED, _SMALL, event_id, grow, shop

__all__ = ["shop"]

PAGES = (
    "/",
    "/events",
    "/events?filter=type:ordered",
    "/events?filter=c1",
    "/event?id=ID",
    "/dead-letters",
    "/handlers",
    "/handlers?handler=pay",
    "/sessions",
    "/audit",
    "/ask/pause?handler=pay",
    "/ask/retry?handler=pay",
    "/events?as_of=2",
)


@pytest.fixture
def browser(shop):
    app = opened(shop)
    with browsing(app) as browser:
        app.namespaces()  # kept for a minute
        yield browser
    app.close()


@pytest.mark.req("NEW-212")
@pytest.mark.parametrize("path", PAGES)
def test_no_page_reads_a_growing_table(browser, shop, watch, path):
    path = path.replace("ID", event_id(shop))

    plan = watch.plan(lambda: browser.get(path))

    assert plan, "the statements of a page were not seen"
    made = {step.split()[1] for step in plan if step.startswith(("CO-ROUTINE", "MATERIALIZE"))}
    scanned = {step for step in plan if step.startswith("SCAN ") and "CONSTANT" not in step}
    found = {step for step in scanned if step.split()[1] not in _SMALL | _BOUNDED | made}
    assert found <= {"SCAN deferred_events USING INDEX idx_deferred_due"}  # the first of them


@pytest.mark.req("NEW-212")
@pytest.mark.parametrize("path", [path for path in PAGES if path != "/audit"])
def test_a_page_costs_the_same_in_a_larger_store(browser, shop, watch, path):
    path = path.replace("ID", event_id(shop))
    grow(shop, 60)  # more than a page
    few = watch.work(lambda: browser.get(path))

    grow(shop, 300)

    assert few > 0
    assert watch.work(lambda: browser.get(path)) <= 1.3 * few
