"""SIGINT and SIGTERM while a session runs: the first stops it, the second ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Generator[None]:
    """Call `stop` on the first signal, raise KeyboardInterrupt on the next.

    Only the main thread may set signal handlers; elsewhere this is nothing. What was set before
    is set again at the end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = False

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        if seen:
            raise KeyboardInterrupt
        seen = True
        stop()

    before: dict[Any, Any] = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
