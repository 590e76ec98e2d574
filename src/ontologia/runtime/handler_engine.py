"""`Session.run`: the typed handlers of a session as consumers of the engine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

from ontologia.engine.consumer import Consumer
from ontologia.engine.coroutines import Coroutines
from ontologia.engine.engine import IDLE_POLL, Engine
from ontologia.engine.source import Source, StoreSource
from ontologia.errors import SchemaOutdatedError
from ontologia.runtime.context import HandlerCall
from ontologia.runtime.handlers import Handler
from ontologia.runtime.session import Session, core_of
from ontologia.store.events.consumers import Start

log = logging.getLogger(__name__)
_NAMED = 10  # consumers in one line of the log


class HandlerEngine(Engine):
    """One `run` of one session."""

    def __init__(
        self,
        session: Session,
        handlers: Sequence[Handler],
        *,
        workers: int,
        start: Start,
        on_chain_limit: Literal["raise", "log"] = "raise",
    ) -> None:
        self._core = core = core_of(session)
        config = core.config
        coroutines = Coroutines()
        self._consumers = [consumer_of(session, each, coroutines) for each in handlers]
        super().__init__(
            self._source_of(start),
            self._consumers,
            core.clock,
            core.random,
            coroutines=coroutines,
            workers=workers,
            claim_limit=config.event_claim_limit,
            per_iteration=config.max_events_per_iteration,
            poll=config.event_poll_interval_ms / 1000 or IDLE_POLL,
            pause=config.event_poll_interval_ms / 1000,
            grace=config.shutdown_grace_ms / 1000,
            max_conflicts=config.event_max_conflicts,
            max_abandoned=config.max_abandoned_threads,
            raise_at_limit=on_chain_limit == "raise",
        )

    def _source_of(self, start: Start) -> Source:
        core = self._core
        if core.bucket is None:
            return StoreSource(core, self._consumers, start=start, ends_session=True)
        from ontologia.engine.bucket_source import BucketSource  # only for those who have a bucket

        return BucketSource(core, core.bucket, self._consumers, start=start)

    def open(self) -> None:
        """Register the handlers, and log what runs and what does not."""
        super().open()
        if self._core.bucket is None:
            self._name_others()
        self._core.scheduler.restart()
        number = len(self._consumers)
        log.info(
            "session %s runs %d handler%s",
            *(self._core.session_id, number, "" if number == 1 else "s"),
        )

    def _name_others(self) -> None:
        """Log which consumers of the namespace this program does not run, and what waits for them."""
        namespace, events = self._core.namespace, self._core.store.events
        names = [each.name for each in self._consumers]
        others = sorted(events.consumers.others(namespace, names))
        if not others:
            return
        waiting = dict.fromkeys(others, 0)
        for row in events.activity.waiting(namespace):
            if row["handler"] in waiting:
                waiting[row["handler"]] += row["waiting"] + row["backoff"]
        said = [f"{name} ({waiting[name]:,} waiting)" for name in others[:_NAMED]]
        more = len(others) - len(said)
        log.info(
            "consumers of namespace %r that this program does not run: %s%s",
            *(namespace, ", ".join(said), f" and {more} more" if more else ""),
        )


def consumer_of(session: Session, handler: Handler, coroutines: Coroutines) -> Consumer:
    """A typed handler as a consumer."""
    lease_ms, policy, timeout_ms, renew = handler.delivery(session.config)
    return Consumer(
        handler.id,
        handler.event_types,
        HandlerCall(session, handler, coroutines),
        policy,
        lease_ms,
        timeout_ms,
        renew,
        handler.formerly,
        is_outdated=lambda: is_outdated(session),
    )


def is_outdated(session: Session) -> bool:
    """Whether a type that the session uses is not, or no longer, the store's.

    A SchemaOutdatedError may also be of another store, or of the past of a type that was dropped.
    """
    try:
        session.validate()
    except SchemaOutdatedError:
        return True
    return False
