"""`EventBus`: events by topic, stored before they are delivered, for handlers on an event loop.

bus = EventBus("assistant.db")
bus.subscribe("reminder.due", remind)
async with bus:
    await bus.schedule_at(5.0, "reminder.due", "reminders", {"text": "Drink water"})
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ontologia.delivery.retry import Backoff, RetryPolicy
from ontologia.extensions import alive, handling
from ontologia.extensions.contract import Handler
from ontologia.extensions.dispatch import Dispatch
from ontologia.extensions.journal import EventJournal
from ontologia.extensions.state import Types
from ontologia.extensions.subscribers import Subscribers
from ontologia.extensions.threads import Threads
from ontologia.runtime.session import Session
from ontologia.store.events import checks
from ontologia.store.events.claims import ALL_TYPES
from ontologia.store.events.operations import Selection
from ontologia.store.events.store import SqlEventStore

log = logging.getLogger(__name__)
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)://")
_NEVER = 2**31 - 1
_COUNTING = RetryPolicy(_NEVER, _NEVER, Backoff(0, 0, 0))  # the worker holds it against the limit


class EventBus:
    """Delivers every event of a namespace once to the subscribers of its topic.

    `session_or_uri` is a session, which stays the caller's, or a path or URI; the directory of a
    file is made. Buses of one name, in any number of processes, share the events; each name is
    given all of them. Events are stored in the order of the calls that publish them, and
    delivered one after the other in the order in which they were stored.

    An event is done when all its subscribers have returned. If one raises, the others are called
    all the same, and the event has failed. What was being handled when a process died is
    delivered again.
    """

    def __init__(
        self,
        session_or_uri: Session | str | os.PathLike[str] = "sandbox/data/event_journal.db",
        *,
        name: str = "default",
        poll_interval: float = 5.0,
    ) -> None:
        self.name = checks.name("a bus's name", name)
        self._poll_interval = _positive(poll_interval)
        self._own_session = not isinstance(session_or_uri, Session)
        self.session = (
            session_or_uri
            if isinstance(session_or_uri, Session)
            else Session(_with_directory(os.fspath(session_or_uri)))
        )
        self.session._instance.update(alive.mark())
        self.threads = Threads()
        self.types = Types(self.session)
        self.subscribers = Subscribers()
        self.journal = EventJournal(self.session, self.threads)
        self._dispatch: Dispatch | None = None

    def __repr__(self) -> str:
        state = "stopped" if self._dispatch is None else "running"
        return f"<EventBus {self.name!r} on {self.session!r}, {state}>"

    # -- events -----------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        source: str,
        payload: dict[str, Any],
        correlation_id: str | None = None,
    ) -> int:
        """Store an event, to be delivered at once; its number in the journal.

        It does not wait for handlers. Called by a handler, the new event follows from the one
        that is handled: EventLoopLimitError when that chain is longer than
        `max_event_chain_depth`. InvalidValueError if the payload is no JSON object; then, as
        after every error, nothing is stored. One durable transaction.
        """
        return await self.journal.insert(topic, source, payload, correlation_id)

    async def schedule_at(
        self,
        delay: float | timedelta | None,
        topic: str,
        source: str,
        payload: dict[str, Any],
        correlation_id: str | None = None,
        *,
        at: datetime | None = None,
    ) -> int:
        """Store an event that is delivered after `delay` (seconds or a timedelta); its number.

        A delay below 0 is 0. With `delay=None`, `at` is the instant, an aware datetime. The number
        is for `cancel_deferred`. One durable transaction.
        """
        return await self.journal.schedule_deferred(
            delay, topic, source, payload, correlation_id, at=at
        )

    async def cancel_deferred(self, id: int, *, source: str | None = None) -> bool:
        """Take back an event that waits for its time; False if it fired, was cancelled, never was.

        With `source`, also if another one scheduled it.
        """
        return await self.threads.in_order(
            self._events.cancel_deferred,
            self.session.namespace,
            id,
            claim=handling.fence(self.session),
            source=source,
        )

    def subscribe(
        self,
        topic: str,
        handler: Handler,
        *,
        subscriber_id: str | None = None,
        max_attempts: int = 1,
    ) -> Callable[[], None]:
        """Call `handler(event)`, an `async def`, with the events of a topic; what is returned ends it.

        Subscribers of a topic are called one after the other in the order in which they came. A
        failure is final unless `max_attempts` says more: then the event comes again after a while,
        for those that failed and have attempts left. In a new process all of them are called.

        Subscriptions live in memory. What is delivered before there is one is done without it, so
        subscribe before `start`.
        """
        return self.subscribers.add(topic, handler, subscriber_id, max_attempts)

    async def retry(self, id: int) -> bool:
        """Deliver an event again that has failed, with a fresh set of attempts.

        False if there is no such event, it has not failed, or an operator dismissed its failure.
        """
        return await self.threads.run(self._retry, id)

    def _retry(self, id: int) -> bool:
        number = checks.whole("an event's number", id, -(2**63), 2**63 - 1)
        entry = self._events.journal.entry(self.session.namespace, number)
        if entry is None:
            return False
        which = Selection(event_id=entry["event_id"], handler=self._consumer)
        retried = False
        for letters in self._events.operations.dead_letters(self.session.namespace, which):
            with self._events.transaction() as tx:
                retried |= bool(self._events.operations.retry(tx, letters))
        if retried:
            self._events.wake()
        return retried

    # -- running ----------------------------------------------------------------------------------

    async def recover(self) -> int:
        """Take over what processes left that have died, and announce what is overdue; how many.

        Call it once, before `start`. Whatever a process on this machine had begun is delivered
        again without waiting for its lease to run out, and the attempt counts; of processes on
        other machines, when their sessions are silent for `session_ttl_ms`.
        """
        recovered = await self.threads.run(self._recover)
        log.info("EventBus: recovered %d events", recovered)
        return recovered

    def _recover(self) -> int:
        recovery, config = self._events.recovery, self.session.config
        consumer = self._events.consumers.register(
            self.session.namespace,
            self._consumer,
            [ALL_TYPES],
            session_id=self.session.session_id,
            afresh=True,
        )
        ttl = timedelta(milliseconds=config.session_ttl_ms)
        now = self.session._clock.now()
        dead = [
            each.session_id
            for each in recovery.holders(consumer)
            if alive.is_dead(each.last_heartbeat, each.metadata, now, ttl)
        ]
        recovered = recovery.give_back(consumer, dead, _COUNTING) + recovery.promote()
        self._events.wake()
        return recovered

    async def start(self) -> None:
        """Deliver events from now on, on this event loop. Again is nothing."""
        if self._dispatch is not None and not self._dispatch.stopping:
            return
        await self.stop()
        self.session._check_open()
        dispatch = self._dispatch = Dispatch(self, self._poll_interval)
        try:
            await self.threads.run(dispatch.begin)
        except BaseException:
            self._dispatch = None
            dispatch.give_up()
            raise

    async def stop(self) -> None:
        """Let the event at hand come to its end (`shutdown_grace_ms`), and deliver no other.

        After that time its handler is cancelled, and the event is given back as if it had not
        been tried. Called by a handler it does not wait: the event at hand is the last one. What
        is pending stays so, and `start` goes on with it.
        """
        dispatch = self._dispatch
        if dispatch is None:
            return
        dispatch.stop()
        now = handling.current.get()
        if now is not None and now.bus is self and not now.ended:
            return  # it would wait for itself
        await dispatch.wait_ended(self.session.config.shutdown_grace_ms / 1000)
        if self._dispatch is dispatch:
            self._dispatch = None

    async def close(self) -> None:
        """Stop, and give up the threads and, if it was opened here, the session. Again is nothing."""
        await self.stop()
        if self._own_session and not self.session._closed:
            await self.threads.run(self.session.close)
        self.threads.close()

    async def __aenter__(self) -> Self:
        await self.recover()
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def health(self) -> dict[str, Any]:
        """What became of the events since `start`: `running`, `processed`, `succeeded`, `retried`,
        `dead_lettered`, `last_error`, and `last_event_at` as text.
        """
        return {"running": False} if self._dispatch is None else self._dispatch.health()

    # -- within the package -----------------------------------------------------------------------

    @property
    def _events(self) -> SqlEventStore:
        return self.session._store.events

    @property
    def _consumer(self) -> str:
        return f"bus:{self.name}"


def _positive(poll_interval: Any) -> float:
    fits = isinstance(poll_interval, int | float) and not isinstance(poll_interval, bool)
    if not fits or not 0 < poll_interval <= 3600:
        raise checks.error_for(poll_interval, int, float)(
            f"poll_interval is a number of seconds, more than 0 and at most 3600, "
            f"got {poll_interval!r:.200}"
        )
    return float(poll_interval)


def _with_directory(uri: str) -> str:
    """Make the directory of a database file, if there is none."""
    scheme = _SCHEME.match(uri)
    path = uri
    if scheme is not None:
        path = uri[len("sqlite:///") :] if scheme[1].lower() == "sqlite" else ""
    if path and path != ":memory:":
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    return uri
