"""A worker of queues, as somebody at a terminal wants to see it."""

from __future__ import annotations

import logging
import time

from ontologia.queues import Delivered, DomainEvent, EventWorker

log = logging.getLogger(__name__)


class LoggedWorker(EventWorker):
    """A worker that also tells of what went well."""

    @property
    def done(self) -> int:
        """Events that all their handlers have handled."""
        return self._health.succeeded

    @property
    def failed(self) -> int:
        """Attempts that did not end well."""
        return self._health.processed - self._health.succeeded

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        engine = self._engine
        return self._stopped or (engine is not None and engine.stopping)

    def _call(self, event: DomainEvent, delivery: Delivered) -> None:
        started = time.monotonic()
        super()._call(event, delivery)
        log.info(
            "event %s (%s): done at attempt %d in %.0f ms",
            *(event.event_id, event.name, delivery.attempt),
            (time.monotonic() - started) * 1000,
        )
