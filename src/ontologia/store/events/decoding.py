"""The event of a claim, as an instance of its class; one that cannot be read is dead-lettered."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ontologia.delivery.retry import (
    Discard,
    Retry,
    RetryPolicy,
    Verdict,
    describe_error,
    traceback_text,
)
from ontologia.errors import (
    DefinitionError,
    InvalidValueError,
    MissingUpgraderError,
    NewerEventError,
    UpgraderError,
    shown,
)
from ontologia.schema.event import Event, event_with, fields_in, reading_class, types_of
from ontologia.schema.shape import VERSION
from ontologia.schema.upgraders import Upgrader, UpgraderKey, chain_upgraders, registered
from ontologia.store.rows import Claim, EventRow

log = logging.getLogger(__name__)


class Releasing(Protocol):
    """What ends an attempt that did not succeed."""

    def release(
        self,
        handler_id: str,
        event_id: str,
        *,
        error: str,
        policy: RetryPolicy,
        token: str | None = None,
        outcome: str = "failed",
        final: bool = False,
        claim: Any,
        traceback: str | None = None,
    ) -> Verdict | None:
        """See `Leases.release`."""
        ...


class Claiming(Protocol):
    """A store whose claims are decoded."""

    keep_tracebacks: bool

    @property
    def upgraders(self) -> Mapping[UpgraderKey, Upgrader]:
        """See `Decoding`."""
        ...

    @property
    def claims(self) -> Releasing:
        """Its claims."""
        ...

    @property
    def policy(self) -> RetryPolicy:
        """The policy of consumers without one of their own."""
        ...

    def decoded(self, claim: Claim, cls: type[Event]) -> Event | None:
        """See `Decoding`."""
        ...

    def traceback_of(self, error: BaseException) -> str | None:
        """See `Decoding`."""
        ...


class Decoding:
    """What every event store does with the events of its claims."""

    upgraders: Mapping[UpgraderKey, Upgrader]
    """Those of a session; they win over the ones that are registered by the decorator."""

    def _events_of(
        self: Claiming, claims: Sequence[Claim], classes: Mapping[str, type[Event]]
    ) -> list[Event]:
        """The events of claims, whose attempts end here if they cannot be read."""
        events: list[Event] = []
        for claim in claims:
            cls = classes[claim.event.type]
            try:
                event = self.decoded(claim, cls)
            except NewerEventError as error:
                log.warning("%s is not read by %s: %s", claim.handler_id, cls.__name__, error)
                _release(self, claim, error, final=False)
                continue
            if event is not None:
                events.append(event)
        return events

    def decoded(self: Claiming, claim: Claim, cls: type[Event]) -> Event | None:
        """The event of a claim; None if it cannot be read, and then it is dead-lettered.

        NewerEventError, and nothing is written, if a newer version of the class can read it.
        """
        try:
            return read_event(cls, claim.event, self.upgraders)
        except NewerEventError:
            raise
        except Exception as error:  # noqa: BLE001 - a validator of the user's may raise anything
            log.error(
                "event %s (%s) cannot be read as %s, a dead letter of %s now: %s",
                *(claim.event.id, claim.event.type, cls.__name__, claim.handler_id, error),
            )
            _release(self, claim, error, final=True)
            return None

    def traceback_of(self: Claiming, error: BaseException) -> str | None:
        """The traceback to keep of a failed attempt; None if none are kept, or it has none to show.

        `Retry` and `Discard` are a decision of the handler, and their reason says all.
        """
        if not self.keep_tracebacks or isinstance(error, Retry | Discard):
            return None
        return traceback_text(error)


def _release(store: Claiming, claim: Claim, error: Exception, *, final: bool) -> None:
    store.claims.release(
        claim.handler_id,
        claim.event.id,
        error=describe_error(error),
        policy=store.policy,
        token=claim.token,
        outcome="undecodable" if final else "failed",
        final=final,
        claim=claim,
        traceback=store.traceback_of(error),
    )


def read_event(cls: type[Event], row: EventRow, upgraders: Mapping[UpgraderKey, Upgrader]) -> Event:
    """A stored event as an instance of this class, whatever version of it wrote the payload.

    InvalidValueError if it does not fit, MissingUpgraderError without a step that it needs,
    UpgraderError if one fails, NewerEventError if a newer version of the class wrote it.
    """
    return fill(read_payload(cls, row.type, row.id, row.payload, upgraders), row)


def read_payload(
    cls: type[Event],
    event_type: str,
    event_id: str,
    payload: str | bytes,
    upgraders: Mapping[UpgraderKey, Upgrader],
) -> Event:
    """The same without what the store knows of the event: only the fields of its class."""
    stored = fields_in(cls, payload)
    version = stored.pop(VERSION, 1)
    if version != cls.__event_version__:
        stored = _upgraded(cls, event_type, event_id, stored, version, upgraders)
    return event_with(cls, stored)


def _upgraded(
    cls: type[Event],
    event_type: str,
    event_id: str,
    stored: dict[str, Any],
    version: Any,
    upgraders: Mapping[UpgraderKey, Upgrader],
) -> dict[str, Any]:
    if type(version) is not int or version < 1:
        raise InvalidValueError(
            f"{cls.__name__}: {VERSION} is a whole number from 1 on, got {shown(version)}"
        )
    own = cls.__event_version__
    if version > own:
        raise NewerEventError(event_type, event_id, version, own)
    # A step is found under any type that the class had; two of them may number their own.
    name, *former = types_of(cls)
    if event_type != name:
        name, former = event_type, [name, *(each for each in former if each != event_type)]
    try:
        chain = chain_upgraders({**registered(), **upgraders}, name, version, own, "event", former)
    except MissingUpgraderError as error:
        raise MissingUpgraderError(
            cls.__event_type__, error.missing_versions, reading=True
        ) from None
    try:
        upgraded = chain(stored)
    except Exception as error:
        raise UpgraderError(
            event_type, event_id, f"the upgrader raised {error!r}", reading=True
        ) from error
    if not isinstance(upgraded, dict):
        raise UpgraderError(
            event_type, event_id, f"the upgrader gave {shown(upgraded)}, not a dict", reading=True
        )
    return upgraded


def fill(event: Event, row: EventRow) -> Event:
    """Give an event what the store knows of it."""
    values = vars(event)
    values["id"] = row.id
    values["created_at"] = row.created_at
    values["priority"] = row.priority
    values["root_event_id"] = row.root_event_id
    values["chain_depth"] = row.chain_depth
    return event


def classes_of(event_types: Sequence[str]) -> dict[str, type[Event]]:
    """The classes of this process that read these types, and all types that those had before.

    DefinitionError for a type that none reads.
    """
    classes: dict[str, type[Event]] = {}
    for event_type in event_types:
        cls = reading_class(event_type)
        if cls is None:
            raise DefinitionError(
                f"no event class in this process is stored as {event_type!r}; nothing was claimed",
                hint="Import the module that defines it.",
            )
        classes[event_type] = cls
    for cls in list(classes.values()):
        if cls.__event_type__ in classes:
            for former in cls.__event_formerly__:
                classes.setdefault(former, cls)
    return classes
