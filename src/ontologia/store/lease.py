"""The lease on long writes: the row `ontology_write`, kept alive by a thread.

A commit is one short transaction and needs no row; it only looks whether somebody else has it.
The row is for work that spans transactions: a migration, an import.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta

from ontologia.clock import Clock, to_text
from ontologia.errors import DatabaseError, LockContentionError, LockLostError
from ontologia.store.database import Tx

log = logging.getLogger(__name__)
STEP = 0.01  # seconds between two looks at a lease that somebody else holds


class LockStatements:
    """The row that is the lease on long writes."""

    def __init__(self, tx: Tx, sql: Mapping[str, str], clock: Clock) -> None:
        self.tx = tx
        """Its statements, for what else belongs into the transaction."""
        self._sql = sql
        self._clock = clock
        self.now = ""
        """The instant at which it began to write state."""

    def lock_holder(self, owner_id: str) -> str | None:
        """Whoever else holds the lease at this moment."""
        row = self.tx.one(self._sql["holder"], self._lock_params(owner_id))
        return None if row is None else row[0]

    def take_lock(self, owner_id: str, expires_at: str) -> bool:
        """Write the lease, instead of one that expired; False if somebody has it."""
        params = self._lock_params(owner_id)
        return self.tx.run(self._sql["acquire"], params | {"expires_at": expires_at}) == 1

    def renew_lock(self, owner_id: str, expires_at: str) -> bool:
        """Extend the lease; whether it was still held."""
        params = self._lock_params(owner_id)
        return self.tx.run(self._sql["renew"], params | {"expires_at": expires_at}) == 1

    def release_lock(self, owner_id: str) -> bool:
        """Give up the lease; whether it was held by this owner."""
        return self.tx.run(self._sql["release"], {"owner_id": owner_id}) == 1

    def verify_lock(self, owner_id: str) -> None:
        if self.tx.one(self._sql["owned"], self._lock_params(owner_id)) is None:
            raise LockLostError("ontology_write", owner_id)

    def _lock_params(self, owner_id: str) -> dict[str, str]:
        return {"owner_id": owner_id, "now": to_text(self._clock.now())}


class WriteLease:
    """Takes, renews and releases the lease for one opened store."""

    def __init__(
        self,
        alone: Callable[..., AbstractContextManager[Tx]],
        write: Callable[..., AbstractContextManager[Tx]],
        sql: Mapping[str, str],
        clock: Clock,
        lease_ms: int,
    ) -> None:
        """`alone` begins a transaction beside which nobody writes state, `write` any."""
        self._alone = alone
        self._write = write
        self._sql = sql
        self._clock = clock
        self._lease = timedelta(milliseconds=lease_ms)

    @contextmanager
    def held(self, owner_id: str, timeout_ms: int) -> Generator[None]:
        """Hold the lease; it is renewed every third of its length until the end."""
        self.acquire(owner_id, timeout_ms)
        stop = threading.Event()
        keeper = threading.Thread(
            target=self._keep, args=(owner_id, stop), name=f"lease-{owner_id}", daemon=True
        )
        keeper.start()
        try:
            yield
        finally:
            stop.set()
            keeper.join()
            self.release(owner_id)

    def acquire(self, owner_id: str, timeout_ms: int) -> None:
        """Take the lease, or LockContentionError after `timeout_ms`."""
        started = self._clock.monotonic()
        while (holder := self._try(owner_id, timeout_ms)) is not None:
            waited = (self._clock.monotonic() - started) * 1000
            if waited >= timeout_ms:
                raise LockContentionError(holder, waited, what="the long write")
            self._clock.sleep(STEP)

    def _try(self, owner_id: str, timeout_ms: int) -> str | None:
        """Take the lease if it is free; otherwise who has it."""
        with self._alone(timeout_ms=timeout_ms) as tx:
            transaction = LockStatements(tx, self._sql, self._clock)
            holder = transaction.lock_holder("")  # also when it is ours: one owner, one long write
            if holder is None and not transaction.take_lock(owner_id, self._expiry()):
                # It was running out, and was renewed at this moment.
                holder = transaction.lock_holder("") or "an owner who has just ended"
            return holder

    def renew(self, owner_id: str) -> bool:
        """Extend the lease; False if it was lost meanwhile."""
        with self._write(durable=False) as tx:
            return LockStatements(tx, self._sql, self._clock).renew_lock(owner_id, self._expiry())

    def release(self, owner_id: str) -> bool:
        """Give up the lease; False if this owner did not have it."""
        with self._write(durable=False) as tx:
            return LockStatements(tx, self._sql, self._clock).release_lock(owner_id)

    def _keep(self, owner_id: str, stop: threading.Event) -> None:
        while not stop.wait(self._lease.total_seconds() / 3):
            try:
                if not self.renew(owner_id):
                    log.warning("lease of %s was lost; its write will not be committed", owner_id)
                    return
            except (DatabaseError, LockContentionError) as error:
                # Not fatal: the write itself checks the lease, and there are two more tries.
                log.warning("lease of %s was not renewed: %s", owner_id, error)

    def _expiry(self) -> str:
        return to_text(self._clock.now() + self._lease)
