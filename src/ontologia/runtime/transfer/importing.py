"""Lines of state, into a store: all of them in one commit, or nothing.

The lines are read once. Each is checked against its type, and what it comes to is kept in a
temporary file. Then, under the lease on long writes, that is compared with the current state, and
one transaction writes what differs. So nothing is written before the last line was found good, the
transaction is short, and memory grows with what is written, not with what is read.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import IO, Any, Literal, NamedTuple, TypeAlias

import orjson

from ontologia import codec
from ontologia.errors import (
    ImportConflictError,
    InvalidValueError,
    OntologiaError,
    SchemaOutdatedError,
    TransferError,
)
from ontologia.runtime.commits import check_head
from ontologia.runtime.core import Core
from ontologia.runtime.session import Session, core_of
from ontologia.runtime.transfer.lines import Header, Line, read_header, read_object
from ontologia.runtime.transfer.targets import Targets
from ontologia.store.key_length import check_keys
from ontologia.store.rows import Batch, ObjectKey, RawChange, TypeKey, delta
from ontologia.store.unique import check_unique

OnConflict: TypeAlias = Literal["fail", "skip", "replace"]
_PORTION = 10_000  # lines that are compared with the state at a time
_TELL = 1_000  # lines between two words on the progress
_NOTHING = "; nothing was written"


@dataclass(slots=True)
class ImportReport:
    """What an import did, or, as a dry run, would do."""

    created: int = 0
    updated: int = 0
    unchanged: int = 0
    skipped: int = 0
    """In the store with other fields, and left so."""
    types: list[str] = field(default_factory=list[str])
    """The types that the store did not have."""
    commit_id: int | None = None
    """None if nothing was written."""


class _Checked(NamedTuple):
    """A line that was found good."""

    number: int
    type_key: TypeKey
    key: ObjectKey
    text: str


def import_state(
    session: Session,
    lines: Iterable[bytes],
    *,
    source: str = "import",
    models: Sequence[type[Any]] = (),
    on_conflict: OnConflict = "fail",
    expected_head: int | None = None,
    dry_run: bool = False,
    metadata: dict[str, Any] | None = None,
    progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> ImportReport:
    """Make the objects of these lines true, in one commit; objects not in them stay.

    A line is checked against the class in `models`, else against the type as the store has it,
    else as the file has it; types that the store does not have are registered. TransferError names
    the first line that does not fit. An object that is there with other fields is a conflict:
    ImportConflictError, or it is left as it is, or replaced.

    `max_batch_size` does not apply: like a migration, this holds the lease on long writes, and
    other commits wait for it. The commit's metadata says `source` and the counts, beside
    `metadata`.
    """
    core = core_of(session)
    importing = _Importing(core, source, Targets(core.store, models), on_conflict)
    with tempfile.TemporaryFile() as spool:
        header = importing.check(lines, spool, progress)
        if dry_run:
            return importing.plan(spool, header, expected_head).report
        # Two threads of a session are two owners: each must wait for the other's lease.
        owner_id = f"{session.session_id}:{threading.get_ident()}"
        with core.store.long_write(owner_id):
            plan = importing.plan(spool, header, expected_head)
            return importing.write(plan, owner_id, metadata or {})


@dataclass(slots=True)
class _Plan:
    head: int
    report: ImportReport
    changes: list[RawChange]


class _Importing:
    """One import."""

    def __init__(self, core: Core, source: str, targets: Targets, on_conflict: OnConflict) -> None:
        self._core = core
        self._store = core.store
        self._source = source
        self._targets = targets
        self._on_conflict = on_conflict

    # -- reading ----------------------------------------------------------------------------

    def check(
        self, lines: Iterable[bytes], spool: IO[bytes], progress: Callable[[int, int | None], None]
    ) -> Header:
        """Read everything, and keep what it comes to."""
        numbered = enumerate(lines, 1)
        _, first = next(numbered, (1, b""))
        with self._naming(1):
            header = read_header(first)
            self._targets.open(header)
        seen: set[bytes] = set()
        for number, line in numbered:
            if line.strip():
                with self._naming(number):
                    checked = self._checked(line, seen)
                spool.write(orjson.dumps((number, *checked)) + b"\n")
            if number % _TELL == 0:
                progress(len(seen), header.objects)
        if header.objects not in (None, len(seen)):
            raise TransferError(
                f"{self._source} says that it has {header.objects:,} objects, and has "
                f"{len(seen):,}: it is not complete; nothing was written",
                hint="Export again, or take objects out of the first line if the file was edited.",
            )
        progress(len(seen), header.objects)
        return header

    def _checked(self, line: bytes, seen: set[bytes]) -> tuple[TypeKey, ObjectKey, str]:
        read = read_object(line)
        text = self._targets.text(read)
        mark = _mark(read)
        if mark in seen:
            label = ":".join(filter(None, read.key))
            raise TransferError(f"{read.type_name} {label!r} was in an earlier line already")
        seen.add(mark)
        return (read.kind, read.type_name), read.key, text

    @contextmanager
    def _naming(self, number: int) -> Generator[None]:
        """An error names the line, unless it is about the program."""
        try:
            yield
        except SchemaOutdatedError:
            raise
        except OntologiaError as error:
            said = str(error.args[0]).removesuffix(_NOTHING)
            raise TransferError(
                f"{self._source}, line {number}: {said}{_NOTHING}", hint=error.hint
            ) from error

    # -- comparing --------------------------------------------------------------------------

    def plan(self, spool: IO[bytes], header: Header, expected_head: int | None) -> _Plan:
        """What differs from the current state."""
        changes: list[RawChange] = []
        report = ImportReport(types=[name for _, name in self._targets.missing(header)])
        conflicts, first = 0, ""
        with self._store.read() as reader:
            head = reader.head()
            check_head(expected_head, head)
            for portion in _portions(spool):
                wanted = _batch(portion)
                found = delta(wanted, reader.current(wanted))
                self._check_keys(found, portion)
                report.unchanged += len(portion) - len(found)
                there = [change for change in found if change.before is not None]
                if there and not conflicts:
                    first = _named(there[0], portion)
                conflicts += len(there)
                report.created += len(found) - len(there)
                changes += found if self._on_conflict == "replace" else [
                    change for change in found if change.before is None
                ]  # fmt: skip
        if conflicts and self._on_conflict == "fail":
            raise ImportConflictError(conflicts, f"{first} of {self._source}")
        if self._on_conflict == "replace":
            report.updated = conflicts
        else:
            report.skipped = conflicts
        return _Plan(head, report, changes)

    def _check_keys(self, found: list[RawChange], portion: list[_Checked]) -> None:
        """TransferError for the first object that would be created with a key that is too long."""
        try:
            check_keys(found)
        except InvalidValueError:
            lines = {(*each.type_key, each.key): each.number for each in portion}
            for change in found:
                with self._naming(lines[change.kind, change.type_name, change.key]):
                    check_keys([change])

    # -- writing ----------------------------------------------------------------------------

    def write(self, plan: _Plan, owner_id: str, metadata: dict[str, Any]) -> ImportReport:
        """One transaction; it checks that what was compared is still so."""
        report = plan.report
        if not plan.changes and not report.types:
            return report
        counts = {
            "created": report.created,
            "updated": report.updated,
            "unchanged": report.unchanged,
            "skipped": report.skipped,
        }
        arguments = {"source": self._source, "on_conflict": self._on_conflict}
        said = self._core.metadata() | metadata | {"arguments": arguments, "counts": counts}
        with self._store.write(owner_id=owner_id) as tx:
            tx.verify_lock(owner_id)
            if tx.head() != plan.head or tx.generation != self._targets.generation:
                raise TransferError("the store changed during the import; nothing was written")
            versions = self._targets.register(tx, owner_id)
            if plan.changes:
                report.commit_id = tx.write_commit(plan.changes, metadata=said, versions=versions)
                check_unique(tx, self._targets.shapes, plan.changes)
        return report


def _portions(spool: IO[bytes]) -> Iterator[list[_Checked]]:
    spool.seek(0)
    while lines := list(islice(spool, _PORTION)):
        yield [
            _Checked(number, (kind, name), tuple(key), text)
            for number, (kind, name), key, text in map(orjson.loads, lines)
        ]


def _batch(portion: list[_Checked]) -> Batch:
    batch: Batch = {}
    for each in portion:
        batch.setdefault(each.type_key, {})[each.key] = each.text
    return batch


def _named(change: RawChange, portion: list[_Checked]) -> str:
    """An object, by the line it is in."""
    key = (change.kind, change.type_name), change.key
    line = next(each.number for each in portion if (each.type_key, each.key) == key)
    return f"{change.type_name} {':'.join(filter(None, change.key))!r} in line {line}"


def _mark(line: Line) -> bytes:
    """Stands for an object among those seen, in less memory."""
    named = codec.encode_checked([line.kind, line.type_name, *line.key])
    return blake2b(named.encode(), digest_size=16).digest()
