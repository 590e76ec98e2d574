"""Preview and apply.

Applying holds the lease on long writes, so that nobody commits in between; runs the upgraders
before the write transaction, so that it stays short; and checks plan, head and lease again within
it. Whatever goes wrong before its end leaves the store as it was.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable
from typing import Any

from ontologia.clock import Clock
from ontologia.config import OntologiaConfig
from ontologia.errors import (
    MigrationError,
    MigrationTokenError,
    MissingUpgraderError,
    UniqueViolationError,
    UpgraderError,
)
from ontologia.migration.background import (
    Background,
    MigrationProgress,
    other_pending,
    upgraded_type,
)
from ontologia.migration.plan import (
    MigrationPreview,
    MigrationResult,
    compute_migration_token,
    compute_plan_hash,
)
from ontologia.migration.versions import TypeVersions, decode_fields, upgrade
from ontologia.query.aggregates import count
from ontologia.query.question import Question
from ontologia.schema.diff import TypeDiff
from ontologia.schema.registry import Registry
from ontologia.schema.shape import Shape
from ontologia.schema.upgraders import Upgrader
from ontologia.store.protocol import Store, Transaction
from ontologia.store.rows import ObjectKey, RawChange, TypeKey
from ontologia.store.staging import PendingMigration
from ontologia.store.unique import Duplicates, find_duplicates


class Migration:
    """One session's way to bring the store to its types."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        versions: TypeVersions,
        clock: Clock,
        config: OntologiaConfig,
        holder: str,
    ) -> None:
        """`holder` says to other sessions who has begun a migration in the background."""
        self._store = store
        self._registry = registry
        self._versions = versions
        self._clock = clock
        self._config = config
        self._holder = holder

    def preview(self) -> MigrationPreview:
        """What applying would do. Writes nothing."""
        diffs, head = self._plan()
        objects: dict[str, int] = {}
        missing: dict[str, list[int]] = {}
        duplicates: dict[str, list[Duplicates]] = {}
        for diff in diffs:
            name = _label(diff, diffs)
            objects[name] = 0 if self._leaves(diff) else self._count(self._shape(diff))
            if objects[name]:
                try:
                    self._versions.chain(
                        self._shape(diff), diff.from_version, diff.from_version + 1
                    )
                except MissingUpgraderError as error:
                    missing[name] = error.missing_versions
            if diff.made_unique and name not in missing:
                with contextlib.suppress(UpgraderError):  # applying says what is wrong with it
                    if found := self._duplicates(diff, self._upgraded(diff)):
                        duplicates[name] = found
        return MigrationPreview(diffs, _token(diffs, head), head, objects, missing, duplicates)

    def apply(
        self,
        owner_id: str,
        *,
        token: str | None,
        force: bool,
        follow: bool = False,
        metadata: dict[str, Any],
        record: dict[str, Any] | None = None,
        progress: Callable[[MigrationProgress], None] | None = None,
        rate: float | None = None,
    ) -> MigrationResult:
        """Do what the token's preview said; MigrationTokenError if that is no longer the plan.

        With `follow` the store may have had other commits since the preview.

        Compatible changes are one short transaction, which writes no object. So is a breaking one
        of few objects, after they were upgraded while no other session commits; more than
        `migration_at_once` are upgraded in the background. A migration in the background that was
        broken off is gone on with.

        With the `record` of an operator there is a commit, also if no object was to be written
        anew; it says the same, and how many were.
        """
        background = Background(
            *(self._store, self._versions, self._clock, self._config, owner_id, self._holder),
            progress=progress,
            rate=rate,
        )
        while True:
            settled = self._settle(background)
            diffs, head = self._plan()
            if not diffs:
                return settled
            if token is None and not force:
                raise MigrationTokenError(
                    "a migration needs the token of its preview, or force=True"
                )
            leaving = all(self._leaves(diff) and not diff.made_unique for diff in diffs)
            if leaving or not self._is_for_background(diffs):
                break
            if token is not None:
                _check(token, diffs, head, follow=follow)
            result = self._in_background(background, owner_id, diffs, metadata, record)
            if result is not None:
                return result
        if leaving:
            if token is not None:
                _check(token, diffs, head, follow=follow)
            at = None if token is None or follow else head
            result = self._write(owner_id, diffs, at, [], metadata, record, lease=False)
            self._versions.forget()
            return result
        with self._store.long_write(owner_id):
            diffs, head = self._plan()
            if token is not None:
                _check(token, diffs, head, follow=follow)
            changes: list[RawChange] = []
            for diff in diffs:
                upgraded = self._upgraded(diff)
                if found := self._duplicates(diff, upgraded):
                    raise _violation(diff, found[0])
                changes += upgraded
            result = self._write(owner_id, diffs, head, changes, metadata, record)
        self._versions.forget()
        return result

    def abort(self, owner_id: str) -> PendingMigration | None:
        """Take back a migration in the background; what it was, None if there is none.

        MigrationError once it has switched, LockContentionError while a session goes on with it.
        """
        pending = self._store.staging.pending()
        if pending is None:
            return None
        background = Background(
            self._store, self._versions, self._clock, self._config, owner_id, self._holder
        )
        if not pending.switched:
            taken = background.take_over(pending)
            if taken is None:
                return None
            pending = taken
        if pending.switched:
            background.release(pending)
            raise MigrationError(
                f"{pending}; it cannot be taken back", hint="Migrate again, which finishes it."
            )
        background.abort(pending)
        return pending

    def _settle(self, background: Background) -> MigrationResult:
        """Finish a migration in the background that has switched, if there is one.

        One that cannot be made any more is taken back: another program was faster with its types.
        """
        pending = self._store.staging.pending()
        if pending is not None and (pending.switched or self._is_past(pending)):
            pending = background.take_over(pending)
            if pending is not None and pending.switched:
                return self._finish(background, pending)
            if pending is not None:
                background.abort(pending)
        return MigrationResult([], {}, None)

    def _is_past(self, pending: PendingMigration) -> bool:
        """Whether a type of a migration is not of the version any more that it begins with."""
        with self._store.read() as reader:
            known = reader.current_types(pending.keys)
        return any(
            (stored := known.get((kind, name))) is None
            or stored.dropped
            or stored.version != version
            for kind, name, version in pending.types
        )

    def _finish(self, background: Background, pending: PendingMigration) -> MigrationResult:
        """Move what a migration that has switched has staged."""
        try:
            background.settle(pending)
        except BaseException:
            background.release(pending)
            raise
        self._versions.forget()
        versions = {name: version + 1 for _, name, version in pending.types}
        return MigrationResult(list(versions), versions, pending.commit_id, pending.objects)

    def _is_for_background(self, diffs: list[TypeDiff]) -> bool:
        """Whether so many objects are to be upgraded, or some of them were in the background."""
        pending = self._store.staging.pending()
        if pending is not None:
            if pending.plan_hash == compute_plan_hash(diffs):
                return True
            if any((diff.kind, diff.name) in pending.keys for diff in diffs):
                raise other_pending(pending)
        objects = self._objects(diffs)
        return objects > self._config.migration_at_once

    def _objects(self, diffs: list[TypeDiff]) -> int:
        staging = self._store.staging
        return sum(staging.count((d.kind, d.name)) for d in diffs if not self._leaves(d))

    def _in_background(
        self,
        background: Background,
        owner_id: str,
        diffs: list[TypeDiff],
        metadata: dict[str, Any],
        record: dict[str, Any] | None,
    ) -> MigrationResult | None:
        """None if another session has finished it, or has taken it back, while this one waited."""
        anew = [diff for diff in diffs if not self._leaves(diff)]
        for diff in anew:
            self._versions.chain(self._shape(diff), diff.from_version, diff.from_version + 1)
        types = [(diff.kind, diff.name, diff.from_version) for diff in diffs]
        pending = background.take(compute_plan_hash(diffs), types, self._objects(diffs))
        if pending is None:
            return None
        if pending.switched:
            return self._finish(background, pending)
        names: dict[str, int] = {}

        def write(tx: Transaction, objects: int) -> int | None:
            plan = self._versions.diffs(tx)
            if not all(diff in plan for diff in diffs):
                raise MigrationTokenError("the store changed while the migration was prepared")
            versions = self._register(tx, owner_id, diffs)
            names.update({_label(diff, diffs): versions[diff.kind, diff.name] for diff in diffs})
            said = metadata | {"migration": names}
            if record is not None:
                said |= record | {"counts": {"objects": objects}}
            if not objects and record is None:
                return None
            return tx.write_commit([], metadata=said, versions=versions)

        def check() -> None:
            for diff in diffs:
                stays = diff.made_unique and diff not in anew
                if stays and (found := self._duplicates(diff, [])):
                    raise _violation(diff, found[0])

        staying = any(diff.made_unique and diff not in anew for diff in diffs)
        upgraded = [upgraded_type(self._shape(diff), diff) for diff in anew]
        try:
            pending = background.stage(pending, upgraded)
            pending = background.switch(pending, upgraded, write, check=check if staying else None)
            self._versions.forget()
            if pending.switched:
                background.settle(pending)
        except BaseException:
            background.release(pending)
            raise
        return MigrationResult(list(names), names, pending.commit_id, pending.objects)

    def apply_compatible(self, owner_id: str, metadata: dict[str, Any]) -> MigrationResult:
        """Apply the compatible changes that need no object to be read, and leave the others.

        Programs that are started together may all do that; the first one does. A class that an
        earlier version of its type had is left, too: an old program that starts once more does not
        take the type back.
        """
        while True:
            diffs = [
                diff
                for diff in self._plan()[0]
                if self._leaves(diff)
                and not diff.made_unique
                and not self._versions.was_current(self._shape(diff))
            ]
            if not diffs:
                return MigrationResult([], {}, None)
            try:
                result = self._write(
                    owner_id, diffs, None, [], metadata, None, lease=False, alone=False
                )
            except MigrationTokenError:
                continue  # another program was faster
            self._versions.forget()
            return result

    def _write(
        self,
        owner_id: str,
        diffs: list[TypeDiff],
        head: int | None,
        changes: list[RawChange],
        metadata: dict[str, Any],
        record: dict[str, Any] | None,
        *,
        lease: bool = True,
        alone: bool = True,
    ) -> MigrationResult:
        """Register the versions and write the objects.

        Only if this is still the plan; unless it is `alone`, other types may have changed.
        """
        with self._store.write(owner_id=owner_id if lease else None) as tx:
            # Nobody else can write before this transaction ends, so what is checked here holds.
            if lease:
                tx.verify_lock(owner_id)
            plan = self._versions.diffs(tx)
            same = plan == diffs if alone else all(diff in plan for diff in diffs)
            if not same or head not in (None, tx.head()):
                raise MigrationTokenError("the store changed while the migration was prepared")
            versions = self._register(tx, owner_id, diffs)
            names = {_label(diff, diffs): versions[diff.kind, diff.name] for diff in diffs}
            commit_id, said = None, metadata | {"migration": names}
            if record is not None:
                said |= record | {"counts": {"objects": len(changes)}}
            if changes or record is not None:
                commit_id = tx.write_commit(changes, metadata=said, versions=versions)
        return MigrationResult(list(names), names, commit_id, len(changes))

    def _register(
        self, tx: Transaction, owner_id: str, diffs: list[TypeDiff]
    ) -> dict[TypeKey, int]:
        """Make the classes of these types their current versions."""
        versions: dict[TypeKey, int] = {}
        for diff in diffs:
            schema_json = self._versions.spec(self._shape(diff)).to_json()
            stored = tx.register_type(
                *(diff.kind, diff.name, schema_json),
                runtime_id=owner_id,
                reason="migration",
                fills=diff.fills if self._leaves(diff) else None,
            )
            versions[diff.kind, diff.name] = stored.version
        return versions

    def _upgraded(self, diff: TypeDiff) -> list[RawChange]:
        """Every current object of a type, brought to the next version."""
        shape = self._shape(diff)
        rows = [] if self._leaves(diff) else self._current(shape)
        if not rows:
            return []
        chains: dict[int, Upgrader] = {}
        changes: list[RawChange] = []
        for key, fields, version in rows:
            if version not in chains:  # older ones were not written anew by compatible changes
                chains[version] = self._versions.chain(shape, version, diff.from_version + 1)
            _, text = upgrade(shape, chains[version], key, decode_fields(fields))
            changes.append(RawChange(shape.kind, shape.name, key, fields, text))
        return changes

    def _duplicates(self, diff: TypeDiff, upgraded: list[RawChange]) -> list[Duplicates]:
        """What keeps the unique fields of a type from being that once its objects are upgraded."""
        shape = self._shape(diff)
        if upgraded:
            return find_duplicates(shape.unique, {c.key: c.after or "" for c in upgraded})
        if diff.made_unique:
            current = {key: fields for key, fields, _ in self._current(shape)}
            return find_duplicates(diff.made_unique, current)
        return []

    def _leaves(self, diff: TypeDiff) -> bool:
        """Whether the objects of the type stay as they are."""
        shape = self._shape(diff)
        return diff.compatible and not self._versions.has_upgrader(shape, diff.from_version)

    def _current(self, shape: Shape) -> list[tuple[ObjectKey, str, int]]:
        """Every current object of a type: key, fields, version."""
        question = Question(shape)
        if shape.kind == "entity":
            return [((r[0],), r[1], r[3] or 1) for r in self._store.query_entities(question)]
        rows = (each.version for each in self._store.query_relations(question))
        return [(row.key, row.fields, row.schema_version or 1) for row in rows]

    def _count(self, shape: Shape) -> int:
        question = Question(shape, aggregates=(("n", count()),))
        entity = shape.kind == "entity"
        ask = self._store.aggregate_entities if entity else self._store.aggregate_relations
        return int(ask(question)[0][0])

    def _plan(self) -> tuple[list[TypeDiff], int]:
        with self._store.read() as reader:
            return self._versions.diffs(reader), reader.head()

    def _shape(self, diff: TypeDiff) -> Shape:
        shape = self._registry.find(diff.kind, diff.name)
        assert shape is not None  # noqa: S101 - diffs are of registered types
        return shape


