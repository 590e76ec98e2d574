"""`ExtensionContext`: all that an extension has of the system, and all that it needs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from ontologia.errors import ConfigError, ExtensionError, InvalidTypeError, InvalidValueError
from ontologia.extensions import handling
from ontologia.extensions.bus import EventBus
from ontologia.extensions.contract import Handler
from ontologia.extensions.permissions import Permissions, check
from ontologia.extensions.state import StateQuery
from ontologia.runtime.commits import WriteRequest
from ontologia.runtime.intents import Intents
from ontologia.schema.entity import Entity
from ontologia.store.events import checks
from ontologia.store.rows import Announcement, Claim

log = logging.getLogger(__name__)
_EVENT = ("topic", "payload", "correlation_id")


class ExtensionContext:
    """What `initialize(context)` is given. An extension imports nothing else.

    Events go out under the extension's own id. With `permissions`, whatever they do not name is
    refused with a PermissionDeniedError that says which line the manifest lacks; without, all is
    allowed. `models` are the classes of the entity types that it works with, where the host has
    them; other types are known from the store. `agent` is that section of the manifest, and
    `attempts` its `max_attempts` by topic.

    Without a bus, as in a test of the extension alone, it announces and hears nothing.
    """

    def __init__(
        self,
        *,
        extension_id: str,
        event_bus: EventBus | None = None,
        permissions: Permissions | Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        models: Iterable[type[Entity]] | None = None,
        agent: Mapping[str, Any] | None = None,
        attempts: Mapping[str, int] | None = None,
    ) -> None:
        self._id = checks.name("extension_id", extension_id)
        self._bus = event_bus
        self._permissions = Permissions.of(permissions)
        self._settings = MappingProxyType(dict(settings or {}))
        self._agent = MappingProxyType(dict(agent or {}))
        self._attempts = dict(attempts or {})
        self._logger = logging.getLogger(f"ontologia.extension.{extension_id}")
        self._subscriptions: list[Callable[[], None]] = []
        self._closed = False
        self._intents: Intents | None = None
        self._committing = threading.Lock()
        for model in models or ():
            if event_bus is not None:
                event_bus.session._registry.add(model, "entity")

    def __repr__(self) -> str:
        return (
            f"<ExtensionContext {self._id} {'without a bus' if self._bus is None else self._bus!r}>"
        )

    @property
    def extension_id(self) -> str:
        """The id from the manifest."""
        return self._id

    @property
    def settings(self) -> Mapping[str, Any]:
        """The extension's settings, checked; to be read only."""
        return self._settings

    @property
    def agent(self) -> Mapping[str, Any]:
        """The section `agent` of the manifest, as it is written; empty if there is none."""
        return self._agent

    @property
    def logger(self) -> logging.Logger:
        """A logger of the extension's own: `ontologia.extension.<id>`."""
        return self._logger

    # -- events -----------------------------------------------------------------------------------

    async def emit(
        self, topic: str, payload: dict[str, Any], correlation_id: str | None = None
    ) -> None:
        """Announce an event; it is stored when this returns, and handled later.

        InvalidValueError if the payload is no JSON object; then nothing is stored.
        """
        self._check("publish", topic)
        if self._bus is None:
            log.debug("%s: no bus; %s is not announced", self._id, topic)
            return
        await self._bus.publish(topic, self._id, payload, correlation_id)

    async def schedule_at(
        self,
        delay: float | timedelta,
        topic: str,
        payload: dict[str, Any],
        correlation_id: str | None = None,
    ) -> int | None:
        """Announce an event after so many seconds, or a timedelta; its number.

        None if there is no bus. The number is for `cancel_deferred`.
        """
        self._check("publish", topic)
        if self._bus is None:
            log.debug("%s: no bus; %s is not scheduled", self._id, topic)
            return None
        return await self._bus.schedule_at(delay, topic, self._id, payload, correlation_id)

    async def cancel_deferred(self, id: int) -> bool:
        """Take back an event that this extension scheduled; False if it fired, or is not its own."""
        return False if self._bus is None else await self._bus.cancel_deferred(id, source=self._id)

    def subscribe_event(
        self, topic: str, handler: Handler, *, max_attempts: int | None = None
    ) -> Callable[[], None]:
        """Have `async def handler(event)` called with the events of a topic.

        What is returned ends it. A handler that raises makes the event `failed`, unless there are
        more attempts: `max_attempts`, else what the manifest says for the topic, else one.
        ExtensionError after the end of the extension.
        """
        self._check("subscribe", topic)
        if self._closed:
            raise ExtensionError(
                f"{self._id} was stopped, and hears nothing more: not of {topic} either",
                hint="A task that subscribes is to be ended in stop().",
            )
        if self._bus is None:
            log.debug("%s: no bus; nothing of %s will come", self._id, topic)
            return lambda: None
        most = self._attempts.get(topic, 1) if max_attempts is None else max_attempts
        end = self._bus.subscribe(topic, handler, subscriber_id=self._id, max_attempts=most)
        self._subscriptions.append(end)
        return end

    def close(self) -> None:
        """End all subscriptions that were made here, and take no others. The host calls it.

        A task of a version that was replaced would else hear of events beside the new one.
        """
        self._closed = True
        while self._subscriptions:
            self._subscriptions.pop()()

    # -- state ------------------------------------------------------------------------------------

    def query(self, type_name: str) -> StateQuery:
        """Ask for objects of an entity type: `await ctx.query("Customer").collect()` gives dicts.

        It sees what is committed, not what this extension has queued.
        """
        self._check("read", type_name)
        bus = self._needed()
        return StateQuery(bus.types, bus.session, bus.threads, type_name)

    async def ensure(self, type_name: str, fields: dict[str, Any]) -> None:
        """Queue an object, with all its fields: the next `commit` makes it true."""
        self._check("write", type_name)
        bus, intents = self._needed(), self._queue()
        if not isinstance(fields, dict):
            raise InvalidTypeError(f"{type_name}: fields are a dict, got {fields!r:.200}")
        intents.ensure(await bus.threads.run(bus.types.instance, type_name, fields))

    async def delete(self, type_name: str, key: Any) -> None:
        """Queue the deletion of an object. Deleting what does not exist is nothing."""
        self._check("write", type_name)
        bus, intents = self._needed(), self._queue()
        intents.delete(await bus.threads.run(bus.types.to_delete, type_name, key))

    async def commit(self, event: Mapping[str, Any] | None = None) -> int | None:
        """Write what is queued, in one transaction; the number of the commit, None without changes.

        With `event`, `{"topic": …, "payload": {…}}` and perhaps a `correlation_id`, that event is
        stored in the same transaction, whether anything changes or not. While an event is handled,
        everything depends on its lease: LeaseExpiredError, and nothing is written, if it was lost.
        What a handler queues and does not commit is dropped.
        """
        bus, intents = self._needed(), self._queue()
        announcements: list[Announcement] = []
        if event is not None:
            said = _checked_event(event)
            self._check("publish", said["topic"])
            row = bus.journal.row(
                said["topic"], self._id, said["payload"], said.get("correlation_id")
            )
            announcements.append(Announcement(row))
        claim = handling.fence(bus.session)
        return await bus.threads.run(self._write, bus, intents, announcements, claim)

    def _write(
        self,
        bus: EventBus,
        intents: Intents,
        announcements: list[Announcement],
        claim: Claim | None,
    ) -> int | None:
        # One commit after the other: one that finds nothing must not return before the one that
        # is just writing it.
        with self._committing:
            queue = intents.snapshot()
            request = WriteRequest(queue, self._metadata(bus, claim), announcements, claim)
            written = bus.session._commits.write(request)
            intents.settle(queue, written.commit_id, written.unchanged, written.state)
        return written.commit_id

    def _metadata(self, bus: EventBus, claim: Claim | None) -> dict[str, Any]:
        metadata = bus.session._metadata() | {"extension_id": self._id}
        if claim is not None:
            metadata["event_id"] = claim.event.id
            metadata["handler_id"] = claim.handler_id
            metadata["attempt"] = claim.attempts + 1
        return metadata

    def _queue(self) -> Intents:
        """What is queued: while an event is handled, a queue of that attempt alone."""
        bus, now = self._needed(), handling.current.get()
        if now is not None and now.bus is bus and not now.ended:
            return now.intents_of(self._id)
        if self._intents is None:
            self._intents = bus.session._new_intents()
        return self._intents

    # -- the rest ---------------------------------------------------------------------------------

    def _check(self, action: str, name: str) -> None:
        check(self._permissions, self._id, action, name)

    def _needed(self) -> EventBus:
        if self._bus is None:
            raise ConfigError(
                f"extension {self._id} has no bus, and with it no store to read or change",
                hint="Give its context an event_bus.",
            )
        return self._bus


def _checked_event(event: Any) -> Mapping[str, Any]:
    if not isinstance(event, Mapping) or not {"topic", "payload"} <= set(event) <= set(_EVENT):
        raise (InvalidValueError if isinstance(event, Mapping) else InvalidTypeError)(
            f"an event is {{'topic': …, 'payload': {{…}}}}, got {event!r:.200}",
            hint="Beside these there may be a correlation_id.",
        )
    return event
