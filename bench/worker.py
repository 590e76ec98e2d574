"""A process that runs a session, for the figures with several: `python -m bench.worker`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import orjson

from bench.orders import NOTHING, OrderPlaced, open_orders, unlimited
from ontologia import HandlerContext, on_event
from ontologia.store.events.claims import Claims


def main() -> None:
    what, path = sys.argv[1], Path(sys.argv[2])
    {"listen": _listen, "drain": _drain}[what](path)


def _say(value: Any) -> None:
    sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
    sys.stdout.buffer.flush()


def _listen(path: Path) -> None:
    """Default configuration; says when each handler started, and the time on the processor."""

    @on_event(OrderPlaced, name=NOTHING)
    def tell(ctx: HandlerContext[OrderPlaced]) -> None:
        started = time.monotonic_ns()
        _say([started, time.process_time_ns(), ctx.event.order_id])

    with open_orders(path) as session:
        session.run([tell])


def _drain(path: Path) -> None:
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

    Claims.claim = timed  # type: ignore[method-assign]
    with open_orders(path, unlimited()) as session:
        _say("open")
        sys.stdin.readline()
        session.run([count])
    _say({"handled": handled, "longest": max(waits), "claims": len(waits) - 1})


if __name__ == "__main__":
    main()
