"""Units of work: read objects, change them, and commit the changes with the events they emit.

`UnitOfWork` is the one door to state. A `Session` is one per thread, `session.unit()` gives one
to a scope, a handler's context is one that is fenced by its claim, and commands have one each. A
function that takes a `UnitOfWork` works in all of them.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, TypeVar, overload

from ontologia.delivery.lineage import Lineage
from ontologia.errors import (
    InvalidTypeError,
    InvalidValueError,
    SessionClosedError,
    StateConflictError,
    UncommittedChangesError,
    shown,
)
from ontologia.query.builder import QueryBuilder
from ontologia.runtime.commits import WriteRequest, Written, retry_wait
from ontologia.runtime.delta import Delta
from ontologia.runtime.intents import ABSENT, Intents, Queue, not_there
from ontologia.runtime.reader import CheckedReader
from ontologia.schema.entity import Entity
from ontologia.schema.event import Event
from ontologia.schema.registry import shape_of
from ontologia.schema.relation import Relation
from ontologia.store.rows import Announcement, Claim

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

log = logging.getLogger(__name__)
E = TypeVar("E", bound=Event)
E_co = TypeVar("E_co", bound=Event, covariant=True)
T = TypeVar("T", bound="Entity | Relation[Any, Any]")
R = TypeVar("R")
Objects: TypeAlias = "Entity | Relation[Any, Any] | Iterable[Entity | Relation[Any, Any]]"
Reads: TypeAlias = Literal["checked"] | None
Key: TypeAlias = object
"""An entity's key; a relation's `(left, right)` or `(left, right, instance)`."""


@dataclass(frozen=True, slots=True)
class Later(Generic[E_co]):
    """An event with when it is due and what it is known by; `later(...)` makes one."""

    event: E_co
    delay: float | timedelta | None = None
    at: datetime | None = None
    dedup_key: str | None = None

    @property
    def _is_plain(self) -> bool:
        return _no_options(self.delay, self.at, self.dedup_key)


def _no_options(*options: object) -> bool:
    return all(each is None for each in options)


def later(
    event: E,
    *,
    delay: float | timedelta | None = None,
    at: datetime | None = None,
    dedup_key: str | None = None,
) -> Later[E]:
    """An event for `commit(event=[...])` that is deferred, or emitted once per `dedup_key`.

    `delay` is seconds or a timedelta from the commit on, `at` an aware datetime.
    """
    if not isinstance(event, Event):
        raise InvalidTypeError(f"later takes an event, got {shown(event):.200}")
    if _no_options(delay, at, dedup_key):
        raise InvalidValueError(
            "later needs delay=, at= or dedup_key=", hint="Give the event itself to emit it now."
        )
    return Later(event, delay, at, dedup_key)


Emits: TypeAlias = "Event | Later[Event] | Iterable[Event | Later[Event]]"


class UnitOfWork:
    """Reads and changes of objects that are committed together.

    An object that was read carries its version (`meta().commit_id`). `ensure` and `delete` of it
    are conditional: if another commit has changed it by then, `commit` raises StateConflictError
    and writes nothing. A constructed object states the whole truth, whatever is there. After a
    commit every object that it wrote carries its new version.
    """

    _session: Session
    _intents: Intents

    def _open(self) -> UnitOfWork:
        """The unit that a call belongs to; SessionClosedError if it has ended."""
        raise NotImplementedError

    # -- reads --------------------------------------------------------------------------------

    def get(self, cls: type[T], key: Key, *, as_of: int | datetime | None = None) -> T | None:
        """The object with this key, or None.

        What this unit has queued counts, as it would be after the commit. A relation's key is
        `(left, right)` or `(left, right, instance)`. `as_of` is a commit or an aware datetime;
        then it is the object as it was, and what is queued does not count. One read by key.
        """
        unit = self._open()
        shape = shape_of(cls)
        place = shape.key_parts(key)
        session, intents = unit._session, unit._intents
        if as_of is not None:
            found: T | None = session._reader.get(shape, place, session._commit_of(as_of))
            return found
        pending = intents.pending(shape, place)
        if pending is not None and pending.patch is None:
            queued: T | None = session._reader.queued(shape, place, pending.fields, pending.read)
            if queued is not None:
                intents.hand_out(shape, place, pending, queued)
            return queued
        found = session._reader.get(shape, place)
        read = ABSENT if found is None else found.meta().commit_id
        intents.note(shape, place, read)
        if found is not None and intents.checked and shape.kind == "relation":
            CheckedReader(session._reader, intents).note_ends(found)
        if found is not None and pending is not None and pending.patch is not None:
            shape.patch(found, pending.patch)
            intents.hand_out(shape, place, pending, found, read)
        return found

    def one(self, cls: type[T], key: Key, *, as_of: int | datetime | None = None) -> T:
        """The object with this key; NotFoundError if there is none. Otherwise as `get`."""
        found = self.get(cls, key, as_of=as_of)
        if found is None:
            shape = shape_of(cls)
            raise not_there((shape.kind, shape.name), shape.key_parts(key))
        return found

    def query(self) -> QueryBuilder:
        """Query entities or relations: `query().entities(Customer).collect()`.

        Queries see what is committed, not what is queued.
        """
        unit = self._open()
        reader = unit._session._reader
        return QueryBuilder(
            CheckedReader(reader, unit._intents) if unit._intents.checked else reader
        )

    # -- changes ------------------------------------------------------------------------------

    def ensure(self, obj: Objects, *, overwrite: bool = False) -> None:
        """Queue one object or several: the next commit makes them true.

        Each is encoded now; changing it afterwards changes nothing. Of several intents for one
        key the last counts. One that was read is conditional on its version unless `overwrite`.
        """
        self._open()._intents.ensure(obj, overwrite=overwrite)

    def delete(self, obj: Objects, *, overwrite: bool = False) -> None:
        """Queue the deletion of one object or several.

        One that was read is conditional on its version unless `overwrite`. Deleting what does not
        exist, or was deleted in the meantime, is no error. An entity's relations stay.
        """
        self._open()._intents.delete(obj, overwrite=overwrite)

    def create(self, obj: Objects) -> None:
        """Queue one object or several that must not exist yet.

        ObjectExistsError at the commit if one exists, and here if it is queued already.
        """
        self._open()._intents.create(obj)

    def update(self, cls: type[Entity | Relation[Any, Any]], key: Key, /, **fields: Any) -> None:
        """Queue new values of some fields of an object, whatever its other fields are by then.

        NotFoundError at the commit if there is no such object. InvalidValueError here if a field
        is unknown, a key, or a value does not fit.
        """
        intents = self._open()._intents
        shape = shape_of(cls)
        intents.update(shape, shape.key_parts(key), fields)

    def discard(self) -> int:
        """Drop what is queued, and what was read with it; returns the number of queued objects."""
        return self._open()._discard()

    # -- commit -------------------------------------------------------------------------------

    @overload
    def commit(
        self,
        *,
        event: Emits | None = None,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        dedup_key: str | None = None,
        dry_run: Literal[False] = False,
        expected_head: int | None = None,
    ) -> int | None: ...
    @overload
    def commit(
        self,
        *,
        event: Emits | None = None,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        dedup_key: str | None = None,
        dry_run: Literal[True],
        expected_head: int | None = None,
    ) -> Delta: ...
    def commit(
        self,
        *,
        event: Emits | None = None,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        dedup_key: str | None = None,
        dry_run: bool = False,
        expected_head: int | None = None,
    ) -> int | Delta | None:
        """Write what is queued, in one durable transaction; returns the commit's number.

        Only what differs from the current state is written; None if nothing does. StateConflictError
        if an object was changed after it was read: read it again, change it and commit again.
        With `expected_head`, HeadMismatchError unless the store is still at that commit. With
        `dry_run`, returns the delta that would be written and writes nothing.

        With `event`, one or several, the event is stored in the same transaction, whether anything
        differs or not, and gets its id; `delay` (seconds or a timedelta) or `at` defers it, and
        with a `dedup_key` that a retained event of its type has, it is not stored again and gets
        that one's id. `later(event, ...)` says that of single events in a list. In a handler, what
        is committed is fenced by its lease: LeaseExpiredError if that is over.

        If it raises, nothing is written and the queue is as it was. Costs one transaction, one
        read per touched type and 10,000 objects, and two writes per kind of object, whatever
        their number; events cost two more.
        """
        unit = self._open()
        emits = planned(event, delay, at, dedup_key)
        if dry_run:
            return unit._session._preview(unit._intents, expected_head)
        return unit._commit(emits, expected_head)

    def _commit(self, emits: list[Later[Event]], expected_head: int | None) -> int | None:
        queue = self._intents.snapshot()
        try:
            written = self._write(queue, emits, expected_head)
        except BaseException as error:
            self._refused(queue, error)
            raise
        self._intents.settle(queue, written.commit_id, written.unchanged, written.state)
        for emit, stored in zip(emits, written.stored, strict=True):
            emit.event.id = stored.id
        if queue or emits:
            self._committed(written.commit_id)
        return written.commit_id

    def _write(self, queue: Queue, emits: list[Later[Event]], expected_head: int | None) -> Written:
        session, commits, reads = self._session, self._session._commits, self._intents.reads
        alone = not (queue or reads) and self._fence() is None and expected_head is None
        if emits and alone and all(each._is_plain for each in emits):
            return commits.append([each.event for each in emits], session.namespace)
        return self._send(
            WriteRequest(
                queue,
                self._metadata(),
                [self._announcement(each) for each in emits],
                self._fence(),
                expected_head,
                reads,
            )
        )

    def _announcement(self, emit: Later[Event]) -> Announcement:
        return self._session._commits.announcement(
            emit.event,
            self._session.namespace,
            self._lineage(),
            delay=emit.delay,
            at=emit.at,
            dedup_key=emit.dedup_key,
        )

    def _discard(self) -> int:
        self._intents.reads.clear()
        return self._intents.clear()

    # -- what kinds of units differ in ----------------------------------------------------------

    def _send(self, request: WriteRequest) -> Written:
        return self._session._commits.write(request)

    def _fence(self) -> Claim | None:
        """The claim that must be held when this unit writes."""
        return None

    def _lineage(self) -> Lineage:
        """Where an event comes from that this unit emits."""
        return Lineage()

    def _metadata(self) -> dict[str, Any]:
        """The metadata of this unit's commits."""
        return self._session._metadata()

    def _refused(self, queue: Queue, error: BaseException) -> None:
        """A commit failed; the queue stays."""
        self._intents.refuse(queue, getattr(error, "_stale", ()))

    def _committed(self, commit_id: int | None) -> None:
        """A commit of something succeeded."""


