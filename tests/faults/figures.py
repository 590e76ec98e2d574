"""What the tests have tried and lost, written down where `campaign` finds it."""

from __future__ import annotations

import json
import os

FILE = "ONTOLOGIA_TEST_FIGURES"
"""The variable that names a file of such lines; without it nothing is written."""

# What the troubles are tried against.
KEPT = "what returned is kept, and done once"
AGAIN = "what was refused left nothing, and can be done again"
FENCED = "who has lost a lease writes nothing"
STEADY = "work leaves nothing behind"


def tally(promise: str, trouble: str, *, tries: int, losses: int, **more: object) -> None:
    """Count so many tries to break a promise, and what was lost, doubled or broken by them.

    Called before a test asserts: so a loss is counted, too.
    """
    path = os.environ.get(FILE)
    if path is None:
        return
    # One write of one line: tests of several processes may do it at once.
    figures = {"promise": promise, "trouble": trouble, "tries": tries, "losses": losses, **more}
    line = json.dumps(figures) + "\n"
    descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
