"""A process that runs a session, for the figures with several: `python -m bench.goals.worker`."""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.orders import Order, OrderPlaced, open_orders, unlimited
from bench.processes import Worker, begin, say, stop_on_sigterm
from bench.workload import NAP, NOTHING
from ontologia import HandlerContext, on_event
from ontologia.store.events.claims import Claims


def launch(what: str, where: str | Path) -> Worker:
    """A process that does `what`, one of those below, on this store."""
    return Worker("bench.goals.worker", what, str(where))


def main() -> None:
    what, where = sys.argv[1:]
    {"listen": _listen, "drain": _drain, "nap": _nap, "write": _write}[what](where)


def _listen(where: str) -> None:
    """Default configuration; says when each handler started, and the time on the processor."""

    @on_event(OrderPlaced, name=NOTHING)
    def tell(ctx: HandlerContext[OrderPlaced]) -> None:
        started = time.monotonic_ns()
        say([started, time.process_time_ns(), ctx.event.order_id])

    with open_orders(where) as session:
        session.run([tell])


def _drain(where: str, *, nap: float = 0) -> None:
    """No rate limit; starts at a signal, and says at the end how it fared."""
    handled = 0
    waits = [0.0]
    claim = Claims.claim

    def timed(*args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return claim(*args, **options)
        finally:
            waits.append(time.perf_counter() - started)

    @on_event(OrderPlaced, name=NOTHING)
    def count(ctx: HandlerContext[OrderPlaced]) -> None:
        nonlocal handled
        handled += 1
        if nap:
            time.sleep(nap)

    Claims.claim = timed  # type: ignore[method-assign]
    import_module("ontologia.runtime.handler_engine")  # by the first run, and no part of any other
    with open_orders(where, unlimited()) as session:
        stop_on_sigterm(session.stop)
        begin()
        session.run([count])
    say({"handled": handled, "longest": max(waits), "claims": len(waits) - 1})


def _nap(where: str) -> None:
    """The same with a handler that waits for something."""
    _drain(where, nap=NAP)


def _write(where: str) -> None:
    """One `ensure` and one `commit` at a time, as many as the signal says."""
    with open_orders(where) as session:
        for number in range(int(begin())):
            session.ensure(Order(id=f"{os.getpid()}-{number}", customer="c1", total=number + 0.5))
            session.commit()
        say("written")


if __name__ == "__main__":
    main()
