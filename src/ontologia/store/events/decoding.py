"""The event of a claim, as an instance of its class; one that cannot be read is dead-lettered."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from ontologia.delivery.retry import (
    Discard,
    Retry,
    RetryPolicy,
    Verdict,
    describe_error,
    traceback_text,
)
from ontologia.errors import DefinitionError
from ontologia.schema.event import Event, event_class, event_of
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
    def claims(self) -> Releasing:
        """Its claims."""
        ...

    @property
    def policy(self) -> RetryPolicy:
        """The policy of consumers without one of their own."""
        ...

    def traceback_of(self, error: BaseException) -> str | None:
        """See `Decoding`."""
        ...


class Decoding:
    """What every event store does with the events of its claims."""

    def decoded(self: Claiming, claim: Claim, cls: type[Event]) -> Event | None:
        """The event of a claim; None if it cannot be read, and then it is dead-lettered."""
        try:
            return fill(event_of(cls, claim.event.payload), claim.event)
        except Exception as error:  # noqa: BLE001 - a validator of the user's may raise anything
            log.error(
                "event %s (%s) cannot be read as %s, a dead letter of %s now: %s",
                *(claim.event.id, claim.event.type, cls.__name__, claim.handler_id, error),
            )
            self.claims.release(
                claim.handler_id,
                claim.event.id,
                error=describe_error(error),
                policy=self.policy,
                token=claim.token,
                outcome="undecodable",
                final=True,
                claim=claim,
                traceback=self.traceback_of(error),
            )
            return None

    def traceback_of(self: Claiming, error: BaseException) -> str | None:
        """The traceback to keep of a failed attempt; None if none are kept, or it has none to show.

        `Retry` and `Discard` are a decision of the handler, and their reason says all.
        """
        if not self.keep_tracebacks or isinstance(error, Retry | Discard):
            return None
        return traceback_text(error)


def fill(event: Event, row: EventRow) -> Event:
    """Give an event what the store knows of it."""
    values = vars(event)
    values["id"] = row.id
    values["created_at"] = row.created_at
    values["priority"] = row.priority
    values["root_event_id"] = row.root_event_id
    values["chain_depth"] = row.chain_depth
    return event


def class_of(event_type: str) -> type[Event]:
    """The class of this process that is stored under a type; DefinitionError if there is none."""
    cls = event_class(event_type)
    if cls is None:
        raise DefinitionError(
            f"no event class in this process is stored as {event_type!r}; nothing was claimed",
            hint="Import the module that defines it.",
        )
    return cls
