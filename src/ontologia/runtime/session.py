"""`Session`: the front door to a store.

with Session("shop.db", entity_types=[Customer]) as session:
    session.ensure(Customer(id="c1", name="Ada"))
    session.commit()
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from ontologia import codec
from ontologia.clock import Clock, to_text
from ontologia.delivery.lineage import Lineage
from ontologia.delivery.schedule import Schedule
from ontologia.errors import (
    ConfigError,
    ConfigTypeError,
    DefinitionError,
    InvalidValueError,
    OntologiaError,
    QueryError,
    QueryTypeError,
    ReadOnlyError,
    SchemaOutdatedError,
    SessionClosedError,
    shown,
)
from ontologia.ids import Ids
from ontologia.migration.apply import Migration
from ontologia.migration.plan import MigrationPreview, MigrationResult
from ontologia.migration.upgraders import Upgrader, UpgraderKey
from ontologia.migration.versions import TypeVersions
from ontologia.query.builder import commit_hint
from ontologia.runtime.commits import Commits, WriteRequest, check_head
from ontologia.runtime.context import HandlerContext, active
from ontologia.runtime.delta import Delta, DeltaMaker, change_type
from ontologia.runtime.explain import Explanations, Why
from ontologia.runtime.handlers import Function, event_registry, ordered
from ontologia.runtime.intents import Intents
from ontologia.runtime.reader import Reader
from ontologia.runtime.scheduler import Scheduler
from ontologia.runtime.trace import Trace, trace_event
from ontologia.runtime.unit import Reads, Unit, UnitOfWork, transact
from ontologia.schema.entity import Entity
from ontologia.schema.event import Event
from ontologia.schema.registry import Registry
from ontologia.schema.relation import Relation
from ontologia.schema.shape import Shape
from ontologia.store.events import checks
from ontologia.store.events.store import SqlEventStore
from ontologia.store.open import clock_of, open_store
from ontologia.store.rows import CommitRow, RawChange
from ontologia.store.turn import Turn

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig
    from ontologia.runtime.loop import EventLoop

log = logging.getLogger(__name__)
_MOST = 2**63 - 1  # no database counts further
_LONGEST_NAME = 200
R = TypeVar("R")


class ThreadUnits:
    """A unit of work for each thread that uses a session itself."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._mine = threading.local()
        self._all: list[tuple[threading.Thread, Unit]] = []
        self._lock = threading.Lock()

    def unit(self) -> Unit:
        """The calling thread's."""
        unit: Unit | None = getattr(self._mine, "unit", None)
        if unit is None:
            unit = self._mine.unit = Unit(self._session, scoped=False)
            with self._lock:
                # What a thread left behind when it ended is kept, to be named at the end.
                self._all = [(t, u) for t, u in self._all if t.is_alive() or len(u._intents)]
                self._all.append((threading.current_thread(), unit))
        return unit

    def queued(self) -> int:
        """How many objects the calling thread has queued."""
        unit: Unit | None = getattr(self._mine, "unit", None)
        return 0 if unit is None else len(unit._intents)

    def left_behind(self) -> list[tuple[str, int]]:
        """The threads that have something queued, and how many objects. Takes no lock."""
        return [(t.name, len(u._intents)) for t, u in self._all if len(u._intents)]


