"""The commit path: changes, the events emitted with them, and the fence, in one transaction."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ontologia import codec
from ontologia.clock import Clock
from ontologia.delivery.lineage import Lineage, check_depth, deferred
from ontologia.errors import (
    BatchSizeExceededError,
    HeadMismatchError,
    InvalidValueError,
    LeaseExpiredError,
    StateConflictError,
)
from ontologia.migration.versions import TypeVersions
from ontologia.runtime.intents import ABSENT, Queue, Stale, Versions, changes, label, with_stale
from ontologia.schema.event import Event
from ontologia.store.database import Conflict
from ontologia.store.events import checks
from ontologia.store.events.decoding import fill
from ontologia.store.events.log import fire_time
from ontologia.store.key_length import check_keys
from ontologia.store.protocol import StateReader, Store, Transaction
from ontologia.store.provenance import BY_COMMIT, EMITTED
from ontologia.store.rows import (
    Announcement,
    Claim,
    Current,
    KeptReply,
    Keys,
    ObjectKey,
    RawChange,
    State,
    Stored,
    TypeKey,
)
from ontologia.store.unique import check_unique
from ontologia.store.writer import Request

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig


@dataclass(slots=True)
class WriteRequest:
    """What goes in one transaction, or not at all."""

    queue: Queue = field(default_factory=Queue)
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    announcements: Sequence[Announcement] = ()
    claim: Claim | None = None
    """The fence: nothing is written unless this claim is held."""
    expected_head: int | None = None
    reads: Versions = field(default_factory=Versions)
    """Versions of objects that were read: nothing is written unless they are still current."""
    derive: Callable[[Sequence[RawChange]], Sequence[Announcement]] | None = None
    """Events that follow from what turns out to change. It may be asked more than once."""
    source: str | None = None
    """What emits the events if nothing changes; otherwise the commit does."""
    reply: KeptReply | None = None
    """What is answered to the request that this does; AlreadyAnswered if it has an answer."""
    numbered: bool = False
    """Whether the numbers of the stored events are wanted."""
    durable: bool = True
    """Whether it is on disk when it returns, or only written."""
    context: Context | None = None
    """What it is written in; without one, the context of the thread that writes it."""


class Written(NamedTuple):
    """What came of a request."""

    commit_id: int | None
    stored: list[Stored]
    unchanged: Versions = {}  # noqa: RUF012 - nobody changes it
    """The versions of queued objects that are as they should be already."""
    state: State = {}  # noqa: RUF012 - nobody changes it
    """What was current before."""


class Commits:
    """Writes the requests of one session. Thread-safe."""

    def __init__(
        self,
        store: Store,
        versions: TypeVersions,
        config: OntologiaConfig,
        clock: Clock,
        make_indexes: Callable[[], None],
    ) -> None:
        self._store = store
        self._versions = versions
        self._config = config
        self._clock = clock
        self._random = config.random or random.SystemRandom()
        self._make_indexes = make_indexes
        self.last = 0
        """The number of this session's last commit."""

    def write(self, request: WriteRequest) -> Written:
        """Write it in one durable transaction; an empty request writes nothing.

        StateConflictError if an object is no longer at the version that was read. A transaction
        that collided with another was rolled back as a whole, and is done again after a short
        wait; HeadMismatchError after `commit_max_retries`.
        """
        writing = self._writing(request)
        if writing is None:
            return Written(None, [])
        most = self._config.commit_max_retries
        retry = 0
        while True:
            try:
                self._store.submit(writing)
            except _StaleReads as error:
                raise self._conflict(error.stale, request) from None
            except Conflict as error:
                if retry >= most:
                    raise HeadMismatchError(max_retries=most) from error
            else:
                return self._done(writing)
            self._clock.sleep(retry_wait(retry, self._random))
            retry += 1

    def write_all(self, requests: Sequence[WriteRequest]) -> list[Written | Exception]:
        """Write requests, each as by `write`, in as few transactions as possible.

        Returns what came of each, or what `write` would have raised.
        """
        outcomes: list[Written | Exception] = [Written(None, [])] * len(requests)
        writings: list[tuple[int, _Writing]] = []
        for number, request in enumerate(requests):
            try:
                writing = self._writing(request)
                if writing is not None:
                    writings.append((number, writing))
            except Exception as error:  # noqa: BLE001 - raised by the task whose it is
                outcomes[number] = error
        errors = self._store.submit_all([writing for _, writing in writings])
        for (number, writing), refusal in zip(writings, errors, strict=True):
            try:
                if refusal is None:
                    outcomes[number] = self._done(writing)
                elif isinstance(refusal, _StaleReads):
                    outcomes[number] = self._conflict(refusal.stale, requests[number])
                elif isinstance(refusal, Conflict):
                    outcomes[number] = self.write(requests[number])
                else:
                    outcomes[number] = refusal
            except Exception as failed:  # noqa: BLE001 - raised by the task whose it is
                outcomes[number] = failed
        return outcomes

    def _writing(self, request: WriteRequest) -> _Writing | None:
        """What is submitted for a request; None if there is nothing to write."""
        self.check_size(request.queue)
        writing = _Writing(request, self._versions, self._changes)
        if writing.state:
            self._make_indexes()
        elif not request.announcements and request.reply is None:
            return None
        return writing

    def _done(self, writing: _Writing) -> Written:
        written = writing.written
        if written.commit_id is not None:
            self.last = max(self.last, written.commit_id)
        return written

    def _changes(
        self, queue: Queue, reads: Versions, state: State, versions: Mapping[TypeKey, int]
    ) -> list[RawChange]:
        """What the queue changes in this state; an error if the state does not allow it."""
        found, stale = changes(
            *(queue, reads, state),
            partial(self._patched, versions),
            partial(self._reads_as, versions),
            self._versions.keep,
        )
        if stale:
            raise _StaleReads(stale)
        return found

    def preview(self, reader: StateReader, queue: Queue, reads: Versions) -> list[RawChange]:
        """What a commit of the queue would change now; raises what that would.

        But not UniqueViolationError, which is found among what was written.
        """
        try:
            found = self._changes(queue, reads, reader.current(_touched(queue, reads)), {})
        except _StaleReads as error:
            raise self._conflict(error.stale) from None
        check_keys(found)
        return found

    def _patched(
        self,
        versions: Mapping[TypeKey, int],
        type_key: TypeKey,
        key: ObjectKey,
        current: Current,
        patch: str,
    ) -> str:
        fields: dict[str, Any] = codec.decode_stored(current[0])
        shape = self._versions.shape(type_key)
        if current[1] != versions.get(type_key):  # a version that fits need not be looked up
            load = self._versions.loader(shape, current[1])
            if load is not None:
                fields = shape.encode(load(key, fields))
        try:
            return shape.patched(fields, patch, key)
        except InvalidValueError as error:
            raise InvalidValueError(
                f"update of {label(type_key, key)}: {error.args[0]}; nothing was written",
                hint=error.hint,
            ) from error

    def _reads_as(
        self,
        versions: Mapping[TypeKey, int],
        type_key: TypeKey,
        key: ObjectKey,
        current: Current,
        after: str,
    ) -> bool:
        if current[1] == versions.get(type_key):
            return False
        shape = self._versions.shape(type_key)
        load = self._versions.loader(shape, current[1])
        if load is None:
            return False
        return shape.dump(load(key, codec.decode_stored(current[0]))) == after

    def _conflict(
        self, stale: Sequence[Stale], request: WriteRequest | None = None
    ) -> StateConflictError:
        """What is known of a conflict: which object, which versions, and who wrote it."""
        first = stale[0]
        with self._store.provenance.read() as trail:
            newest = next(trail.versions(*first.type_key, first.key), None)
            number = first.found or (newest.commit_id if newest is not None else 0)
            commit = trail.commit(number)
        error = StateConflictError(
            first.type_key[1],
            first.key,
            read=first.read,
            found=first.found,
            deleted_at=None if first.found else number,
            written_by=None if commit is None else _writer(commit.metadata),
            conflicts=[
                (each.type_key[1], ":".join(filter(None, each.key)), each.read, each.found)
                for each in stale
            ],
            handler=request is not None and request.claim is not None,
            only_read=request is not None and first.key in request.reads.get(first.type_key, {}),
        )
        return with_stale(error, stale)

    def append(self, events: Sequence[Event], namespace: str) -> None:
        """Store events alone, at once, each the first of a chain of its own."""
        store = self._store.events
        store.log.append(store.log.first_rows(events, namespace))
        store.wake()

    def announcement(
        self,
        event: Any,
        namespace: str,
        lineage: Lineage,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        dedup_key: str | None = None,
    ) -> Announcement:
        """The event as a copy to be stored; its new id and lineage are left on the original."""
        checks.event(event)
        now = self._clock.now()
        fire_at = fire_time(now, delay=delay, at=at)
        lineage = deferred(lineage, fire_at, now)
        check_depth(type(event).__event_type__, lineage, self._config.max_event_chain_depth)
        row = self._store.events.log.row(event, namespace, lineage, dedup_key=dedup_key)
        fill(event, row)
        return Announcement(row, fire_at)

    def check_size(self, queue: Queue) -> None:
        """BatchSizeExceededError if this is too much for one commit."""
        size = sum(map(len, queue.values()))
        if size > self._config.max_batch_size:
            raise BatchSizeExceededError(size, self._config.max_batch_size)


