"""Where an event comes from: the chain it belongs to, and what caused it."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from ontologia.errors import EventLoopLimitError


class Lineage(NamedTuple):
    """The columns of an event that say where it comes from; None is filled in when it is stored."""

    root_event_id: str | None = None
    """The first event of the chain; its own id if it is the first."""
    chain_depth: int = 0
    """Hops from the first event, or from the last one on the way that was deferred."""
    correlation_id: str | None = None
    """Whatever the first event belonged to, carried along the chain."""
    causation_id: str | None = None
    """The event whose handler announced this one; or the command, as `command:<id>`."""
    source: str | None = None
    """Who announced it: a handler, a schedule, `commit:12`, `command:<name>` of one without."""


_BY_COMMAND = "command:"


def of_command(command_id: str) -> Lineage:
    """The lineage of what a command announces that no event set off."""
    return Lineage(correlation_id=command_id, causation_id=f"{_BY_COMMAND}{command_id}")


def follows_event(causation_id: str | None) -> bool:
    """Whether this is the id of an event: something came before."""
    return causation_id is not None and not causation_id.startswith(_BY_COMMAND)


def child_of(
    parent_id: str,
    root_event_id: str,
    chain_depth: int,
    correlation_id: str | None,
    handler_id: str,
) -> Lineage:
    """The lineage of what this handler announces while it handles that event."""
    return Lineage(
        root_event_id,
        chain_depth + 1,
        correlation_id or root_event_id,
        parent_id,
        handler_id,
    )


_A_WHILE = 0.999  # a second, with room for the rounding of Unix times


def deferred(lineage: Lineage, fire_at: float | None, now: datetime) -> Lineage:
    """The lineage of an event that is deferred from `now` to the Unix time `fire_at`, if it is.

    A second or more ahead, it begins a new count of depth and keeps its root: a handler that
    re-schedules itself may do so for ever, and only a chain without a pause is a runaway.
    """
    if fire_at is None or fire_at - now.timestamp() < _A_WHILE:
        return lineage
    return lineage._replace(chain_depth=0)


def check_depth(event_type: str, lineage: Lineage, limit: int) -> None:
    """EventLoopLimitError if an event of this lineage is too deep."""
    if lineage.chain_depth > limit:
        raise EventLoopLimitError(
            event_type, lineage.chain_depth, limit, lineage.root_event_id or ""
        )
