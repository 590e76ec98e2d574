"""The verbs of whoever operates a store by hand, each with a record of it.

An operator's change and the commit that says who made it, when and why are one transaction. Such a
commit changes no state; its metadata has `operator`, `action`, `arguments`, `counts` and, if one
was given, `reason`. Programs that need no record use `session.event_store`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from ontologia import codec
from ontologia.clock import to_text
from ontologia.errors import InvalidValueError, NotFoundError, OntologiaError
from ontologia.runtime.session import core_of
from ontologia.schema.event import Event, event_of, payload_of
from ontologia.store.doctor import repair
from ontologia.store.events import checks
from ontologia.store.events.archives import Moved, Restored, in_event_store
from ontologia.store.events.log import fire_time
from ontologia.store.events.operations import PORTION, Selection
from ontologia.store.open import open_archive
from ontologia.store.protocol import Transaction
from ontologia.store.provenance import BY_COMMIT, EMITTED
from ontologia.store.rows import Announcement, EventRow, Stored

if TYPE_CHECKING:
    from ontologia.runtime.session import Session
    from ontologia.store.database import Tx
    from ontologia.store.events.operations import DeadLetter

_LONGEST_REASON = 2_000
_SHOWN = 500
_PRIORITY = 100
ANY = Selection()


class Retried(NamedTuple):
    """What came of a retry."""

    retried: int
    left: int
    """Dead letters whose event is not retained any more, or whose consumer was forgotten."""


class Emitted(NamedTuple):
    """What came of an emit."""

    event_id: str
    """That of the first event, if its dedup_key was taken."""
    deferred: int | None
    """The number of a deferred event."""
    commit_id: int | None
    """The commit that records it; None if nothing was stored, since the dedup_key was taken."""


def checked_reason(reason: str | None) -> str | None:
    """A reason that can be kept; InvalidValueError if it is empty, too long or no text."""
    return None if reason is None else checks.name("a reason", reason, longest=_LONGEST_REASON)


class _KeyTakenError(Exception):
    """An event has the dedup_key already."""

    def __init__(self, stored: Stored) -> None:
        super().__init__(stored.id)
        self.stored = stored


class Operator:
    """Changes the events of a namespace, and records that `name` did, and why.

    The namespace is the session's unless `namespace` names another one. `via` is kept in the record:
    what the operator used, if it was not the command line or Python.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        *,
        reason: str | None = None,
        namespace: str | None = None,
        via: str | None = None,
    ) -> None:
        self._core = core_of(session)
        self._store = self._core.store
        self._events = session.event_store
        self._namespace = (
            session.namespace if namespace is None else checks.name("namespace", namespace)
        )
        self._via = None if via is None else checks.name("via", via, checks.LONGEST_KEY)
        self.name = checks.name("an operator's name", name, checks.LONGEST_KEY)
        self.reason = checked_reason(reason)
        self.recorded: list[int] = []
        """The commits that record what was done, in order."""

    # -- dead letters -------------------------------------------------------------------------

    def dead_letters(self, which: Selection = ANY) -> Iterator[tuple[DeadLetter, bool]]:
        """The dead letters that are meant, and whether each could be retried. Changes nothing.

        The newest first, with few of them in memory.
        """
        operations = self._events.operations
        for letters in operations.dead_letters(self._namespace, which, _SHOWN):
            found = operations.could_retry(letters)
            yield from ((letter, letter.number in found) for letter in letters)

    def retry(self, which: Selection) -> Retried:
        """Give dead letters back to their handlers, each with a fresh set of attempts.

        One transaction, and one record, for every 5,000 of them. Their attempts so far stay on
        record, under numbers from 0 down.
        """
        operations = self._events.operations
        return Retried(*self._end_letters("events retry", "retried", which, operations.retry))

    def dismiss(self, which: Selection) -> int:
        """Take dead letters off the list, when nothing is to be done about them; how many.

        Their handlers never get those events again. The events stay as long as they are retained,
        and `replay` announces one anew. One transaction, and one record, for every 5,000.
        """
        operations = self._events.operations
        return self._end_letters("events dismiss", "dismissed", which, operations.dismiss)[0]

    def _end_letters(
        self,
        action: str,
        done: str,
        which: Selection,
        end: Callable[[Tx, list[DeadLetter]], int],
    ) -> tuple[int, int]:
        """Do it to the dead letters that are meant; how many were ended, and how many not."""
        ended = left = 0
        try:
            for letters in self._events.operations.dead_letters(self._namespace, which, PORTION):
                with self._store.write() as transaction:
                    count = end(transaction.tx, letters)
                    if count:
                        self._record(transaction, action, _said(which), {done: count})
                ended += count
                left += len(letters) - count
                self._events.wake()
        except BaseException as error:
            if ended:
                error.add_note(f"{ended:,} dead letters were {done} before that")
            raise
        return ended, left

    # -- events -------------------------------------------------------------------------------

    def emit(
        self,
        event_type: str,
        payload: Mapping[str, Any] | str,
        *,
        cls: type[Event] | None = None,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        dedup_key: str | None = None,
        priority: int | None = None,
    ) -> Emitted:
        """Store an event, now or for later.

        `payload` is a mapping, or a JSON object as text. With `cls` it is checked against that class,
        which has the priority, too; without, whoever handles the event finds out whether it fits. Its
        source is the commit that records it.
        """
        text = payload if isinstance(payload, str) else codec.encode(dict(payload))
        if cls is not None:
            event_type, text, priority = fitting(cls, text, priority)
        told: dict[str, Any] = {"type": event_type}
        if dedup_key is not None:
            told["dedup_key"] = dedup_key
        row = self._events.log.untyped_row(
            event_type,
            text,
            self._namespace,
            priority=_PRIORITY if priority is None else priority,
            dedup_key=dedup_key,
        )
        fire_at = fire_time(self._core.clock.now(), delay=delay, at=at)
        if fire_at is not None:
            told["at"] = to_text(datetime.fromtimestamp(fire_at, UTC))
        return self._emit("emit", row, fire_at, told)

    def fire(self, key: str) -> str:
        """Emit the event of a schedule now, beside its ticks; the id of the event.

        `key` is the schedule's key, or the type of its event if there is one schedule of that type.
        NotFoundError if no session on record runs or ran such a schedule.
        """
        checks.name("a schedule", key, checks.LONGEST_KEY)
        described = self._schedule(key)
        row = self._events.log.untyped_row(
            described["type"],
            described["payload"],
            self._namespace,
            priority=described["priority"],
        )
        told = {"schedule": described["key"], "type": described["type"]}
        return self._emit("schedules fire", row, None, told).event_id

    def _schedule(self, key: str) -> dict[str, Any]:
        found = self._events.listings.schedules(self._namespace)
        meant = [each for each in found if key in (each["key"], each["type"])]
        if len(meant) == 1:
            return meant[0]
        if meant:
            raise InvalidValueError(
                f"{len(meant)} schedules emit {key}; nothing was emitted",
                hint=f"Name one by its key: {', '.join(each['key'] for each in meant[:5])}.",
            )
        raise NotFoundError(
            f"no session on record runs the schedule {key} in namespace {self._namespace!r}; "
            f"nothing was emitted",
            hint="ontologia schedules list shows those that sessions run, with their keys.",
        )

    def _emit(
        self, action: str, row: EventRow, fire_at: float | None, told: dict[str, Any]
    ) -> Emitted:
        """Store an event with the record of it; neither of them if its dedup_key is taken."""
        try:
            with self._store.write() as transaction:
                number = self._record(
                    transaction, action, told, {"emitted": 1}, **{EMITTED: [row.id]}
                )
                row = row._replace(source=f"{BY_COMMIT}{number}")
                [stored] = transaction.announce([Announcement(row, fire_at)])
                if stored.id != row.id:
                    raise _KeyTakenError(stored)
        except _KeyTakenError as taken:
            self.recorded.pop()  # it was taken back
            return Emitted(taken.stored.id, None, None)
        self._events.wake()
        return Emitted(stored.id, stored.deferred, number)

    def cancel(self, which: str) -> dict[str, Any]:
        """Take back a deferred event, by number or id, or one that waits for all its consumers.

        Also one that failed and would be tried again. What it was, which is also in the record.
        NotFoundError if there is none such, AlreadyStartedError if a session has it at this
        moment, or a consumer has finished or buried it.
        """
        checks.name("an event", which)
        with self._store.write() as transaction:
            return self._cancel(transaction, which, {"id": which})

    def cancel_key(self, dedup_key: str, *, event_type: str | None = None) -> dict[str, Any]:
        """The same for the event that has this dedup_key, deferred or stored.

        InvalidValueError if events of several types have it and none is said.
        """
        said = {"dedup_key": checks.name("dedup_key", dedup_key, checks.LONGEST_KEY)}
        if event_type is not None:
            said["type"] = checks.name("an event's type", event_type)
        with self._store.write() as transaction:
            found = self._events.operations.holders_of_key(
                transaction.tx, self._namespace, dedup_key, event_type
            )
            if not found:
                of_type = "" if event_type is None else f" of type {event_type}"
                raise NotFoundError(
                    f"no event{of_type} in namespace {self._namespace!r} has the dedup_key "
                    f"{dedup_key!r}; nothing was changed",
                    hint="ontologia events deferred lists deferred events with their keys.",
                )
            if len(found) > 1:
                raise InvalidValueError(
                    f"events of the types {', '.join(found)} have the dedup_key {dedup_key!r}; "
                    f"nothing was changed",
                    hint="Say which is meant: --type TYPE.",
                )
            [event_id] = found.values()
            return self._cancel(transaction, event_id, said)

    def _cancel(self, transaction: Transaction, which: str, said: dict[str, str]) -> dict[str, Any]:
        found = self._cancel_deferred(transaction, which)
        kind = "deferred"
        if found is None:
            kind = "pending"
            found = self._events.operations.cancel_event(transaction.tx, self._namespace, which)
        if found is None:
            raise self._nothing_to_cancel(transaction, which)
        told = {"kind": kind} | found
        self._record(transaction, "events cancel", said, {"cancelled": 1}, cancelled=told)
        return told

    def _cancel_deferred(self, transaction: Transaction, which: str) -> dict[str, Any] | None:
        number = _number(which)
        if number is None:
            number = self._events.operations.number_of(transaction.tx, self._namespace, which)
        if number is None:
            return None
        return self._events.operations.cancel_deferred(transaction.tx, self._namespace, number)

    def _nothing_to_cancel(self, transaction: Transaction, which: str) -> NotFoundError:
        number = _number(which)
        known = (
            None
            if number is None
            else self._events.operations.deferred(transaction.tx, self._namespace, number)
        )
        if known is None:
            return self._no_event(which)
        if known["status"] == "fired":
            return NotFoundError(
                f"deferred event {which} was announced as event {known['id']}; nothing was changed",
                hint=f"If nobody has finished it: ontologia events cancel {known['id']}",
            )
        return NotFoundError(f"deferred event {which} was cancelled before; nothing was changed")

    def replay(self, event_id: str) -> str:
        """Store an event again as a new one, for all its consumers; the new id."""
        checks.name("an event's id", event_id)
        with self._store.write() as transaction:
            new_id = self._events.log.replay(transaction.tx, self._namespace, event_id)
            if new_id is None:
                raise self._no_event(event_id)
            told = {"event_id": event_id}
            self._record(transaction, "events replay", told, {"replayed": 1}, new_event_id=new_id)
        self._events.wake()
        return new_id

    def cleanup(
        self,
        before: datetime | timedelta,
        progress: Callable[[int], None] = lambda _: None,
        *,
        event_type: str | None = None,
    ) -> int:
        """Delete events from before a time, finished or not, unless leased; how many.

        All of them, or those of one type. It goes in portions, so that nobody waits for all of it. The record is written at the end,
        or when it is broken off, with the number of those deleted by then.
        """
        told = {"before": _text(before)} | _of_type(event_type)

        with self._counting("events cleanup", told, "deleted") as counts:

            def count(portion: int) -> None:
                counts["deleted"] += portion
                progress(portion)

            self._events.retention.cleanup(self._namespace, before, count, event_type=event_type)
        return counts["deleted"]

    def archive(
        self,
        to: str,
        before: datetime | timedelta,
        progress: Callable[[Moved], None] = lambda _: None,
        *,
        event_type: str | None = None,
    ) -> Moved:
        """Move finished events from before a time to an archive, `s3://bucket/prefix`.

        All of them, or those of one type, with their claims, attempts and dead letters. An event is
        deleted here when the archive has read back what it wrote; dead letters stay on the list.
        Broken off, the same call goes on where it stopped. `progress` is told what came of each
        batch. The record is written at the end, or when it is broken off, with the number of those
        moved by then. ConfigError if an event store is there.
        """
        archive = open_archive(to)
        if self._core.bucket is not None and self._core.bucket.uri == archive.uri:
            raise in_event_store(archive.uri)
        told = {"to": archive.uri, "before": _text(before)} | _of_type(event_type)
        with self._counting("events archive", told, "archived") as counts:
            for batch in self._events.archives.move(
                self._namespace, before, archive, event_type=event_type
            ):
                counts["archived"] += batch.moved
                counts["left"] += batch.left
                progress(batch)
        return Moved(counts["archived"], counts["left"])

    def restore(
        self,
        source: str,
        progress: Callable[[Restored], None] = lambda _: None,
        *,
        event_id: str | None = None,
    ) -> Restored:
        """Bring events of the namespace back from an archive, all of them or one.

        With their claims, attempts and dead letters; those that are here are left alone. They are
        retained for the retention time from now on. A consumer that subscribes to an event's type
        and has not finished it gets it, as a new consumer gets retained events. The archive keeps
        them. NotFoundError if it does not have the one that is asked for.
        """
        archive = open_archive(source)
        told = {"from": archive.uri}
        if event_id is not None:
            told["event_id"] = checks.name("an event's id", event_id)
        with self._counting("events restore", told, "restored") as counts:
            for batch in self._events.archives.restore(self._namespace, archive, event_id):
                counts.update(batch._asdict())
                progress(batch)
        return Restored(counts["restored"], counts["known"], counts["left"])

    @contextmanager
    def _counting(self, action: str, told: dict[str, str], done: str) -> Generator[Counter[str]]:
        """Counts what is done in portions, each on its own; the record is written at the end.

        Also when it is broken off. Without anything `done` there is none.
        """
        counts: Counter[str] = Counter()

        def record() -> None:
            if counts[done]:
                with self._store.write() as transaction:
                    self._record(transaction, action, told, {done: counts[done]})

        try:
            yield counts
        except BaseException as error:
            with suppress(OntologiaError):
                record()
            if counts[done]:
                error.add_note(f"{counts[done]:,} events were {done} before that")
            raise
        record()

    # -- consumers ----------------------------------------------------------------------------

    def pause(self, handler: str) -> bool:
        """Stop deliveries to a consumer until `resume`; False if they were stopped already."""
        return self._set_paused(handler, paused=True)

    def resume(self, handler: str) -> bool:
        """Deliver to a consumer again; False if it was not paused."""
        changed = self._set_paused(handler, paused=False)
        self._events.wake()
        return changed

    def _set_paused(self, handler: str, *, paused: bool) -> bool:
        checks.name("a consumer's name", handler, checks.LONGEST_KEY)
        consumers = self._events.consumers
        with self._store.write() as transaction:
            now = consumers.is_paused(transaction.tx, self._namespace, handler)
            if now is None:
                raise self._no_consumer(handler)
            if now is paused:
                return False
            consumers.set_paused(transaction.tx, self._namespace, handler, paused=paused)
            action = "events pause" if paused else "events resume"
            self._record(transaction, action, {"handler": handler}, {})
        return True

    def forget(self, handler: str) -> None:
        """Remove a consumer and what waits for it; ConsumerBusyError while a session runs it."""
        checks.name("a consumer's name", handler, checks.LONGEST_KEY)
        with self._store.write() as transaction:
            if not self._events.consumers.remove(transaction.tx, self._namespace, handler):
                raise self._no_consumer(handler)
            self._record(transaction, "events forget", {"handler": handler}, {"forgotten": 1})

    # -- the store ----------------------------------------------------------------------------

    def repair(self) -> dict[str, int]:
        """Make again what is derived, in every namespace; how much was mended, by its name.

        One transaction in which no one else writes, and its commit says what was mended; none if
        nothing was. LockContentionError if others write for longer than `lock_timeout_ms`.
        """
        mended, number = repair(
            self._store, self._core.clock, self._core.config, self._metadata("doctor repair", {})
        )
        if number is not None:
            self.recorded.append(number)
        return mended

    # -- words --------------------------------------------------------------------------------

    def _record(
        self,
        transaction: Transaction,
        action: str,
        arguments: dict[str, Any],
        counts: dict[str, int],
        **more: Any,
    ) -> int:
        """Write the commit that says what was done; its number."""
        metadata = self._metadata(action, arguments, counts=counts, **more)
        number = transaction.write_commit([], metadata=metadata, versions={})
        self.recorded.append(number)
        return number

    def _metadata(self, action: str, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
        """What the commit that records an action says."""
        metadata = self._core.metadata() | {
            "namespace": self._namespace,
            "operator": self.name,
            "action": action,
            "arguments": arguments,
            **more,
        }
        if self.reason is not None:
            metadata["reason"] = self.reason
        if self._via is not None:
            metadata["via"] = self._via
        return metadata

    def _no_event(self, event_id: str) -> NotFoundError:
        return NotFoundError(
            f"there is no event {event_id} in namespace {self._namespace!r}; nothing was changed",
            hint="ontologia events inspect --event-id ID finds it in any namespace.",
        )

    def _no_consumer(self, handler: str) -> NotFoundError:
        return NotFoundError(
            f"there is no consumer {handler} in namespace {self._namespace!r}; nothing was changed",
            hint="ontologia events consumers lists them, under their whole names.",
        )


def fitting(cls: type[Event], payload: str, priority: int | None = None) -> tuple[str, str, int]:
    """Stored type, payload and priority of an event of a class; its own error if it does not fit."""
    # Readers ignore what they do not know; whoever writes by hand has mistyped it.
    unknown = sorted(set(codec.decode_stored(payload)) - set(cls.__event_fields__))
    if unknown:
        raise InvalidValueError(
            f"{cls.__name__} has no field {', '.join(unknown)}; nothing was stored",
            hint=f"It has {', '.join(cls.__event_fields__) or 'none'}.",
        )
    event = event_of(cls, payload)
    return cls.__event_type__, payload_of(event), event.priority if priority is None else priority


def _said(which: Selection) -> dict[str, Any]:
    """What a selection says, as JSON can keep it."""
    told: dict[str, Any] = {
        name: _text(value)
        for name, value in which._asdict().items()
        if value is not None and name != "event_ids"
    }
    if which.event_ids is not None:
        told["event_ids"] = len(which.event_ids)
    return told


def _of_type(event_type: str | None) -> dict[str, str]:
    return {} if event_type is None else {"type": checks.name("an event's type", event_type)}


def _text(value: object) -> str:
    return to_text(value) if isinstance(value, datetime) else str(value)


def _number(which: str) -> int | None:
    """The number of a deferred event, if it can be one."""
    return int(which) if which.isascii() and which.isdigit() and int(which) < 2**63 else None
