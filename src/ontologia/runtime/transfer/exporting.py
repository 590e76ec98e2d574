"""The state of a store, now or as of a commit, as lines.

Everything comes from one snapshot, and a thousand objects at a time: memory does not grow with the
store, and those who write to it are not held up.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager

from ontologia.errors import NotFoundError, TransferError
from ontologia.runtime.session import Session
from ontologia.runtime.transfer.lines import FileType, Header, object_line
from ontologia.schema.typespec import TypeSpec
from ontologia.store.inventory import Contents
from ontologia.store.rows import TypeKey


class Export:
    """What is exported: first `header`, then `lines()`."""

    def __init__(self, contents: Contents, as_of: int | None, header: Header) -> None:
        self._contents = contents
        self._as_of = as_of
        self.header = header

    def lines(self) -> Iterator[bytes]:
        """A line an object, entities before relations, by type and key."""
        for file_type in self.header.types:
            kind, name = file_type.spec.kind, file_type.spec.name
            for each in self._contents.objects(kind, name, self._as_of):
                if each.version != file_type.version:
                    raise TransferError(
                        f"{name} {':'.join(filter(None, each.key))!r} was written in version "
                        f"{each.version} of its type, and others in version {file_type.version}; "
                        f"the export is not complete",
                        hint="ontologia doctor looks for what is wrong with a store.",
                    )
                yield object_line(kind, name, each.key, each.fields).encode()


@contextmanager
def export_state(
    session: Session, *, types: Collection[str] = (), as_of: int | None = None
) -> Generator[Export]:
    """Export the objects of all types, or of these; NotFoundError for one that is not there.

    Counts first: what counting costs, see `Contents.counts`.
    """
    with session._store.inventory.read() as contents:
        head = contents.head()
        if as_of is not None and not 0 <= as_of <= head:
            raise NotFoundError(f"there is no commit {as_of}; the store is at {head}")
        counts = contents.counts(as_of)
        found = _types(contents, counts, as_of)
        chosen = {key: each for key, each in found.items() if not types or key[1] in types}
        if unknown := sorted(set(types) - {name for _, name in chosen}):
            raise NotFoundError(
                f"there is no type {', '.join(unknown)}; nothing was exported",
                hint=f"There are {', '.join(sorted(name for _, name in found)) or 'none'}.",
            )
        objects = sum(counts.get(key, 0) for key in chosen)
        now = head if as_of is None else as_of
        yield Export(contents, as_of, Header(now, objects, list(chosen.values())))


def _types(
    contents: Contents, counts: dict[TypeKey, int], as_of: int | None
) -> dict[TypeKey, FileType]:
    """The types, each in the version its objects have; of the past, those that had objects."""
    current = {(each.kind, each.name): each for each in contents.types()}
    found: dict[TypeKey, FileType] = {}
    for key in sorted({*counts, *(current if as_of is None else ())}):
        stored = current.get(key)
        kind, name = key
        first = next(contents.objects(kind, name, as_of), None)
        if stored is not None and first is not None and first.version != stored.version:
            stored = None
        if stored is not None:
            found[key] = FileType(stored.version, TypeSpec.from_json(stored.schema_json))
            continue
        version = 1 if first is None else first.version
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
