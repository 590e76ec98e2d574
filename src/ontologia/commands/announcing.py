"""What a unit of work announces: where events come from, and how they get into the queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ontologia import codec
from ontologia.commands.registry import FIELD_CHANGED
from ontologia.commands.tracking import changed_fields
from ontologia.commands.unit import CommandUnit, Emitted
from ontologia.delivery.lineage import Lineage, check_depth, child_of, deferred, of_command
from ontologia.errors import ConfigError
from ontologia.ids import Ids
from ontologia.queues import DomainEvent, StoreEventQueue
from ontologia.queues.current import delivered
from ontologia.queues.protocol import checked_name, encoded_payload
from ontologia.queues.stored import row_of
from ontologia.runtime.context import attempt_of
from ontologia.runtime.session import Session, core_of
from ontologia.runtime.unit import active, lineage_of
from ontologia.store.events import checks
from ontologia.store.rows import Announcement, Claim, RawChange

if TYPE_CHECKING:
    from ontologia.commands.env import Env


class Announcing:
    """Makes the events of one env, and hands them to its queue."""

    def __init__(self, env: Env, ids: Ids) -> None:
        self._env = env
        self._ids = ids

    def claim(self) -> Claim | None:
        """What is being handled here, if it is of this store: then its lease is the fence."""
        context = active.get()
        if context is not None and context.session is self._env.session:
            return attempt_of(context).claim
        current = delivered.get()
        return (
            current.claim if current is not None and current.session is self._env.session else None
        )

    def event(
        self,
        name: str,
        payload: dict[str, Any],
        unit: CommandUnit | None,
        *,
        fire_at: float | None = None,
        now: datetime | None = None,
        **given: str | None,
    ) -> DomainEvent:
        """An event with where it comes from; EventLoopLimitError if its chain is too long."""
        now = now or core_of(self._env.session).clock.now()
        lineage = deferred(self.lineage(unit), fire_at, now)
        check_depth(name, lineage, self._env.session.config.max_event_chain_depth)
        return DomainEvent(
            checked_name(name),
            codec.decode_stored(encoded_payload(name, payload)),
            self._ids.new(),
            now,
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
            return lineage_of(attempt_of(context).claim)
        current = delivered.get()
        if current is not None:
            event = current.event
            root = event.root_event_id or event.event_id
            return child_of(event.event_id, root, event.chain_depth, event.correlation_id, "")
        return Lineage() if unit is None else of_command(unit.id)

    def emitted(
        self,
        event: DomainEvent,
        unit: CommandUnit | None,
        fire_at: float | None,
        dedup_key: str | None,
    ) -> Emitted:
        """The event with its time and its key; ConfigError where the queue has neither."""
        if dedup_key is not None:
            checks.name("dedup_key", dedup_key, checks.LONGEST_KEY)
        queue = self._env.queue
        asked = fire_at is not None or dedup_key is not None
        within = unit is not None and self._stores_within()
        if asked and queue is not None and not (within or isinstance(queue, StoreEventQueue)):
            raise ConfigError(
                f"{event.name}: delay=, at= and dedup_key= need a queue in the store, and this one "
                f"is {queue.provider_key}; nothing was announced",
                hint="Choose the provider store: Env(..., queue='store').",
            )
        return Emitted(event, fire_at, dedup_key)

    def field_changes(self, unit: CommandUnit, changes: Sequence[RawChange]) -> Iterator[Emitted]:
        """One event for each tracked field that a commit changes."""
        for payload in changed_fields(changes, self._env.registry.tracked):
            name = f"{payload['model_key']}.{FIELD_CHANGED}"
            yield Emitted(self.event(name, payload | {"tenant_id": self._env.tenant_id}, unit))

    def within(self, events: Sequence[Emitted], claim: Claim | None) -> list[Announcement]:
        """The events as part of the transaction, where the queue, or its outbox, is in the database."""
        if not self._stores_within():
            return []
        made = [_announcement(self._env.session, each) for each in events]
        return made if claim is None else [_by(each, claim.handler_id) for each in made]

    def by_command(self, announcement: Announcement, unit: CommandUnit) -> Announcement:
        """An event that no commit announces; a handler that does has said so itself."""
        said = announcement.row.source is not None
        return announcement if said else _by(announcement, f"command:{unit.name}")

    def after(self, events: Sequence[Emitted], unit: CommandUnit | None = None) -> None:
        """Those that cannot be part of the transaction, once it is through."""
        queue = self._env.queue
        if queue is None or (unit is not None and self._stores_within()):
            return
        for each in events:
            if isinstance(queue, StoreEventQueue):
                made = _announcement(queue.session, each)
                queue.announce(made if unit is None else self.by_command(made, unit))
            else:
                queue.enqueue(each.event)

    def _stores_within(self) -> bool:
        """Whether what a unit of work emits is stored in its transaction."""
        queue = self._env.queue
        if isinstance(queue, StoreEventQueue):
            return queue.session is self._env.session
        return self._env.outbox is not None


def _announcement(session: Session, emitted: Emitted) -> Announcement:
    event, fire_at, dedup_key = emitted
    return Announcement(row_of(event, session)._replace(dedup_key=dedup_key), fire_at)


def _by(announcement: Announcement, source: str) -> Announcement:
    return announcement._replace(row=announcement.row._replace(source=source))
