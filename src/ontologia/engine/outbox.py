"""The outbox: events that are committed in a database, carried to a bucket.

An event is stored with the state that it announces, as always; a consumer of the database puts it
into the bucket, where handlers get it. So nothing is announced that was not committed, and what
was committed arrives, whichever process carries it.
"""

from __future__ import annotations

import logging
import math
import threading
import time

from ontologia.delivery.retry import Backoff, Discard, Retry, RetryPolicy, describe_error
from ontologia.engine.consumer import Consumer, Host
from ontologia.engine.coroutines import Coroutines
from ontologia.engine.engine import Engine
from ontologia.engine.outage import Outage
from ontologia.engine.source import StoreSource
from ontologia.errors import (
    ConnectionLostError,
    DatabaseError,
    IntegrityError,
    InvalidValueError,
    OntologiaError,
    SessionClosedError,
)
from ontologia.store.events.claims import ALL_TYPES
from ontologia.store.events.leases import Done
from ontologia.store.rows import Claim
from ontologia.store.s3 import S3EventStore

log = logging.getLogger(__name__)
_AT_ONCE = 4  # events that are carried at the same time
_PAUSE = 5.0  # seconds after an error that ended the engine
_LOOK = 0.01
_NEVER = 2**31 - 1  # a bucket that is away for a month is no reason to drop events
_POLICY = RetryPolicy(_NEVER, _NEVER, Backoff(base_ms=500, cap_ms=30_000))


class Outbox:
    """Carries the events of a session's namespace, in a thread of its own, until it is closed."""

    def __init__(self, host: Host, target: S3EventStore) -> None:
        self._host = host
        self._target = target
        self._stop = threading.Event()
        self._outage = Outage()
        self._refused = False
        """Whether the log says already that the bucket refuses what is put there."""
        self._engine = self._build()
        self._thread = threading.Thread(target=self._run, name="ontologia-outbox", daemon=True)

    @property
    def name(self) -> str:
        """The consumer in the database."""
        return f"outbox:{self._target.uri}"

    def _build(self) -> Engine:
        host = self._host
        consumer = Consumer(
            self.name,
            [ALL_TYPES],
            self._carry,
            _POLICY,
            host.config.event_claim_lease_ms,
            timeout_ms=math.inf,  # requests have timeouts of their own
            renew=True,
        )
        return Engine(
            # What was retained before is not announced again in the bucket.
            StoreSource(host, [consumer], start="now"),
            [consumer],
            host.clock,
            host.random,
            coroutines=Coroutines(),
            workers=_AT_ONCE,
            claim_limit=host.config.event_claim_limit,
            grace=host.config.shutdown_grace_ms / 1000,
        )

    def open(self) -> None:
        """Register the consumer, so that no event passes it by, and begin to carry."""
        self._engine.open()
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._engine.run()
            except SessionClosedError:
                return
            except Exception:
                log.exception("%s failed; it goes on in %g s", self.name, _PAUSE)
            if not self._stop.wait(_PAUSE):
                self._engine = self._build()

    def _carry(self, claim: Claim) -> Done:
        """Put one event into the bucket. Idempotent: it keeps its id."""
        try:
            self._target.put(claim.event)
        except ConnectionLostError as error:
            self._outage.note(error)
            raise Retry(describe_error(error), after=self._again(claim)) from error
        except (IntegrityError, InvalidValueError) as error:
            raise Discard(describe_error(error)) from error
        except DatabaseError as error:
            if not self._refused:
                self._refused = True
                log.error("events wait in the database: %s", error)
            raise Retry(describe_error(error), after=self._again(claim)) from error
        self._refused = False
        self._outage.over(wrote=True)
        return Done(claim)

    def _again(self, claim: Claim) -> float:
        return _POLICY.backoff.delay_ms(claim.attempts + 1, self._host.random.randint) / 1000

    def waiting(self) -> int:
        """How many events of the namespace are not in the bucket yet."""
        rows = self._host.store.events.activity.waiting(self._host.namespace)
        mine = [row for row in rows if row["handler"] == self.name]
        return sum(row["waiting"] + row["claimed"] + row["backoff"] for row in mine)

    def close(self) -> None:
        """Carry what waits, for up to `shutdown_grace_ms`, and end. Idempotent."""
        if self._stop.is_set():
            return
        deadline = time.monotonic() + self._host.config.shutdown_grace_ms / 1000
        left = 0
        try:
            while (left := self.waiting()) and time.monotonic() < deadline:
                time.sleep(_LOOK)
        except OntologiaError as error:
            log.info("whether events wait for %s is not known: %s", self._target.uri, error)
        self._stop.set()
        if left:
            self._target.bucket.hurry()
        self._engine.stop()
        self._thread.join()
        if left:
            log.warning(
                "%d event%s not in %s yet; the next session on this database with the same "
                "event_store carries what is left",
                *(left, " is" if left == 1 else "s are", self._target.uri),
            )
