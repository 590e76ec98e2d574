"""An engine in a thread of its own, whose consumers run on another thread's event loop."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ontologia.engine.engine import Engine
from ontologia.errors import SessionClosedError

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger(__name__)
_LOOK = 1.0  # seconds between two looks whether the event loop is still there
T = TypeVar("T")


class Interrupted(KeyboardInterrupt):
    """Raised by a consumer: release the event untried, and end the run."""


def result_from(loop: asyncio.AbstractEventLoop, future: concurrent.futures.Future[T]) -> T:
    """Wait for what runs on an event loop; Interrupted if it is cancelled or the loop is closed."""
    while True:
        try:
            return future.result(_LOOK)
        except concurrent.futures.CancelledError:
            raise Interrupted from None
        except TimeoutError:
            if future.done():
                raise  # its own
            if loop.is_closed():
                raise Interrupted from None


class EngineThread:
    """Runs an engine, and a new one after an error, until it is stopped."""

    def __init__(
        self,
        name: str,
        build: Callable[[], Engine],
        loop: asyncio.AbstractEventLoop,
        *,
        pause: float,
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        """`pause` is the wait after an error, in seconds; `ended` is called by the thread at its end."""
        self._name = name
        self._build = build
        self._loop = loop
        self._pause = pause
        self._ended = ended
        self._stop = threading.Event()
        self._engine = build()
        self._thread = threading.Thread(target=self._run, name=f"ontologia-{name}", daemon=True)

    @property
    def stopping(self) -> bool:
        """Whether it starts no other event."""
        return self._stop.is_set()

    def open(self) -> None:
        """Register the consumers. Raises what keeps the engine from its store."""
        self._engine.open()

    def start(self) -> None:
        """Begin to run."""
        self._thread.start()

    def stop(self) -> None:
        """Start no other event."""
        self._stop.set()
        self._engine.stop()

    def join(self) -> None:
        """Wait until what runs has returned."""
        self._thread.join()

    def give_up(self) -> None:
        """End what was opened, and never start."""
        self.stop()
        self._engine.close()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._run_once()
                if not self._stop.is_set():
                    self._engine = self._build()
                    if self._stop.is_set():
                        self._engine.stop()  # `stop` came in between, and met the other engine
        finally:
            self._ended()

    def _run_once(self) -> None:
        try:
            self._engine.run()
        except Interrupted:
            if self._loop.is_closed():
                self._stop.set()
            # Tasks of the event loop are being cancelled by others, or it is about to end.
            self._stop.wait(_LOOK)
        except SessionClosedError:
            self._stop.set()
        except Exception:
            log.exception("%s: the store failed; tried again in %g s", self._name, self._pause)
            self._stop.wait(self._pause)
