"""What a unit of work announces: where events come from, and how they get into the queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ontologia import codec
from ontologia.commands.registry import FIELD_CHANGED
from ontologia.commands.tracking import changed_fields
from ontologia.commands.unit import CommandUnit
from ontologia.delivery.lineage import Lineage, check_depth, child_of, of_command
from ontologia.queues import DomainEvent, StoreEventQueue
from ontologia.queues.current import delivered
from ontologia.queues.protocol import checked_name, encoded_payload
from ontologia.runtime.context import active
from ontologia.store.rows import Announcement, Batch, Claim, RawChange

if TYPE_CHECKING:
    from ontologia.commands.env import Env


class Announcing:
    """Makes the events of one env, and hands them to its queue."""

    def __init__(self, env: Env) -> None:
        self._env = env

    def claim(self) -> Claim | None:
        """What is being handled here, if it is of this store: then its lease is the fence."""
        context = active.get()
        if context is not None and context.session is self._env.session:
            return context._claim
        current = delivered.get()
        return (
            current.claim if current is not None and current.session is self._env.session else None
        )

    def event(
        self, name: str, payload: dict[str, Any], unit: CommandUnit | None, **given: str | None
    ) -> DomainEvent:
        """An event with where it comes from; EventLoopLimitError if its chain is too long."""
        lineage = self.lineage(unit)
        check_depth(name, lineage, self._env.session.config.max_event_chain_depth)
        return DomainEvent(
            checked_name(name),
            codec.decode(encoded_payload(name, payload)),
            self._env._id(),
            self._env.session._clock.now(),
            given.get("tenant_id") or self._env.tenant_id,
            given.get("correlation_id") or lineage.correlation_id,
            given.get("causation_id") or lineage.causation_id,
            lineage.root_event_id,
            lineage.chain_depth,
        )

    def lineage(self, unit: CommandUnit | None) -> Lineage:
        """Where an event comes from that is announced here: an event that is handled, a command."""
        context = active.get()
        if context is not None and context.session is self._env.session:
            return context._lineage()
        current = delivered.get()
        if current is not None:
            event = current.event
            root = event.root_event_id or event.event_id
            return child_of(event.event_id, root, event.chain_depth, event.correlation_id, "")
        return Lineage() if unit is None else of_command(unit.id)

    def is_tracked(self, batch: Batch) -> bool:
        """Whether a change of this could be of a tracked field."""
        return any(name in self._env.registry.tracked for _, name in batch)

    def field_changes(
        self, unit: CommandUnit, changes: Sequence[RawChange]
    ) -> Iterator[DomainEvent]:
        """One event for each tracked field that a commit changes."""
        for payload in changed_fields(changes, self._env.registry.tracked):
            name = f"{payload['model_key']}.{FIELD_CHANGED}"
            yield self.event(name, payload | {"tenant_id": self._env.tenant_id}, unit)

    def within(self, events: Sequence[DomainEvent], claim: Claim | None) -> list[Announcement]:
        """The events as part of the transaction, where the queue is in the same database."""
        queue = self._queue_within()
        if queue is None:
            return []
        made = [queue.announcement(event) for event in events]
        if claim is None:
            return made
        return [each._replace(row=each.row._replace(source=claim.handler_id)) for each in made]

    def after(self, events: Sequence[DomainEvent]) -> None:
        """The others, once the transaction is through."""
        if self._env.queue is not None and self._queue_within() is None:
            for event in events:
                self._env.queue.enqueue(event)

    def _queue_within(self) -> StoreEventQueue | None:
        """The queue, if it is in the same database and can be part of a transaction."""
        queue = self._env.queue
        within = isinstance(queue, StoreEventQueue) and queue.session is self._env.session
        return queue if isinstance(queue, StoreEventQueue) and within else None
