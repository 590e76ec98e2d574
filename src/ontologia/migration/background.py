"""A breaking change of many objects, made beside the work of others.

The objects are upgraded in batches and staged (`store.staging`), which no reader sees. What is written
meanwhile is upgraded again, until little is left. The switch is one short transaction: it upgrades
the rest, registers the new versions, and makes what is staged current in one commit. Then the objects
are moved to their places in batches. A process that dies leaves what it has staged, and the next
one goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from ontologia import codec
from ontologia.clock import Clock
from ontologia.config import OntologiaConfig
from ontologia.errors import (
    DatabaseError,
    LockContentionError,
    MigrationError,
    UniqueViolationError,
    UpgraderError,
)
from ontologia.migration.versions import TypeVersions, decode_fields, upgrade
from ontologia.schema.diff import TypeDiff
from ontologia.schema.shape import Shape
from ontologia.schema.upgraders import Upgrader
from ontologia.store.database import Tx
from ontologia.store.lease import STEP
from ontologia.store.protocol import Store
from ontologia.store.rows import ObjectKey, TypeKey
from ontologia.store.staging import (
    PendingMigration,
    Position,
    Repeated,
    Staged,
    Waiting,
    value_hash,
)

_FEW = 500
"""Objects that may be left for the switch: so many are upgraded in tens of milliseconds."""
_MOST_ATTEMPTS = 10
"""Switches that are put off because more was left than that; then all is upgraded in the switch."""
_UNIQUE_ATTEMPTS = 3
_STEPS_OF_LEASE = 4
"""How often the lease is extended before it would end, while the migration waits."""

Step = Literal["upgrading", "catching up", "waiting for sessions", "moving"]


@dataclass(frozen=True, slots=True)
class MigrationProgress:
    """How far a migration of many objects is."""

    step: Step
    """Upgrading all objects, catching up with what others wrote meanwhile, waiting for sessions of
    the old version, or, once the new version is current, moving objects to their places."""
    done: int
    """Objects of this step."""
    objects: int
    """How many there are."""
    rate: float
    """Objects a second, since this process began with the step."""


class _TooMany(Exception):
    """More is left than the switch should upgrade."""


class Background:
    """One migration of one session."""

    def __init__(
        self,
        store: Store,
        versions: TypeVersions,
        clock: Clock,
        config: OntologiaConfig,
        owner_id: str,
        holder: str,
        *,
        progress: Callable[[MigrationProgress], None] | None = None,
        rate: float | None = None,
    ) -> None:
        """`holder` says to others who does it; `rate` is the most objects to upgrade in a second."""
        self._store = store
        self._staging = store.staging
        self._versions = versions
        self._clock = clock
        self._config = config
        self._owner_id = owner_id
        self._holder = holder
        self._progress = progress
        self._rate = rate
        self._chains: dict[tuple[str, str, int], Upgrader] = {}
        self._late: list[Staged] | None = None
        """What was staged since the values of unique fields were compared."""

    # -- becoming its owner -------------------------------------------------------------------

    def take(
        self, plan_hash: str, types: Sequence[tuple[str, str, int]], objects: int
    ) -> PendingMigration | None:
        """Begin the migration, or go on with it; it may have switched. None as in `take_over`.

        MigrationError if another one is pending, LockContentionError if another session does it and
        goes on for longer than `migration_lock_timeout_ms`.
        """
        pending = self._staging.pending()
        if pending is None:
            with self._store.write(owner_id=self._owner_id) as tx:
                pending = self._staging.pending(tx.tx)
                if pending is None:
                    self._staging.begin(
                        *(tx.tx, plan_hash, types, self._owner_id, self._holder),
                        *(objects, tx.head()),
                    )
                    pending = self._staging.pending(tx.tx)
                    assert pending is not None  # noqa: S101 - it was written by this transaction
                    return pending
        if pending.plan_hash != plan_hash:
            raise other_pending(pending)
        return self.take_over(pending)

    def take_over(self, pending: PendingMigration) -> PendingMigration | None:
        """Go on with what another session has begun, once its lease has ended.

        Returns it as it is by then; it may have switched. None if it was finished or taken back
        meanwhile. LockContentionError after `migration_lock_timeout_ms`.
        """
        started = self._clock.monotonic()
        while True:
            self._staging.take(pending.plan_hash, self._owner_id, self._holder)
            found = self._staging.pending()
            if found is None or found.plan_hash != pending.plan_hash:
                return None
            if found.owner_id == self._owner_id:
                return found
            waited = (self._clock.monotonic() - started) * 1000
            if waited >= self._config.migration_lock_timeout_ms:
                raise LockContentionError(
                    f"{found.owner_id} ({found.holder})", waited, what="the migration"
                )
            self._clock.sleep(STEP)

    def release(self, pending: PendingMigration) -> None:
        """Let another session go on with it at once."""
        with suppress(DatabaseError, LockContentionError):  # then its lease ends
            self._staging.release(pending.plan_hash, self._owner_id)

    # -- upgrading ----------------------------------------------------------------------------

    def stage(self, pending: PendingMigration, diffs: Sequence[_Diff]) -> PendingMigration:
        """Upgrade all objects of these types that are not staged, and what others write meanwhile.

        UpgraderError if an upgrader fails; what was staged stays.
        """
        meter = self._meter(pending, "upgrading", pending.staged, pending.objects)
        for diff in diffs:
            after: ObjectKey | None = None
            while waiting := self._staging.unstaged(diff.key, after):
                self._restage(pending, diff, waiting, pending.since_commit)
                after = waiting[-1].key
                meter.passed(len(waiting))
        return self.catch_up(pending, diffs)

    def catch_up(self, pending: PendingMigration, diffs: Sequence[_Diff]) -> PendingMigration:
        """Upgrade what others have written meanwhile, until little is left."""
        meter = self._meter(pending, "catching up", 0, 0)
        for _ in range(_MOST_ATTEMPTS):
            with self._store.read() as reader:
                head = reader.head()
            passed = 0
            for diff in diffs:
                for waiting in self._changed(diff, pending.since_commit):
                    self._restage(pending, diff, waiting, pending.since_commit)
                    passed += len(waiting)
                    meter.passed(len(waiting))
            pending = pending._replace(since_commit=head)
            if passed <= _FEW:
                break
        return pending

    def _changed(self, diff: _Diff, since: int, tx: Tx | None = None) -> Iterable[list[Waiting]]:
        position: Position | None = Position(since + 1, 0)
        while position is not None:
            waiting, position = self._staging.changed(diff.key, position, tx)
            if waiting:
                yield waiting

    def _restage(
        self,
        pending: PendingMigration,
        diff: _Diff,
        waiting: Sequence[Waiting],
        since: int,
        tx: Tx | None = None,
    ) -> None:
        staged = [self._upgraded(diff, each) for each in waiting]
        self._staging.stage(pending, staged, since, tx)
        if self._late is not None:
            self._late += [each for each in staged if each.unique]

    def _upgraded(self, diff: _Diff, waiting: Waiting) -> Staged:
        shape, version = diff.shape, diff.version
        before = None if waiting.staged is None else _unique(shape, waiting.staged)
        if waiting.fields is None or waiting.commit_id is None:
            return Staged(*diff.key, waiting.key, None, version, "", {}, before)
        chain = self._chain(diff, waiting.version or 1)
        try:
            _, fields = upgrade(shape, chain, waiting.key, decode_fields(waiting.fields))
        except UpgraderError as error:
            error.hint = _GO_ON
            raise
        return Staged(
            *diff.key,
            waiting.key,
            waiting.commit_id,
            version,
            fields,
            _unique(shape, fields),
            before,
        )

    def _chain(self, diff: _Diff, version: int) -> Upgrader:
        place = (*diff.key, version)
        if place not in self._chains:
            self._chains[place] = self._versions.chain(diff.shape, version, diff.version)
        return self._chains[place]

    # -- the switch ---------------------------------------------------------------------------

    def switch(
        self,
        pending: PendingMigration,
        diffs: Sequence[_Diff],
        write: Callable[[Any, int], int | None],
        *,
        check: Callable[[], None] | None = None,
    ) -> PendingMigration:
        """Make what is staged current.

        `write` is called in the transaction, with the number of objects; it registers the versions
        and gives the number of the commit. `check` is called before it, while no other session commits.
        """
        self._await_sessions(pending)
        pending = self._check_unique(pending, diffs)
        for attempt in range(_MOST_ATTEMPTS + 1):
            most = _FEW if attempt < _MOST_ATTEMPTS else None
            try:
                return self._switch(pending, diffs, write, check, most)
            except _TooMany:
                pending = self.catch_up(pending, diffs)
        raise AssertionError("the last attempt upgrades whatever is left")

    def _switch(
        self,
        pending: PendingMigration,
        diffs: Sequence[_Diff],
        write: Callable[[Any, int], int | None],
        check: Callable[[], None] | None,
        most: int | None,
    ) -> PendingMigration:
        limit = self._config.migration_lock_timeout_ms
        with nullcontext() if check is None else self._store.long_write(self._owner_id):
            if check is not None:
                check()
            late = len(self._late or ())
            try:
                with self._store.write(owner_id=self._owner_id, timeout_ms=limit) as tx:
                    if check is not None:  # no other commit since, if the lease has not ended
                        tx.verify_lock(self._owner_id)
                    left = 0
                    for diff in diffs:
                        for waiting in self._changed(diff, pending.since_commit, tx.tx):
                            left += len(waiting)
                            if most is not None and left > most:
                                raise _TooMany
                            self._restage(pending, diff, waiting, pending.since_commit, tx.tx)
                    if found := self._staging.repeated_of(tx.tx, self._late or ()):
                        raise self._violation(found, tx.tx)
                    objects = sum(self._staging.count(diff.key, tx.tx) for diff in diffs)
                    commit_id = write(tx, objects)
                    if commit_id is not None:
                        return self._staging.switch(tx.tx, pending, commit_id, objects)
            except BaseException:
                del (self._late or [])[late:]  # it was taken back
                raise
        self._staging.clear(pending)
        return pending._replace(objects=0, staged=0)

    def _check_unique(self, pending: PendingMigration, diffs: Sequence[_Diff]) -> PendingMigration:
        """UniqueViolationError if objects would share a value that the new version has unique."""
        if not any(diff.shape.unique for diff in diffs):
            return pending
        for _ in range(_UNIQUE_ATTEMPTS):
            self._late = []
            found = self._staging.repeated()
            if found is None:
                return pending
            # Two objects that swapped their values meanwhile are staged one after the other.
            pending = self.catch_up(pending, diffs)
        found = self._staging.repeated()
        if found is None:
            return pending
        raise self._violation(found)

    def _violation(self, found: Repeated, tx: Tx | None = None) -> UniqueViolationError:
        holder, key, *_ = found.holders
        fields = self._staging.staged_fields(found.kind, found.name, holder, tx) or "{}"
        value = codec.decode_stored(fields).get(found.field)
        error = UniqueViolationError(
            *(found.name, found.field, value),
            ":".join(filter(None, key)),
            ":".join(filter(None, holder)),
        )
        error.hint = (
            "Change one of them with the type as it is stored, or the upgrader, and take back what "
            "was upgraded by it. " + _GO_ON
        )
        return error

    def _await_sessions(self, pending: PendingMigration) -> None:
        """Wait until sessions that have a type as it was are gone.

        MigrationError after `migration_wait_for_old_sessions_ms`.
        """
        limit = self._config.migration_wait_for_old_sessions_ms
        if not limit:
            return
        started = self._clock.monotonic()
        while old := self._old_sessions(pending):
            waited = (self._clock.monotonic() - started) * 1000
            if waited >= limit:
                names = ", ".join(old)
                raise MigrationError(
                    f"sessions with the types as they were are still alive after {waited:.0f} ms: "
                    f"{names}; nothing was switched",
                    hint="Stop them, or set migration_wait_for_old_sessions_ms to 0. " + _GO_ON,
                )
            self._tell(MigrationProgress("waiting for sessions", 0, len(old), 0.0))
            self._staging.extend(pending)
            self._pause(pending, min(0.5, limit / 1000))

    def _old_sessions(self, pending: PendingMigration) -> list[str]:
        outdated = {
            f"{kind} {name}": self._store.list_schema_versions(kind, name)[-1].schema_hash
            for kind, name, _ in pending.types
        }
        found: list[str] = []
        for session in self._store.events.listings.live_sessions():
            has: dict[str, str] = session["metadata"].get("types") or {}
            if any(has.get(name) == hashed for name, hashed in outdated.items()):
                found.append(f"{session['session_id']} ({session['hostname']}, {session['pid']})")
        return found

    # -- after the switch ---------------------------------------------------------------------

    def settle(self, pending: PendingMigration) -> None:
        """Move what is staged to its place."""
        moved = pending.objects - pending.staged
        meter = self._meter(pending, "moving", moved, pending.objects)
        steps = self._staging.settle(
            pending, lambda: self._store.write(owner_id=self._owner_id, durable=False)
        )
        for passed in steps:
            meter.passed(passed)

    def abort(self, pending: PendingMigration) -> None:
        """Take back what is staged, and the migration."""
        self._staging.clear(pending)

    # -- progress -----------------------------------------------------------------------------

    def _meter(self, pending: PendingMigration, step: Step, done: int, objects: int) -> _Meter:
        pause = partial(self._pause, pending)
        return _Meter(step, done, objects, self._clock, self._rate, pause, self._tell)

    def _pause(self, pending: PendingMigration, seconds: float) -> None:
        """Sleep, and keep the lease."""
        most = self._config.lock_lease_ms / 1000 / _STEPS_OF_LEASE
        while seconds > most:
            self._clock.sleep(most)
            self._staging.extend(pending)
            seconds -= most
        self._clock.sleep(seconds)

    def _tell(self, progress: MigrationProgress) -> None:
        if self._progress is not None:
            self._progress(progress)


class _Diff(NamedTuple):
    """A type whose objects are upgraded."""

    shape: Shape
    version: int
    """The version that they get."""

    @property
    def key(self) -> TypeKey:
        return (self.shape.kind, self.shape.name)


def upgraded_type(shape: Shape, diff: TypeDiff) -> _Diff:
    """A type of a plan, for `Background`."""
    return _Diff(shape, diff.from_version + 1)


_GO_ON = (
    "What was upgraded so far is kept: migrate again to go on from there, or take it back with "
    "session.abort_migration() or ontologia migrate --abort."
)


def other_pending(pending: PendingMigration) -> MigrationError:
    """What is raised where a pending migration is in the way of another one."""
    return MigrationError(
        f"{pending}; nothing was changed",
        hint="Finish it with the program that began it, or take it back: session.abort_migration() "
        "or ontologia migrate --abort.",
    )


class _Meter:
    """Tells how far a step is, and keeps it to a rate."""

    def __init__(
        self,
        step: Step,
        done: int,
        objects: int,
        clock: Clock,
        limit: float | None,
        pause: Callable[[float], None],
        tell: Callable[[MigrationProgress], None],
    ) -> None:
        self._step: Step = step
        self._done, self._objects = done, objects
        self._clock, self._limit, self._pause, self._tell = clock, limit, pause, tell
        self._began, self._passed = clock.monotonic(), 0

    def passed(self, objects: int) -> None:
        """So many more are done."""
        self._passed += objects
        self._done += objects
        seconds = self._clock.monotonic() - self._began
        if self._limit is not None and (ahead := self._passed / self._limit - seconds) > 0:
            self._pause(ahead)
            seconds += ahead
        rate = self._passed / seconds if seconds > 0 else 0.0
        self._tell(MigrationProgress(self._step, self._done, max(self._done, self._objects), rate))


def _unique(shape: Shape, fields: str) -> dict[str, str]:
    """The hashes of an object's values of unique fields; null is not a value."""
    if not shape.unique:
        return {}
    values = decode_fields(fields)
    return {name: value_hash(values[name]) for name in shape.unique if values.get(name) is not None}
