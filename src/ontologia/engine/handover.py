"""Which thread runs an engine: its caller's, or one that takes its place when that does not come back."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial

from ontologia.engine.signals import recall_main, stopping_on_signals
from ontologia.engine.watchdog import Replaced


class Handover:
    """The threads of one run, and the error that ends it."""

    def __init__(
        self, run: Callable[[], None], close: Callable[[], None], has_lost: Callable[[int], bool]
    ) -> None:
        """`run` runs the engine to its end, `close` closes it, and `has_lost` knows stuck threads."""
        self._run = run
        self._close = close
        self._has_lost = has_lost
        self.error: BaseException | None = None
        """What `run` of the engine raises: the first of the errors."""
        self.taken_over = False
        """Whether another thread runs the engine, because the one that began does not come back."""
        self._runs_in = 0
        """The thread that began, until it is done."""
        self._finished = threading.Event()
        """Set when a thread that runs the engine in place of its caller's has closed it."""
        self._recalling = threading.Lock()
        self._numbers = itertools.count()
        """Of threads: one that takes the place of another has a number of its own."""

    def fail(self, error: BaseException | None) -> None:
        """Have the run raise this, unless something else has failed before."""
        self.error = self.error or error

    def run_elsewhere(
        self, open: Callable[[], None], stop: Callable[[], None], hurry: Callable[[], bool]
    ) -> None:
        """Run the engine in a thread of its own, and wait for its end.

        A consumer that does not return keeps that thread, and the caller gets its own back.
        """

        def target() -> None:
            try:
                self.run_here(open, stop, hurry)
            except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
                self.fail(error)
            finally:
                self._finished.set()

        self._start("ontologia-run", partial(copy_context().run, target))
        self._finished.wait()

    def run_here(
        self, open: Callable[[], None], stop: Callable[[], None], hurry: Callable[[], bool]
    ) -> None:
        """Open the engine and run it in this thread, until another one has taken over and is done."""
        self._runs_in = threading.get_ident()
        with stopping_on_signals(stop, hurry, self._is_recalled):
            try:
                open()
                self._run()
            except (Replaced, KeyboardInterrupt):
                if not self.taken_over:
                    raise
                self._finished.wait()
            finally:
                with self._recalling:  # no signal comes after the handlers of signals are gone
                    self._runs_in = 0
                self._close()

    def start_worker(self, work: Callable[[], None]) -> None:
        """Have one thread more that runs batches."""
        self._start(f"ontologia-worker-{next(self._numbers)}", work)

    def take_over(self) -> None:
        """Have another thread run the engine to its end, in place of one that may never come back."""
        # Set first: told to stop, the new thread is done at once, and recalls the one that hangs.
        self.taken_over = True
        self._start(f"ontologia-run-{next(self._numbers)}", self._run_to_the_end)

    def _run_to_the_end(self) -> None:
        try:
            self._run()
        except Replaced:
            return
        except BaseException as error:  # noqa: BLE001 - raised by the thread that called `run`
            self.fail(error)
        try:
            self._close()
        except BaseException as error:  # noqa: BLE001 - as above
            self.fail(error)
        with self._recalling:
            self._finished.set()
            if self._is_recalled():
                recall_main()

    def _is_recalled(self) -> bool:
        """Whether the run is over, and the main thread, which called it, does not return."""
        runs_in = self._runs_in
        return (
            self._finished.is_set()
            and runs_in == threading.main_thread().ident
            and self._has_lost(runs_in)
        )

    def _start(self, name: str, target: Callable[[], None]) -> None:
        threading.Thread(target=target, name=name, daemon=True).start()
