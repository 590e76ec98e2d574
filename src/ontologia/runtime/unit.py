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
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, TypeVar, overload

from ontologia.delivery.lineage import Lineage, child_of
from ontologia.errors import (
    InvalidTypeError,
    InvalidValueError,
    SessionClosedError,
    StateConflictError,
    UncommittedChangesError,
    shown,
)
from ontologia.query.builder import Answers, QueryBuilder
from ontologia.runtime.commits import WriteRequest, Written, conflict_wait
from ontologia.runtime.delta import Delta
from ontologia.runtime.intents import ABSENT, Intents, Queue, label, not_there, stale_of
from ontologia.runtime.reader import CheckedReader
from ontologia.schema.entity import Entity
from ontologia.schema.event import Event
from ontologia.schema.registry import shape_of
from ontologia.schema.relation import Relation
from ontologia.schema.shape import Shape
from ontologia.store.rows import Announcement, Claim, ObjectKey

if TYPE_CHECKING:
    from ontologia.runtime.context import HandlerContext
    from ontologia.runtime.core import Core

log = logging.getLogger(__name__)
TAKE_TURNS = 1.0  # seconds that a call after a conflict waits for another one
E = TypeVar("E", bound=Event)
E_co = TypeVar("E_co", bound=Event, covariant=True)
T = TypeVar("T", bound="Entity | Relation[Any, Any]")
R = TypeVar("R")
Objects: TypeAlias = "Entity | Relation[Any, Any] | Iterable[Entity | Relation[Any, Any]]"
Reads: TypeAlias = Literal["checked"] | None
Key: TypeAlias = object
"""An entity's key; a relation's `(left, right)` or `(left, right, instance)`."""

active: ContextVar[HandlerContext[Any] | None] = ContextVar("ontologia_handler", default=None)
"""The context of the handler that is running here, so that its session's own methods know it."""


@dataclass(frozen=True, slots=True)
class Later(Generic[E_co]):
    """An event with when it is due and what it is known by; `later(...)` makes one."""

    event: E_co
    delay: float | timedelta | None = None
    at: datetime | None = None
    dedup_key: str | None = None


