"""Acknowledgements, gathered: many handlers' ends in one transaction."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager

from ontologia.delivery.retry import RetryPolicy
from ontologia.errors import LockContentionError
from ontologia.forking import in_forked_child
from ontologia.runtime.commits import Written
from ontologia.store.database import AnswerLost, Tx
from ontologia.store.events.claims import Claims, Peek
from ontologia.store.events.leases import NOTHING, Done, Settled
from ontologia.store.rows import Claim, Consumer
from ontologia.store.turn import Turn

log = logging.getLogger(__name__)
GATHER = 0.005  # seconds an acknowledgement may wait for others
_RIPE = 0.0025  # after which it goes with a commit: of many small ones, not with each
_unwritten: set[Acks] = set()
"""Those that have something to write: a program that ends without closing them writes it at exit."""


class Acks:
    """Ends that are not written yet. Any thread may add one, and write them all."""

    def __init__(self, claims: Claims, batch_size: int, wake: Callable[[], None]) -> None:
        self._claims = claims
        self._batch_size = batch_size
        self._wake = wake
        self.nudge: Callable[[], None] = lambda: None
        """Called when there is something to look after."""
        self._done: list[Done] = []
        self._lock = threading.Lock()
        self._writing = Turn()
        self._oldest = 0.0

    def add(self, done: Done) -> None:
        """Note that a handler succeeded; written when there are enough, or soon."""
        with self._lock:
            first = not self._done
            if first:
                self._oldest = time.monotonic()
                _unwritten.add(self)
            self._done.append(done)
            enough = len(self._done) >= self._batch_size
        if enough:
            self.flush()
        elif first:
            self.nudge()

    def due_in(self) -> float | None:
        """Seconds until somebody should write them; None if there are none."""
        with self._lock:
            return self._oldest + GATHER - time.monotonic() if self._done else None

    def urgent(self) -> bool:
        """Whether something was announced and is not written: somebody may be able to claim it.

        What another thread is just writing is waited for.
        """
        with self._writing.taken():
            return self._announcing()

    def flush(self, starting: Sequence[Claim] = (), lease_ms: float = 0) -> bool:
        """Write what there is, and start these claims, in one soft transaction; if any.

        When it returns, whatever was added before is written, by this thread or another.
        """
        wrote = False

        def settle(done: list[Done]) -> Settled:
            nonlocal wrote
            wrote = bool(done or starting)
            return self._claims.settle(done, starting, lease_ms) if wrote else NOTHING

        self.write(settle)
        return wrote

    def claim(
        self,
        consumer: Consumer,
        event_types: Sequence[str],
        *,
        session_id: str,
        limit: int,
        lease_ms: float,
        policy: RetryPolicy,
        peek: Peek,
        start: int,
        after: Callable[[Tx], None] | None = None,
    ) -> list[Claim]:
        """Claim, and acknowledge by the same transaction what was done before."""
        claims: list[Claim] = []

        def transaction(done: list[Done]) -> Settled:
            settled: Callable[[], Settled] = lambda: NOTHING

            def acknowledge(tx: Tx) -> None:
                nonlocal settled
                settled = self._claims.ack(tx, done)

            claims[:] = self._claims.claim(
                consumer,
                event_types,
                session_id=session_id,
                limit=limit,
                lease_ms=lease_ms,
                policy=policy,
                peek=peek,
                start=start,
                before=acknowledge,
                after=after,
            )
            return settled()

        self.write(transaction)
        return claims

    def ride(self, commit: Callable[[Callable[[Tx], None]], Written]) -> Written:
        """Commit something, and acknowledge by the same transaction what was done before.

        That saves a transaction. Those that are only just done wait for the next: so handlers that
        are fast write the pages of claims once for several commits. Nothing is held until the
        commit has its turn and turns out to change something. What announces events is left to a
        transaction of its own, and so is everything while another thread is writing.
        """
        done: list[Done] = []
        asked: Callable[[], Settled] | None = None
        with ExitStack() as held:

            def along(tx: Tx) -> None:
                nonlocal done, asked
                if not done:
                    if not self._ripe():
                        return  # and nobody else need wait
                    try:
                        held.enter_context(self._writing.taken(0))
                    except LockContentionError:
                        return
                    done = [] if self._announcing() else self._waiting()
                asked = self._claims.ack(tx, done) if done else None

            written = commit(along)
            if asked is None or not written.rode:
                return written
            settled = _known(asked)
            self._remove(done)
        self._tell(settled)
        return written

    def write(self, transaction: Callable[[list[Done]], Settled]) -> None:
        """Have everything written by a transaction that does something else, too."""
        with self._writing.taken():
            done = self._waiting()
            settled = transaction(done)
            self._remove(done)
        self._tell(settled)

    def _waiting(self) -> list[Done]:
        """What is to be written: it stays until it was, whatever happens on the way."""
        with self._lock:
            return list(self._done)

    def _ripe(self) -> bool:
        """Whether they have waited long enough to be written by somebody else's transaction."""
        with self._lock:
            return bool(self._done) and time.monotonic() - self._oldest >= _RIPE

    def _announcing(self) -> bool:
        with self._lock:
            return any(done.announcements for done in self._done)

    def _remove(self, written: list[Done]) -> None:
        with self._lock:
            del self._done[: len(written)]  # what came meanwhile is behind it
            if not self._done:
                _unwritten.discard(self)
            self._oldest = time.monotonic()

    def _tell(self, settled: Settled) -> None:
        lost, announced = settled
        for claim in lost:
            log.warning(
                "event %s: %s was done after its lease had run out; it is delivered again. "
                "@on_event(..., lease=...), renew=True or ctx.renew() gives it longer",
                *(claim.event.id, claim.handler_id),
            )
        if announced:
            self._wake()


def _known(asked: Callable[[], Settled]) -> Settled:
    """What came of it. If nobody can say: what was not acknowledged comes again by itself."""
    try:
        return asked()
    except AnswerLost:
        return NOTHING


@contextmanager
def nothing_at_exit() -> Generator[None]:
    """Within it processes die that are only simulated: what they have not written is lost."""
    before = set(_unwritten)
    try:
        yield
    finally:
        _unwritten.intersection_update(before)


def _flush_at_exit() -> None:
    while _unwritten:
        try:
            _unwritten.pop().flush()
        except Exception as error:  # noqa: BLE001 - the others are written all the same
            log.error(
                "acknowledgements were not written at exit; their events are delivered again: %s",
                error,
            )


atexit.register(_flush_at_exit)
in_forked_child(_unwritten.clear)  # they are the parent's to write
