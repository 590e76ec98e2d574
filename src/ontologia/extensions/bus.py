"""`EventBus`: events by topic, stored before they are delivered to handlers on an event loop.

bus = EventBus("assistant.db")
bus.subscribe("reminder.due", remind)
async with bus:
    await bus.schedule_at(5.0, "reminder.due", "reminders", {"text": "Drink water"})
"""

from __future__ import annotations

import logging
import os
import platform
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ontologia.clock import from_text
from ontologia.extensions import handling
from ontologia.extensions.contract import Handler
from ontologia.extensions.dispatch import Dispatch
from ontologia.extensions.journal import EventJournal
from ontologia.extensions.state import Types
from ontologia.extensions.subscribers import Subscribers
from ontologia.extensions.threads import Threads
from ontologia.runtime.session import Session, core_of
from ontologia.store.events import checks
from ontologia.store.events.claims import ALL_TYPES
from ontologia.store.events.operations import Selection
from ontologia.store.events.store import EventStore

log = logging.getLogger(__name__)
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)://")

_LINUX = platform.system() == "Linux"
_ENDED_STATES = ("Z", "X")  # zombie and dead, in /proc/<pid>/stat


class EventBus:
    """Delivers every event of a namespace once to the subscribers of its topic.

    `session_or_uri` is a session, which stays the caller's to close, or a path or URI; the directory
    of a file is made. Buses of one name, in any number of processes, share the events; each name
    gets all of them. Events are stored in the order of the calls that publish them, and delivered
    one after the other in the order in which they were stored.

    An event is done when all its subscribers have returned. If one raises, the others are called
    all the same, and the event has failed. An event that was being handled when its process died is
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
        core_of(self.session).instance.update(process_metadata())
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
        """Store an event, to be delivered at once; returns its number in the journal.

        It does not wait for handlers. Called by a handler, the handled event is the cause of the
        new one: EventLoopLimitError if that chain is longer than `max_event_chain_depth`.
        InvalidValueError if the payload is no JSON object. After an error nothing is stored. One
        durable transaction.
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
        """Store an event that is delivered after `delay` (seconds or a timedelta); returns its number.

        A delay below 0 is 0. With `delay=None`, `at` is the instant, an aware datetime. The number
        is for `cancel_deferred`. One durable transaction.
        """
        return await self.journal.schedule_deferred(
            delay, topic, source, payload, correlation_id, at=at
        )

    async def cancel_deferred(self, id: int, *, source: str | None = None) -> bool:
        """Cancel a deferred event; False if it fired, was cancelled, or never was.

        With `source`, also if another source scheduled it.
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
        """Call `handler(event)`, an `async def`, with the events of a topic.

        Returns a function that ends the subscription. Subscribers of a topic are called one after
        the other in the order of their subscriptions. A failure is final unless `max_attempts` is
        greater than 1: then the event is retried, for those that failed and have attempts left. In a
        new process all of them are called.

        Subscriptions live in memory. Events that are delivered before one exists are done without
        it, so subscribe before `start`.
        """
        return self.subscribers.add(topic, handler, subscriber_id, max_attempts)

    async def retry(self, id: int) -> bool:
        """Deliver a failed event again, with its attempts reset.

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
        """Recover the events of dead processes, and emit overdue ones; returns their number.

        Call it once, before `start`. An event that a dead process on this machine had started is
        delivered again without waiting for its lease to expire, and the attempt counts. Processes on
        other machines are dead when their sessions are silent for `session_ttl_ms`.
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
        now = core_of(self.session).clock.now()
        dead = [
            each.session_id
            for each in recovery.holders(consumer)
            if session_is_dead(each.last_heartbeat, each.metadata, now, ttl)
        ]
        recovered = recovery.give_back(consumer, dead, self._events.policy) + recovery.promote()
        self._events.wake()
        return recovered

    async def start(self) -> None:
        """Deliver events from now on, on this event loop. Idempotent."""
        if self._dispatch is not None and not self._dispatch.stopping:
            return
        await self.stop()
        core_of(self.session).check_open()
        dispatch = self._dispatch = Dispatch(self, self._poll_interval)
        try:
            await self.threads.run(dispatch.begin)
        except BaseException:
            self._dispatch = None
            dispatch.give_up()
            raise

    async def stop(self) -> None:
        """Deliver no more events, and wait for the current one (`shutdown_grace_ms`).

        After that time its handler is cancelled, and the event is released without counting the
        attempt. Called by a handler it does not wait: its event is the last one. Pending events stay
        pending until the next `start`. Idempotent.
        """
        dispatch = self._dispatch
        if dispatch is None:
            return
        dispatch.stop()
        now = handling.current.get()
        if now is not None and now.bus is self and not now.ended:
            return  # the handler would wait for itself
        await dispatch.wait_ended(self.session.config.shutdown_grace_ms / 1000)
        if self._dispatch is dispatch:
            self._dispatch = None

    async def close(self) -> None:
        """Stop, and close the threads and, if the bus opened it, the session. Idempotent."""
        await self.stop()
        if self._own_session and not core_of(self.session).closed:
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
        """Counts since `start`: `running`, `processed`, `succeeded`, `retried`, `dead_lettered`,
        `last_error`, and `last_event_at` as text.
        """
        return {"running": False} if self._dispatch is None else self._dispatch.health()

    @property
    def _events(self) -> EventStore:
        return core_of(self.session).store.events

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


# -- dead sessions ----------------------------------------------------------------------------------


def process_metadata() -> dict[str, Any]:
    """What a session stores so that other processes can tell whether its process is alive."""
    return {"pid": os.getpid(), "machine": _machine(), "process_started": _started(os.getpid())}


def session_is_dead(
    last_heartbeat: str | None, metadata: Mapping[str, Any], now: datetime, ttl: timedelta
) -> bool:
    """Whether a session ended, is silent for longer than `ttl`, or its process is gone.

    Only certainty counts: False in doubt.
    """
    if last_heartbeat is None or "stopped_at" in metadata:
        return True
    return now - from_text(last_heartbeat) > ttl or _process_is_gone(metadata)


def _process_is_gone(metadata: Mapping[str, Any]) -> bool:
    pid, machine = metadata.get("pid"), metadata.get("machine")
    if machine is None or machine != _machine() or not isinstance(pid, int):
        return False  # processes of other machines and containers are not visible here
    if _LINUX:
        return _started(pid) != metadata.get("process_started")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _machine() -> str | None:
    """Identifies the machine, or the container, whose processes are visible here; None if unknown."""
    if _LINUX:
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # a container has its own pids
        except OSError:
            return None
    return platform.node() if os.name == "posix" else None


def _started(pid: int) -> str | None:
    """When a process started, in clock ticks since boot; None if it is gone, or unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the command name may contain anything
    return None if fields[0] in _ENDED_STATES else fields[19]
