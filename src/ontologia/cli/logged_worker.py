"""A worker of queues, as somebody at a terminal wants to see it."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from ontologia.queues import EventDelivery, EventWorker

if TYPE_CHECKING:
    from ontologia.store.rows import Claim

log = logging.getLogger(__name__)


class LoggedWorker(EventWorker):
    """A worker that also tells of what went well."""

    @property
    def done(self) -> int:
        """Events that all their handlers have handled."""
        return self._succeeded

    @property
    def failed(self) -> int:
        """Attempts that did not end well."""
        return self._processed - self._succeeded

    @property
    def stopping(self) -> bool:
        """Whether its end has begun."""
        return self._stop.is_set()

    def _call(self, delivery: EventDelivery, claim: Claim | None) -> None:
        started = time.monotonic()
        super()._call(delivery, claim)
        log.info(
            "event %s (%s): done at attempt %d in %.0f ms",
            *(delivery.event.event_id, delivery.event.name, delivery.attempt_number),
            (time.monotonic() - started) * 1000,
        )
