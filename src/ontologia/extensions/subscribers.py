"""The subscribers of a bus: which handlers get the events of a topic, and how calling them ended."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ontologia import codec
from ontologia.clock import from_text
from ontologia.delivery.retry import Discard, Retry, describe_error
from ontologia.errors import EventLoopLimitError, HandlerError
from ontologia.extensions.contract import Event, Handler
from ontologia.queues.protocol import checked_name
from ontologia.store.events import checks
from ontologia.store.rows import EventRow

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Subscription:
    """One handler of one topic."""

    topic: str
    handler: Handler
    subscriber_id: str
    max_attempts: int


class Failure(NamedTuple):
    """A subscriber that raised."""

    subscription: Subscription
    error: BaseException

    def __str__(self) -> str:
        return f"{self.subscription.subscriber_id}: {describe_error(self.error)}"

    def may_go_again(self, attempt: int) -> bool:
        """Whether the subscriber has another attempt after this one."""
        final = isinstance(self.error, Discard | EventLoopLimitError)
        return not final and attempt < self.subscription.max_attempts


@dataclass(slots=True)
class Outcome:
    """How calling the subscribers of an event ended, over all attempts so far."""

    finished: set[Subscription] = field(default_factory=set[Subscription])
    """Those that succeeded or failed finally: they are not called again."""
    lost: list[str] = field(default_factory=list[str])
    """The errors of those that failed finally."""
    again: list[Failure] = field(default_factory=list[Failure])
    """Those that failed and are called again."""

    @property
    def error(self) -> str:
        """Every failure, each with the id of its subscriber; empty if there was none."""
        return "; ".join([*self.lost, *map(str, self.again)])


class Subscribers:
    """The subscriptions of a bus, in the order in which they were made. Thread-safe."""

    def __init__(self) -> None:
        self._by_topic: dict[str, tuple[Subscription, ...]] = {}
        self._lock = threading.Lock()

    def add(
        self, topic: str, handler: Any, subscriber_id: str | None, max_attempts: int
    ) -> Callable[[], None]:
        """Call a handler with the events of a topic; returns a function that ends it."""
        checked_name(topic)
        if not _is_async(handler):
            raise HandlerError(
                f"a handler of {topic} is an async def with one argument, got {handler!r:.200}",
                hint="Write: async def handler(event). What blocks goes to asyncio.to_thread.",
            )
        name = _name(handler) if subscriber_id is None else subscriber_id
        subscription = Subscription(
            topic,
            handler,
            checks.name("subscriber_id", name),
            checks.whole("max_attempts", max_attempts, 1, 2**31 - 1),
        )
        with self._lock:
            self._by_topic[topic] = (*self.of(topic), subscription)
        return lambda: self._remove(subscription)

    def _remove(self, subscription: Subscription) -> None:
        with self._lock:
            left = tuple(each for each in self.of(subscription.topic) if each is not subscription)
            self._by_topic[subscription.topic] = left
            if not left:
                del self._by_topic[subscription.topic]

    def of(self, topic: str) -> tuple[Subscription, ...]:
        """The current subscriptions of a topic."""
        return self._by_topic.get(topic, ())


async def call_all(
    subscriptions: Sequence[Subscription],
    row: EventRow,
    number: int,
    attempt: int,
    outcome: Outcome,
) -> None:
    """Call the subscribers one after the other, also after one raises.

    Each gets its own copy of the payload. Those that an earlier attempt finished are skipped.
    """
    outcome.again = []
    for each in subscriptions:
        if each in outcome.finished:
            continue
        try:
            await each.handler(_event(row, number))
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise  # the bus stops; the handler did not cancel itself
            failure = Failure(each, error)
            _report(failure, number, row.type)
            if failure.may_go_again(attempt):
                outcome.again.append(failure)
                continue
            outcome.lost.append(str(failure))
        outcome.finished.add(each)


def _event(row: EventRow, number: int) -> Event:
    created_at = from_text(row.created_at).timestamp()
    payload = codec.decode_stored(row.payload)
    return Event(number, row.type, row.source or "", payload, created_at, row.correlation_id)


def _report(failure: Failure, number: int, topic: str) -> None:
    on_purpose = isinstance(failure.error, Retry | Discard)
    log.log(
        logging.WARNING if on_purpose else logging.ERROR,
        "EventBus: subscriber %s failed with event %s (%s): %s",
        *(failure.subscription.subscriber_id, number, topic, describe_error(failure.error)),
        exc_info=None if on_purpose else failure.error,
        extra={"subscriber_id": failure.subscription.subscriber_id, "event_id": number},
    )


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_async(handler: Any) -> bool:
    if not callable(handler):
        return False
    called = type(handler).__call__  # an object with an async __call__ is a handler, too
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called)


def _name(handler: Any) -> str:
    name = getattr(handler, "__qualname__", None) or type(handler).__qualname__
    return str(name)[-checks.LONGEST_NAME :]
