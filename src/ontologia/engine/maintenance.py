"""Maintenance beside a run: heartbeats, lease renewal, acks that wait, schedules, collection."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ontologia.clock import SystemClock, from_text
from ontologia.engine.consumer import Consumer, Host
from ontologia.engine.inbox import Inbox
from ontologia.engine.outage import PASSING, Outage
from ontologia.errors import OntologiaError
from ontologia.store.rows import Claim

log = logging.getLogger(__name__)
_SHORTEST_RENEWAL_MS = 10.0
SCHEDULE_LOOK = 1.0  # seconds, while consumers are busy; an idle engine waits for the tick itself
_SLICE = 0.02  # seconds between two looks at a manual clock
_IDLE = 0.05
R = TypeVar("R")


class Task:
    """Something to do every so often, by the session's clock."""

    def __init__(self, what: str, seconds: float, action: Callable[[], object]) -> None:
        self.what = what
        self.seconds = seconds
        self.action = action
        self.next = 0.0


class Maintained(Protocol):
    """What a source does when it is due."""

    outage: Outage

    def beat(self) -> None:
        """Write that the session, and what it runs, is alive."""
        ...

    def renew(self, claims: Sequence[Claim]) -> None:
        """Extend the leases of these claims."""
        ...

    def acks_due_in(self) -> float | None:
        """Seconds until acks should be written; None if there are none."""
        ...

    def flush(self) -> object:
        """Write all acks."""
        ...

    def collect(self, stopped: Callable[[], bool]) -> int:
        """Delete what is finished and past its retention; how many events."""
        ...


class Maintenance:
    """The tasks of one run, done by a thread of its own when they are due.

    A task that fails is tried again one interval later: all of them repeat, and the run itself
    meets what cannot be mended.
    """

    def __init__(
        self,
        host: Host,
        source: Maintained,
        consumers: Sequence[Consumer],
        inbox: Inbox,
        stopped: Callable[[], bool],
        look: Callable[[], float],
        *,
        beat_seconds: float | None = None,
        tasks: Sequence[Task] = (),
    ) -> None:
        """`tasks` are done besides; `beat_seconds` replaces the interval of the settings."""
        self._host = host
        self._clock = host.clock
        self._source = source
        self._inbox = inbox
        self._stopped = stopped
        self._collector: threading.Thread | None = None
        config = host.config
        shortest_ms = min(
            (each.lease_ms for each in consumers), default=config.event_claim_lease_ms
        )
        self._every_ms = max(_SHORTEST_RENEWAL_MS, shortest_ms / 3)
        beat = beat_seconds or config.session_heartbeat_interval_ms / 1000
        self._tasks = [
            Task("the heartbeat", beat, source.beat),
            Task("leases", self._every_ms / 1000, self._renew),
            Task("schedules", SCHEDULE_LOOK, self._look_at_schedules),
            Task("collection", config.event_gc_interval_ms / 1000, self._collect),
            *tasks,
        ]
        self._look = look
        self._look_at = 0.0
        self._stop = threading.Event()
        self._nudged = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ontologia-keeper", daemon=True)

    def start(self) -> None:
        """Begin, with a collection; the source has just registered its session."""
        began = self._clock.monotonic()
        for task in self._tasks:
            task.next = began + task.seconds
        self._thread.start()
        self._collect()

    def stop(self) -> None:
        """End, after what is being done."""
        self._stop.set()
        self._nudged.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._collector is not None:
            self._collector.join()

    def nudge(self) -> None:
        """There is an ack to look after."""
        self._nudged.set()

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            due = self._source.acks_due_in()
            if due is not None and due <= 0:
                self._do("acks", self._source.flush)
                continue
            now = self._clock.monotonic()
            for task in self._tasks:
                if task.next <= now:
                    task.next = now + task.seconds
                    self._do(task.what, task.action)
            if self._look_at <= time.monotonic():
                self._look_at = time.monotonic() + (self._do("timeouts", self._look) or 0.0)
            self._rest(due)

    def _rest(self, due: float | None) -> None:
        left = min(task.next for task in self._tasks) - self._clock.monotonic()
        left = min(left, self._look_at - time.monotonic())
        if not isinstance(self._clock, SystemClock):
            left = min(left, _SLICE)
        if due is None:
            self._nudged.wait(max(0.0, left))
            self._nudged.clear()
        else:
            time.sleep(max(0.0, min(left, due)))

    def _do(self, what: str, action: Callable[[], R]) -> R | None:
        try:
            return action()
        except PASSING as error:
            self._source.outage.wait(error, self._stop.is_set)
        except OntologiaError as error:
            log.warning("%s could not be written: %s", what, error)
            self._stop.wait(_IDLE)
        except Exception:
            log.exception("%s failed; tried again after its interval", what)
            self._stop.wait(_IDLE)
        return None

    # -- tasks ------------------------------------------------------------------------------------

    def _look_at_schedules(self) -> None:
        """Fire what is due, and keep the row of the session up to date about which there are."""
        self._host.scheduler.fire_due()
        if self._host.scheduler.changed:
            self._host.register_session()

    def _renew(self) -> None:
        """Renew each lease when a third of it has passed."""
        due = [claim for claim in self._inbox.renewable() if self._is_due(claim)]
        if due:
            self._source.renew(due)

    def _is_due(self, claim: Claim) -> bool:
        """Whether a third of the lease will have passed before the next look."""
        left = from_text(claim.lease_until) - self._clock.now()
        return left.total_seconds() * 1000 <= claim.lease_ms * 2 / 3 + self._every_ms

    def _collect(self) -> None:
        """Collect in a thread of its own: neither consumers nor heartbeats wait for it."""
        if self._collector is None or not self._collector.is_alive():
            self._collector = threading.Thread(
                target=self._collect_now, name="ontologia-collect", daemon=True
            )
            self._collector.start()

    def _collect_now(self) -> None:
        try:
            deleted = self._source.collect(self._stopped)
        except Exception as error:  # noqa: BLE001 - it is tried again, and nothing depends on it
            log.warning("finished events were not collected: %s", error)
        else:
            if deleted:
                log.info("collected %d finished events", deleted)
