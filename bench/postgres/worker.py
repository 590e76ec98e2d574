"""A process of a contender, or one that writes: `python -m bench.postgres.worker`."""

from __future__ import annotations

import os
import sys

from bench.orders import Order, open_orders
from bench.postgres.contenders import Bare, HasDrain
from bench.worker import begin, say


def main() -> None:
    what, uri = sys.argv[1:]
    if what == "write":
        _write(uri)
    else:
        say({"handled": _contender(what).drain(uri)})


def _contender(name: str) -> HasDrain:
    if name == Bare.name:
        return Bare()
    from bench.postgres.rivals import PgQueuer, Procrastinate

    return {each.name: each() for each in (Procrastinate, PgQueuer)}[name]


def _write(uri: str) -> None:
    """One `ensure` and one `commit` at a time, as many as the signal says."""
    with open_orders(uri) as session:
        for number in range(int(begin())):
            session.ensure(Order(id=f"{os.getpid()}-{number}", customer="c1", total=number + 0.5))
            session.commit()
        say("written")


if __name__ == "__main__":
    main()
