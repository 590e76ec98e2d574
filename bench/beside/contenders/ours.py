"""Ontologia itself, on either database."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import ClassVar

from bench import orders
from bench.beside.contenders.bare import Bare
from bench.beside.contenders.bare_postgres import BareOnPostgres
from bench.beside.contenders.contender import OURS, Database, Fields, Handling, Producer, Queue
from bench.orders import (
    Order,
    OrderPaid,
    OrderPlaced,
    OrderShipped,
    announce_all,
    make_orders,
    open_orders,
    unlimited,
)
from bench.workload import NOTHING
from ontologia.runtime.context import HandlerContext
from ontologia.runtime.handlers import on_event
from ontologia.runtime.session import Session

_NOTES = (
    "A session, without the loop's rate limit. What a call stores is on the disk when it returns. "
    "Claims and acknowledgements are not synced: a power cut can lose the last of them, and "
    "their events are handled again; a killed process loses none. Every event, attempt and version "
    "of the state is kept. Handlers that change the state run in 8 threads."
)
_WORKERS = 8


class Ours(Queue):
    name = OURS
    database: ClassVar[Database] = "SQLite"
    notes = _NOTES
    left, changed = Bare.left, Bare.changed
    command = ("ontologia", "--help")

    def make(self, where: str) -> None:
        make_orders(where)

    @contextmanager
    def producing(self, where: str) -> Generator[Producer]:
        with open_orders(where) as session:
            yield _Commits(session)

    def work(self, where: str, handling: Handling) -> None:
        import_module(
            "ontologia.runtime.handler_engine"
        )  # as the others have imported theirs by now
        with open_orders(where, unlimited()) as session:
            handling.begin(session.stop)
            # Commits of several threads share syncs; a handler that does nothing has nothing to share.
            workers = _WORKERS if handling.kind == "book" else 1
            session.run(handlers(handling), workers=workers)

    def finish(self, where: str, count: int) -> None:
        orders.finish(Path(where), count, NOTHING)


class OursOnPostgres(Ours):
    database = "PostgreSQL"
    needs: ClassVar = {"psycopg": "psycopg", "psycopg_pool": "psycopg[pool]"}
    left, changed = BareOnPostgres.left, BareOnPostgres.changed

    def finish(self, where: str, count: int) -> None:
        orders.finish_on_postgres(where, count)


def handlers(handling: Handling) -> list[Callable[..., None]]:
    """One that does what is asked, and the two that go on when it announced something."""

    @on_event(OrderPlaced, name=NOTHING)
    def placed(ctx: HandlerContext[OrderPlaced]) -> None:
        def book(_: Fields) -> None:
            event = ctx.event
            ctx.ensure(Order(id=event.order_id, customer=event.customer, total=event.total))
            ctx.commit()

        def pay(_: Fields) -> None:
            ctx.emit(OrderPaid(**ctx.event.model_dump()))

        handling(vars(ctx.event) | {"step": 1} if chain else vars(ctx.event), book, pay)

    @on_event(OrderPaid, name="bench:paid")
    def paid(ctx: HandlerContext[OrderPaid]) -> None:
        def ship(_: Fields) -> None:
            ctx.emit(OrderShipped(**ctx.event.model_dump()))

        handling(vars(ctx.event) | {"step": 2}, ship, ship)

    @on_event(OrderShipped, name="bench:shipped")
    def shipped(ctx: HandlerContext[OrderShipped]) -> None:
        handling(vars(ctx.event) | {"step": 3}, _nothing, _nothing)

    chain = handling.kind == "chain"
    return [placed, paid, shipped] if chain else [placed]


def _nothing(_: Fields) -> None:
    """The last of a chain."""


class _Commits:
    def __init__(self, session: Session) -> None:
        self._session = session

    def each(self, rows: list[Fields]) -> None:
        for row in rows:
            self._session.commit(event=OrderPlaced(**_own(row)))

    def together(self, rows: list[Fields]) -> None:
        announce_all(self._session, map(_own, rows))


def _own(row: Fields) -> Fields:
    """In a chain the class of an event says which step it is."""
    return {n: value for n, value in row.items() if n != "step"} if "step" in row else row
