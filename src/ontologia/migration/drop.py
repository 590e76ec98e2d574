"""Taking a type out of a store.

Its history stays, and so do its versions: the last one says "dropped", as the last version of a
deleted object does. A program that uses the type again registers it anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ontologia import codec
from ontologia.errors import MigrationError, MigrationTokenError, NotFoundError
from ontologia.migration.plan import compute_migration_token
from ontologia.schema.typespec import TypeSpec, schema_hash
from ontologia.store.inventory import Contents
from ontologia.store.protocol import Store
from ontologia.store.rows import TOMBSTONE, RawChange, StoredType


@dataclass(frozen=True, slots=True)
class DropPlan:
    """What dropping a type would do, and the token that says somebody has seen it."""

    kind: str
    name: str
    version: int
    """The type's last version before it is dropped."""
    objects: int
    """Current objects, which would be deleted first."""
    head: int
    token: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """What dropping a type did."""

    kind: str
    name: str
    version: int
    """The version that says "dropped"."""
    objects: int
    """How many were deleted."""
    commit_id: int


class TypeDrop:
    """Drops types of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def plan(self, kind: str, name: str, *, with_objects: bool = False) -> DropPlan:
        """What `apply` would do. Writes nothing.

        MigrationError if the type has objects and they are not to be deleted, or if a relation
        type ends at it. Counts the current objects of all types.
        """
        with self._store.inventory.read() as contents:
            return _plan(contents, kind, name, with_objects)

    def apply(
        self,
        owner_id: str,
        kind: str,
        name: str,
        *,
        token: str,
        with_objects: bool = False,
        metadata: dict[str, Any],
    ) -> Dropped:
        """Do what the token's plan said, in one transaction; MigrationTokenError if it changed.

        Always one commit, with this metadata and the number of deleted objects, also if that is 0.
        """
        with self._store.long_write(owner_id):
            with self._store.inventory.read() as contents:
                plan = _plan(contents, kind, name, with_objects)
                if token != plan.token:
                    raise MigrationTokenError(
                        f"this is not the token for dropping {name} as the store is now, at commit "
                        f"{plan.head}; nothing was changed",
                        hint="Preview again, and pass the token that is given there.",
                    )
                gone = [
                    RawChange(kind, name, each.key, each.fields, None, each.version)
                    for each in contents.objects(kind, name)
                ]
            with self._store.write(owner_id=owner_id) as tx:
                tx.verify_lock(owner_id)
                commit_id = tx.write_commit(
                    gone,
                    metadata=metadata | {"counts": {"deleted": len(gone)}},
                    versions={(kind, name): plan.version},
                )
                stored = tx.register_type(
                    kind, name, TOMBSTONE, runtime_id=owner_id, reason="dropped"
                )
        return Dropped(kind, name, stored.version, len(gone), commit_id)


def _plan(contents: Contents, kind: str, name: str, with_objects: bool) -> DropPlan:
    types = contents.types()
    found = [each for each in types if (each.kind, each.name) == (kind, name)]
    if not found:
        raise NotFoundError(f"there is no {kind} type {name}; nothing was changed")
    ending = _relations_to(types, name) if kind == "entity" else []
    if ending:
        raise MigrationError(
            f"{name} is an end of {', '.join(ending)}; nothing was changed",
            hint="Drop these relation types first.",
        )
    objects, head = contents.counts().get((kind, name), 0), contents.head()
    if objects and not with_objects:
        raise MigrationError(
            f"{name} has {objects:,} current objects; nothing was changed",
            hint="Delete them first, or have them deleted with the type: --with-objects.",
        )
    agreed = [kind, name, found[0].version, found[0].schema_hash, objects]
    token = compute_migration_token(schema_hash(codec.encode(agreed)), head)
    return DropPlan(kind, name, found[0].version, objects, head, token)


def _relations_to(types: list[StoredType], name: str) -> list[str]:
    """The relation types with an end of this type."""
    specs = [TypeSpec.from_json(each.schema_json) for each in types if each.kind == "relation"]
    return [spec.name for spec in specs if name in (spec.left, spec.right)]
