"""Tests of the shop, with the fixtures that come with Ontologia: `python -m pytest orders`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ontologia import Session
from ontologia.commands import Env
from ontologia.queues import EventWorker
from ontologia.testing import ManualClock

from . import reactions
from .__main__ import open_the_shop
from .payments import Payments
from .shop import Product, carry_out


@pytest.fixture
def env(session: Session) -> Iterator[Env]:
    with Env(session, modules=[reactions]) as env:
        open_the_shop(env)
        yield env


@pytest.fixture(autouse=True)
def payments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Payments:
    service = Payments(tmp_path / "payments.jsonl")
    monkeypatch.setattr(reactions, "payments", service)
    return service


def place(env: Env, order_id: str, customer: str = "ada", product: str = "lamp") -> None:
    wish = {"id": order_id, "customer": customer, "product": product, "quantity": 1}
    carry_out(env, "order.place", wish)


def status(env: Env, order_id: str) -> str:
    return str(env.models["shop.order"].browse(order_id).read()[0]["status"])


def stock(env: Env, product: str) -> int:
    return int(env.models["shop.product"].browse(product).read()[0]["stock"])


def work(env: Env) -> None:
    """Handle what there is, in this thread, at the time that the clock shows."""
    EventWorker(env).run_until_empty()


def test_an_order_is_paid_and_shipped(env: Env, payments: Payments) -> None:
    place(env, "o1")

    work(env)

    assert (status(env, "o1"), stock(env, "lamp")) == ("shipped", 29)
    assert payments.booked() == {"o1": 2_900}


def test_a_lost_answer_costs_nothing(env: Env, clock: ManualClock, payments: Payments) -> None:
    place(env, "o5")

    work(env)
    assert (status(env, "o5"), payments.booked()) == ("placed", {"o5": 2_900})
    clock.advance(seconds=1)
    work(env)

    assert status(env, "o5") == "shipped"
    assert payments.booked() == {"o5": 2_900}


def test_what_is_not_paid_in_time_goes_back_on_the_shelf(env: Env, clock: ManualClock) -> None:
    place(env, "o1", customer="bob")

    work(env)
    clock.advance(seconds=30 * 60 - 1)
    work(env)
    assert (status(env, "o1"), stock(env, "lamp")) == ("placed", 29)
    clock.advance(seconds=1)
    work(env)

    assert (status(env, "o1"), stock(env, "lamp")) == ("cancelled", 30)
    [letter] = env.session.event_store.list_dead_letters("default")
    assert letter["last_error"] == "o1: the card has expired"


def test_money_that_came_too_late_goes_back(
    env: Env, payments: Payments, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(order_id: str, cents: int, card: str) -> str:
        receipt = Payments.charge(payments, order_id, cents, card)
        carry_out(env, "order.cancel", {}, order_id)  # the timer was faster
        return receipt

    monkeypatch.setattr(payments, "charge", slow)
    place(env, "o1")

    work(env)

    assert (status(env, "o1"), stock(env, "lamp")) == ("cancelled", 30)
    assert payments.booked() == {"o1": 0}


def test_twenty_who_want_the_last_three_desks_get_three(env: Env) -> None:
    def buy(number: int) -> bool:
        try:
            place(env, f"o{number}", product="desk")
        except ValueError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        sold = list(pool.map(buy, range(20)))

    assert (sum(sold), stock(env, "desk")) == (3, 0)


def test_an_order_that_is_sent_twice_is_one_order(env: Env) -> None:
    place(env, "o1")
    place(env, "o1")

    products = env.session.query().entities(Product).where(Product.id == "lamp")
    assert [each.stock for each in products.with_history().collect()] == [30, 29]
