"""`python -m ontologia.cli.supervised FD …`: the program, for as long as whoever started it lives.

A supervisor that is killed cannot tell its worker to stop. So it holds one end of a pipe, and the
worker watches the other: it ends when nobody has the first one any more, however that came about.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

PATIENCE = 30.0  # seconds a worker has to stop, with its own grace in it


def watch(pipe: int) -> None:
    """Stop this process when the other end of a pipe is closed."""
    threading.Thread(target=_stop_at_end, args=(pipe,), name="supervisor", daemon=True).start()


def _stop_at_end(pipe: int) -> None:
    os.read(pipe, 1)  # nothing is ever written: this is its end
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(PATIENCE)
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    from ontologia.cli.start import main

    watch(int(sys.argv.pop(1)))
    main()
