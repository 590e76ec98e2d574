"""Waiting for work: woken by this process at once, and by others through NOTIFY.

A NOTIFY inside a transaction would make commits wait for each other. So it follows the commit,
in the same message, and notifications are gathered: at most one every 2 ms. What comes sooner is
sent by a thread with a connection of its own. Another thread listens. Whatever is missed is found
by the loop's own polling: this only makes it faster.

A listener that lost its connection connects again, and looks more often until it has. Behind a
pooler that gives every transaction another connection, notifications never arrive: that is seen
by the listener's own first one, said once, and then looking often is all there is. Without a
pooler one that did not arrive is a loss like any other, and tried again.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
import weakref
from contextlib import suppress

import psycopg

from ontologia.forking import in_forked_child
from ontologia.store.postgres.place import Place
from ontologia.store.postgres.wire import Last
from ontologia.store.waker import Waker, readable

log = logging.getLogger(__name__)
_SPACING = 0.002  # seconds between two notifications of this process
# The lock that every NOTIFY of a server takes is not waited for by somebody who commits.
_NOTIFY = b"SELECT pg_notify($1, $2), set_config('lock_timeout', '100ms', true)"
_PROBE = 2.0  # seconds the first notification may take to come back
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_POLL_FIRST, _POLL_LAST = 0.02, 1.0
_LOOK = 0.5  # seconds between two looks of a thread whether it should end

_channels: dict[tuple[str, str], Channel] = {}
_channels_lock = threading.Lock()


def channel_of(place: Place, *, pooled: bool) -> Channel:
    """The channel of a schema; all stores of this process share it."""
    with _channels_lock:
        key = (place.conninfo, place.schema)
        return _channels.setdefault(key, Channel(place, pooled=pooled))


def _renew() -> None:
    global _channels_lock
    _channels_lock = threading.Lock()
    _channels.clear()  # their threads are the parent's


in_forked_child(_renew)


class Channel:
    """One schema's notifications, for one process. Threads start when they are needed."""

    def __init__(self, place: Place, *, pooled: bool) -> None:
        self._place = place
        self._pooled = pooled
        self._name = f"ontologia_{place.schema}"[:63]
        self._mark = uuid.uuid4().hex
        self._watches: weakref.WeakSet[Watch] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._listener: threading.Thread | None = None
        self._notifier: threading.Thread | None = None
        self._wanted = threading.Event()
        self._next = 0.0  # when the next notification may be sent
        self.hears = False
        """Whether notifications arrive at this moment."""

    # -- watches ------------------------------------------------------------------------------

    def add(self, watch: Watch) -> None:
        """Somebody waits."""
        with self._lock:
            self._watches.add(watch)
            if self._listener is None:
                self._listener = threading.Thread(
                    target=self._listen, name="ontologia-listen", daemon=True
                )
                self._listener.start()

    def remove(self, watch: Watch) -> None:
        """Somebody waits no more."""
        with self._lock:
            self._watches.discard(watch)

    def notice(self) -> Last | None:
        """What somebody who commits can send along; None so soon after another."""
        now = time.monotonic()
        with self._lock:
            if now < self._next:
                return None
            self._next = now + _SPACING
        return _NOTIFY, (self._name, self._mark)

    def wake(self, *, elsewhere: bool = True) -> None:
        """Wake those who wait here at once, and those elsewhere soon, unless they are awake."""
        self._wake_here()
        if not elsewhere:
            return
        self._wanted.set()
        with self._lock:
            if self._notifier is None:
                self._notifier = threading.Thread(
                    target=self._notify, name="ontologia-notify", daemon=True
                )
                self._notifier.start()

    def _wake_here(self) -> None:
        with self._lock:
            waiting = list(self._watches)
        for watch in waiting:
            watch.wake()

    # -- notifying ------------------------------------------------------------------------------

    def _notify(self) -> None:
        connection: psycopg.Connection[object] | None = None
        while True:
            if not self._wanted.wait(_LOOK * 10):
                with self._lock:
                    if self._wanted.is_set():
                        continue
                    self._notifier = None  # nothing for a while: the next wake starts another
                break
            time.sleep(self._until_next())
            self._wanted.clear()
            for again in (True, False):  # the connection may have died while there was nothing
                try:
                    if connection is None or connection.closed:
                        connection = self._connected()
                    self._send(connection, self._mark)
                    break
                except psycopg.Error as error:
                    connection = None
                    if not again:
                        log.info("others were not woken: %s", str(error).strip())
        if connection is not None:
            connection.close()

    def _until_next(self) -> float:
        """Seconds until this thread may send: from then on it is its turn."""
        now = time.monotonic()
        with self._lock:
            turn = max(now, self._next)
            self._next = turn + _SPACING
        return turn - now

    def _send(self, connection: psycopg.Connection[object], payload: str) -> None:
        connection.execute(b"SELECT pg_notify(%s, %s)", (self._name, payload))

    # -- listening ------------------------------------------------------------------------------

    def _listen(self) -> None:
        pause = _FIRST_PAUSE
        while self._still_wanted():
            try:
                with self._connected() as connection:
                    arrives = self._probe(connection)
                    if arrives:
                        if pause != _FIRST_PAUSE:
                            log.info("notifications of %s arrive again", self._place.shown)
                        self.hears, pause = True, _FIRST_PAUSE
                        self._wake_here()  # something may have come while nobody listened
                        self._hear(connection)
                if not arrives:
                    if self._pooled:
                        self._go_deaf()
                        return
                    raise psycopg.OperationalError("the listener's own did not arrive")
            except psycopg.Error as error:
                if self.hears or pause == _FIRST_PAUSE:
                    log.warning("notifications of %s do not arrive, and are asked for again: %s",
                                self._place.shown, str(error).strip())  # fmt: skip
                self.hears = False
                self._wake_here()
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    def _hear(self, connection: psycopg.Connection[object]) -> None:
        """Not by the driver's own loop, which looks ten times a second: that is most of idling."""
        line, mark = connection.pgconn, self._mark.encode()
        while self._still_wanted():
            others = False
            while (note := line.notifies()) is not None:
                others = others or note.extra != mark  # those here were woken when it was sent
            if others:
                self._wake_here()
            if readable([line.socket], _LOOK):
                line.consume_input()

    def _probe(self, connection: psycopg.Connection[object]) -> bool:
        """Listen, and see whether a notification arrives.

        It comes from another connection, while this one does nothing: a pooler may well give two
        statements in a row the same connection to the server.
        """
        connection.execute(f'LISTEN "{self._name}"'.encode())
        word = uuid.uuid4().hex
        with self._connected() as other:
            self._send(other, word)
        deadline = time.monotonic() + _PROBE
        while (left := deadline - time.monotonic()) > 0:
            if any(
                note.payload == word for note in connection.notifies(timeout=left, stop_after=1)
            ):
                return True
        return False

    def _go_deaf(self) -> None:
        log.warning(
            "%s is behind a pooler that gives every transaction another connection, and "
            "notifications do not arrive there: new events are found by looking every %d ms to %d s",
            *(self._place.shown, _POLL_FIRST * 1000, _POLL_LAST),
        )
        while self._still_wanted():
            time.sleep(_LOOK)

    def _still_wanted(self) -> bool:
        """Whether the thread that asks is still the listener, and somebody waits.

        Whoever comes after it has given up starts another, also while it is closing down.
        """
        with self._lock:
            mine = self._listener is threading.current_thread()
            if mine and len(self._watches) == 0:
                self._listener, self.hears = None, False
                return False
            return mine

    def _connected(self) -> psycopg.Connection[object]:
        return psycopg.connect(self._place.conninfo, autocommit=True, prepare_threshold=None)


class Watch:
    """One waiter on one schema. `wake` may be called from any thread and from a signal handler."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._waker = Waker()
        self._step = _POLL_FIRST
        self.told = False
        """Whether the last wait was ended by somebody, who has stored something as a rule."""
        channel.add(self)

    def wake(self) -> None:
        """End the wait, or the next one if nobody waits."""
        self._waker.wake()

    def wait(self, seconds: float) -> bool:
        """Wait until woken or for this long; whether there may be something to do.

        Without notifications it is True every now and then, for the caller to look.
        """
        hears = self._channel.hears
        self.told = self._waker.wait(seconds if hears else min(seconds, self._step))
        if hears or self.told:
            self._step = _POLL_FIRST
            return self.told
        looked = self._step < seconds
        self._step = min(self._step * 1.5, _POLL_LAST)
        return looked

    def settle(self) -> None:
        """The caller is about to look for itself."""

    def close(self) -> None:
        """Stop waiting."""
        self._channel.remove(self)
        with suppress(OSError):
            self._waker.close()
