"""The face of the shop: `python -m orders` shows a busy minute of it; `--help` tells the rest."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from ontologia import OntologiaConfig, Session
from ontologia.commands import Env
from ontologia.queues import EventWorker

from . import reactions
from .shop import Order, OutOfStock, Product, carry_out

CUSTOMERS = [
    {"id": "ada", "name": "Ada", "card": "4242"},
    {"id": "bob", "name": "Bob", "card": "expired"},
]
PRODUCTS = [
    {"id": "lamp", "cents": 2_900, "stock": 30},
    {"id": "desk", "cents": 24_900, "stock": 3},
]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m orders", description=__doc__)
    parser.add_argument("--datastore-uri", default="orders.db", help="SQLite file or postgresql://")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("demo", help="twenty orders, from the first to the last (the default)")
    place = commands.add_parser("place", help="order something")
    for name in ("order_id", "customer", "product"):
        place.add_argument(name)
    place.add_argument("quantity", type=int)
    commands.add_parser("work", help="handle what was announced, until Ctrl+C")
    commands.add_parser("show", help="products, orders, and what an operator should look at")
    chosen = parser.parse_args()

    # What a killed worker had at hand is free again after the lease: two to three times what the
    # slowest handler takes.
    config = OntologiaConfig(event_claim_lease_ms=3_000)
    with Session(chosen.datastore_uri, config=config) as session:
        env = Env(session, modules=[reactions])
        open_the_shop(env)
        if chosen.command == "place":
            order(env, chosen.order_id, chosen.customer, chosen.product, chosen.quantity)
        elif chosen.command == "work":
            EventWorker(env).run_forever()
        elif chosen.command == "show":
            show(env)
        else:
            demo(env)


def open_the_shop(env: Env) -> None:
    """Customers and products, unless they are there."""
    for key, records in (("shop.customer", CUSTOMERS), ("shop.product", PRODUCTS)):
        there = {record["id"] for record in env.models[key].search().read()}
        if new := [record for record in records if record["id"] not in there]:
            env.models[key].create(new)


def order(
    env: Env, order_id: str, customer: str, product: str, quantity: int, **options: float
) -> None:
    wish = {"id": order_id, "customer": customer, "product": product, "quantity": quantity}
    try:
        carry_out(env, "order.place", {**wish, **options})
        print(f"  {order_id}: {customer} orders {quantity} {product}")
    except OutOfStock as error:
        print(f"  {order_id}: refused, {error}")


def demo(env: Env) -> None:
    print("Twenty orders come in; those that are not paid within five seconds are cancelled:")
    for number in range(1, 21):
        customer = "bob" if number in (7, 13) else "ada"
        product = "desk" if number % 4 == 0 else "lamp"
        order(env, f"o{number}", customer, product, 1 + number % 2, pay_within=5.0)

    print("A worker takes them up:")
    with working(env):
        while not settled(env):
            time.sleep(0.05)
    show(env)

    print("Why is o17 shipped?")
    why = env.session.why(Order, "o17", "status")
    print(
        f"  commit {why.commit_id}: {why.metadata['command']}, for the event {why.causes[0].type}"
    )

    print("How many lamps were there when o17 was placed?")
    history = env.session.query().entities(Order).where(Order.id == "o17").with_history()
    placed = history.collect()[0].meta().commit_id
    lamps = env.session.query().entities(Product).where(Product.id == "lamp")
    for words, commit in (("just before", placed - 1), ("right after", placed)):
        print(f"  {words}, as of commit {commit}: {lamps.as_of(commit).collect()[0].stock}")


@contextmanager
def working(env: Env) -> Generator[None]:
    """A worker in a thread. In production it is a process: `ontologia worker orders.reactions`."""
    worker = EventWorker(env)
    thread = threading.Thread(target=worker.run_forever)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


def settled(env: Env) -> bool:
    """Whether every order has come to its end, and nothing waits for a worker."""
    if env.models["shop.order"].count([("status", "in", ["placed", "paid"])]):
        return False
    consumers = env.session.event_store.list_consumers(env.session.namespace)
    return not any(each["ready"] + each["claimed"] + each["backoff"] for each in consumers)


def show(env: Env) -> None:
    print("Products:")
    for product in env.models["shop.product"].search().read():
        print(f"  {product['id']}: {product['stock']} left")
    print("Orders:")
    by_status = env.models["shop.order"].read_group(
        group_by=["status"], aggregate={"orders": "count", "cents": "sum:cents"}
    )
    for group in by_status:
        print(f"  {group['status']}: {group['orders']}, {group['cents'] / 100:,.2f}")
    print("For the operator, who would see them with `ontologia events dead-letters`:")
    for letter in env.session.event_store.list_dead_letters(env.session.namespace):
        print(f"  {letter['type']}: {letter['last_error']}")


if __name__ == "__main__":
    main()
