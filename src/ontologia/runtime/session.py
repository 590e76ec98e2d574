"""`Session`: the front door to a store.

with Session("shop.db", entity_types=[Customer]) as session:
    session.ensure(Customer(id="c1", name="Ada"))
    session.commit()
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, overload

from ontologia import codec
from ontologia.clock import to_text
from ontologia.delivery.lineage import Lineage
from ontologia.delivery.schedule import Schedule
from ontologia.errors import (
    ConfigError,
    ConfigTypeError,
    DefinitionError,
    InvalidValueError,
    MigrationError,
    QueryError,
    shown,
)
from ontologia.migration.background import MigrationProgress
from ontologia.migration.plan import MigrationPreview, MigrationResult
from ontologia.runtime.commits import WriteRequest
from ontologia.runtime.core import LARGEST_COMMIT_ID, Core, commit_number
from ontologia.runtime.delta import Delta, change_type
from ontologia.runtime.explain import Explanations, Why
from ontologia.runtime.handlers import Function, event_registry, ordered
from ontologia.runtime.trace import Trace, trace_event
from ontologia.runtime.unit import Reads, ThreadUnit, Unit, UnitOfWork, transact
from ontologia.schema.entity import Entity
from ontologia.schema.event import Event
from ontologia.schema.registry import Registry
from ontologia.schema.relation import Relation
from ontologia.schema.upgraders import Upgrader, UpgraderKey
from ontologia.store.events import checks
from ontologia.store.events.store import EventStore
from ontologia.store.rows import CommitRow, RawChange
from ontologia.store.staging import PendingMigration
from ontologia.store.turn import Turn

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig
    from ontologia.store.s3 import S3EventStore

log = logging.getLogger(__name__)
_LONGEST_NAME = 200
R = TypeVar("R")


class ThreadUnits:
    """A unit of work for each thread that uses a session itself."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._mine = threading.local()
        self._all: list[tuple[threading.Thread, ThreadUnit]] = []
        self._lock = threading.Lock()

    def unit(self) -> ThreadUnit:
        """The calling thread's."""
        unit: ThreadUnit | None = getattr(self._mine, "unit", None)
        if unit is None:
            unit = self._mine.unit = ThreadUnit(self._core)
            with self._lock:
                # What a thread left behind when it ended is kept, to be named at the end.
                self._all = [(t, u) for t, u in self._all if t.is_alive() or u.queued]
                self._all.append((threading.current_thread(), unit))
        return unit

    def queued(self) -> int:
        """How many objects the calling thread has queued."""
        unit: ThreadUnit | None = getattr(self._mine, "unit", None)
        return 0 if unit is None else unit.queued

    def left_behind(self) -> list[tuple[str, int]]:
        """The threads that have something queued, and how many objects. Takes no lock."""
        return [(t.name, u.queued) for t, u in self._all if u.queued]


