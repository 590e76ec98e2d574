"""`AsyncSession`: a `Session` for asyncio, with the same names and `await` where there is I/O.

async with AsyncSession("shop.db", entity_types=[Product]) as session:
    product = await session.one(Product, "p1")
    product.stock -= 1
    session.ensure(product)
    await session.commit(event=StockReserved(sku="p1"))

Nothing here waits for the database: reads are done by a few threads, and the commits of all tasks
that wait at the same time are submitted to the store's writer by one thread, so they share a sync.
"""

# pyright: reportPrivateUsage=false
# Half of `UnitOfWork` and `Session`: it waits here where unit.py and session.py block.

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, overload
from weakref import WeakValueDictionary

from ontologia.engine.coroutines import home
from ontologia.errors import ConfigTypeError, SessionClosedError, StateConflictError
from ontologia.migration.background import MigrationProgress
from ontologia.migration.plan import MigrationPreview, MigrationResult
from ontologia.query.async_builder import AsyncQueryBuilder
from ontologia.runtime.commits import WriteRequest, Written, conflict_wait
from ontologia.runtime.delta import Delta
from ontologia.runtime.explain import Why
from ontologia.runtime.handlers import Function
from ontologia.runtime.intents import not_there
from ontologia.runtime.reader import noting
from ontologia.runtime.session import Session, core_of
from ontologia.runtime.threads import Deliveries, Job, Threads, for_task
from ontologia.runtime.trace import Trace
from ontologia.runtime.unit import (
    TAKE_TURNS,
    Emits,
    Key,
    Later,
    Objects,
    Reads,
    ThreadUnit,
    TransactUnit,
    Unit,
    UnitOfWork,
    check_repeatable,
    check_retries,
    numbered,
    planned,
    with_times,
)
from ontologia.schema.entity import Entity
from ontologia.schema.event import Event
from ontologia.schema.registry import shape_of
from ontologia.schema.relation import Relation
from ontologia.schema.upgraders import Upgrader, UpgraderKey
from ontologia.store.staging import PendingMigration

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig
    from ontologia.delivery.schedule import Schedule

log = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="Entity | Relation[Any, Any]")
_THREADS = 16
_UNDER_WAY = "a commit of this unit of work is under way; await it before the next one"


@asynccontextmanager
async def _preferred(lock: asyncio.Lock) -> AsyncGenerator[None]:
    """Have the lock, or go on without it if another task has it for long."""
    held = False
    try:
        async with asyncio.timeout(TAKE_TURNS):
            held = await lock.acquire()
    except TimeoutError:
        pass
    try:
        yield
    finally:
        if held:
            lock.release()


class _Commit(Job[int | None]):
    """A commit that a task waits for."""

    def __init__(
        self,
        deliveries: Deliveries,
        unit: UnitOfWork,
        request: WriteRequest,
        emits: list[Later[Event]],
    ) -> None:
        super().__init__(deliveries)
        self.request = request
        self._unit = unit
        self._emits = emits

    def settle(self, outcome: Written | Exception) -> None:
        """Have the unit know what came of it, also if its task is cancelled. Called on the loop."""
        number: int | None = None
        error: Exception | None = None
        try:
            if isinstance(outcome, Exception):
                error = outcome
                self._unit._refused(self.request.queue, outcome)
            else:
                self._unit._settle(self.request, outcome)
                number = numbered(self._emits, outcome)
        except BaseException as raised:
            error = for_task(raised)
            if error is not raised:  # an interrupt of the loop, which is its own
                raise
        finally:
            self.end(number, error)


