"""`ExtensionContext`: the whole API of an extension, and the permissions that restrict it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from ontologia.errors import (
    ConfigError,
    ConfigTypeError,
    ExtensionError,
    InvalidTypeError,
    InvalidValueError,
    PermissionDeniedError,
)
from ontologia.extensions import handling
from ontologia.extensions.bus import EventBus
from ontologia.extensions.contract import Handler
from ontologia.extensions.state import StateQuery
from ontologia.runtime.session import core_of
from ontologia.runtime.unit import ClientUnit
from ontologia.schema.entity import Entity
from ontologia.store.events import checks
from ontologia.store.rows import Announcement

log = logging.getLogger(__name__)
_EVENT = ("topic", "payload", "correlation_id")
ACTIONS = ("publish", "subscribe", "read", "write")


@dataclass(frozen=True, slots=True)
class Permissions:
    """The names that each action is allowed for; all others are refused.

    An extension without a `permissions` section has no Permissions, and may do everything.
    """

    publish: frozenset[str] = field(default_factory=frozenset[str])
    subscribe: frozenset[str] = field(default_factory=frozenset[str])
    read: frozenset[str] = field(default_factory=frozenset[str])
    write: frozenset[str] = field(default_factory=frozenset[str])

    @classmethod
    def of(cls, given: Permissions | Mapping[str, Any] | None) -> Permissions | None:
        """From the section of a manifest, with a list of names for each action; None stays None."""
        if given is None or isinstance(given, Permissions):
            return given
        if not isinstance(given, Mapping):
            raise ConfigTypeError(f"permissions are lists of names by action, got {given!r:.200}")
        unknown = [name for name in given if name not in ACTIONS]
        if unknown:
            known = ", ".join(ACTIONS)
            raise ConfigError(f"there is no permission {unknown[0]!r}; there are {known}")
        return cls(**{action: _names(action, names) for action, names in given.items()})

    def allow(self, action: str, name: str) -> bool:
        """Whether the action is allowed for this name."""
        allowed: frozenset[str] = getattr(self, action)
        return name in allowed


def _names(action: str, names: Any) -> frozenset[str]:
    listed = [] if names is None else names
    if isinstance(listed, str) or not all(isinstance(name, str) for name in listed):
        raise ConfigTypeError(f"permissions.{action} is a list of names, got {names!r:.200}")
    return frozenset(listed)


class ExtensionContext:
    """The argument of `initialize(context)`. An extension imports nothing else.

    The extension's id is the source of its events. With `permissions`, everything that they do not
    name is refused with a PermissionDeniedError that says which line the manifest lacks; without,
    everything is allowed. `models` are classes of entity types; types without one are read from the
    store. `agent` is that section of the manifest, and `attempts` its `max_attempts` by topic.

    Without a bus, as in a test of the extension alone, it publishes and receives nothing.
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
        self._own_unit: ClientUnit | None = None
        self._committing = threading.Lock()
        for model in models or ():
            if event_bus is not None:
                core_of(event_bus.session).registry.add(model, "entity")

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
        """The extension's validated settings, read-only."""
        return self._settings

    @property
    def agent(self) -> Mapping[str, Any]:
        """The section `agent` of the manifest, as it is written; empty if there is none."""
        return self._agent

    @property
    def logger(self) -> logging.Logger:
        """The extension's logger: `ontologia.extension.<id>`."""
        return self._logger

    # -- events -----------------------------------------------------------------------------------

    async def emit(
        self, topic: str, payload: dict[str, Any], correlation_id: str | None = None
    ) -> None:
        """Publish an event; it is stored when this returns, and handled later.

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
        """Publish an event after so many seconds, or a timedelta; returns its number.

        None if there is no bus. The number is for `cancel_deferred`.
        """
        self._check("publish", topic)
        if self._bus is None:
            log.debug("%s: no bus; %s is not scheduled", self._id, topic)
            return None
        return await self._bus.schedule_at(delay, topic, self._id, payload, correlation_id)

    async def cancel_deferred(self, id: int) -> bool:
        """Cancel an event that this extension scheduled; False if it fired, or is another's."""
        return False if self._bus is None else await self._bus.cancel_deferred(id, source=self._id)

    def subscribe_event(
        self, topic: str, handler: Handler, *, max_attempts: int | None = None
    ) -> Callable[[], None]:
        """Call `async def handler(event)` with the events of a topic.

        Returns a function that ends the subscription. A handler that raises makes the event
        `failed`, unless attempts are left: `max_attempts`, else those of the manifest for the topic,
        else one. ExtensionError after the extension was stopped.
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
        """End all subscriptions of this context, and refuse new ones. The host calls it.

        Otherwise a task of a replaced version would receive events along with the new version.
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
        bus, unit = self._needed(), self._unit()
        if not isinstance(fields, dict):
            raise InvalidTypeError(f"{type_name}: fields are a dict, got {fields!r:.200}")
        unit.ensure(await bus.threads.run(bus.types.instance, type_name, fields))

    async def delete(self, type_name: str, key: Any) -> None:
        """Queue the deletion of an object. Deleting what does not exist is nothing."""
        self._check("write", type_name)
        bus, unit = self._needed(), self._unit()
        unit.delete(await bus.threads.run(bus.types.to_delete, type_name, key))

    async def commit(self, event: Mapping[str, Any] | None = None) -> int | None:
        """Write what is queued, in one transaction; the number of the commit, None without changes.

        With `event`, `{"topic": …, "payload": {…}}` and perhaps a `correlation_id`, that event is
        stored in the same transaction, whether anything changes or not. While an event is handled,
        everything depends on its lease: LeaseExpiredError, and nothing is written, if it was lost.
        What a handler queues and does not commit is dropped.
        """
        bus, unit = self._needed(), self._unit()
        announcements: list[Announcement] = []
        if event is not None:
            said = _checked_event(event)
            self._check("publish", said["topic"])
            row = bus.journal.row(
                said["topic"], self._id, said["payload"], said.get("correlation_id")
            )
            announcements.append(Announcement(row))
        return await bus.threads.run(self._commit, unit, announcements)

    def _commit(self, unit: ClientUnit, announcements: list[Announcement]) -> int | None:
        # One commit after the other: one that finds nothing must not return before the one that
        # is just writing it.
        with self._committing:
            return unit.write(announcements).commit_id

    def _unit(self) -> ClientUnit:
        """The unit of work: while an event is handled, one of that attempt alone."""
        session = self._needed().session
        now = handling.in_progress(session)
        if now is not None:
            return now.unit_of(self._id)
        if self._own_unit is None:
            self._own_unit = ClientUnit(core_of(session), {"extension_id": self._id})
        return self._own_unit

    # -- checks -----------------------------------------------------------------------------------

    def _check(self, action: str, name: str) -> None:
        if self._permissions is not None and not self._permissions.allow(action, name):
            raise PermissionDeniedError(self._id, action, name)

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