def _no_options(delay: object, at: object, dedup_key: object) -> bool:
    return delay is None and at is None and dedup_key is None


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

    def __init__(self, core: Core, intents: Intents) -> None:
        self._core = core
        self._intents = intents

    def _open(self) -> UnitOfWork:
        """The unit that a call belongs to; SessionClosedError if it has ended."""
        return self

    def _handling(self) -> UnitOfWork | None:
        """The context of the handler that is calling, if its session is this unit's."""
        context = active.get()
        return context if context is not None and context._core is self._core else None

    def _check_outside(self, what: str) -> None:
        """Raise in a handler: what it writes is fenced by its claim, and `what` would not be."""
        context = self._handling()
        if context is not None and (claim := context._fence()) is not None:
            raise RuntimeError(
                f"{claim.handler_id} is a handler and cannot use {what}\n"
                f"  hint: The context is its unit of work: ctx.get, ctx.ensure, ctx.commit."
            )

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
        if as_of is None:
            found: T | None = unit._get(shape, place)
        else:
            found = unit._core.reader.get(shape, place, unit._core.commit_of(as_of))
        return found

    def _get(self, shape: Shape, place: ObjectKey) -> Any:
        """The object with these key columns, as it would be after a commit, or None."""
        if self._must_read(shape, place):
            return self._found(shape, place, self._read(shape, place))
        intents = self._intents
        pending = intents.of(shape)[place]
        queued = self._core.reader.queued(shape, place, pending.fields, pending.read)
        if queued is not None:
            intents.hand_out(shape, place, pending, queued)
        return queued

    def _must_read(self, shape: Shape, place: ObjectKey) -> bool:
        """Whether the store has to be asked for this object."""
        pending = self._intents.pending(shape, place)
        return pending is None or pending.patch is not None

    def _found(self, shape: Shape, place: ObjectKey, found: Any) -> Any:
        """An object that was read, or None, as it would be after a commit."""
        reader, intents = self._core.reader, self._intents
        pending = intents.pending(shape, place)
        read = ABSENT if found is None else found._version[0]
        intents.note(shape, place, read)
        if found is not None and intents.checked and shape.kind == "relation":
            CheckedReader(reader, intents).note_ends(found)
        if found is not None and pending is not None and pending.patch is not None:
            try:
                shape.patch(found, pending.patch)
            except InvalidValueError as error:
                raise InvalidValueError(
                    f"update of {label((shape.kind, shape.name), place)}: {error.args[0]}",
                    hint="Queue an update that fits, or discard() this one.",
                ) from error
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
        return QueryBuilder(self._open()._answers())

    def _answers(self) -> Answers:
        """What answers the queries of this unit."""
        reader = self._core.reader
        return CheckedReader(reader, self._intents) if self._intents.checked else reader

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
        is unknown, a key, or a value does not fit its type; from the commit, and from `get` before
        it, if a validator of the class refuses the object with the new values.
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
            return unit._core.preview(unit._intents, expected_head)
        return unit._commit(emits, expected_head)

    def _commit(self, emits: list[Event | Later[Event]], expected_head: int | None) -> int | None:
        if not emits:
            return self._write((), expected_head).commit_id
        core, intents = self._core, self._intents
        alone = not (len(intents) or intents.reads) and self._fence() is None
        if alone and expected_head is None:
            events = [each for each in emits if isinstance(each, Event)]
            if len(events) == len(emits):
                core.commits.append(events, core.namespace)
                self._committed(None)
                return None
        due = with_times(emits)
        return numbered(due, self._write(map(self._announcement, due), expected_head))

    def _write(
        self, announcements: Iterable[Announcement] = (), expected_head: int | None = None
    ) -> Written:
        """Write what is queued together with these events: the one commit path."""
        request = self._request(announcements, expected_head)
        try:
            written = self._send(request)
        except BaseException as error:
            self._refused(request.queue, error)
            raise
        self._settle(request, written)
        return written

    def _request(
        self, announcements: Iterable[Announcement], expected_head: int | None
    ) -> WriteRequest:
        """What a commit submits.

        The events are gone through here, so that one that cannot be made refuses the commit.
        """
        queue, reads = self._intents.snapshot(), self._intents.reads
        try:
            request = WriteRequest(
                queue, self._metadata(), list(announcements), self._fence(), expected_head, reads
            )
            self._prepare(request)
        except BaseException as error:
            self._refused(queue, error)
            raise
        return request

    def _settle(self, request: WriteRequest, written: Written) -> None:
        """A commit was written."""
        queue = request.queue
        self._intents.settle(queue, written.commit_id, written.unchanged, written.state)
        if queue or written.stored:
            self._committed(written.commit_id)

    def _announcement(self, emit: Later[Event]) -> Announcement:
        return self._core.commits.announcement(
            emit.event,
            self._core.namespace,
            self._lineage(),
            delay=emit.delay,
            at=emit.at,
            dedup_key=emit.dedup_key,
        )

    def _discard(self) -> int:
        self._intents.reads.clear()
        return self._intents.clear()

    # -- what kinds of units differ in ----------------------------------------------------------

    def _read(self, shape: Shape, place: ObjectKey) -> Any:
        """The object with these key columns as it is stored, or None."""
        return self._core.reader.get(shape, place)

    def _prepare(self, request: WriteRequest) -> None:
        """A request is about to be submitted; what this raises refuses the commit."""

    def _send(self, request: WriteRequest) -> Written:
        return self._core.commits.write(request)

    def _fence(self) -> Claim | None:
        """The claim that must be held when this unit writes."""
        return None

    def _lineage(self) -> Lineage:
        """Where an event comes from that this unit emits."""
        claim = self._fence()
        return Lineage() if claim is None else lineage_of(claim)

    def _metadata(self) -> dict[str, Any]:
        """The metadata of this unit's commits."""
        metadata, claim = self._core.metadata(), self._fence()
        if claim is not None:
            metadata["event_id"] = claim.event.id
            metadata["handler_id"] = claim.handler_id
            metadata["attempt"] = claim.attempts + 1
        return metadata

    def _refused(self, queue: Queue, error: BaseException) -> None:
        """A commit failed; the queue stays."""
        self._intents.refuse(queue, stale_of(error))

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

    def __init__(self, core: Core, reads: Reads = None) -> None:
        super().__init__(core, core.new_intents(checked=checked_reads(reads)))
        self._ended = False

    def __repr__(self) -> str:
        return f"<Unit of {self._core.store.uri}, {len(self._intents)} queued>"

    def _open(self) -> Unit:
        self._core.check_open()
        if self._ended:
            raise SessionClosedError("the unit has ended", hint="Begin another: session.unit().")
        self._check_outside("a unit of its own")
        return self

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
            self._end()

    def _end(self) -> None:
        """Take no more; what is queued is dropped."""
        self._ended = True
        self._intents.clear()

    def __del__(self) -> None:
        intents: Intents | None = self.__dict__.get("_intents")
        if intents is None or self._ended or self._core.closed:
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
        if self._has_left():
            self._commit([], None)

    def _has_left(self) -> bool:
        """Whether there is something to commit at the end, but for what a commit failed to write."""
        refused = self._intents.refused()
        if refused and len(refused) < len(self._intents):
            queued = [each for each in self._intents.labels() if each not in refused]
            self._intents.clear()
            raise UncommittedChangesError("the block", queued, refused=refused)
        if dropped := self._intents.drop_refused():
            log.warning(
                "%d objects are dropped that a commit failed to write: commit() them again or "
                "discard() them before the block is left",
                dropped,
            )
        return len(self._intents) > 0


