"""The state of a store, now or as of a commit, as lines.

Everything is of one commit, and read a thousand objects, or a few megabytes, at a time, each time in a short
transaction: memory does not grow with the store, those who write to it are not held up, and a reader that stalls
keeps no transaction open, which would let the log of SQLite and the dead rows of PostgreSQL grow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TypeAlias

from ontologia import codec
from ontologia.errors import NotFoundError, TransferError
from ontologia.migration.steps import Filling, Steps
from ontologia.runtime.session import Session, core_of
from ontologia.runtime.transfer.lines import LINE_LIMIT, FileType, Header, object_line
from ontologia.schema.typespec import TypeSpec
from ontologia.store.inventory import Contents, Inventory, StoredObject
from ontologia.store.rows import ObjectKey, TypeKey

StepsOf: TypeAlias = Callable[[str, str], Steps]
"""The steps between the versions of a type, by its kind and name."""


class Export:
    """What is exported: first `header`, then `lines()`."""

    def __init__(self, inventory: Inventory, header: Header, steps: StepsOf) -> None:
        self._inventory = inventory
        self.header = header
        self._steps = steps

    def lines(self) -> Iterator[bytes]:
        """A line an object, entities before relations, by type and key."""
        for file_type in self.header.types:
            kind, name = file_type.spec.kind, file_type.spec.name
            fillings = self._fillings(kind, name, file_type.version)
            for each in self._objects(kind, name):
                fields, fill = each.fields, fillings.get(each.version)
                if fill is not None:
                    fields = codec.encode_checked(fill(codec.decode_stored(fields)))
                elif each.version != file_type.version:
                    raise TransferError(
                        f"{name} {':'.join(filter(None, each.key))!r} was written in version "
                        f"{each.version} of its type, and others in version {file_type.version}; "
                        f"the export is not complete",
                        hint="ontologia doctor looks for what is wrong with a store.",
                    )
                line = object_line(kind, name, each.key, fields).encode()
                if len(line) > LINE_LIMIT + 1:
                    raise TransferError(
                        f"{name} {':'.join(filter(None, each.key))!r} makes a line of "
                        f"{len(line) - 1:,} bytes, and ontologia import reads at most "
                        f"{LINE_LIMIT:,}; the export is not complete",
                        hint="ontologia copy takes objects of any size into another store; --type "
                        "exports other types.",
                    )
                yield line

    def _fillings(self, kind: str, name: str, version: int) -> dict[int, Filling]:
        """How objects of older versions become objects of this one, by their version."""
        steps = self._steps(kind, name)
        first = version
        while steps.covers(first - 1, version):
            first -= 1
        return {each: steps.filling(each, version) for each in range(first, version)}

    def _objects(self, kind: str, name: str) -> Iterator[StoredObject]:
        after: ObjectKey | None = None
        while True:
            with self._inventory.read() as contents:
                # The latest tables are quicker to read than the history, as long as both say the same.
                as_of = None if contents.head() == self.header.head else self.header.head
                page = contents.page(kind, name, as_of, after)
            if not page:
                return
            yield from page
            after = page[-1].key


def export_state(
    session: Session, *, types: Collection[str] = (), as_of: int | None = None
) -> Export:
    """Export the objects of all types, or of these; NotFoundError for one that is not there.

    TransferError while a migration moves objects of these types to their places: the history lacks
    versions of it until then.
    Counts first: what counting costs, see `Contents.counts`.
    """
    store = core_of(session).store
    inventory = store.inventory

    def steps(kind: str, name: str) -> Steps:
        return Steps(store.list_schema_versions(kind, name))

    with inventory.read() as contents:
        head = contents.head()
        if as_of is not None and not 0 <= as_of <= head:
            raise NotFoundError(f"there is no commit {as_of}; the store is at {head}")
        counts = contents.counts(as_of)
        found = _types(contents, counts, as_of, steps)
    chosen = {key: each for key, each in found.items() if not types or key[1] in types}
    if unknown := sorted(set(types) - {name for _, name in chosen}):
        raise NotFoundError(
            f"there is no type {', '.join(unknown)}; nothing was exported",
            hint=f"There are {', '.join(sorted(name for _, name in found)) or 'none'}.",
        )
    objects = sum(counts.get(key, 0) for key in chosen)
    now = head if as_of is None else as_of
    pending = store.staging.pending()
    if pending is not None and pending.commit_id is not None and pending.commit_id <= now:
        moved = sorted(name for _, name in pending.keys & chosen.keys())
        if moved:
            raise TransferError(
                f"{', '.join(moved)} cannot be exported yet: {pending}; nothing was exported",
                hint="Finish the migration: migrate again; or export other types, or as of a "
                f"commit before {pending.commit_id}.",
            )
    return Export(inventory, Header(now, objects, list(chosen.values())), steps)


def _types(
    contents: Contents, counts: dict[TypeKey, int], as_of: int | None, steps: StepsOf
) -> dict[TypeKey, FileType]:
    """The types, each in the version its objects have; of the past, those that had objects."""
    current = {(each.kind, each.name): each for each in contents.types()}
    found: dict[TypeKey, FileType] = {}
    for key in sorted({*counts, *(current if as_of is None else ())}):
        stored = current.get(key)
        kind, name = key
        first = next(contents.objects(kind, name, as_of), None)
        version = 1 if first is None else first.version
        if stored is not None and first is not None:
            known = steps(kind, name)
            while known.covers(version, version + 1):  # objects of the past are filled as well
                version += 1
            if version != stored.version:
                stored = None
        if stored is not None:
            found[key] = FileType(stored.version, TypeSpec.from_json(stored.schema_json))
            continue
        texts = [
            each.schema_json for each in contents.history(kind, name) if each.version == version
        ]
        if not texts:
            raise TransferError(
                f"objects of {name} are of version {version} of their type, which is not on record",
                hint="ontologia doctor looks for what is wrong with a store.",
            )
        found[key] = FileType(version, TypeSpec.from_json(texts[0]))
    return found
