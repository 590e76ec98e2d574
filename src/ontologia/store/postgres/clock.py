"""The server's time, told by this machine: its monotonic clock plus an offset that is measured.

Machines that share a store must agree on the time, or one takes the other's leases for over. They
all ask the same server, at connect and then at most once a minute, with a transaction that is made
anyway; in between nobody is asked, so `now` costs what the machine's own does.
"""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from typing import Any

import psycopg

from ontologia.clock import SYSTEM_CLOCK, Clock, SystemClock
from ontologia.forking import in_forked_child
from ontologia.store.postgres.place import Place

log = logging.getLogger(__name__)
_ASK = b"SELECT extract(epoch FROM clock_timestamp())"  # numeric: every digit is sent
_SAMPLES = 3
_INTERVAL = 60.0
_SHARE = 0.1  # of a lease: a skew that is worth a word

_clocks: dict[str, ServerClock] = {}
_clocks_lock = threading.Lock()


def clock_of(place: Place) -> ServerClock:
    """The clock of a server; all sessions of this process share it, and so their stamps."""
    with _clocks_lock:
        return _clocks.setdefault(place.conninfo, ServerClock(place.shown))


def _renew() -> None:
    global _clocks_lock
    _clocks_lock = threading.Lock()
    for clock in _clocks.values():
        clock.renew()


in_forked_child(_renew)


class ServerClock(SystemClock):
    """The time of one server. Until it is measured, that of this machine.

    A correction backwards is no harm: stamps of events only go forward, and a lease lasts that
    much longer.
    """

    def __init__(self, shown: str, local: Clock = SYSTEM_CLOCK) -> None:
        self._shown = shown
        self._local = local
        self._monotonic = local.monotonic
        self._offset = local.now().timestamp() - local.monotonic()
        self._asked: tuple[float, float] | None = None  # when: monotonic, and by the wall
        self._limit = float("inf")
        self._reported = 0.0
        self.skew = 0.0
        """Seconds by which the server is ahead of this machine."""
        self.renew()

    def renew(self) -> None:
        """Have a lock that nobody holds."""
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._monotonic() + self._offset, UTC)

    def monotonic(self) -> float:
        return self._monotonic()

    def sleep(self, seconds: float) -> None:
        self._local.sleep(seconds)

    def report_beyond(self, lease_ms: float) -> None:
        """A skew above a tenth of this is reported; of several the shortest counts."""
        self._limit = min(self._limit, lease_ms / 1000 * _SHARE)

    def is_due(self) -> bool:
        """Whether a minute has passed since the server was asked.

        By either clock of this machine: the monotonic one stands still while a machine sleeps.
        """
        if self._asked is None:
            return True
        monotonic, wall = self._asked
        return (
            self._monotonic() - monotonic >= _INTERVAL
            or abs(self._local.now().timestamp() - wall) >= _INTERVAL
        )

    def measure(self, connection: psycopg.Connection[Any]) -> None:
        """Ask the server a few times; the answer that was back soonest is the most exact.

        Half of its round trip is how wrong it may be: what differs by less changes nothing.
        """
        trip, offset = min(self._sample(connection) for _ in range(_SAMPLES))
        with self._lock:
            if self._asked is None or abs(offset - self._offset) > trip / 2:
                self._offset = offset
            wall, monotonic = self._local.now().timestamp(), self._monotonic()
            self._asked = (monotonic, wall)
            self.skew = monotonic + self._offset - wall
            self._report()

    def _sample(self, connection: psycopg.Connection[Any]) -> tuple[float, float]:
        sent = self._monotonic()
        [(told,)] = connection.execute(_ASK).fetchall()
        back = self._monotonic()
        return back - sent, float(told) - (sent + back) / 2

    def _report(self) -> None:
        """Say it once, and again when it has become another."""
        if abs(self.skew - self._reported) <= self._limit:
            return
        if abs(self.skew) > self._limit:
            log.warning(
                "the clock of this machine is %.1f s %s that of %s. Sessions go by the server's, so "
                "leases and due times are right; times that a program takes from this machine, as "
                "for at=, and those of its logs are not. Synchronise both (NTP)",
                *(abs(self.skew), "behind" if self.skew > 0 else "ahead of", self._shown),
            )
        else:
            log.info("the clock of this machine and that of %s agree again", self._shown)
        self._reported = self.skew if abs(self.skew) > self._limit else 0.0