class _Commits:
    """The commits of the tasks of one event loop: all that wait are submitted together.

    Everything but `_write` is called on the loop.
    """

    def __init__(self, session: Session, deliveries: Deliveries) -> None:
        self._session = session
        self._thread = Threads(1, "ontologia-commits")
        """One of its own: what the others do may wait for a commit."""
        self._deliveries = deliveries
        self._waiting: list[_Commit] = []
        self._begins = False
        """Whether the next batch is about to be submitted, or one is being written."""

    def submit(self, unit: UnitOfWork, request: WriteRequest, emits: list[Later[Event]]) -> _Commit:
        """Have a request written with those of other tasks."""
        commit = _Commit(self._deliveries, unit, request, emits)
        self._waiting.append(commit)
        if not self._begins:
            self._begins = True
            # Not at once: other tasks that are ready now may want to come along.
            self._deliveries.loop.call_soon(self._begin)
        return commit

    def _begin(self) -> None:
        batch = [commit for commit in self._waiting if commit.begin()]
        self._waiting = []
        self._begins = bool(batch)
        if batch:
            self._thread.do(partial(self._write, batch))

    def _write(self, batch: list[_Commit]) -> None:
        outcomes: Sequence[Written | Exception]
        try:
            outcomes = core_of(self._session).commits.write_all([each.request for each in batch])
        except BaseException as error:  # noqa: BLE001 - raised by the tasks that wait
            outcomes = [for_task(error)] * len(batch)
        # The tasks that go on now may commit again: they come along with those who wait.
        begin_soon = partial(self._deliveries.loop.call_soon, self._begin)
        settle = [
            partial(commit.settle, outcome) for commit, outcome in zip(batch, outcomes, strict=True)
        ]
        self._deliveries.put(begin_soon, *settle)

    def close(self) -> None:
        """Have its thread end once nothing waits. Idempotent."""
        self._thread.close()


class AsyncUnitOfWork:
    """Reads and changes of objects that are committed together: `UnitOfWork` for asyncio.

    Calls that wait for the database are awaited. They belong to the task that calls them, whichever
    task awaits them.
    """

    _session: AsyncSession

    def _of_caller(self) -> UnitOfWork:
        """The unit that a call belongs to; SessionClosedError if it has ended."""
        raise NotImplementedError

    # -- reads --------------------------------------------------------------------------------

    def get(
        self, cls: type[T], key: Key, *, as_of: int | datetime | None = None
    ) -> Coroutine[Any, Any, T | None]:
        """The object with this key, or None: see `UnitOfWork.get`."""
        return self._get(self._of_caller(), cls, key, as_of)

    async def _get(
        self, unit: UnitOfWork, cls: type[T], key: Key, as_of: int | datetime | None
    ) -> T | None:
        ask = self._session._ask
        if as_of is not None:
            return await ask(partial(unit.get, cls, key, as_of=as_of))
        shape = shape_of(cls)
        place = shape.key_parts(key)
        found: T | None
        if unit._must_read(shape, place):
            read = await ask(partial(unit._read, shape, place))
            found = unit._found(shape, place, read)
        else:
            found = unit._get(shape, place)
        return found

    def one(
        self, cls: type[T], key: Key, *, as_of: int | datetime | None = None
    ) -> Coroutine[Any, Any, T]:
        """The object with this key; NotFoundError if there is none. Otherwise as `get`."""
        return self._one(self._of_caller(), cls, key, as_of)

    async def _one(
        self, unit: UnitOfWork, cls: type[T], key: Key, as_of: int | datetime | None
    ) -> T:
        found = await self._get(unit, cls, key, as_of)
        if found is None:
            shape = shape_of(cls)
            raise not_there((shape.kind, shape.name), shape.key_parts(key))
        return found

    def query(self) -> AsyncQueryBuilder:
        """Query entities or relations: `await query().entities(Customer).collect()`.

        Queries see what is committed, not what is queued.
        """
        unit = self._of_caller()
        ask = self._session._ask_checked if unit._intents.checked else self._session._ask
        return AsyncQueryBuilder(unit._answers(), ask)

    # -- changes ------------------------------------------------------------------------------

    def ensure(self, obj: Objects, *, overwrite: bool = False) -> None:
        """Queue one object or several: see `UnitOfWork.ensure`. No I/O."""
        self._of_caller().ensure(obj, overwrite=overwrite)

    def delete(self, obj: Objects, *, overwrite: bool = False) -> None:
        """Queue the deletion of one object or several: see `UnitOfWork.delete`. No I/O."""
        self._of_caller().delete(obj, overwrite=overwrite)

    def create(self, obj: Objects) -> None:
        """Queue one object or several that must not exist yet. No I/O."""
        self._of_caller().create(obj)

    def update(self, cls: type[Entity | Relation[Any, Any]], key: Key, /, **fields: Any) -> None:
        """Queue new values of some fields of an object: see `UnitOfWork.update`. No I/O."""
        self._of_caller().update(cls, key, **fields)

    def discard(self) -> int:
        """Drop what is queued, and what was read with it; returns the number of queued objects."""
        return self._of_caller().discard()

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
    ) -> Coroutine[Any, Any, int | None]: ...
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
    ) -> Coroutine[Any, Any, Delta]: ...
    def commit(
        self,
        *,
        event: Emits | None = None,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        dedup_key: str | None = None,
        dry_run: bool = False,
        expected_head: int | None = None,
    ) -> Coroutine[Any, Any, int | None] | Coroutine[Any, Any, Delta]:
        """Write what is queued, in one durable transaction: see `UnitOfWork.commit`.

        Commits of tasks that wait at the same time share a transaction, and so a sync; one that
        fails takes no other with it.

        Cancelled, it is written as a whole or not at all, and which of the two is settled before
        CancelledError is raised: if it was written, the queue is empty and the objects carry their
        new versions; if not, the queue is as it was. RuntimeError if another commit of the same
        unit of work is under way.
        """
        unit = self._of_caller()
        emits = planned(event, delay, at, dedup_key)
        if dry_run:
            preview = partial(unit._core.preview, unit._intents, expected_head)
            return self._session._ask(preview)
        return self._session._commit(unit, with_times(emits), expected_head)


