"""The story of `ontologia demo`, told while it happens."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ontologia.cli import demo_shop
from ontologia.cli.demo_shop import Customer, Order, OrderPlaced, Placed
from ontologia.clock import SystemClock
from ontologia.config import OntologiaConfig
from ontologia.errors import OntologiaError
from ontologia.runtime.modules import load_module
from ontologia.runtime.observed import Attempt, observed
from ontologia.runtime.session import Session, core_of

_PAUSE = 0.6  # seconds between two lines, for whoever reads along
_LEAD = 5.0  # seconds that handlers work before the minute is full and the schedule fires
_FAST_LEAD = 1.0
_LIMIT = 150.0  # seconds; it takes a few, and a minute more where the start takes all of the lead
_ATTEMPTS = 3
_ORDERS = (
    ("ada", "Ada", "o-1", "a lamp", 4_900),
    ("bob", "Bob", "o-2", "a kettle", 3_500),
    ("cleo", "Cleo", "o-3", "a chair", 12_000),
)
_STYLES = {"fine": "green", "wrong": "yellow", "lost": "bold red", "head": "bold"}
Say = Callable[..., None]


class DemoClock(SystemClock):
    """The machine's time less up to a minute, so that the next full minute can be soon."""

    def __init__(self) -> None:
        self._behind = timedelta(minutes=1)

    def now(self) -> datetime:
        return super().now() - self._behind

    def leap(self, lead: float) -> None:
        """Go forward, to so many seconds before a minute is full."""
        now = self.now()
        into = now.second + now.microsecond / 1_000_000
        self._behind -= timedelta(seconds=(60 - lead - into) % 60)


@dataclass
class Told:
    """What the story came to."""

    orders: dict[str, str] = field(default_factory=dict[str, str])
    root_event: str = ""
    """The event that began the life of the first order."""
    dead_event: str = ""


class _Listener:
    """Tells of each attempt as it ends, and ends the run when all is told."""

    def __init__(self, session: Session, say: Say, pause: float) -> None:
        self._session = session
        self._say = say
        self._pause = pause
        self._missing = {"ship o-1", "ship o-2", "apologise", "count_stock"}
        self.dead_event = ""

    def tell(self, attempt: Attempt) -> None:
        time.sleep(self._pause)
        handler = attempt.handler.id.partition(":")[2]
        event: Any = attempt.context.event
        order = getattr(event, "order_id", "")
        what = f"  {handler:<12}{order:<5}"
        if attempt.error is None:
            self._say(f"{what} {self._done(handler, attempt)}", _STYLES["fine"])
            self._missing -= {f"{handler} {order}".strip()}
        elif attempt.context.attempt >= _ATTEMPTS:
            self.dead_event = event.id
            self._say(
                f"{what} failed at attempt {_ATTEMPTS}, its last: {attempt.error}. The event is "
                f"a dead letter now",
                _STYLES["lost"],
            )
        else:
            number = attempt.context.attempt
            self._say(
                f"{what} failed at attempt {number}: {attempt.error}. Again in a moment",
                _STYLES["wrong"],
            )
        if not self._missing:
            self._session.stop()

    def _done(self, handler: str, attempt: Attempt) -> str:
        commit = f"commit {attempt.context.commit_id}"
        number = attempt.context.attempt
        again = f", at attempt {number}" if number > 1 else ""
        return {
            "charge": f"paid, and announced as order.paid: both are {commit}{again}",
            "ship": f"shipped, {commit}",
            "apologise": f"dead letters are events, too: o-3 is on hold, {commit}",
            "count_stock": f"the minute is full, the schedule fired: parcels counted, {commit}",
        }[handler]


def tell(uri: str, namespace: str, say: Say, *, pauses: bool, mark: str) -> Told:
    """Live through the story on a new database at `uri`."""
    clock = DemoClock()
    config = OntologiaConfig(
        clock=clock, event_max_attempts=_ATTEMPTS, event_backoff_base_ms=250 if pauses else 10
    )
    shop = load_module(demo_shop.__name__)
    session = Session(
        uri,
        namespace,
        config=config,
        entity_types=shop.entity_types,
        relation_types=shop.relation_types,
        instance_metadata={"program": mark},
    )
    try:
        told = _placed(session, say, _PAUSE if pauses else 0.0)
        listener = _Listener(session, say, _PAUSE / 2 if pauses else 0.0)
        say(
            "\nHandlers work on the events: charge, ship, apologise and count_stock.",
            _STYLES["head"],
        )
        clock.leap(_LEAD if pauses else _FAST_LEAD)  # now: opening a store may take its time
        _run(session, observed(shop.handlers, listener.tell), shop.schedules)
        told.dead_event = listener.dead_event
        told.orders = {
            order.id: order.status for order in session.query().entities(Order).collect()
        }
        listed = ", ".join(f"{order} is {status}" for order, status in told.orders.items())
        say(
            f"\nAt the end: {listed}. {session.head} commits, nothing is forgotten.",
            _STYLES["head"],
        )
        return told
    finally:
        session.close()


def _placed(session: Session, say: Say, pause: float) -> Told:
    told = Told()
    say(
        f"A small shop, on {core_of(session).store.uri}, in the namespace {session.namespace}.\n",
        _STYLES["head"],
    )
    say("Three orders come in. Each is one transaction: the order, and the event about it.")
    for key, name, order_id, item, cents in _ORDERS:
        customer = Customer(id=key, name=name)
        order = Order(id=order_id, item=item, cents=cents)
        session.ensure([customer, order, Placed(left_key=key, right_key=order_id)])
        event = OrderPlaced(order_id=order_id)
        commit = session.commit(event=event)
        told.root_event = told.root_event or str(event.id)
        say(f"  {name:<12}{order_id:<5} {item}: commit {commit}, event order.placed")
        time.sleep(pause)
    return told


def _run(session: Session, handlers: list[Callable[..., Any]], schedules: list[Any]) -> None:
    """Until the listener has heard everything. The log is quiet: the story says what fails."""
    log = logging.getLogger("ontologia")
    level = log.level
    log.setLevel(logging.CRITICAL)
    too_long = threading.Timer(_LIMIT, session.stop)
    too_long.daemon = True
    too_long.start()
    try:
        session.run(handlers, schedules=schedules)
    finally:
        log.setLevel(level)
        if not too_long.is_alive():
            raise OntologiaError("the demo did not come to its end; the database stays as it is")
        too_long.cancel()