class ThreadUnit(Unit):
    """The unit of a thread that uses a session itself."""

    leave = Unit._leave

    @property
    def queued(self) -> int:
        """The number of queued objects."""
        return len(self._intents)

    def __del__(self) -> None:
        """Its session warns of what it leaves behind."""


class ClientUnit(UnitOfWork):
    """The unit of work of a program without classes of its own, such as an extension.

    `client` says in the metadata of its commits who that is. With a `claim` it is fenced by it.
    """

    def __init__(self, core: Core, client: Mapping[str, str], claim: Claim | None = None) -> None:
        super().__init__(core, core.new_intents())
        self._client = client
        self._claim = claim

    write = UnitOfWork._write

    @property
    def queued(self) -> int:
        """The number of queued objects."""
        return len(self._intents)

    def _fence(self) -> Claim | None:
        return self._claim

    def _metadata(self) -> dict[str, Any]:
        return {**super()._metadata(), **self._client}


def lineage_of(claim: Claim) -> Lineage:
    """Where an event comes from that is emitted while this claim is handled."""
    row = claim.event
    return child_of(
        row.id, row.root_event_id, row.chain_depth, row.correlation_id, claim.handler_id
    )


class TransactUnit(Unit):
    """The unit of one call of a function by `transact`."""

    done = False
    """Whether a commit has succeeded."""

    def _committed(self, commit_id: int | None) -> None:
        self.done = True

    def call(self, function: Callable[[Unit], R]) -> R:
        """Call it with this unit and commit; what it returned."""
        with self:
            result = function(self)
            if inspect.isawaitable(result):
                getattr(result, "close", lambda: None)()
                raise InvalidTypeError(
                    f"transact calls a function that returns when it is done, and {function!r} "
                    f"returned {result!r:.100}",
                    hint="Read and change in a plain function; await before or after it.",
                )
            if len(self._intents) or not self.done:
                self.commit()
        return result


def check_retries(retries: object) -> None:
    """Raise unless this is how often something may be done again."""
    if isinstance(retries, bool) or not isinstance(retries, int):
        raise InvalidTypeError(f"retries is a whole number from 0 on, got {shown(retries)}")
    if retries < 0:
        raise InvalidValueError(f"retries is a whole number from 0 on, got {retries}")


def transact(core: Core, function: Callable[[Unit], R], retries: int, reads: Reads) -> R:
    """See `Session.transact`."""
    check_retries(retries)
    turn: AbstractContextManager[None] = nullcontext()
    conflicts = 0
    while True:
        unit = TransactUnit(core, reads)
        with turn:
            try:
                return unit.call(function)
            except StateConflictError as error:
                conflicts += 1
                check_repeatable(unit, error, conflicts, retries)
                key = (error.type_name, error.key)
        core.clock.sleep(conflict_wait(conflicts, core.random))
        # Of several threads that change one object all but the first would conflict again.
        turn = core.reruns.preferred(key, TAKE_TURNS * 1000)


def check_repeatable(
    unit: TransactUnit, conflict: StateConflictError, conflicts: int, retries: int
) -> None:
    """Raise the conflict if the function of `transact` is not to be called again."""
    if unit.done:  # the function would do twice what it has done
        raise conflict
    if conflicts > retries:
        conflict.add_note(
            f"transact() called the function {conflicts} times, and each call had a conflict."
        )
        conflict.hint = "Raise retries=, or make the function shorter."
        raise conflict


def numbered(emits: list[Later[Event]], written: Written) -> int | None:
    """Give events the ids they are stored under; the number of the commit."""
    for emit, stored in zip(emits, written.stored, strict=True):
        emit.event.id = stored.id
    return written.commit_id


def with_times(emits: Iterable[Event | Later[Event]]) -> list[Later[Event]]:
    """What is to be emitted, each with when it is due."""
    return [each if isinstance(each, Later) else Later(each) for each in emits]


def planned(
    event: object,
    delay: float | timedelta | None,
    at: datetime | None,
    dedup_key: str | None,
) -> list[Event | Later[Event]]:
    """What is given as `event=`: none, one or several, each with when it is due if it says so."""
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
    options = not _no_options(delay, at, dedup_key)
    return [
        each if isinstance(each, Event) and not options else _planned(each, delay, at, dedup_key)
        for each in given
    ]


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
        wrong = InvalidValueError if isinstance(reads, str) else InvalidTypeError
        raise wrong(f"reads is 'checked' or left out, got {shown(reads):.100}")
    return reads == "checked"