class AsyncUnit(AsyncUnitOfWork):
    """An isolated unit of work on an `AsyncSession`: what others queue is not in its commits.

    `async with session.unit() as unit:` commits what is queued when it is left without an exception,
    and drops it with one, as `Unit` does. Cancelled while that is written, all of it is written, or
    nothing. For one task; making one costs nothing.
    """

    def __init__(self, session: AsyncSession, unit: Unit) -> None:
        self._session = session
        self._unit = unit

    def __repr__(self) -> str:
        return f"<AsyncUnit of {self._session!r}, {len(self._unit._intents)} queued>"

    def _of_caller(self) -> Unit:
        return self._unit._open()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        unit = self._unit
        try:
            if kind is None and len(unit._intents) and unit._open()._has_left():
                await self._session._commit(unit, [], None)
        finally:
            unit._end()


class AsyncSession(AsyncUnitOfWork):
    """A `Session` for asyncio: the same names, `await` where there is I/O.

    Takes what `Session` takes, or a `Session`, which stays open when this is closed. It is opened by
    `async with`; with a session that is given it can be used at once, from any event loop.

    A task is to it what a thread is to `Session`: each has a queue of its own, a child task too, and
    no task commits what another has queued. What a task leaves queued when it ends is dropped with a
    warning. Leaving `async with` commits what the leaving task has queued, unless it is left with
    an exception, and closes in any case.

    In an `async def` handler that `run` has called, it is the handler's context, and does not wait in the
    event loop, as the context itself does.
    """

    def __init__(
        self,
        datastore: str | os.PathLike[str] | Session,
        namespace: str | None = None,
        *,
        entity_types: list[type[Entity]] | None = None,
        relation_types: list[type[Relation[Any, Any]]] | None = None,
        instance_metadata: dict[str, Any] | None = None,
        config: OntologiaConfig | None = None,
        upgraders: Mapping[UpgraderKey, Upgrader] | None = None,
        event_store: str | None = None,
    ) -> None:
        self._session = self
        self._threads = Threads(_THREADS, "ontologia-io")
        self._commits: dict[Deliveries, _Commits] = {}
        self._units: dict[asyncio.Task[Any], Unit] = {}
        self._committing: set[int] = set()
        """The units of which a commit is under way."""
        self._reruns: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()
        """Of functions that `transact` calls again, by the object they had a conflict about."""
        options: dict[str, Any] = {
            "namespace": namespace,
            "entity_types": entity_types,
            "relation_types": relation_types,
            "instance_metadata": instance_metadata,
            "config": config,
            "upgraders": upgraders,
            "event_store": event_store,
        }
        self._own = not isinstance(datastore, Session)
        self._opened: Session | None = None
        if isinstance(datastore, Session):
            given = [name for name, value in options.items() if value is not None]
            if given:
                raise ConfigTypeError(f"{', '.join(given)}: a session that is open has its own")
            self._opened = datastore
        else:
            self._make = partial(Session, os.fspath(datastore), **options)

    def __repr__(self) -> str:
        return f"<AsyncSession of {self._opened!r}>"

    @property
    def session(self) -> Session:
        """The session underneath, for functions that `run_sync` calls."""
        if self._opened is None:
            raise SessionClosedError(
                "the session is not open", hint="Open it: async with AsyncSession(...) as session."
            )
        return self._opened

    @property
    def config(self) -> OntologiaConfig:
        """Its settings."""
        return self.session.config

    @property
    def namespace(self) -> str:
        """The namespace of its events."""
        return self.session.namespace

    @property
    def session_id(self) -> str:
        """The id under which it is registered."""
        return self.session.session_id

    # -- threads ------------------------------------------------------------------------------

    def _ask(self, function: Callable[[], R], /) -> Coroutine[Any, Any, R]:
        """Read in a thread; a task that is cancelled does not wait for it."""
        return self._threads.call(function).abandoned()

    async def _ask_checked(self, function: Callable[[], R], /) -> R:
        """The same for a unit that checks its reads; what was given up was not read."""
        notes: list[Callable[[], None]] = []

        def read() -> R:
            noting.set(notes)  # in a copy of the context
            return function()

        found = await self._ask(read)
        for note in notes:
            note()
        return found

    def run_sync(
        self, function: Callable[P, R], /, *args: P.args, **options: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Call a function that waits for the database, in a thread; what it returns.

        It runs in a copy of the caller's context. Cancelled before it has begun, it is not called;
        later, CancelledError is raised when the function has returned. For whatever has no method
        here: `await session.run_sync(session.session.event_store.list_events, "default")`.
        """
        return self._threads.call(function, *args, **options).finished()

    # -- units of work ------------------------------------------------------------------------

    def _of_caller(self) -> UnitOfWork:
        """The calling handler's context, else the calling task's own unit."""
        session = self.session
        core_of(session).check_open()
        context = session._handling()
        if context is not None:
            return context._open()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an AsyncSession has a queue per task, and no task is running here")
        unit = self._units.get(task)
        if unit is None:
            unit = self._units[task] = ThreadUnit(core_of(session))
            task.add_done_callback(self._task_ended)
        return unit

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        unit = self._units.pop(task, None)
        if unit is not None and len(unit._intents) and not core_of(self.session).closed:
            log.warning(
                "task %s ended with %d objects queued; they were not written",
                *(task.get_name(), len(unit._intents)),
            )

    async def _commit(
        self, unit: UnitOfWork, emits: list[Later[Event]], expected_head: int | None
    ) -> int | None:
        if id(unit) in self._committing:
            raise RuntimeError(_UNDER_WAY)
        request = unit._request(map(unit._announcement, emits), expected_head)
        request.reads = {kind: dict(reads) for kind, reads in request.reads.items()}
        request.context = copy_context()
        deliveries = self._threads.deliveries()
        commits = self._commits.get(deliveries)
        if commits is None:
            commits = _Commits(self.session, deliveries)
            for each in [each for each in self._commits if each.loop.is_closed()]:
                self._commits.pop(each).close()
            self._commits[deliveries] = commits
        self._committing.add(id(unit))
        commit = commits.submit(unit, request, emits)
        try:
            return await commit.finished()
        except asyncio.CancelledError as error:
            if not commit.done:  # it was withdrawn
                unit._refused(request.queue, error)
            raise
        finally:
            self._committing.discard(id(unit))

    def unit(self, *, reads: Reads = None) -> AsyncUnit:
        """An isolated unit of work: see `Session.unit`.

        async with session.unit() as unit:
            unit.ensure(Order(id="o1", total=3))
            await unit.commit(event=OrderPlaced(order_id="o1"))
        """
        return AsyncUnit(self, self.session.unit(reads=reads))

    @overload
    async def transact(
        self,
        function: Callable[[AsyncUnit], Coroutine[Any, Any, R]],
        *,
        retries: int = 10,
        reads: Reads = None,
    ) -> R: ...
    @overload
    async def transact(
        self, function: Callable[[AsyncUnit], R], *, retries: int = 10, reads: Reads = None
    ) -> R: ...
    async def transact(
        self, function: Callable[[AsyncUnit], Any], *, retries: int = 10, reads: Reads = None
    ) -> Any:
        """Call `function(unit)`, await it if it is `async def`, and commit: see `Session.transact`.

        After a conflict it is called again on fresh state, at most `retries + 1` times in all, with a
        short random wait in between; then StateConflictError. What it does beside its unit of work it does
        each time.
        """
        check_retries(retries)
        self.session._check_outside("transact(): the handler itself is run again after a conflict")
        core, conflicts = core_of(self.session), 0
        turn = asyncio.Lock()
        while True:
            inner = TransactUnit(core, reads)
            async with _preferred(turn):
                try:
                    async with AsyncUnit(self, inner) as unit:
                        result = function(unit)
                        if inspect.isawaitable(result):
                            result = await result
                        if len(inner._intents) or not inner.done:
                            await unit.commit()
                    return result
                except StateConflictError as error:
                    conflicts += 1
                    check_repeatable(inner, error, conflicts, retries)
                    key = (asyncio.get_running_loop(), error.type_name, error.key)
            await asyncio.sleep(conflict_wait(conflicts, core.random))
            # Of several tasks that change one object all but the first would conflict again.
            turn = self._reruns.setdefault(key, asyncio.Lock())

    # -- events -------------------------------------------------------------------------------

    async def defer(
        self,
        event: Event,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        dedup_key: str | None = None,
    ) -> int | None:
        """Store an event that is emitted after `delay` or at the instant `at`: see `Session.defer`."""
        defer = self.session.defer
        return await self.run_sync(defer, event, delay=delay, at=at, dedup_key=dedup_key)

    async def cancel_deferred(self, number: int) -> bool:
        """Take back a deferred event; False if it was emitted, cancelled or never was."""
        return await self.run_sync(self.session.cancel_deferred, number)

    def add_schedule(self, schedule: Schedule) -> None:
        """Emit a schedule's event at its times, while this session runs. Idempotent. No I/O."""
        self.session.add_schedule(schedule)

    def remove_schedule(self, schedule: Schedule) -> bool:
        """Emit it no more; False if it was not there. No I/O."""
        return self.session.remove_schedule(schedule)

    async def run(
        self,
        handlers: Sequence[Callable[..., Any] | Function],
        *,
        schedules: Sequence[Schedule] | None = None,
        max_iterations: int | None = None,
        workers: int = 1,
        start: Literal["retained", "now"] = "retained",
        on_chain_limit: Literal["raise", "log"] = "raise",
    ) -> None:
        """Give events to handlers until cancelled, or stopped by `stop()`: see `Session.run`.

        `async def` handlers run on the event loop that awaits this, plain ones in threads. Cancelled,
        it stops as by `stop()`, and CancelledError is raised when it has: running handlers come to
        their end, and what was claimed beyond them is released.
        """
        session = self.session

        def run() -> None:
            home.set(loop)  # in a copy of the context, which is of no use to anyone else
            session.run(
                handlers,
                schedules=schedules,
                max_iterations=max_iterations,
                workers=workers,
                start=start,
                on_chain_limit=on_chain_limit,
            )

        loop = asyncio.get_running_loop()
        # Again and again: the thread may not have come to the point where it can be stopped.
        await self._threads.call_apart(run).finished(session.stop)

    def stop(self) -> None:
        """End `run`: see there how. Idempotent."""
        self.session.stop()

    # -- queries ------------------------------------------------------------------------------

    @property
    def head(self) -> Coroutine[Any, Any, int]:
        """The number of the last commit, to be awaited: `await session.head`."""
        return self._ask(lambda: self.session.head)

    async def list_commits(
        self, *, limit: int = 10, since: int | None = None
    ) -> list[dict[str, Any]]:
        """The newest commits, newest first; only those after `since`, if given."""
        return await self._ask(partial(self.session.list_commits, limit=limit, since=since))

    async def get_commit(self, commit_id: int) -> dict[str, Any] | None:
        """One commit with `id`, `created_at` and `metadata`; None if there is none."""
        return await self._ask(partial(self.session.get_commit, commit_id))

    async def commit_at(self, when: datetime) -> int:
        """The number of the last commit made at or before `when`: see `Session.commit_at`."""
        return await self._ask(partial(self.session.commit_at, when))

    async def list_commit_changes(self, commit_id: int) -> list[dict[str, Any]]:
        """What a commit changed, one dict an object: see `Session.list_commit_changes`."""
        return await self._ask(partial(self.session.list_commit_changes, commit_id))

    async def diff(self, a: int, b: int) -> Delta:
        """How the state after commit `b` differs from the state after commit `a`, per field."""
        return await self._ask(partial(self.session.diff, a, b))

    async def why(
        self, cls: type[Entity | Relation[Any, Any]], key: object, field: str | None = None
    ) -> Why:
        """How an object, or one field of it, came to be what it is: see `Session.why`."""
        return await self._ask(partial(self.session.why, cls, key, field))

    async def trace(self, event_id: str) -> Trace:
        """Everything that began with the same event as this one, and what came of each."""
        return await self._ask(partial(self.session.trace, event_id))

    # -- types --------------------------------------------------------------------------------

    async def validate(self) -> None:
        """SchemaOutdatedError if a registered class differs from the store's schema of its type."""
        await self._ask(self.session.validate)

    @overload
    async def migrate(
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
    async def migrate(
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
    async def migrate(
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

        See `Session.migrate`; `progress` is called in another thread. Cancelled, it comes to its end before CancelledError is raised.
        """
        migrate: Any = self.session.migrate
        done: MigrationPreview | MigrationResult = await self.run_sync(
            migrate,
            dry_run=dry_run,
            token=token,
            force=force,
            follow=follow,
            upgraders=upgraders,
            progress=progress,
            rate=rate,
        )
        return done

    async def pending_migration(self) -> PendingMigration | None:
        """The migration in the background that is not finished: see `Session.pending_migration`."""
        return await self._ask(self.session.pending_migration)

    async def abort_migration(self) -> PendingMigration | None:
        """Take back a migration in the background: see `Session.abort_migration`."""
        return await self.run_sync(self.session.abort_migration)

    # -- the end ------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the session, unless it was given; what is still queued is dropped. Idempotent.

        A session that is running is stopped first.
        """
        try:
            if self._opened is not None:
                await self._close(self._opened)
        finally:
            self._threads.close()
            for commits in list(self._commits.values()):
                commits.close()

    async def _close(self, session: Session) -> None:
        for task, unit in list(self._units.items()):
            if len(unit._intents) and not core_of(session).closed:
                log.warning(
                    "session closed with %d objects queued by task %s; they were not written",
                    *(len(unit._intents), task.get_name()),
                )
            unit._end()
        if self._own:
            await self.run_sync(session.close)

    async def __aenter__(self) -> Self:
        if self._opened is None:
            try:
                await self.run_sync(self._open)
            except BaseException:
                await self.close()
                raise
        core_of(self.session).check_open()
        return self

    def _open(self) -> None:
        self._opened = self._make()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            task = asyncio.current_task()
            unit = None if task is None else self._units.get(task)
            if (
                kind is None
                and unit is not None
                and not core_of(self.session).closed
                and unit._has_left()
            ):
                await self._commit(unit, [], None)
        finally:
            await self.close()
