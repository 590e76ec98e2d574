"""The outbox: what commands emit is committed in the store, and then carried to a queue elsewhere.

Every process that carries out commands, or runs a worker, carries what waits in the store, whichever
process left it there: one at a time, so that a chain of events stays in order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from ontologia.errors import (
    ConnectionLostError,
    ConsumerBusyError,
    DiskFullError,
    OntologiaError,
    ReadOnlyError,
    SessionClosedError,
)
from ontologia.queues.store import WORKERS
from ontologia.relay.kafka import KafkaTarget
from ontologia.relay.relay import Relay
from ontologia.runtime.session import core_of
from ontologia.store.events.claims import ALL_TYPES

if TYPE_CHECKING:
    from ontologia.queues.kafka import KafkaEventQueue
    from ontologia.runtime.session import Session

log = logging.getLogger(__name__)
_PAUSE = 1.0  # seconds before a queue that refused is tried again
_LOOK = 0.005
_PATIENCE = 10.0  # seconds that `flush` waits
_PREFIX = "relay:kafka://"


class Outbox:
    """Carries the events of a session's namespace to a queue on Kafka, in a thread. Thread-safe.

    Its consumer is named by the topic alone, `relay:kafka:///<topic>`, so that what waits is carried
    also when the brokers have other names.
    """

    def __init__(self, session: Session, queue: KafkaEventQueue) -> None:
        self._core = core_of(session)
        self._session = session
        self._queue = queue
        self._stop = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._name = f"{_PREFIX}/{queue.topic}"
        try:
            self._register()
        except (DiskFullError, ReadOnlyError) as error:
            log.warning("no events are carried to %s: %s", queue.describe(), error.args[0])
        self._relay = self._new_relay()

    def _register(self) -> None:
        """Have a consumer before anything is committed, so that no event passes it by.

        What was retained before there was such a queue is not announced again. What waits under the
        name by the brokers, which versions before this one gave it, is adopted.
        """
        store, namespace = self._core.store.events, self._core.namespace
        register = store.consumers.register
        if self._name in {each["name"] for each in store.consumers.list(namespace)}:
            register(namespace, self._name, [ALL_TYPES], start="now")
            return
        old = f"relay:{KafkaTarget.of_queue(self._queue).uri}"
        try:
            register(namespace, self._name, [ALL_TYPES], start="now", formerly=[old])
        except ConsumerBusyError:
            # An older process carries events by that name; so does this one, and they take turns.
            self._name = old
            register(namespace, self._name, [ALL_TYPES], start="now")
        waiting: Counter[str] = Counter()
        for each in store.activity.waiting(namespace):
            waiting[each["handler"] or ""] += each["waiting"] + each["claimed"] + each["backoff"]
        for name, count in waiting.items():
            if count and name.startswith(WORKERS):
                log.warning(
                    "%d events wait in the store for %s, and workers on Kafka do not get them: let "
                    "`ontologia worker` with default_message_broker_provider=store handle them, and "
                    "then `ontologia events forget %s`",
                    *(count, name, name),
                )
            if count and name.startswith(_PREFIX) and name != self._name:
                log.warning(
                    "%d events wait for %s, and the new %s does not carry them. Unless it is still in "
                    "use: `ontologia relay --to URI --formerly %s --until-empty` sends them, and "
                    "`ontologia events forget` removes the consumer afterwards",
                    *(count, name, self._name, name),
                )

    def _new_relay(self) -> Relay:
        relay = Relay(self._session, KafkaTarget.of_queue(self._queue))
        relay.name = self._name
        return relay

    def start(self) -> None:
        """Begin to carry. Idempotent; does not wait for the queue."""
        with self._starting:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="ontologia-outbox", daemon=True
                )
                self._thread.start()
                self._core.on_close.append(self.close)

    def lag(self) -> int:
        """The number of committed events that the queue does not have."""
        return self._relay.lag()

    def flush(self, seconds: float = _PATIENCE) -> bool:
        """Wait until the queue has all that is committed, at most so long; whether it has."""
        self.start()
        deadline = time.monotonic() + seconds
        while self.lag():
            if time.monotonic() >= deadline or self._stop.is_set():
                return False
            time.sleep(_LOOK)
        return True

    def close(self) -> None:
        """Carry what is committed, for `shutdown_grace_ms` at most, and stop. Idempotent.

        What is left is carried by another process, or by the next one.
        """
        with self._starting:
            thread, begun = self._thread, self._thread is not None and not self._stop.is_set()
        if begun:
            try:
                if not self.flush(self._core.config.shutdown_grace_ms / 1000):
                    log.warning(
                        "%d events wait for %s; the next process on this store carries them",
                        *(self.lag(), self._queue.describe()),
                    )
            except OntologiaError as error:
                log.warning("what waits for %s is not known: %s", self._queue.describe(), error)
        self._stop.set()
        self._relay.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            if self.close in self._core.on_close:
                self._core.on_close.remove(self.close)

    def _run(self) -> None:
        said: str | None = None
        while not self._stop.is_set():
            try:
                self._relay.run()
            except SessionClosedError:
                return
            except OntologiaError as error:
                # Once, until it carries again. That it is away has several reasons by turns.
                why = "" if isinstance(error, ConnectionLostError) else error.args[0]
                if why != said or self._relay.done:
                    said = why
                    log.warning(
                        "committed events wait for %s: %s", self._queue.describe(), error.args[0]
                    )
            except Exception:
                log.exception("committed events wait for %s", self._queue.describe())
            if not self._stop.wait(_PAUSE):
                self._relay = self._new_relay()
