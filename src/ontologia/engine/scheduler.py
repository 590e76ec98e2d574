"""Schedules of a running session: one firing per tick, among any number of sessions."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from ontologia.clock import Clock, to_text
from ontologia.delivery.lineage import Lineage
from ontologia.delivery.schedule import Schedule
from ontologia.store.events.store import EventStore


class Scheduler:
    """The schedules of one session with the next tick of each. Any thread may use it."""

    def __init__(self, events: EventStore, namespace: str, clock: Clock) -> None:
        self._events = events
        self._namespace = namespace
        self._clock = clock
        self._next: dict[str, tuple[Schedule, datetime | None]] = {}
        self._lock = threading.Lock()
        self.changed = False
        """Whether schedules came or went since `described` was called."""

    def add(self, schedules: Iterable[Schedule]) -> list[Schedule]:
        """Fire these from their first tick after now on; those that were not there before."""
        given = list(schedules)
        for schedule in given:
            if not isinstance(schedule, Schedule):
                raise TypeError(f"expected a Schedule, got {schedule!r}")
        now = self._clock.now()
        added: list[Schedule] = []
        with self._lock:
            for schedule in given:
                if schedule.key not in self._next:
                    self._next[schedule.key] = (schedule, schedule.next_after(now))
                    added.append(schedule)
                    self.changed = True
        return added

    def remove(self, schedule: Schedule) -> bool:
        """Fire it no more; False if it was not there."""
        with self._lock:
            removed = self._next.pop(schedule.key, None) is not None
            self.changed = self.changed or removed
            return removed

    def described(self) -> list[dict[str, Any]]:
        """What the row of the session says of the schedules."""
        with self._lock:
            self.changed = False
            return [schedule.described() for schedule, _ in self._next.values()]

    def restart(self) -> None:
        """A run begins: what was missed before is not made up for."""
        now = self._clock.now()
        with self._lock:
            for key, (schedule, _) in self._next.items():
                self._next[key] = (schedule, schedule.next_after(now))

    def next_tick(self) -> datetime | None:
        """The next time anything fires."""
        with self._lock:
            return min((tick for _, tick in self._next.values() if tick), default=None)

    def fire_due(self) -> int:
        """Announce the events of the ticks that have come; how many.

        Of several ticks of one schedule that passed meanwhile only the last fires. A clock that
        steps back fires nothing again: a schedule only goes forward. One durable transaction for
        each firing, none when nothing is due.
        """
        now = self._clock.now()
        fired = 0
        with self._lock:
            for key, (schedule, tick) in list(self._next.items()):
                if tick is None or tick > now:
                    continue
                while (following := schedule.next_after(tick)) and following <= now:
                    tick = following
                fired += self._fire(schedule, tick)
                self._next[key] = (schedule, following)
        if fired:
            self._events.wake()
        return fired

    def _fire(self, schedule: Schedule, tick: datetime) -> bool:
        lineage = Lineage(source=f"schedule:{schedule.cron}")
        row = self._events.log.row(schedule.event, self._namespace, lineage)
        key, *former = schedule.keys
        with self._events.transaction() as tx:
            return self._events.log.fire(tx, row, key, to_text(tick), former)
