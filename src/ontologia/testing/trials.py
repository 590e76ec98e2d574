"""One run of a handler over one event, with the parts that `Session.run` is made of.

Here they stand in one thread and without the loop around them, so that a run takes the same steps
each time, and a process that is to die has nothing beside the handler that goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from random import Random
from typing import Any

from ontologia.clock import from_text
from ontologia.config import OntologiaConfig
from ontologia.engine.acks import nothing_at_exit
from ontologia.engine.coroutines import Coroutines
from ontologia.engine.runner import Runner
from ontologia.engine.source import StoreSource
from ontologia.errors import EventLoopLimitError, SessionClosedError, StoreOpenError
from ontologia.runtime.handler_engine import consumer_of
from ontologia.runtime.handlers import Handler, Options
from ontologia.runtime.session import Session, core_of
from ontologia.schema.event import Event, event_of, payload_of
from ontologia.store.rows import Claim, ConsumerRow
from ontologia.testing.clock import ManualClock
from ontologia.testing.endings import Ending, ending_of, events_in
from ontologia.testing.faults import ACK, Boundaries, Crash, Fault

_SEED = 1
_MOST_ATTEMPTS = 10
_ALL = 1_000


class Trial:
    """A handler, an event and a store of their own, which is empty at first."""

    def __init__(self, handler: Handler, event: Event, uri: str, fault: Fault | None) -> None:
        self.boundaries = Boundaries(fault)
        # A handler that allows itself few attempts is interrupted as often as any other.
        self._handler = self.boundaries.guard(handler._replace(options=Options()))
        self._event = event_of(type(event), payload_of(event))
        self._event.priority = event.priority
        self._uri = uri
        self._clock = ManualClock()
        # One source of chance for all processes: two of the same seed would draw the same ids.
        self._config = OntologiaConfig(
            clock=self._clock, random=Random(_SEED), event_max_attempts=_MOST_ATTEMPTS
        )
        self._lease_ms = self._config.event_claim_lease_ms

    def run(self, given: Callable[[Session], object], effects: Callable[[], object]) -> Ending:
        """From what is given to the end of the deliveries; how it ended."""
        with closing(self._open()) as session:
            given(session)
            session.commit()
            session.event_store.enqueue(self._event, session.namespace)
            before = events_in(session)
        with nothing_at_exit():
            while not self._live():
                pass
        left = deepcopy(effects())  # the next run may go on with the same object
        with closing(self._open()) as session:
            return ending_of(session, self._id, before, left)

    @property
    def _id(self) -> str:
        return str(self._event.id)

    def _open(self) -> Session:
        return Session(self._uri, config=self._config)

    # -- the life of a process ------------------------------------------------------------------

    def _live(self) -> bool:
        """One process gives the event to the handler until that is over, or it dies."""
        coroutines = Coroutines()
        with closing(self._open()) as session:
            self.boundaries.guard_session(session)
            try:
                while not self._is_over(session):
                    self._attempt(session, coroutines)
            except (Crash, SessionClosedError):
                if not self.boundaries.killed(session):
                    raise
                return False
            except EventLoopLimitError:  # which has buried the event
                pass
            finally:
                coroutines.close(1.0)
        return True

    def _is_over(self, session: Session) -> bool:
        found = session.event_store.inspect_event(self._id)
        if found is None:
            raise StoreOpenError(
                f"{self._uri} does not outlive its session: what was in it is gone",
                hint="Give a file, or a schema on a server.",
            )
        return any(each["ack_at"] or each["dead_lettered_at"] for each in found["claims"])

    def _attempt(self, session: Session, coroutines: Coroutines) -> None:
        """Wait until the event can be had, and let the handler have it once."""
        events = core_of(session).store.events
        consumer = events.consumers.register(
            session.namespace, self._handler.id, self._handler.event_types
        )
        claim = self._claimed(session, consumer)
        if claim is None:  # a lease or a backoff is not over
            self._wait(session, consumer)
            return
        handler = consumer_of(session, self._handler, coroutines)
        source = StoreSource(core_of(session), [handler])
        source.start([claim])
        runner = Runner(
            source,
            lambda: False,
            lambda least, most: self._clock.sleep(most),
            max_conflicts=self._config.event_max_conflicts,
            raise_at_limit=True,
        )
        runner.attempt(handler, claim)
        if source.acks.due_in() is not None:
            with self.boundaries.at(ACK, session):
                source.flush()

    def _claimed(self, session: Session, consumer: ConsumerRow) -> Claim | None:
        events = core_of(session).store.events
        claims = events.claims.claim(
            consumer,
            self._handler.event_types,
            session_id=session.session_id,
            limit=_ALL,
            lease_ms=self._lease_ms,
            policy=events.policy,
        )
        # The handler may announce events of its own type: those are compared, and not handled.
        return next((claim for claim in claims if claim.event.id == self._id), None)

    def _wait(self, session: Session, consumer: ConsumerRow) -> None:
        due: Any = core_of(session).store.events.claims.peek([consumer.id]).next_due
        left = from_text(due) - self._clock.now()
        self._clock.advance(seconds=left.total_seconds())
