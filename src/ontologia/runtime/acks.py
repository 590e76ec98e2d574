"""Acknowledgements, gathered: many handlers' ends in one transaction."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from ontologia.delivery.retry import RetryPolicy
from ontologia.store.database import AnswerLost, Tx
from ontologia.store.events.claims import Claims, Peek
from ontologia.store.events.leases import NOTHING, Done, Settled
from ontologia.store.rows import Claim, Consumer

_T = TypeVar("_T")
log = logging.getLogger(__name__)
GATHER = 0.005  # seconds an acknowledgement may wait for others


@dataclass(slots=True)
class _Batch:
    done: list[Done]
    settled: Settled | None = None


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
        self._writing = threading.Lock()
        self._oldest = 0.0

    def add(self, done: Done) -> None:
        """Note that a handler succeeded; written when there are enough, or soon."""
        with self._lock:
            first = not self._done
            if first:
                self._oldest = time.monotonic()
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
        with self._writing, self._lock:
            return any(done.announcements for done in self._done)

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
            )
            return settled()

        self.write(transaction)
        return claims

    def ride(self, commit: Callable[[Callable[[Tx], None] | None], _T]) -> _T:
        """Commit something, and acknowledge by the same transaction what was done before.

        That saves a transaction. What announces events is left to one of its own; and so is all
        of it while another thread is writing, for which a commit does not wait.
        """
        with self._lock:
            waiting = bool(self._done) and not any(done.announcements for done in self._done)
        if not waiting or not self._writing.acquire(blocking=False):
            return commit(None)
        try:
            with self._taken() as batch:
                asked: Callable[[], Settled] | None = None

                def acknowledge(tx: Tx) -> None:
                    nonlocal asked
                    asked = self._claims.ack(tx, batch.done)

                result = commit(acknowledge)
                if asked is not None:
                    batch.settled = _known(asked)
        finally:
            self._writing.release()
        return result

    def write(self, transaction: Callable[[list[Done]], Settled]) -> None:
        """Have everything written by a transaction that does something else, too."""
        with self._writing, self._taken() as batch:
            batch.settled = transaction(batch.done)

    @contextmanager
    def _taken(self) -> Generator[_Batch]:
        """What there is, to be written. Unless it was settled it is put back, to be tried again."""
        with self._lock:
            batch = _Batch(self._done)
            self._done = []
        try:
            yield batch
        finally:
            if batch.settled is None:
                with self._lock:
                    self._done = batch.done + self._done
        if batch.settled is not None:
            self._tell(batch.settled)

    def _tell(self, settled: Settled) -> None:
        lost, announced = settled
        for claim in lost:
            log.warning(
                "event %s: %s was done after its lease had run out; it is delivered again",
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
