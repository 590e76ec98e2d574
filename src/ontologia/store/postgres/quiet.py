"""The pool warns of every connection it loses and of every try to make another.

While a server is away that is several lines a second, and says less than what sessions say
themselves: a call raises, a run logs the beginning and the end. So the pool's warnings about
connections of ours are left out; those about other pools of the program are not.
"""

from __future__ import annotations

import logging

from ontologia.store.postgres.wire import Connection

PREFIX = "ontologia-"
"""What the names of our pools begin with."""


def _is_wanted(record: logging.LogRecord) -> bool:
    about = record.args[0] if isinstance(record.args, tuple) and record.args else None
    ours = isinstance(about, Connection) or str(about).startswith(PREFIX)
    return record.levelno != logging.WARNING or not ours


def hush() -> None:
    """Have it so from here on."""
    logging.getLogger("psycopg.pool").addFilter(_is_wanted)  # the same one once, however often
