"""SIGINT and SIGTERM while a session runs: the first stops it, the second ends it at once."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ENOUGH = 3


@contextmanager
def stopping_on_signals(
    stop: Callable[[], None],
    hurry: Callable[[], bool],
    recalled: Callable[[], bool] = lambda: False,
) -> Generator[None]:
    """Call `stop` on the first signal, `hurry` on the second.

    A signal comes between any two steps of the main thread, also while it holds a lock. So these
    two take none; KeyboardInterrupt is raised where `hurry` says that a handler is running, which
    nothing else can end, and on the third signal in any case. `recalled` says that the run is over
    and its handler does not return: then any signal raises it, and `recall_main` sends one.

    Only the main thread may set signal handlers; elsewhere this is nothing. What was set before
    is set again at the end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = 0

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        if recalled():
            raise KeyboardInterrupt
        seen += 1
        if seen == 1:
            stop()
        elif hurry() or seen >= _ENOUGH:
            raise KeyboardInterrupt

    before: dict[Any, Any] = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def recall_main() -> None:
    """Send the main thread a signal, which also ends a system call that it waits in."""
    if hasattr(signal, "pthread_kill"):
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()
