"""The order system among the examples: what its demo shows, leaves behind, and survives."""

from __future__ import annotations

import json

import pytest

from ontologia_conformance.backends import NAMES
from tests.docs.applications import Application, assert_told, objects
from tests.integration.commands import invoke

pytestmark = pytest.mark.thorough
DECLINED = ("o7: the card has expired", "o13: the card has expired")


@pytest.fixture(scope="session", params=NAMES[:2])
def backend(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def app(tmp_path):
    return Application("orders", tmp_path)


def demo(uri):
    return "-m", "orders", "--datastore-uri", uri


def check(app, uri, open_session):
    """Whatever happened on the way: nothing is sold twice, nothing is paid twice."""
    orders = objects(uri, "shop.order")
    products = objects(uri, "shop.product")
    shipped = {key: each for key, each in orders.items() if each["status"] == "shipped"}
    cancelled = {key for key, each in orders.items() if each["status"] == "cancelled"}
    books = (app.folder / "payments.jsonl").read_text().splitlines()
    booked = [json.loads(line) for line in books]

    assert cancelled >= {"o7", "o13"}
    assert shipped.keys() | cancelled == orders.keys()
    paid = {key: each["cents"] for key, each in shipped.items()}
    for order in {each["order"] for each in booked} | paid.keys():
        # Booked once, and given back if it came too late.
        sums = [each["cents"] for each in booked if each["order"] == order]
        assert sum(sums) == paid.get(order, 0)
        assert len(sums) == (1 if order in paid else 2)
    for product, delivered in (("lamp", 30), ("desk", 3)):
        sold = sum(each["quantity"] for each in shipped.values() if each["product"] == product)
        assert products[product]["stock"] == delivered - sold
    assert open_session().event_store.check() == []


def test_twenty_orders_are_shipped_refused_or_cancelled(app, uri, open_session):
    lines = app.run(*demo(uri), errors=DECLINED)
    assert_told("orders", lines)

    assert "o16: refused, 1 desk wanted, 0 left" in lines
    assert "o7 was not paid in time: cancelled" in lines
    end = lines.index("Products:")
    assert lines[end : end + 7] == [
        "Products:",
        "desk: 0 left",
        "lamp: 9 left",
        "Orders:",
        "cancelled: 2, 116.00",
        "shipped: 16, 1,356.00",
        "For the operator, who would see them with `ontologia events dead-letters`:",
    ]
    assert set(lines[end + 7 : -5]) == {f"order.placed: {each}" for each in DECLINED}
    assert lines[-5:] == [
        "Why is o17 shipped?",
        next(line for line in lines if line.endswith("order.ship, for the event order.paid")),
        "How many lamps were there when o17 was placed?",
        "just before, as of commit 17: 10",
        "right after, as of commit 18: 8",
    ]
    check(app, uri, open_session)
    why = invoke("why", "shop.order", "o17", "--field", "status", "--datastore-uri", uri).stdout
    assert "handler worker:default, command order.ship, attempt 1" in why
    assert "for event order.paid" in why


@pytest.mark.parametrize("moment", ["o12: ada", "o10 is paid"])
def test_a_shop_that_is_killed_goes_on_where_it_was(app, uri, open_session, moment):
    app.killed_at(moment, *demo(uri))

    app.run(*demo(uri), errors=DECLINED)

    check(app, uri, open_session)


def test_an_order_is_placed_by_one_process_and_worked_on_by_another(app, uri):
    app.run(*demo(uri), "place", "o1", "ada", "lamp", "2")
    assert objects(uri, "shop.order")["o1"]["status"] == "placed"

    app.killed_at("o1 is paid", *demo(uri), "work")
    shown = app.run(*demo(uri), "show")

    assert shown[:3] == ["Products:", "desk: 3 left", "lamp: 28 left"]


def test_the_shop_passes_its_own_tests(app):
    app.passes_its_own_tests("orders")
