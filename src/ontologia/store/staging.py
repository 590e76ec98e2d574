"""What a migration of many objects has staged: upgraded objects beside the current ones.

An object is staged with the commit that it was read at (`source_commit`). Once it is written again,
what is staged counts for nothing, and the object is staged anew. The switch sets the number of the
migration's commit: from then on what is staged is current, for everybody at once, however many
objects it is. They are moved to their places afterwards, in short transactions (`settle`); until an
object is there, readers find it through the views `entity_current` and `relation_current`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from ontologia import codec
from ontologia.clock import Clock, from_text, to_text
from ontologia.errors import LockLostError
from ontologia.query.question import Question
from ontologia.schema.expression import In
from ontologia.store.database import Database, Tx
from ontologia.store.rows import ObjectKey, RawChange, TypeKey

if TYPE_CHECKING:
    from ontologia.store.protocol import Transaction

_KEY = {"entity": ("key",), "relation": ("left", "right", "instance")}
"""What the statements call the parts of a key."""
_PLURAL = {"entity": "entities", "relation": "relations"}
PAGE = 500
"""Objects of one transaction: milliseconds, for which commits wait."""
_PAGE_BYTES = 2**20  # of their fields; one object may have more
_CLEARED = 2_000  # rows that are deleted at a time
_EXAMPLES = 3
_MOST_HOLDERS = 10  # of one value among what is staged: it is unique there


class PendingMigration(NamedTuple):
    """A migration of many objects that has begun and is not finished."""

    plan_hash: str
    types: list[tuple[str, str, int]]
    """Kind, name and version of the types that it changes, as they were before."""
    owner_id: str
    """The session that does it, or did so last, and its thread."""
    holder: str
    """The same for people: `host, process 17`."""
    expires_at: datetime
    """Until when no other session may go on with it."""
    started_at: datetime
    updated_at: datetime
    objects: int
    """How many objects it upgrades, as counted when it began."""
    staged: int
    """How many of them are staged; once it has switched, how many are not in their places yet."""
    since_commit: int
    """What was written up to this commit is taken into account."""
    commit_id: int | None
    """The migration's commit, once it has switched."""

    @property
    def switched(self) -> bool:
        """Whether the new versions are current."""
        return self.commit_id is not None

    @property
    def keys(self) -> frozenset[TypeKey]:
        """Kind and name of the types."""
        return frozenset((kind, name) for kind, name, _ in self.types)

    def __str__(self) -> str:
        names = ", ".join(name for _, name, _ in self.types)
        if self.switched:
            return (
                f"the migration of {names} was made in commit {self.commit_id}, and {self.staged:,} "
                f"objects are still to be moved to their places ({self.holder})"
            )
        return (
            f"a migration of {names} is pending: {self.staged:,} of {self.objects:,} objects are "
            f"upgraded ({self.holder}, last at {self.updated_at:%Y-%m-%d %H:%M:%S} UTC)"
        )


class Waiting(NamedTuple):
    """An object that is to be staged, or staged anew."""

    key: ObjectKey
    commit_id: int | None
    """The commit that wrote it; None if it was deleted."""
    staged: str | None
    """The fields that are staged of it."""
    fields: str | None
    version: int | None


class Staged(NamedTuple):
    """An upgraded object."""

    kind: str
    name: str
    key: ObjectKey
    commit_id: int | None
    """The commit at which it was read; None to take back what was staged of it."""
    version: int
    """The version that it is of now."""
    fields: str
    unique: Mapping[str, str]
    """The hashes of its values of unique fields; see `value_hash`."""
    before: Mapping[str, str] | None
    """The same of what was staged before; None if nothing was."""


class Position(NamedTuple):
    """A row of the history."""

    commit_id: int
    row_id: int


class Repeated(NamedTuple):
    """A value of a unique field that several staged objects have."""

    kind: str
    name: str
    field: str
    holders: list[ObjectKey]
    """Some of them."""


_OF_CURRENT = (
    *("current_entity", "current_entities", "current_relation", "current_relations"),
    "get_entity",
)


def with_settling(statements: Mapping[str, str]) -> dict[str, str]:
    """The statements, and those of current objects once more: `settling_…`, which ask the views."""
    views = {
        f"settling_{name}": statements[name].replace("_latest", "_current") for name in _OF_CURRENT
    }
    return {**statements, **views}


