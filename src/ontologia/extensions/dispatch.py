"""The dispatch of a bus: an engine in a thread, whose consumer calls subscribers on the event loop.

A bus differs from other consumers in that one failure is final.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ontologia.delivery.retry import Discard, Retry
from ontologia.engine.background import EngineThread, Interrupted, result_from
from ontologia.engine.consumer import Consumer
from ontologia.engine.engine import Engine, store_engine
from ontologia.errors import ConnectionLostError, LockContentionError
from ontologia.extensions import handling
from ontologia.extensions.handling import Handling
from ontologia.extensions.subscribers import Outcome, call_all
from ontologia.queues.current import Delivered, delivering
from ontologia.queues.stored import event_of
from ontologia.queues.worker import Health
from ontologia.runtime.session import core_of
from ontologia.store.events.claims import ALL_TYPES
from ontologia.store.events.leases import Done
from ontologia.store.rows import Claim

if TYPE_CHECKING:
    from ontologia.extensions.bus import EventBus

log = logging.getLogger(__name__)
BATCH = 3
_LOOK = 1.0  # seconds that a cancelled handler has at least
_MOST_OUTCOMES = 1_000


class Dispatch:
    """One run of a bus, from `start` to `stop`."""

    def __init__(self, bus: EventBus, poll_interval: float) -> None:
        self._bus = bus
        self._core = core = core_of(bus.session)
        self._loop = asyncio.get_running_loop()
        self._poll = poll_interval
        self._policy = core.store.events.policy
        self._health = Health()
        self._outcomes: dict[str, Outcome] = {}
        self._calling: asyncio.Task[Any] | None = None
        self._ended = asyncio.Event()
        self._thread = EngineThread(
            f"bus-{bus.name}", self._build, self._loop, pause=poll_interval, ended=self._set_ended
        )

    def _build(self) -> Engine:
        """An engine that claims three events at a time, and starts each alone.

        The lease of the event that runs is renewed as long as the process lives: a handler that
        asks an agent may wait for minutes, and must keep its event.
        """
        core = self._core
        consumer = Consumer(
            f"bus:{self._bus.name}",
            [ALL_TYPES],
            self._deliver,
            self._policy,
            core.config.event_claim_lease_ms,
            timeout_ms=math.inf,
            renew=True,
            batch=BATCH,
        )
        return store_engine(core, consumer, poll=self._poll, observe=self._health.observe)

    def begin(self) -> None:
        """Claim the first events. Raises what keeps the bus from its store."""
        self._thread.open()
        self._thread.start()

    # -- the end ----------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether it begins no other event."""
        return self._thread.stopping

    def give_up(self) -> None:
        """It could not begin."""
        self._thread.give_up()

    def stop(self) -> None:
        """Begin no other event."""
        self._thread.stop()

    async def wait_ended(self, grace: float) -> None:
        """Until the event at hand is done; after this time it is cancelled, and released."""
        if await self._ends_within(grace):
            return
        if self._calling is not None:
            self._calling.cancel()  # the task itself: what it still has to clean up is waited for
        if not await self._ends_within(max(grace, _LOOK)):
            log.error("EventBus: a handler does not end although it was cancelled; left to itself")

    async def _ends_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)
        return self._ended.is_set()

    def _set_ended(self) -> None:
        with suppress(RuntimeError):  # the event loop is closed: nothing waits
            self._loop.call_soon_threadsafe(self._ended.set)

    # -- in the thread ----------------------------------------------------------------------------

    def _deliver(self, claim: Claim) -> Done:
        """Have the subscribers called; Retry or Discard if the event is not done."""
        now = Handling(self._bus, claim)
        try:
            number = self._core.store.events.journal.number_of(claim.event.id)
        except (ConnectionLostError, LockContentionError) as error:
            raise Interrupted from error  # not the handlers' failure: it is delivered again
        outcome = self._outcomes.pop(claim.event.id, None) or Outcome()
        if claim.crashed:
            outcome = Outcome()
        calling = self._call(now, number, outcome)
        with delivering(Delivered(event_of(claim.event), now.attempt, claim, self._bus.session)):
            try:
                future = asyncio.run_coroutine_threadsafe(calling, self._loop)
            except RuntimeError as error:
                calling.close()
                raise Interrupted from error
        result_from(self._loop, future)
        self._judge(now, outcome)
        return Done(claim)

    # -- on the event loop ------------------------------------------------------------------------

    async def _call(self, now: Handling, number: int, outcome: Outcome) -> None:
        if self.stopping:
            raise asyncio.CancelledError
        self._calling = asyncio.current_task()
        handling.current.set(now)  # in the context of this task, and of those that it starts
        row = now.event
        subscriptions = self._bus.subscribers.of(row.type)
        if not subscriptions:
            log.debug("EventBus: event %s (%s) has no subscriber", number, row.type)
        try:
            await call_all(subscriptions, row, number, now.attempt, outcome)
        finally:
            now.ended = True
        for name, count in now.left_behind().items():
            log.warning("EventBus: %s queued %d objects and did not commit them", name, count)

    def _judge(self, now: Handling, outcome: Outcome) -> None:
        """Nothing if the event is done; Retry or Discard if it is not."""
        if outcome.again and now.attempt < self._policy.max_failures:
            self._remember(now.event.id, outcome)
            raise Retry(outcome.error, after=self._delay(now.attempt, outcome))
        if outcome.error:
            raise Discard(outcome.error)

    def _remember(self, event_id: str, outcome: Outcome) -> None:
        self._outcomes[event_id] = outcome
        if len(self._outcomes) > _MOST_OUTCOMES:  # the oldest is tried again as a whole
            del self._outcomes[next(iter(self._outcomes))]

    def _delay(self, attempt: int, outcome: Outcome) -> float:
        """The longest wait that a handler asked for; else the backoff of the store."""
        wishes = [each.error.after_ms for each in outcome.again if isinstance(each.error, Retry)]
        backoff = self._policy.backoff.delay_ms(attempt, self._core.random.randint)
        return max(wishes, default=backoff) / 1000

    def health(self) -> dict[str, Any]:
        """What became of the events so far."""
        return self._health.snapshot(running=not self.stopping)
