"""The thread beside a run: heartbeats, renewals, acknowledgements that wait, schedules."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ontologia.clock import Clock, SystemClock
from ontologia.errors import OntologiaError
from ontologia.runtime.outage import PASSING, Outage

log = logging.getLogger(__name__)
_SLICE = 0.02  # seconds between two looks at a clock that does not go by itself
_IDLE = 0.05


class Task:
    """Something to do every so often, by the session's clock."""

    def __init__(self, what: str, seconds: float, action: Callable[[], object]) -> None:
        self.what = what
        self.seconds = seconds
        self.action = action
        self.next = 0.0


class Keeper:
    """Does its tasks when they are due, whatever the handlers are doing.

    A task that fails is tried again at its next turn: all of them repeat, and what cannot be
    mended is met by the run itself.
    """

    def __init__(self, clock: Clock, tasks: list[Task], ack_due: Callable[[], float | None],
                 flush: Callable[[], object], outage: Outage) -> None:  # fmt: skip
        self._clock = clock
        self._tasks = tasks
        self._ack_due = ack_due
        self._flush = flush
        self._outage = outage
        self._stop = threading.Event()
        self._nudged = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ontologia-keeper", daemon=True)

    def start(self, since: float) -> None:
        """Begin; the first turn of each task is one interval after `since`, by the clock."""
        for task in self._tasks:
            task.next = since + task.seconds
        self._thread.start()

    def stop(self) -> None:
        """End, after the task at hand."""
        self._stop.set()
        self._nudged.set()
        if self._thread.is_alive():
            self._thread.join()

    def nudge(self) -> None:
        """There is an acknowledgement to look after."""
        self._nudged.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            due = self._ack_due()
            if due is not None and due <= 0:
                self._do("acknowledgements", self._flush)
                continue
            now = self._clock.monotonic()
            for task in self._tasks:
                if task.next <= now:
                    task.next = now + task.seconds
                    self._do(task.what, task.action)
            self._rest(due)

    def _rest(self, due: float | None) -> None:
        left = min((task.next for task in self._tasks), default=0.0) - self._clock.monotonic()
        if not isinstance(self._clock, SystemClock):
            left = min(left, _SLICE)
        if due is None:
            self._nudged.wait(max(0.0, left))
            self._nudged.clear()
        else:
            time.sleep(max(0.0, min(left, due)))

    def _do(self, what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except PASSING as error:
            self._outage.wait(error, self._stop.is_set)
        except OntologiaError as error:
            log.warning("%s could not be written: %s", what, error)
            self._stop.wait(_IDLE)
        except Exception:
            log.exception("%s failed; tried again at its next turn", what)
            self._stop.wait(_IDLE)
