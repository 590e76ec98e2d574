"""A named event as a row of the store, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ontologia import codec
from ontologia.clock import from_text, to_text
from ontologia.delivery.lineage import Lineage, check_depth
from ontologia.errors import InvalidValueError
from ontologia.queues.current import delivered
from ontologia.queues.protocol import DomainEvent, check_event, checked_name, encoded_payload
from ontologia.runtime.session import core_of
from ontologia.store.events import checks
from ontologia.store.rows import EventRow

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

_PRIORITY = 100
_DEEPEST = 2**31 - 1


def row_of(event: DomainEvent, session: Session) -> EventRow:
    """The event as it will be stored; InvalidValueError or EventLoopLimitError if it cannot be.

    It is stamped now, later than every event of this process before.
    """
    check_event(event)
    name = checked_name(event.name)
    event_id = checks.name("event_id", event.event_id)
    root = _checked("root_event_id", event.root_event_id) or event_id
    depth = checks.whole("chain_depth", event.chain_depth, 0, _DEEPEST)
    check_depth(name, Lineage(root, depth), session.config.max_event_chain_depth)
    handling = delivered.get()
    claim = None if handling is None else handling.claim
    events = core_of(session).store.events.log
    return EventRow(
        event_id,
        session.namespace,
        name,
        events.checked_size(name, encoded_payload(name, event.payload)),
        events.stamp(),
        _PRIORITY,
        root,
        depth,
        None if claim is None else claim.handler_id,
        _checked("correlation_id", event.correlation_id),
        _checked("causation_id", event.causation_id),
        _checked("tenant_id", event.tenant_id),
        occurred_at=to_text(event.occurred_at),
    )


def event_of(row: EventRow) -> DomainEvent:
    """A stored event as it is delivered; ValueError if it cannot be read."""
    payload = codec.decode_stored(row.payload)
    if type(payload) is not dict:
        raise InvalidValueError(f"{row.type}: the payload is no JSON object")
    return DomainEvent(
        row.type,
        payload,
        row.id,
        from_text(row.occurred_at or row.created_at),
        row.tenant_id,
        row.correlation_id,
        row.causation_id,
        None if row.root_event_id == row.id else row.root_event_id,
        row.chain_depth,
    )


def _checked(what: str, value: str | None) -> str | None:
    return None if value is None else checks.name(what, value)