class Session(UnitOfWork):
    """One program's connection to a store: typed state that is changed by commits.

    `datastore_uri` is a path or a URI (`sqlite:///app.db`). Nothing else is needed: tables are
    made, and types are registered, when they are first used. Listing types here registers them
    now, and makes the indexes of their `Field(index=True)`.

    With `event_store="s3://bucket/prefix"` handlers get their events from a bucket, which sessions
    on other databases may share. Events are still stored with the state that they announce; the
    session carries them to the bucket in the background, and `close()` waits for that up to
    `shutdown_grace_ms`. What is left is carried by the next session with this event store.

    Thread-safe: each thread has a queue of its own, and `unit()` gives one to a task or a scope. As
    a context manager it commits what the leaving thread has queued, unless it is left with an
    exception, but for what a commit failed to write. It closes in any case; what other threads
    have queued is dropped with a warning.
    """

    _core_type: ClassVar[type[Core]] = Core

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
        event_store: str | None = None,
    ) -> None:
        self.config = _checked_config(config)
        self.namespace = _namespace(namespace, self.config)
        self.EVENT_REGISTRY: dict[str, type[Event]] = {}
        """The event class of each stored type, for the handlers of the last `run`."""
        self._pid = os.getpid()
        self._ran = threading.Event()
        self._ran.set()
        self._close_later = False
        self._turn = Turn()
        registry = Registry()
        for kind, types in (("entity", entity_types), ("relation", relation_types)):
            _add_types(registry, kind, types)
        uri = os.fspath(datastore_uri) if isinstance(datastore_uri, os.PathLike) else datastore_uri
        self._core = self._core_type(
            uri,
            self.config,
            self.namespace,
            registry,
            upgraders or {},
            instance_metadata or {},
            event_store,
        )
        self.session_id = self._core.session_id
        self._threads = ThreadUnits(self._core)

    def __repr__(self) -> str:
        state = "closed" if self._core.closed else f"{self._threads.queued()} queued"
        return f"<Session {self._core.store.uri} namespace={self.namespace!r} {state}>"

    # -- units of work ------------------------------------------------------------------------

    def _open(self) -> UnitOfWork:
        """The calling handler's context, else the calling thread's own unit."""
        self._core.check_open()
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
        self._core.check_open()
        self._check_outside("a unit of its own")
        return Unit(self._core, reads)

    def transact(
        self, function: Callable[[Unit], R], *, retries: int = 10, reads: Reads = None
    ) -> R:
        """Call `function(unit)` and commit; call it again on fresh state after a conflict.

        Returns what the function returned. It is called at most `retries + 1` times, with a short
        random wait in between; then StateConflictError. What it does beside its unit of work it
        does each time. If it commits itself, then last: a conflict after a commit that succeeded
        is raised. Other errors are raised at once, and nothing is written.
        """
        self._core.check_open()
        self._check_outside("transact(): the handler itself is run again after a conflict")
        return transact(self._core, function, retries, reads)

    # -- events -----------------------------------------------------------------------------

    @property
    def event_store(self) -> EventStore:
        """The event store, for those who claim for themselves, list, inspect and replay.

        That of the database, also where handlers get their events from a bucket: `bucket_events`.
        """
        self._core.check_open()
        return self._core.store.events

    @property
    def bucket_events(self) -> S3EventStore | None:
        """The event store in a bucket from which handlers get their events; None without one."""
        self._core.check_open()
        return self._core.bucket

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
        self._core.check_open()
        if (delay is None) == (at is None):
            raise InvalidValueError("defer takes delay= or at=, and not both")
        context = self._handling()
        announcement = self._core.commits.announcement(
            event,
            self.namespace,
            Lineage() if context is None else context._lineage(),
            delay=delay,
            at=at,
            dedup_key=dedup_key,
        )
        claim = None if context is None else context._fence()
        request = WriteRequest(announcements=[announcement], claim=claim)
        [stored] = self._core.commits.write(request).stored
        event.id = stored.id
        return stored.deferred

    def cancel_deferred(self, number: int) -> bool:
        """Take back a deferred event; False if it was announced, cancelled or never was."""
        self._core.check_open()
        context = self._handling()
        claim = None if context is None else context._fence()
        return self._core.store.events.cancel_deferred(self.namespace, number, claim=claim)

    def add_schedule(self, schedule: Schedule) -> None:
        """Emit a schedule's event at its times, while this session runs. Idempotent."""
        self._core.check_open()
        self._core.scheduler.add([schedule])

    def remove_schedule(self, schedule: Schedule) -> bool:
        """Announce it no more; False if it was not there."""
        self._core.check_open()
        return self._core.scheduler.remove(schedule)

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
        from ontologia.runtime.handler_engine import HandlerEngine  # only for those who run

        self._core.check_open()
        chosen = ordered(handlers)
        registry = event_registry(chosen)
        for cls in set(registry.values()):
            self._core.versions.check_event(cls)
        _check_run(workers, max_iterations, start, on_chain_limit)
        with self._turn.taken(self.config.lock_timeout_ms):
            if self._core.engine is not None:
                raise RuntimeError("this session is running already; open another Session")
            added = self._core.scheduler.add(schedules or ())
            self.EVENT_REGISTRY.clear()
            self.EVENT_REGISTRY.update(registry)
            self._core.engine = HandlerEngine(
                self, chosen, workers=workers, start=start, on_chain_limit=on_chain_limit
            )
            self._ran.clear()
        try:
            self._core.engine.run(max_iterations)
        finally:
            for schedule in added:
                self._core.scheduler.remove(schedule)
            self._core.engine = None
            self._ran.set()
            if self._close_later:
                self.close()

    def stop(self) -> None:
        """End `run`, from any thread: see there how. Without a run it is nothing."""
        engine = self._core.engine
        if engine is not None:
            engine.stop()

    # -- questions --------------------------------------------------------------------------

    @property
    def head(self) -> int:
        """The number of the last commit; 0 on an empty store."""
        self._core.check_open()
        return self._core.store.get_head_commit_id() or 0

    def list_commits(self, *, limit: int = 10, since: int | None = None) -> list[dict[str, Any]]:
        """The newest commits, newest first; only those after `since`, if given."""
        self._core.check_open()
        for name, value in (("limit", limit), ("since", 0 if since is None else since)):
            if not 0 <= commit_number(name, value, "a whole number from 0 on") <= LARGEST_COMMIT_ID:
                raise QueryError(f"{name} takes a whole number from 0 on, got {shown(value)}")
        return [_as_dict(row) for row in self._core.store.list_commits(limit=limit, since=since)]

    def get_commit(self, commit_id: int) -> dict[str, Any] | None:
        """One commit with `id`, `created_at` and `metadata`; None if there is none."""
        self._core.check_open()
        if not 0 < commit_number("get_commit", commit_id) <= LARGEST_COMMIT_ID:
            return None
        row = self._core.store.get_commit(commit_id)
        return None if row is None else _as_dict(row)

    def commit_at(self, when: datetime) -> int:
        """The number of the last commit made at or before `when`, an aware datetime; 0 if none was.

        For whatever takes the number of a commit: `as_of(session.commit_at(last_week))`. Costs a
        look at one commit for each halving of their number, 20 of a million, in one snapshot.

        Commits have the time of whoever made them. If a clock was set back, several commits were
        made by `when` and have a next one that was not; it is one of those.
        """
        self._core.check_open()
        return self._core.store.commit_at(checks.instant("commit_at", when))

    def list_commit_changes(self, commit_id: int) -> list[dict[str, Any]]:
        """What a commit changed, one dict an object; [] for a commit that does not exist.

        `entity_id` is `Type:key` or None, `relation_id` is `Type:left:right[:instance]` or None,
        `change_type` is created, updated or deleted. Values are found with `as_of(commit_id)`.
        """
        self._core.check_open()
        if not 0 < commit_number("list_commit_changes", commit_id) <= LARGEST_COMMIT_ID:
            return []
        changes = self._core.store.changes_between(commit_id - 1, commit_id)
        return [_summary(change) for change in changes]

    def diff(self, a: int, b: int) -> Delta:
        """How the state after commit `b` differs from the state after commit `a`, per field.

        `a` may be the later one; then it is what going back would mean. 0 is the empty state.
        Costs the number of versions written in between.
        """
        self._core.check_open()
        head = self.head
        for commit_id in (a, b):
            if not 0 <= commit_number("diff", commit_id) <= head:
                raise QueryError(f"there is no commit {shown(commit_id)}; the store is at {head}")
        changes = self._core.store.changes_between(min(a, b), max(a, b))
        return self._core.deltas.make(changes if a <= b else map(_reversed, changes))

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
        Events that are not retained are looked up in the archive that `archive_uri` names.
        """
        self._core.check_open()
        return Explanations(self._core.store, self._core.versions).why(cls, key, field)

    def trace(self, event_id: str) -> Trace:
        """Everything that began with the same event as this one, and what came of each.

        NotFoundError if the event is not there, or not any more. Costs the events of the chain;
        with the setting `archive_uri` a listing besides, and two requests for each archived event.
        """
        self._core.check_open()
        return trace_event(
            self._core.store, event_id, to_text(self._core.clock.now()), self.namespace
        )

    # -- types ------------------------------------------------------------------------------

    def validate(self) -> None:
        """SchemaOutdatedError if a registered class differs from the store's schema of its type."""
        self._core.check_open()
        with self._core.store.read() as reader:
            diffs = self._core.versions.diffs(reader)
        if diffs:
            raise self._core.versions.outdated(diffs)

    @overload
    def migrate(
        self,
        *,
        dry_run: Literal[True] = True,
        token: str | None = None,
        force: bool = False,
        follow: bool = False,
        upgraders: Mapping[UpgraderKey, Upgrader] | None = None,
        progress: Callable[[MigrationProgress], None] | None = None,
        rate: float | None = None,
    ) -> MigrationPreview: ...
    @overload
    def migrate(
        self,
        *,
        dry_run: Literal[False],
        token: str | None = None,
        force: bool = False,
        follow: bool = False,
        upgraders: Mapping[UpgraderKey, Upgrader] | None = None,
        progress: Callable[[MigrationProgress], None] | None = None,
        rate: float | None = None,
    ) -> MigrationResult: ...
    def migrate(
        self,
        *,
        dry_run: bool = True,
        token: str | None = None,
        force: bool = False,
        follow: bool = False,
        upgraders: Mapping[UpgraderKey, Upgrader] | None = None,
        progress: Callable[[MigrationProgress], None] | None = None,
        rate: float | None = None,
    ) -> MigrationPreview | MigrationResult:
        """Bring the store to the registered classes, or say what that would do.

        The preview's `token` stands for its plan and for the head it was made at; applying takes
        it back, and refuses with MigrationTokenError if either has changed. With `follow=True` it
        stands for the plan alone, so that a store with other commits every second can be migrated;
        `force=True` applies whatever the plan is by then.

        A compatible change is one short transaction that writes no object: those that lack a new
        field are read with its default. For any other, current objects are written anew in one
        commit; older versions stay as they were written, and pass through the upgraders when they
        are read.

        More than `migration_at_once` objects are upgraded in the background, beside commits of the
        old version, and the new version becomes current for all of them at one moment. `progress`
        is told how far that is, and `rate` is the most objects to upgrade in a second. Broken off
        at any moment, the same call goes on where it stopped; `abort_migration` takes it back.
        """
        self._core.check_open()
        if upgraders:
            self._core.versions.add_upgraders(upgraders)
        if dry_run:
            return self._core.migration().preview()
        if rate is not None and not rate > 0:
            raise MigrationError(f"a rate is more than 0 objects a second, got {rate!r}")
        return self._core.migrate(token, force, follow=follow, progress=progress, rate=rate)

    def pending_migration(self) -> PendingMigration | None:
        """The migration in the background that has begun and is not finished, if there is one."""
        self._core.check_open()
        return self._core.store.staging.pending()

    def abort_migration(self) -> PendingMigration | None:
        """Take back a migration in the background; what it was, None if there is none.

        MigrationError if its new versions are current already, LockContentionError while another
        session goes on with it.
        """
        self._core.check_open()
        return self._core.abort_migration()

    # -- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """Give up the connection; what is still queued is dropped. Closing again is nothing.

        A session that is running is stopped first; closed by one of its own handlers, it closes
        when the run is over.
        """
        if self._core.closed:
            return
        if os.getpid() != self._pid:  # a forked child: its parent's threads will not answer here
            self._core.closed = True
            return
        if self._core.engine is not None:
            self.stop()
            if self._handling() is not None:
                self._close_later = True
                return
            self._core.store.hurry()
            self._ran.wait()
        for name, queued in self._threads.left_behind():
            log.warning(
                "session closed with %d objects queued by thread %s; they were not written",
                *(queued, name),
            )
        self._core.close()

    def __del__(self) -> None:
        # Only if the constructor came to its end.
        threads: ThreadUnits | None = self.__dict__.get("_threads")
        if threads is not None and not self._core.closed and threads.left_behind():
            queued = sum(count for _, count in threads.left_behind())
            warnings.warn(
                f"a Session was not closed, and {queued} queued objects were not written: commit() "
                f"them, or use `with Session(...)`",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )

    def __enter__(self) -> Self:
        self._core.check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self._core.closed:
                self._leave()
        finally:
            self.close()

    def _leave(self) -> None:
        if self._handling() is not None:
            self.commit()
            return
        self._threads.unit().leave()


core_of: Callable[[Session], Core] = attrgetter("_core")
"""The core of a session, for the package's own code."""


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


def _add_types(registry: Registry, kind: str, types: list[Any] | None) -> None:
    if isinstance(types, type):
        raise DefinitionError(
            f"{kind}_types takes a list, got {types!r}", hint=f"Write [{types.__name__}]."
        )
    for cls in types or ():
        registry.add(cls, kind)


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