def _violation(diff: TypeDiff, found: Duplicates) -> UniqueViolationError:
    value, (holder, key, *_) = found.examples[0]
    error = UniqueViolationError(diff.name, found.field, value, key, holder)
    error.hint = (
        f"There are {found.values} such values. Change them first with the type as it is stored; "
        f"the preview shows examples."
    )
    return error


def _label(diff: TypeDiff, diffs: list[TypeDiff]) -> str:
    """A type's name, with its kind where an entity and a relation share it."""
    same = [other for other in diffs if other.name == diff.name]
    return diff.name if len(same) == 1 else f"{diff.kind} {diff.name}"


def _token(diffs: list[TypeDiff], head: int) -> str:
    return compute_migration_token(compute_plan_hash(diffs), head or None)


def _check(token: object, diffs: list[TypeDiff], head: int, *, follow: bool) -> None:
    if not isinstance(token, str):
        raise MigrationTokenError(f"a migration token is text, got {token!r}")
    if token == _token(diffs, head):
        return
    parts = _decode(token)
    if parts is None:
        raise MigrationTokenError(f"{token!r} is not a migration token")
    plan_hash, seen = parts
    if plan_hash != compute_plan_hash(diffs):
        raise MigrationTokenError("the plan is another one than when the token was given")
    if follow:
        return
    raise MigrationTokenError(
        f"the token was given at commit {seen}, and the store is at {head or 'none'}"
    )


def _decode(token: str) -> tuple[str, str] | None:

    try:
        plan_hash, _, head = base64.urlsafe_b64decode(token.encode()).decode().partition(":")
    except ValueError:
        return None
    return (plan_hash, head) if head else None
