"""What goes on beside a run, whatever its handlers are doing: heartbeats, renewals, collection."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ontologia.clock import from_text
from ontologia.errors import LockContentionError
from ontologia.runtime.acks import Acks
from ontologia.runtime.keeper import Keeper, Task
from ontologia.runtime.outage import PASSING, Outage
from ontologia.store.rows import Claim, Consumer

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

log = logging.getLogger(__name__)
_SHORTEST_RENEWAL_MS = 10.0
_SCHEDULE_LOOK = 1.0  # seconds, while handlers are busy; an idle loop waits for the tick itself


class Holding(Protocol):
    """Whoever has claims whose leases are to be looked after."""

    def idle(self) -> list[Claim]:
        """The claims whose leases are renewed."""
        ...


class Upkeep:
    """The tasks of one run, done by a thread of its own."""

    def __init__(
        self,
        session: Session,
        held: Holding,
        acks: Acks,
        outage: Outage,
        consumers: dict[str, Consumer],
        stopping: Callable[[], bool],
        overdue: Callable[[], None],
        leases_ms: Sequence[float] = (),
    ) -> None:
        self._session = session
        self._config = session.config
        self._events = session._store.events
        self._held = held
        self._consumers = consumers
        self._stopping = stopping
        self._collector: threading.Thread | None = None
        shortest_ms = min(leases_ms, default=self._config.event_claim_lease_ms)
        self._every_ms = max(_SHORTEST_RENEWAL_MS, shortest_ms / 3)
        tasks = [
            Task("the heartbeat", self._config.session_heartbeat_interval_ms / 1000, self.beat),
            Task("leases", self._every_ms / 1000, self._renew),
            Task("schedules", _SCHEDULE_LOOK, session._scheduler.fire_due),
            Task("collection", self._config.event_gc_interval_ms / 1000, self.collect),
            Task("the shutdown", max(0.05, self._config.shutdown_grace_ms / 4000), overdue),
        ]
        self._outage = outage
        self._keeper = Keeper(session._clock, tasks, acks.due_in, acks.flush, outage)
        acks.nudge = self._keeper.nudge

    def start(self) -> None:
        """Say that the session is alive, collect what is old, and go on with both."""
        began = self._session._clock.monotonic()
        try:
            self.beat()
        except PASSING as error:
            self._outage.note(error)  # the next beat is soon
        self._keeper.start(began)
        self.collect()

    def stop(self) -> None:
        """End, after what is being done."""
        self._keeper.stop()
        if self._collector is not None:
            self._collector.join()

    def beat(self) -> None:
        """Write down that the session, and what it runs, is alive."""
        ids = [consumer.id for consumer in list(self._consumers.values())]  # the run adds to it
        self._events.heartbeat(self._session.session_id, ids)
        self._outage.over(wrote=True)

    def _renew(self) -> None:
        """Renew each lease when a third of it has passed.

        What does not run yet is renewed together. A running handler may be committing, and its
        commit locks its claim and those it acknowledges: its own claim is renewed alone, so that no
        two transactions wait for each other.
        """
        due = [claim for claim in self._held.idle() if self._is_due(claim)]
        if waiting := [claim for claim in due if claim.renew_until is None]:
            self._events.claims.renew(waiting)
        busy: LockContentionError | None = None
        for claim in due:
            if claim.renew_until is None:
                continue
            if self._session._clock.monotonic() >= claim.renew_until:
                claim.renew_until = None
                log.warning(
                    "event %s: %s runs for longer than its timeout; its lease is not renewed any "
                    "more and ends at %s. Then the attempt counts, and can write nothing",
                    *(claim.event.id, claim.handler_id, claim.lease_until),
                )
                continue
            try:
                self._events.claims.renew([claim])
            except LockContentionError as error:
                busy = error
        if busy is not None:
            raise busy

    def _is_due(self, claim: Claim) -> bool:
        """Whether a third of the lease will have passed before the next look."""
        left = from_text(claim.lease_until) - self._session._clock.now()
        return left.total_seconds() * 1000 <= claim.lease_ms * 2 / 3 + self._every_ms

    def collect(self) -> None:
        """Collect in a thread of its own: neither handlers nor heartbeats wait for it."""
        if self._collector is None or not self._collector.is_alive():
            self._collector = threading.Thread(
                target=self._collect_now, name="ontologia-collect", daemon=True
            )
            self._collector.start()

    def _collect_now(self) -> None:
        try:
            deleted = self._events.collect_events(self._session.namespace, self._stopping)
        except Exception as error:  # noqa: BLE001 - it is tried again, and nothing depends on it
            log.warning("finished events were not collected: %s", error)
        else:
            if deleted:
                log.info("collected %d finished events", deleted)