class Unit(UnitOfWork):
    """An isolated unit of work on a session: what others queue is not in its commits.

    `with session.unit() as unit:` commits what is queued when it is left without an exception, and
    drops it with one. What a commit failed to write is dropped with a warning, unless it was
    committed again or discarded: its event and its conditions are not known any more. If something
    else is queued as well, that would be half of the unit: nothing is written, and leaving raises
    UncommittedChangesError. For one thread or task; making one costs nothing.
    """

    def __init__(self, session: Session, reads: Reads = None, *, scoped: bool = True) -> None:
        self._session = session
        self._intents = session._new_intents(checked=checked_reads(reads))
        self._ended = False
        self._scoped = scoped
        """Whether it is a caller's own; otherwise it is a thread's, which its session watches."""
        self._done = False
        """Whether a commit has succeeded."""

    def __repr__(self) -> str:
        return f"<Unit of {self._session!r}, {len(self._intents)} queued>"

    def _open(self) -> Unit:
        self._session._check_open()
        if self._ended:
            raise SessionClosedError("the unit has ended", hint="Begin another: session.unit().")
        self._session._check_outside("a unit of its own")
        return self

    def _committed(self, commit_id: int | None) -> None:
        self._done = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None and len(self._intents):
                self._open()
                self._leave()
        finally:
            self._ended = True
            self._intents.clear()

    def __del__(self) -> None:
        intents: Intents | None = self.__dict__.get("_intents")
        if intents is None or not self._scoped or self._ended or self._session._closed:
            return
        # Of what a commit failed to write, its caller was told.
        if left := len(intents) - len(intents.refused()):
            warnings.warn(
                f"a unit of work was neither committed nor discarded, and {left} queued "
                f"objects were not written: commit() them, or use `with session.unit() as unit`",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )

    def _leave(self) -> None:
        """Commit what is queued; all of it, or nothing if a commit failed to write a part."""
        refused = self._intents.refused()
        if refused and len(refused) < len(self._intents):
            self._intents.clear()
            raise UncommittedChangesError("the block", refused)
        if dropped := self._intents.drop_refused():
            log.warning(
                "%d objects are dropped that a commit failed to write: commit() them again or "
                "discard() them before the block is left",
                dropped,
            )
        if len(self._intents):
            self._commit([], None)