class Session(UnitOfWork):
    """One program's connection to a store: typed state that is changed by commits.

    `datastore_uri` is a path or a URI (`sqlite:///app.db`). Nothing else is needed: tables are
    made, and types are registered, when they are first used. Listing types here registers them
    now, and makes the indexes of their `Field(index=True)`.

    Thread-safe: each thread has a queue of its own, and `unit()` gives one to a task or a scope. As
    a context manager it commits what the leaving thread has queued, unless it is left with an
    exception, but for what a commit failed to write. It closes in any case; what other threads
    have queued is dropped with a warning.
    """

    def __init__(
        self,
        datastore_uri: str,
        namespace: str | None = None,
        *,
        entity_types: list[type[Entity]] | None = None,
        relation_types: list[type[Relation[Any, Any]]] | None = None,
        instance_metadata: dict[str, Any] | None = None,
        config: OntologiaConfig | None = None,
        upgraders: Mapping[UpgraderKey, Upgrader] | None = None,
    ) -> None:
        self.config = _checked_config(config)
        self.namespace = _namespace(namespace, self.config)
        uri = os.fspath(datastore_uri) if isinstance(datastore_uri, os.PathLike) else datastore_uri
        self._clock: Clock = self.config.clock or clock_of(uri)
        self._random = self.config.random or random.SystemRandom()
        self.session_id = Ids(self._clock, self._random).new()
        self._closed = False
        self._loop: EventLoop | None = None
        self._ran = threading.Event()
        self._ran.set()
        self._close_later = False
        self._on_close: list[Callable[[], None]] = []
        """What stands on this session, and is closed before it."""
        self.EVENT_REGISTRY: dict[str, type[Event]] = {}
        """The event class of each stored type, for the handlers of the last `run`."""
        self._turn = Turn()
        self._registry = Registry()
        self._indexed: set[Shape] = set()
        self._threads = ThreadUnits(self)
        shapes = self._add_types("entity", entity_types) + self._add_types(
            "relation", relation_types
        )
        self._store = open_store(uri, self.config, self._clock, self._random)
        try:
            self._versions = TypeVersions(
                self._store, self._registry, self.session_id, upgraders or {}
            )
            self._deltas = DeltaMaker(self._registry, self._versions)
            self._reader = Reader(self._store, self._registry, self._versions)
            self._commits = Commits(
                self._store, self._versions, self.config, self._clock, self._make_indexes
            )
            self._scheduler = Scheduler(self._store.events, self.namespace, self._clock)
            default = {"hostname": socket.gethostname(), "pid": os.getpid()}
            self._instance = default | (instance_metadata or {})
            self._arrive(shapes)
        except BaseException:
            self._store.close()
            raise

    def _add_types(self, kind: str, types: list[Any] | None) -> list[Shape]:
        if isinstance(types, type):
            raise DefinitionError(
                f"{kind}_types takes a list, got {types!r}", hint=f"Write [{types.__name__}]."
            )
        return [self._registry.add(cls, kind) for cls in types or ()]

    def _arrive(self, shapes: list[Shape]) -> None:
        """Write down the types, their indexes and the session."""
        try:
            self._versions.register(shapes)
            self._make_indexes()
            self._register()
        except ReadOnlyError as error:
            # It is there to be read; whoever writes is told so.
            log.info("opened for reading only: %s", error.args[0])

    def _register(self, **more: Any) -> None:
        """Write down that the session is there."""
        metadata = self._instance | more
        self._store.events.register_session(self.session_id, self.namespace, metadata)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._threads.queued()} queued"
        return f"<Session {self._store.uri} namespace={self.namespace!r} {state}>"

    # -- units of work ------------------------------------------------------------------------

    def _handling(self) -> HandlerContext[Any] | None:
        """The context of the handler of this session that is calling."""
        context = active.get()
        return context if context is not None and context.session is self else None

    def _open(self) -> UnitOfWork:
        """The calling handler's context, else the calling thread's own unit."""
        self._check_open()
        context = self._handling()
        return self._threads.unit() if context is None else context._open()

    def unit(self, *, reads: Reads = None) -> Unit:
        """An isolated unit of work: for a web request, an asyncio task, a thread pool.

        with session.unit() as unit:
            unit.ensure(Order(id="o1", total=3))
            unit.commit(event=OrderPlaced(order_id="o1"))

        With `reads="checked"`, every object that it reads, by key or by query, must be unchanged at
        commit, written or not; and what `get` did not find must still not be there. Counts,
        aggregates and objects that appear in the meantime are not checked.
        """
        self._check_open()
        self._check_outside("a unit of its own")
        return Unit(self, reads)

    def transact(
        self, function: Callable[[Unit], R], *, retries: int = 10, reads: Reads = None
    ) -> R:
        """Call `function(unit)` and commit; call it again on fresh state after a conflict.

        Returns what the function returned. It is called at most `retries + 1` times, with a short
        random wait in between; then StateConflictError. What it does beside its unit of work it
        does each time. If it commits itself, then last: a conflict after a commit that succeeded
        is raised. Other errors are raised at once, and nothing is written.
        """
        self._check_open()
        self._check_outside("transact(): the handler itself is run again after a conflict")
        return transact(self, function, retries, reads)

    def _check_outside(self, what: str) -> None:
        """What a handler writes is fenced by its claim; nothing may get around that."""
        context = self._handling()
        if context is not None:
            raise RuntimeError(
                f"{context._claim.handler_id} is a handler and cannot use {what}\n"
                f"  hint: The context is its unit of work: ctx.get, ctx.ensure, ctx.commit."
            )

    def _preview(self, intents: Intents, expected_head: int | None) -> Delta:
        queue = intents.snapshot()
        self._commits.check_size(queue)
        with self._store.read() as reader:
            check_head(expected_head, reader.head())
            outdated = [d for d in self._versions.diffs(reader) if (d.kind, d.name) in queue]
            if outdated:
                raise SchemaOutdatedError(outdated)
            try:
                found = self._commits.preview(reader, queue, intents.reads)
            except OntologiaError as error:
                intents.mark_stale(queue, error._stale)
                raise
            return self._deltas.make(found)

    def _new_intents(self, *, checked: bool = False) -> Intents:
        """A queue for this store."""
        return Intents(self._registry, self._store.store_id, checked=checked)

    def _metadata(self) -> dict[str, Any]:
        return {"namespace": self.namespace, "session_id": self.session_id}

    # -- events -----------------------------------------------------------------------------

    @property
    def event_store(self) -> SqlEventStore:
        """The event store, for those who claim for themselves, list, inspect and replay."""
        self._check_open()
        return self._store.events

    def defer(
        self,
        event: Event,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        dedup_key: str | None = None,
    ) -> int | None:
        """Store an event that is announced after `delay` or at the instant `at`; its number.

        The number takes it back with `cancel_deferred`; None if `dedup_key` was taken, and then
        `event.id` is the first one's. One durable transaction.
        """
        self._check_open()
        if (delay is None) == (at is None):
            raise InvalidValueError("defer takes delay= or at=, and not both")
        context = self._handling()
        announcement = self._commits.announcement(
            event,
            self.namespace,
            Lineage() if context is None else context._lineage(),
            delay=delay,
            at=at,
            dedup_key=dedup_key,
        )
        claim = None if context is None else context._claim
        request = WriteRequest(announcements=[announcement], claim=claim)
        [stored] = self._commits.write(request).stored
        event.id = stored.id
        return stored.deferred

    def cancel_deferred(self, number: int) -> bool:
        """Take back a deferred event; False if it was announced, cancelled or never was."""
        self._check_open()
        context = self._handling()
        claim = None if context is None else context._claim
        return self._store.events.cancel_deferred(self.namespace, number, claim=claim)

    def add_schedule(self, schedule: Schedule) -> None:
        """Announce a schedule's event at its times, while this session runs. Again is nothing."""
        self._check_open()
        self._scheduler.add([schedule])

    def remove_schedule(self, schedule: Schedule) -> bool:
        """Announce it no more; False if it was not there."""
        self._check_open()
        return self._scheduler.remove(schedule)

    def run(
        self,
        handlers: Sequence[Callable[..., Any] | Function],
        *,
        schedules: Sequence[Schedule] | None = None,
        max_iterations: int | None = None,
        workers: int = 1,
        start: Literal["retained", "now"] = "retained",
        on_chain_limit: Literal["raise", "log"] = "raise",
    ) -> None:
        """Give events to handlers until stopped: by `stop()`, SIGINT or SIGTERM.

        Events are claimed per handler, the most urgent handler and then event first. A handler
        that returns has its event acknowledged; one that raises is tried again after a while,
        and after `event_max_attempts` the event is buried as a dead letter. With `workers=n` up
        to n handler calls run at once. `start="now"` lets a handler that the store has never
        seen skip what is retained. `max_iterations` ends the run after that many iterations.

        When it stops, handlers that are running come to their end (`shutdown_grace_ms`), and
        what was claimed beyond them is handed back at once. EventLoopLimitError if a handler's
        chain of events became too long: its event is a dead letter then, and with
        `on_chain_limit="log"` that is logged and the run goes on. SchemaOutdatedError if one uses a
        type that somebody has migrated (its event is handed back); database errors end the run as
        well, but not the loss of a server: the run goes on when it is back.
        """
        from ontologia.runtime.loop import EventLoop  # only for those who run

        self._check_open()
        chosen = ordered(handlers)
        registry = event_registry(chosen)
        _check_run(workers, max_iterations, start, on_chain_limit)
        with self._turn.taken(self.config.lock_timeout_ms):
            if self._loop is not None:
                raise RuntimeError("this session is running already; open another Session")
            added = self._scheduler.add(schedules or ())
            self.EVENT_REGISTRY.clear()
            self.EVENT_REGISTRY.update(registry)
            self._loop = EventLoop(
                self, chosen, workers=workers, start=start, on_chain_limit=on_chain_limit
            )
            self._ran.clear()
        try:
            self._loop.run(max_iterations)
        finally:
            for schedule in added:
                self._scheduler.remove(schedule)
            self._loop = None
            self._ran.set()
            if self._close_later:
                self.close()

    def stop(self) -> None:
        """End `run`, from any thread: see there how. Without a run it is nothing."""
        loop = self._loop
        if loop is not None:
            loop.stop()

    @property
    def _stopping(self) -> bool:
        """Whether `run` was told to stop, and waits for handlers to come to their end."""
        loop = self._loop
        return loop is not None and loop.stopping

    def _end(self) -> None:
        """Write down that the session does not run any more."""
        self._store.events.end_session(self.session_id)

    # -- questions --------------------------------------------------------------------------

    @property
    def head(self) -> int:
        """The number of the last commit; 0 on an empty store."""
        self._check_open()
        return self._store.get_head_commit_id() or 0

    def list_commits(self, *, limit: int = 10, since: int | None = None) -> list[dict[str, Any]]:
        """The newest commits, newest first; only those after `since`, if given."""
        self._check_open()
        for name, value in (("limit", limit), ("since", 0 if since is None else since)):
            if not 0 <= _number(name, value, "a whole number from 0 on") <= _MOST:
                raise QueryError(f"{name} takes a whole number from 0 on, got {shown(value)}")
        return [_as_dict(row) for row in self._store.list_commits(limit=limit, since=since)]

    def get_commit(self, commit_id: int) -> dict[str, Any] | None:
        """One commit with `id`, `created_at` and `metadata`; None if there is none."""
        self._check_open()
        if not 0 < _number("get_commit", commit_id) <= _MOST:
            return None
        row = self._store.get_commit(commit_id)
        return None if row is None else _as_dict(row)

    def commit_at(self, when: datetime) -> int:
        """The number of the last commit made at or before `when`, an aware datetime; 0 if none was.

        For whatever takes the number of a commit: `as_of(session.commit_at(last_week))`. Costs a
        look at one commit for each halving of their number, 20 of a million, in one snapshot.

        Commits have the time of whoever made them. If a clock was set back, several commits were
        made by `when` and have a next one that was not; it is one of those.
        """
        self._check_open()
        return self._store.commit_at(checks.instant("commit_at", when))

    def _commit_of(self, as_of: object) -> int:
        """The commit that a caller's `as_of` means."""
        if isinstance(as_of, datetime):
            return self.commit_at(as_of)
        number = _number("as_of", as_of, "a commit number or an aware datetime")
        if not 0 <= number <= _MOST:
            raise QueryError(f"as_of takes a commit number from 0 on, got {shown(as_of)}")
        return number

    def list_commit_changes(self, commit_id: int) -> list[dict[str, Any]]:
        """What a commit changed, one dict an object; [] for a commit that does not exist.

        `entity_id` is `Type:key` or None, `relation_id` is `Type:left:right[:instance]` or None,
        `change_type` is created, updated or deleted. Values are found with `as_of(commit_id)`.
        """
        self._check_open()
        if not 0 < _number("list_commit_changes", commit_id) <= _MOST:
            return []
        changes = self._store.changes_between(commit_id - 1, commit_id)
        return [_summary(change) for change in changes]

    def diff(self, a: int, b: int) -> Delta:
        """How the state after commit `b` differs from the state after commit `a`, per field.

        `a` may be the later one; then it is what going back would mean. 0 is the empty state.
        Costs the number of versions written in between.
        """
        self._check_open()
        head = self.head
        for commit_id in (a, b):
            if not 0 <= _number("diff", commit_id) <= head:
                raise QueryError(f"there is no commit {shown(commit_id)}; the store is at {head}")
        changes = self._store.changes_between(min(a, b), max(a, b))
        return self._deltas.make(changes if a <= b else map(_reversed, changes))

    def why(
        self,
        cls: type[Entity | Relation[Any, Any]],
        key: object,
        field: str | None = None,
    ) -> Why:
        """How an object, or one field of it, came to be what it is.

        The value, the commit that set it, the handler and event behind that, and the events that
        led there, back to the first. A relation's key is `(left, right)`, `(left, right, instance)`
        or the same as text with colons. NotFoundError if there never was such an object.

        A few reads by key; of a field, as many versions of the object as it has been the same.
        """
        self._check_open()
        return Explanations(self._store, self._versions).why(cls, key, field)

    def trace(self, event_id: str) -> Trace:
        """Everything that began with the same event as this one, and what came of each.

        NotFoundError if the event is not there, or not any more. Costs the events of the chain.
        """
        self._check_open()
        return trace_event(self._store, event_id, to_text(self._clock.now()))

    # -- types ------------------------------------------------------------------------------

    def validate(self) -> None:
        """SchemaOutdatedError if a registered class differs from the store's schema of its type."""
        self._check_open()
        with self._store.read() as reader:
            diffs = self._versions.diffs(reader)
        if diffs:
            raise SchemaOutdatedError(diffs)

    @overload
    def migrate(
        self,
        *,
        dry_run: Literal[True] = True,
        token: str | None = None,
        force: bool = False,
        upgraders: Mapping[UpgraderKey, Upgrader] | None = None,
    ) -> MigrationPreview: ...
    @overload
    def migrate(
        self,
        *,
        dry_run: Literal[False],
        token: str | None = None,
        force: bool = False,
        upgraders: Mapping[UpgraderKey, Upgrader] | None = None,
    ) -> MigrationResult: ...
    def migrate(
        self,
        *,
        dry_run: bool = True,
        token: str | None = None,
        force: bool = False,
        upgraders: Mapping[UpgraderKey, Upgrader] | None = None,
    ) -> MigrationPreview | MigrationResult:
        """Bring the store to the registered classes, or say what that would do.

        The preview's `token` stands for its plan and for the head it was made at; applying takes
        it back, and refuses with MigrationTokenError if either has changed. `force=True` applies
        whatever the plan is by then. Current objects are written anew in one commit; older
        versions stay as they were written, and pass through the upgraders when they are read.
        """
        self._check_open()
        if upgraders:
            self._versions.add_upgraders(upgraders)
        if dry_run:
            return Migration(self._store, self._registry, self._versions).preview()
        return self._migrate(token, force)

    def _migrate(
        self, token: str | None, force: bool = False, record: dict[str, Any] | None = None
    ) -> MigrationResult:
        """Apply it; with the `record` of an operator there is a commit in any case."""
        # Two threads of a session are two owners: each must wait for the other's lease.
        owner_id = f"{self.session_id}:{threading.get_ident()}"
        migration = Migration(self._store, self._registry, self._versions)
        result = migration.apply(
            owner_id, token=token, force=force, metadata=self._metadata(), record=record
        )
        self._make_indexes()
        return result

    def _make_indexes(self) -> None:
        """Make the indexes of types that came since the last time."""
        if len(self._indexed) == len(self._registry):
            return
        for shape in self._registry:
            if shape in self._indexed:
                continue
            for name, field in shape.fields.items():
                # The keys are indexed as it is.
                if field.index and name not in (shape.key, shape.instance_key):
                    kind = shape.types[name].kind
                    self._store.ensure_index(shape.kind, shape.name, name, kind)
            self._indexed.add(shape)

    # -- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """Give up the connection; what is still queued is dropped. Closing again is nothing.

        A session that is running is stopped first; closed by one of its own handlers, it closes
        when the run is over.
        """
        if self._closed:
            return
        if self._loop is not None:
            self.stop()
            if self._handling() is not None:
                self._close_later = True
                return
            self._ran.wait()
        for close in list(self._on_close):
            close()
        self._closed = True
        for name, queued in self._threads.left_behind():
            log.warning(
                "session closed with %d objects queued by thread %s; they were not written",
                *(queued, name),
            )
        try:
            self._end()
        except OntologiaError as error:
            # Only a courtesy to those who list sessions, and no reason to fail at the very end.
            log.info("the end of session %s was not written down: %s", self.session_id, error)
        finally:
            self._store.close()

    def __del__(self) -> None:
        # Only if the constructor came to its end.
        threads: ThreadUnits | None = self.__dict__.get("_threads")
        if threads is not None and not self._closed and threads.left_behind():
            queued = sum(count for _, count in threads.left_behind())
            warnings.warn(
                f"a Session was not closed, and {queued} queued objects were not written: commit() "
                f"them, or use `with Session(...)`",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self._closed:
                self._leave()
        finally:
            self.close()

    def _leave(self) -> None:
        if self._handling() is not None:
            self.commit()
            return
        self._threads.unit()._leave()

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosedError("the session is closed", hint="Open another Session.")


def _checked_config(config: OntologiaConfig | None) -> OntologiaConfig:
    from ontologia.config import OntologiaConfig  # see ontologia/__init__.py

    if config is not None and not isinstance(config, OntologiaConfig):
        raise ConfigTypeError(f"config takes an OntologiaConfig, got {config!r}")
    return config or OntologiaConfig()


def _namespace(given: str | None, config: OntologiaConfig) -> str:
    if given is None:
        return config.default_namespace
    if not isinstance(given, str) or not 0 < len(given) <= _LONGEST_NAME:
        raise (ConfigError if isinstance(given, str) else ConfigTypeError)(
            f"a namespace is text of 1 to {_LONGEST_NAME} characters, got {shown(given):.300}"
        )
    codec.check(given, "namespace")
    return given


def _number(what: str, value: object, kind: str = "commit numbers") -> int:
    """A caller's commit number; one that is no number is refused, one that is none's is not."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise QueryTypeError(f"{what} takes {kind}, got {shown(value)}", hint=commit_hint(value))
    return value


def _check_run(workers: object, max_iterations: object, start: object, limit: object) -> None:
    for name, value in (("workers", workers), ("max_iterations", max_iterations)):
        if name == "max_iterations" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise checks.error_for(value, int)(f"{name} is a whole number from 1 on, got {value!r}")
    if start not in ("retained", "now"):
        raise checks.error_for(start, str)(f"start is 'retained' or 'now', got {start!r}")
    if limit not in ("raise", "log"):
        raise checks.error_for(limit, str)(f"on_chain_limit is 'raise' or 'log', got {limit!r}")


def _as_dict(row: CommitRow) -> dict[str, Any]:
    created_at: datetime = row.created_at
    return {"id": row.id, "created_at": created_at, "metadata": row.metadata}


def _summary(change: RawChange) -> dict[str, Any]:
    label = ":".join((change.type_name, *(part for part in change.key if part)))
    entity = change.kind == "entity"
    return {
        "entity_id": label if entity else None,
        "relation_id": None if entity else label,
        "change_type": change_type(change),
    }


def _reversed(change: RawChange) -> RawChange:
    return change._replace(
        before=change.after,
        after=change.before,
        before_version=change.after_version,
        after_version=change.before_version,
    )