def settling_types(types_json: str | None) -> frozenset[TypeKey]:
    """The types of a migration whose objects are being moved to their places."""
    if types_json is None:
        return frozenset()
    return frozenset((kind, name) for kind, name, _ in codec.decode_stored(types_json))


def value_hash(value: Any) -> str:
    """What stands for a value that must be unique; long values are as short as others."""
    return blake2b(codec.encode(value).encode(), digest_size=16).hexdigest()


class Staging:
    """The staged objects of one store."""

    def __init__(
        self, database: Database, sql: Mapping[str, str], clock: Clock, lease_ms: int
    ) -> None:
        self._database = database
        self._sql = sql
        self._clock = clock
        self._lease = timedelta(milliseconds=lease_ms)

    # -- the migration ------------------------------------------------------------------------

    def pending(self, tx: Tx | None = None) -> PendingMigration | None:
        """The migration that has begun, if there is one."""
        rows = (self._database if tx is None else tx).all(self._sql["pending_migration"])
        if not rows:
            return None
        plan_hash, types, owner, holder, expires, started, updated, *numbers = rows[0]
        return PendingMigration(
            *(plan_hash, [tuple(each) for each in codec.decode_stored(types)], owner, holder),
            *(from_text(expires), from_text(started), from_text(updated), *numbers),
        )

    def settling(self) -> frozenset[TypeKey]:
        """The types of which current objects may not be in their places yet."""
        rows = self._database.all(self._sql["settling"])
        return settling_types(rows[0][0]) if rows else frozenset()

    def begin(
        self,
        tx: Tx,
        plan_hash: str,
        types: Sequence[tuple[str, str, int]],
        owner_id: str,
        holder: str,
        objects: int,
        since_commit: int,
    ) -> None:
        """Write down that a migration begins; there must be none, and no one else may begin one."""
        tx.run(
            self._sql["begin_migration"],
            {
                "plan_hash": plan_hash,
                "types_json": codec.encode([list(each) for each in types]),
                "owner_id": owner_id,
                "holder": holder,
                "objects": objects,
                "since_commit": since_commit,
                **self._times(),
            },
        )

    def take(self, plan_hash: str, owner_id: str, holder: str) -> bool:
        """Become the owner of a migration; False while another session is."""
        named = {"plan_hash": plan_hash, "owner_id": owner_id, "holder": holder}
        with self._database.write(durable=False) as tx:
            return tx.run(self._sql["take_migration"], named | self._times()) == 1

    def release(self, plan_hash: str, owner_id: str) -> None:
        """Let another session go on with a migration, now and not when the lease ends."""
        named = {"plan_hash": plan_hash, "owner_id": owner_id, "now": self._times()["now"]}
        with self._database.write(durable=False) as tx:
            tx.run(self._sql["release_migration"], named)

    def extend(self, pending: PendingMigration) -> None:
        """Extend the lease; LockLostError if the migration was taken over."""
        with self._database.write(durable=False) as tx:
            self._advance(tx, pending, 0, pending.since_commit)

    def _advance(self, tx: Tx, pending: PendingMigration, staged: int, since: int) -> None:
        """The fence: LockLostError unless this owner still has the migration, as it knows it.

        What is staged is current once the migration has switched, and is not staged again then.
        """
        named: dict[str, Any] = {"plan_hash": pending.plan_hash, "owner_id": pending.owner_id}
        named |= {"staged": staged, "since_commit": since, **self._times()}
        named["switched_in"] = pending.commit_id or 0
        if not tx.run(self._sql["advance_migration"], named):
            raise LockLostError("pending_migration", pending.owner_id)

    def _times(self) -> dict[str, str]:
        now = self._clock.now()
        return {"now": to_text(now), "expires_at": to_text(now + self._lease)}

    # -- what is to be staged -----------------------------------------------------------------

    def count(self, key: TypeKey, tx: Tx | None = None) -> int:
        """How many current objects of a type there are."""
        kind, name = key
        statement = self._sql[f"count_unmigrated_{_PLURAL[kind]}"]
        rows = (self._database if tx is None else tx).all(statement, {"type": name})
        return int(rows[0][0])

    def unstaged(self, key: TypeKey, after: ObjectKey | None) -> list[Waiting]:
        """The next objects of a type, in the order of their keys, that are not staged; [] at the end."""
        kind, name = key
        asked = {"type": name, "most": PAGE} | _parts(kind, after or ("",) * len(_KEY[kind]))
        with self._database.read() as tx:
            rows = tx.page(self._sql[f"unstaged_{_PLURAL[kind]}"], asked, _PAGE_BYTES)
        return [_waiting(row) for row in rows]

    def changed(
        self, key: TypeKey, after: Position, tx: Tx | None = None
    ) -> tuple[list[Waiting], Position | None]:
        """The next objects of a type that were written after this row of the history.

        With them the last row that was looked at; None at the end. Objects that are staged as they
        are now are left out.
        """
        kind, name = key
        asked = {"type": name, "most": PAGE, **after._asdict()}
        statement = self._sql[f"changed_{_PLURAL[kind]}"]
        rows = (self._database if tx is None else tx).all(statement, asked)
        last = Position(*rows[-1][:2]) if rows else None
        found: dict[ObjectKey, Waiting] = {}
        for row in rows:
            waiting, source = _waiting(row[3:]), row[2]
            if waiting.commit_id != source:  # both None: deleted, and not staged
                found[waiting.key] = waiting
        return list(found.values()), last

    # -- what is staged -----------------------------------------------------------------------

    def stage(
        self,
        pending: PendingMigration,
        objects: Sequence[Staged],
        since_commit: int,
        within: Tx | None = None,
    ) -> None:
        """Stage objects, in one short transaction; LockLostError if the migration was taken over."""
        with self._writing(within) as tx:
            new = sum((each.before is None) - (each.commit_id is None) for each in objects)
            self._advance(tx, pending, new, since_commit)
            rows: dict[str, list[Sequence[Any]]] = {}
            for each in objects:
                if each.commit_id is None:
                    rows.setdefault(f"unstage_{each.kind}", []).append((each.name, *each.key))
                else:
                    row = (each.name, *each.key, each.commit_id, each.version, each.fields)
                    rows.setdefault(f"stage_{each.kind}", []).append(row)
                before, now = each.before or {}, each.unique
                if before != now:
                    holder = (each.kind, each.name), codec.encode(list(each.key))
                    rows.setdefault("unstage_value", []).extend(_values(*holder, before, now))
                    rows.setdefault("stage_value", []).extend(_values(*holder, now, before))
            for name, written in rows.items():
                if written:
                    tx.many(self._sql[name], written)

    def repeated(self) -> Repeated | None:
        """A value that several staged objects have, if there is one. Looks at all of them."""
        for row in self._database.all(self._sql["repeated_values"], {"most": 1}):
            return self._held(self._database, *row)
        return None

    def repeated_of(self, tx: Tx, objects: Iterable[Staged]) -> Repeated | None:
        """A value that one of these objects shares with another one, if there is one."""
        for each in objects:
            for field, hashed in each.unique.items():
                found = self._held(tx, each.kind, each.name, field, hashed)
                if len(found.holders) > 1:
                    return found
        return None

    def _held(
        self, asked: Tx | Database, kind: str, name: str, field: str, hashed: str
    ) -> Repeated:
        named = {"kind": kind, "name": name, "field": field, "value_hash": hashed}
        rows = asked.all(self._sql["holders_of_value"], named | {"most": _EXAMPLES})
        return Repeated(kind, name, field, [tuple(codec.decode_stored(key)) for (key,) in rows])

    def find(self, transaction: Transaction, question: Question) -> list[tuple[ObjectKey, str]]:
        """Current objects of a type that settles that may have one of some values of a unique field.

        Those in their places are found by the index of the field, the others by what is staged of
        them. Some may have another value.
        """
        where, shape = question.where, question.shape
        assert isinstance(where, In)  # noqa: S101 - `check_unique` asks nothing else
        keys = {key for key, _ in transaction.find(question._replace(settling=frozenset()))}
        for value in where.values:
            named: dict[str, Any] = {"kind": shape.kind, "name": shape.name}
            named |= {"field": where.path.field, "value_hash": value_hash(value)}
            named["most"] = _MOST_HOLDERS
            rows = transaction.tx.all(self._sql["holders_of_value"], named)
            keys |= {tuple(codec.decode_stored(key)) for (key,) in rows}
        type_key = (shape.kind, shape.name)
        found = transaction.current({type_key: keys}).get(type_key, {})
        return [(key, now[0]) for key, now in found.items()]

    def staged_fields(
        self, kind: str, name: str, key: ObjectKey, tx: Tx | None = None
    ) -> str | None:
        """The fields that are staged of an object."""
        rows = (tx or self._database).all(
            self._sql[f"staged_{kind}"], {"type": name, **_parts(kind, key)}
        )
        return rows[0][0] if rows else None

    def clear(self, pending: PendingMigration) -> None:
        """Take back what is staged, in short transactions, and then the migration."""
        for name in ("clear_entities", "clear_relations", "clear_values"):
            cleared = 1
            while cleared:
                with self._database.write(durable=False) as tx:
                    self._advance(tx, pending, 0, pending.since_commit)
                    cleared = tx.run(self._sql[name], {"most": _CLEARED})
        self.end(pending)

    def end(self, pending: PendingMigration) -> None:
        """Write down that a migration is over, or was taken back; nothing may be staged any more."""
        with self._database.write() as tx:
            self._advance(tx, pending, 0, pending.since_commit)
            named = {"plan_hash": pending.plan_hash, "owner_id": pending.owner_id}
            tx.run(self._sql["end_migration"], named)

    # -- the switch, and after it -------------------------------------------------------------

    def switch(
        self, tx: Tx, pending: PendingMigration, commit_id: int, objects: int
    ) -> PendingMigration:
        """Make what is staged current, from the end of this transaction on."""
        self._advance(tx, pending, 0, commit_id)
        named: dict[str, Any] = {"plan_hash": pending.plan_hash, "owner_id": pending.owner_id}
        tx.run(self._sql["switch_migration"], named | {"commit_id": commit_id, "objects": objects})
        return pending._replace(
            commit_id=commit_id, objects=objects, staged=objects, since_commit=commit_id
        )

    def settle(
        self,
        pending: PendingMigration,
        write: Callable[[], AbstractContextManager[Any]],
    ) -> Iterator[int]:
        """Move what is staged to its place: into the history, and to what is current.

        A short transaction for each step, begun by `write`, so that no one else writes state
        meanwhile; gives how many objects each has passed.
        """
        for kind, name, _ in pending.types:
            after: ObjectKey | None = ("",) * len(_KEY[kind])
            while after is not None:
                after, passed = self._settle_page(pending, kind, name, after, write)
                yield passed
        cleared = 1
        while cleared:
            with self._database.write(durable=False) as tx:
                self._advance(tx, pending, 0, pending.since_commit)
                cleared = tx.run(self._sql["clear_values"], {"most": _CLEARED})
        self.end(pending)

    def _settle_page(
        self,
        pending: PendingMigration,
        kind: str,
        name: str,
        after: ObjectKey,
        write: Callable[[], AbstractContextManager[Any]],
    ) -> tuple[ObjectKey | None, int]:
        plural = _PLURAL[kind]
        asked = {"type": name, "most": PAGE, **_parts(kind, after)}
        rows = self._database.all(self._sql[f"staged_{plural}_after"], asked)
        if not rows:
            return None, 0
        upto: ObjectKey = tuple(rows[-1])
        span: dict[str, Any] = {"type": name, **_parts(kind, after)}
        span |= {f"{part}_to": value for part, value in _parts(kind, upto).items()}
        with write() as transaction:
            tx: Tx = transaction.tx
            self._advance(tx, pending, -len(rows), pending.since_commit)
            commit = {"commit_id": pending.commit_id}
            tx.later(self._sql[f"settle_{plural}_history"], span | commit)
            tx.later(self._sql[f"settle_{plural}_latest"], span | commit)
            tx.later(self._sql[f"settle_{plural}_staged"], span)
        return upto, len(rows)

    def settle_changed(self, tx: Tx, changes: Iterable[RawChange]) -> None:
        """Before objects are written: have the history the versions that they were given by a switch."""
        for kind, name, key, *_ in changes:
            tx.later(self._sql[f"settle_{kind}"], {"type": name, **_parts(kind, key)})

    @contextmanager
    def _writing(self, tx: Tx | None) -> Generator[Tx]:
        with self._database.write(durable=False) if tx is None else nullcontext(tx) as given:
            yield given


def _parts(kind: str, key: ObjectKey) -> dict[str, str]:
    return dict(zip(_KEY[kind], key, strict=True))


def _waiting(row: Sequence[Any]) -> Waiting:
    *key, commit_id, staged, fields, version = row
    return Waiting(tuple(key), commit_id, staged, fields, version)


def _values(
    type_key: TypeKey, holder: str, these: Mapping[str, str], others: Mapping[str, str]
) -> Iterator[tuple[str, ...]]:
    """Rows of the values that are among these and not among the others."""
    for field, hashed in these.items():
        if others.get(field) != hashed:
            yield (*type_key, field, hashed, holder)
