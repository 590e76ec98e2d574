"""A process of bare, or one that writes: `python -m bench.postgres.worker`."""

from __future__ import annotations

import os
import sys

from bench.postgres.contenders import Bare
from bench.processes import begin, say
from ontologia.bench.orders import Order, open_orders


def main() -> None:
    what, uri = sys.argv[1:]
    if what == "write":
        _write(uri)
    else:
        say({"handled": Bare().drain(uri)})


def _write(uri: str) -> None:
    """One `ensure` and one `commit` at a time, as many as the signal says."""
    with open_orders(uri) as session:
        for number in range(int(begin())):
            session.ensure(Order(id=f"{os.getpid()}-{number}", customer="c1", total=number + 0.5))
            session.commit()
        say("written")


if __name__ == "__main__":
    main()