class AlreadyAnswered(Exception):
    """The request that this does was answered meanwhile; nothing was written."""


class _Writing(Request):
    """A unit of work that is being written."""

    def __init__(
        self,
        request: WriteRequest,
        versions: TypeVersions,
        changes: Callable[[Queue, Versions, State, Mapping[TypeKey, int]], list[RawChange]],
    ) -> None:
        self._request = request
        self._versions = versions
        self._changes = changes
        self._touched = _touched(request.queue, request.reads)
        self.state = bool(self._touched) or request.expected_head is not None
        self.weight = sum(map(len, self._touched.values())) + len(request.announcements)
        self.durable = request.durable
        self.context = request.context
        self.written = Written(None, [])

    def look_ahead(self, tx: Transaction) -> None:
        tx.look_ahead(self._request.claim, self._touched)

    def runs_code(self) -> bool:
        # What is updated goes through validators and upgraders; all else was encoded before.
        return any(
            any(intent.patch is not None for intent in wanted.values())
            and self._versions.runs_code(type_key)
            for type_key, wanted in self._request.queue.items()
        )

    def write(self, tx: Transaction) -> None:
        request = self._request
        claim, expected = request.claim, request.expected_head
        if self.state:
            tx.admit()
        if claim is not None and not tx.holds(claim):
            raise LeaseExpiredError(claim.handler_id, claim.event.id)
        announcements = list(request.announcements)
        found: list[RawChange] = []
        commit_id: int | None = None
        state: State = {}
        if self.state:
            check_head(expected, tx.head() if expected is not None else None)
            versions = self._versions.verify(tx, self._touched)
            state = tx.current(self._touched)
            found = self._changes(request.queue, request.reads, state, versions)
            if request.derive is not None:
                announcements += request.derive(found)
            if found:
                metadata = _with_emitted(request.metadata, announcements)
                commit_id = tx.write_commit(found, metadata=metadata, versions=versions)
                check_unique(tx, map(self._versions.shape, self._touched), found)
        source = request.source if commit_id is None else f"{BY_COMMIT}{commit_id}"
        if source is not None:
            announcements = [_emitted_by(each, source) for each in announcements]
        stored = tx.announce(announcements) if announcements else []
        if request.numbered:
            stored = [each._replace(number=tx.number(each.id)) for each in stored]
        if request.reply is not None and not tx.keep_reply(request.reply):
            raise AlreadyAnswered
        self.announces = bool(stored)
        unchanged = _unchanged(request.queue, state, found)
        self.written = Written(commit_id, stored, unchanged, state)