def transact(session: Session, function: Callable[[Unit], R], retries: int, reads: Reads) -> R:
    """See `Session.transact`."""
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise InvalidTypeError(f"retries is a whole number from 0 on, got {shown(retries)}")
    attempt = 0
    while True:
        unit = Unit(session, reads)
        try:
            with unit:
                result = function(unit)
                if inspect.isawaitable(result):
                    getattr(result, "close", lambda: None)()
                    raise InvalidTypeError(
                        f"transact calls a function that returns when it is done, and {function!r} "
                        f"returned {result!r:.100}",
                        hint="Read and change in a plain function; await before or after it.",
                    )
                if len(unit._intents) or not unit._done:
                    unit.commit()
            return result
        except StateConflictError:
            # After a commit of its own the function would do twice what it has done.
            if attempt >= retries or unit._done:
                raise
        session._clock.sleep(retry_wait(attempt, session._random))
        attempt += 1


def planned(
    event: object,
    delay: float | timedelta | None,
    at: datetime | None,
    dedup_key: str | None,
) -> list[Later[Event]]:
    """What is given as `event=`: none, one or several, each with when it is due."""
    if event is None:
        if not _no_options(delay, at, dedup_key):
            raise InvalidValueError(
                "delay=, at= and dedup_key= are about an event; give event= too"
            )
        return []
    if isinstance(event, Event | Later):
        given: list[Any] = [event]
    elif isinstance(event, str | bytes | Mapping) or not isinstance(event, Iterable):
        raise InvalidTypeError(
            f"event= takes an event or a list of them, got {shown(event):.200}",
            hint="Define a class for it: class OrderPlaced(Event), and give an instance.",
        )
    else:
        given = list(event)
    if dedup_key is not None and len(given) > 1:
        raise InvalidValueError(
            f"one dedup_key= cannot be that of {len(given)} events; nothing was written",
            hint="Give each its own: commit(event=[later(event, dedup_key=...), ...]).",
        )
    return [_planned(each, delay, at, dedup_key) for each in given]


def _planned(
    given: object, delay: float | timedelta | None, at: datetime | None, dedup_key: str | None
) -> Later[Event]:
    if isinstance(given, Event):
        return Later(given, delay, at, dedup_key)
    if not isinstance(given, Later):
        raise InvalidTypeError(f"event= takes events, got {shown(given):.200} among them")
    if not _no_options(delay, at, dedup_key):
        raise InvalidValueError(
            "delay=, at= and dedup_key= are given to commit() and to later(); one of them is enough"
        )
    return given


def checked_reads(reads: object) -> bool:
    """Whether `reads=` says that what is read is checked."""
    if reads not in (None, "checked"):
        raise InvalidValueError(f"reads is 'checked' or left out, got {shown(reads):.100}")
    return reads == "checked"
