"""What goes on beside a run, whatever its handlers are doing: heartbeats, renewals, collection."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ontologia.runtime.acks import Acks
from ontologia.runtime.keeper import Keeper, Task
from ontologia.runtime.outage import PASSING, Outage
from ontologia.store.rows import Claim, Consumer

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

log = logging.getLogger(__name__)
_SCHEDULE_LOOK = 1.0  # seconds, while handlers are busy; an idle loop waits for the tick itself


class Holding(Protocol):
    """Whoever has claims whose leases are to be looked after."""

    def idle(self) -> list[Claim]:
        """What is claimed and not running."""
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
    ) -> None:
        self._session = session
        self._config = session.config
        self._events = session._store.events
        self._held = held
        self._consumers = consumers
        self._stopping = stopping
        self._collector: threading.Thread | None = None
        lease = self._config.event_claim_lease_ms / 1000
        tasks = [
            Task("the heartbeat", self._config.session_heartbeat_interval_ms / 1000, self.beat),
            Task("leases", lease / 3, self._renew),
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
        ids = [consumer.id for consumer in self._consumers.values()]
        self._events.heartbeat(self._session.session_id, ids)
        self._outage.over(wrote=True)

    def _renew(self) -> None:
        """What is claimed and not running keeps its lease; a running handler's is its own."""
        waiting = self._held.idle()
        if waiting:
            self._events.claims.renew(waiting, self._config.event_claim_lease_ms)

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