def _with_emitted(
    metadata: dict[str, Any], announcements: Sequence[Announcement]
) -> dict[str, Any]:
    """With the ids of the events that a handler emits with its commit.

    Their source is the handler. Of other events it is the commit.
    """
    emitted = [each.row.id for each in announcements if each.row.source is not None]
    return metadata | {EMITTED: emitted} if emitted else metadata


def _emitted_by(announcement: Announcement, source: str) -> Announcement:
    """Name what emits the event, unless a handler does, whose commits can be found."""
    row = announcement.row
    if row.source is not None:
        return announcement
    return announcement._replace(row=row._replace(source=source))


def conflict_wait(conflicts: int, chance: random.Random) -> float:
    """Seconds before a function is called again after its n-th conflict."""
    return chance.uniform(0.002, min(0.02 * 2.0 ** (conflicts - 1), 0.2))


def retry_wait(retry: int, chance: random.Random) -> float:
    """Seconds before a commit that collided with another is tried again; the first retry is 0."""
    return 0.01 * 2.0**retry + chance.uniform(0, 0.01)


def check_head(expected: int | None, actual: int | None) -> None:
    """HeadMismatchError unless the store is where the caller expects it."""
    if expected is not None and (type(expected) is not int or expected != actual):
        raise HeadMismatchError(expected=expected, actual=actual)


class _StaleReads(Exception):
    """Objects are no longer at the versions that were read; the transaction is rolled back."""

    def __init__(self, stale: Sequence[Stale]) -> None:
        super().__init__(stale)
        self.stale = stale


def _touched(queue: Queue, reads: Versions) -> Keys:
    """The objects whose current versions a commit needs."""
    if not reads:
        return queue
    return {
        type_key: {**reads.get(type_key, {}), **queue.get(type_key, {})}
        for type_key in {**reads, **queue}
    }


def _unchanged(queue: Queue, state: State, found: Sequence[RawChange]) -> Versions:
    """The versions of those queued objects that a commit does not change."""
    if len(found) == sum(map(len, queue.values())):
        return {}
    changed: dict[TypeKey, set[ObjectKey]] = {}
    for change in found:
        changed.setdefault((change.kind, change.type_name), set()).add(change.key)
    versions: Versions = {}
    for type_key, wanted in queue.items():
        current, skip = state.get(type_key, {}), changed.get(type_key, ())
        versions[type_key] = {
            key: ABSENT if (now := current.get(key)) is None else now[2]
            for key in wanted
            if key not in skip
        }
    return versions


def _writer(metadata: Mapping[str, Any]) -> str | None:
    """Who made a commit, as a message names it."""
    for name, what in (
        ("handler_id", "handler"),
        ("command", "command"),
        ("extension_id", "extension"),
        ("session_id", "session"),
    ):
        if metadata.get(name):
            return f"{what} {metadata[name]}"
    return None
