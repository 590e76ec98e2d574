"""Which schema version each class of the program is, and how rows of other versions are read."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ontologia import codec
from ontologia.errors import (
    MigrationError,
    MissingUpgraderError,
    OntologiaError,
    SchemaOutdatedError,
    UpgraderError,
)
from ontologia.migration.steps import Filling, Steps
from ontologia.schema.diff import TypeDiff, diff_specs
from ontologia.schema.event import Event, event_class, types_of
from ontologia.schema.registry import Registry
from ontologia.schema.shape import Shape
from ontologia.schema.typespec import TypeSpec, spec_of
from ontologia.schema.upgraders import (
    Upgrader,
    UpgraderKey,
    beyond,
    chain_upgraders,
    find,
    registered,
)
from ontologia.store.database import Tx
from ontologia.store.protocol import StateReader, Store, Transaction
from ontologia.store.rows import ObjectKey, StoredType, TypeKey

log = logging.getLogger(__name__)
Load = Callable[[ObjectKey, dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Standing:
    mixed: bool
    """Rows of the past may have been written under a schema that SQL cannot take for the class's."""
    behind: bool
    """Current rows may be of another schema than the class, until the store is migrated."""
    fills: Mapping[str, str]
    """What SQL is to put where a field is missing, by its name: a JSON object with that field."""
    version: int | None = None
    """The older version that the class is, if all changes since then are compatible."""
    unknown: Collection[str] | None = ()
    """The fields that versions since then have and the class does not; None if they may have any."""


class TypeVersions:
    """The program's types against the store's, for one session."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        runtime_id: str,
        upgraders: Mapping[UpgraderKey, Upgrader],
    ) -> None:
        self._store = store
        self._registry = registry
        self._runtime_id = runtime_id
        self._own = dict(upgraders)
        self._specs: dict[TypeKey, tuple[TypeSpec, str]] = {}
        self._loaders: dict[tuple[str, str, int], Load | None] = {}
        self._met: set[tuple[str, str, int]] = set()
        """Kind, name and version of rows that were read since `forget`."""
        self._fillings: dict[tuple[str, str, int, int], Filling | None] = {}
        self._standing: dict[TypeKey, _Standing] = {}
        self._older: dict[TypeKey, _Standing] = {}
        self.fills: Mapping[TypeKey, Mapping[str, str]] = {}
        """What SQL is to put where objects of these types lack a field; see `standing`."""
        self.settling: frozenset[TypeKey] = frozenset()
        """Types of which current objects may not be in their places yet, as far as is known."""
        self._behind = False
        self._lock = threading.RLock()
        """Of `settling` and what is known of versions: a thread does not put back what was before."""
        self._generation = 0
        self._verified: tuple[int, dict[TypeKey, int]] = (-1, {})

    # -- upgraders --------------------------------------------------------------------------

    def add_upgraders(self, upgraders: Mapping[UpgraderKey, Upgrader]) -> None:
        """More upgraders for this session; they win over those registered by the decorator."""
        self._own.update(upgraders)
        self.forget()

    @property
    def upgraders(self) -> Mapping[UpgraderKey, Upgrader]:
        """Those of this session, also such as are added later."""
        return self._own

    def check_event(self, cls: type[Event]) -> None:
        """Whether an event class and its upgraders fit together.

        MissingUpgraderError for a gap between them, DefinitionError for one that leads past the
        version of the class, MigrationError if a type of objects has the name, too.
        """
        own, steps = cls.__event_version__, set[int]()
        for key in registered() | self._own:
            name = key[-2]
            if name not in types_of(cls) or (len(key) == 3 and key[0] != "event"):
                continue
            if len(key) == 2 and (
                self._registry.find("entity", name) or self._registry.find("relation", name)
            ):
                if own == 1:
                    continue  # it is not for the event, which needs none
                self._check_ambiguous(name, "event")
            steps.add(key[-1])
        if steps and (last := max(steps)) >= own:
            raise beyond(cls, last)
        if steps and (gaps := sorted(set(range(min(steps), own)) - steps)):
            raise MissingUpgraderError(cls.__event_type__, gaps, reading=True)
        if own > 1 and not steps:
            log.warning(
                "%s is version %d and has no upgraders: an event of an older version that still "
                "waits becomes a dead letter. If there are upgraders, import their module",
                *(cls.__name__, own),
            )

    def runs_code(self, key: TypeKey) -> bool:
        """Whether functions of the program see stored fields of a type when some are set."""
        return self.shape(key).has_validators or any(
            key[1] in names for names in (*registered(), *self._own)
        )

    def chain(self, shape: Shape, from_version: int, to_version: int) -> Upgrader:
        """All steps between two versions of a type; MissingUpgraderError names those missing.

        The fields that it is given may be changed.
        """
        known = registered() | self._own
        if any(len(key) == 2 and key[0] == shape.name for key in known):
            self._check_ambiguous(shape.name, shape.kind)
        steps = self.steps(shape)
        for version in steps.fills:
            if steps.has(version + 1):
                known[shape.kind, shape.name, version] = steps.filling(version, version + 1)
        return chain_upgraders(known, shape.name, from_version, to_version, shape.kind, keep=False)

    def _check_ambiguous(self, name: str, kind: str) -> None:
        """MigrationError if a type of another kind has the name as well."""
        kinds = [each for each in ("entity", "relation") if self._registry.find(each, name)]
        event = event_class(name)
        if event is not None and event.__event_version__ > 1:
            kinds.append("event")
        others = [each for each in kinds if each != kind]
        if others:
            raise MigrationError(
                f"an upgrader for {name} could mean the {kind} or the {others[0]} of that name",
                hint=f'Say which: @upgrader("{name}", from_version=..., kind="{kind}").',
            )

    def steps(self, shape: Shape) -> Steps:
        """The steps of a type that write no object anew.

        An upgrader has its say in a step of before fills were written down.
        """
        steps = Steps(self._store.list_schema_versions(shape.kind, shape.name))
        for version in list(steps.leaving()):
            if not self.has_upgrader(shape, version):
                steps.fills[version] = {}
        return steps

    def has_upgrader(self, shape: Shape, version: int) -> bool:
        """Whether the program has an upgrader for the step from this version of a type."""
        return find(registered() | self._own, shape.kind, shape.name, version) is not None

    def filling_of(self, key: TypeKey, version: int | None, later: int | None) -> Filling | None:
        """How rows of a version read as those of a later one, also of types without a class.

        None if they are the same, or if upgraders stand in between.
        """
        if version is None or later is None or version == later:
            return None
        place = (*key, version, later)
        if place not in self._fillings:  # steps that were taken never change
            steps = Steps(self._store.list_schema_versions(*key))
            covered = steps.covers(version, later)
            self._fillings[place] = steps.filling(version, later) if covered else None
        return self._fillings[place]

    def was_current(self, shape: Shape) -> bool:
        """Whether the class is a version of its type that the store has, or had."""
        own = self._spec(shape)[1]
        stored = self._store.list_schema_versions(shape.kind, shape.name)
        return any(each.schema_hash == own for each in stored)

    # -- specs --------------------------------------------------------------------------------

    def spec(self, shape: Shape) -> TypeSpec:
        """The program's own schema of a type."""
        return self._spec(shape)[0]

    def _spec(self, shape: Shape) -> tuple[TypeSpec, str]:
        """The schema and its hash, made once: every commit asks for it."""
        key = (shape.kind, shape.name)
        if key not in self._specs:
            spec = spec_of(shape)
            self._specs[key] = (spec, spec.hash)
        return self._specs[key]

    def hashes(self) -> dict[str, str]:
        """What stands for the program's schema of each of its types: what its session says of them."""
        return {f"{each.kind} {each.name}": self._spec(each)[1] for each in self._registry}

    def register(self, shapes: Iterable[Shape]) -> None:
        """Write down the types the store has never seen; others are left as they are.

        A registry without any versions comes from before these were kept, or lost them: each of its
        types becomes version 1 first, so that a class with another schema is found to have one.
        """
        if unversioned := self._store.unversioned_types():
            with self._store.write() as tx:
                known = tx.current_types([(kind, name) for kind, name, _ in unversioned])
                for kind, name, schema_json in unversioned:
                    if (kind, name) not in known:  # another process may have been faster
                        tx.register_type(
                            *(kind, name, schema_json),
                            runtime_id=self._runtime_id,
                            reason="bootstrap",
                        )
        wanted: dict[TypeKey, Shape] = {(shape.kind, shape.name): shape for shape in shapes}
        if not wanted:
            return
        with self._store.read() as reader:
            known = _registered(reader, wanted)
        missing = {key: shape for key, shape in wanted.items() if key not in known}
        if missing:
            with self._store.write() as tx:
                self._register_missing(tx, missing)

    def verify(self, tx: Transaction, keys: Iterable[TypeKey]) -> dict[TypeKey, int]:
        """The version of each of these types, within the transaction that will write them.

        A type the store has never seen is registered. A class that is an older version is written
        as that, if all changes since then are compatible; SchemaOutdatedError if it is neither that
        nor the current one.
        """
        wanted = tuple(keys)
        generation, verified = self._verified
        if generation == tx.generation and verified.keys() >= set(wanted):
            return verified  # no schema has changed since these were looked at
        if generation != tx.generation:
            self.forget()
        shapes = {key: self.shape(key) for key in wanted}
        stored = _registered(tx, shapes)
        diffs = [d for key, each in stored.items() if (d := self._diff(shapes[key], each))]
        if diffs:
            raise self.outdated(diffs, tx.tx)
        versions = {key: each.version for key, each in stored.items()}
        versions |= {
            key: older.version
            for key in stored
            if (older := self._older.get(key)) is not None and older.version is not None
        }
        # Only what was there before: what is registered here may be taken back.
        if not tx.has_registered:
            kept = verified if generation == tx.generation else {}
            self._verified = (tx.generation, kept | versions)
        missing = {key: shape for key, shape in shapes.items() if key not in stored}
        registered = self._register_missing(tx, missing) if missing else {}
        return versions | {key: each.version for key, each in registered.items()}

    def outdated(self, diffs: Sequence[TypeDiff], tx: Tx | None = None) -> SchemaOutdatedError:
        """What to raise for types that differ; it says so if a migration of them is pending."""
        error = SchemaOutdatedError(diffs)
        pending = self._store.staging.pending(tx)
        if pending is not None and any((d.kind, d.name) in pending.keys for d in diffs):
            error.hint = (
                f"Wait for it: {pending}. Until it is made, programs with the types as they were go "
                f"on, and those with the new ones can read what fits."
            )
        return error

    def _register_missing(
        self, tx: Transaction, shapes: dict[TypeKey, Shape]
    ) -> dict[TypeKey, StoredType]:
        known = _registered(tx, shapes)
        for key, shape in shapes.items():
            if key not in known:
                schema_json = self.spec(shape).to_json()
                known[key] = tx.register_type(
                    *key, schema_json, runtime_id=self._runtime_id, reason="initial"
                )
        return known

    def diffs(self, reader: StateReader) -> list[TypeDiff]:
        """How the registered classes differ from the store, in the order of their names."""
        shapes: dict[TypeKey, Shape] = {(s.kind, s.name): s for s in self._registry}
        known = _registered(reader, sorted(shapes))
        found = (self._diff(shapes[key], known[key]) for key in sorted(known))
        return [diff for diff in found if diff is not None]

    def _diff(self, shape: Shape, stored: StoredType) -> TypeDiff | None:
        """How the class differs from the current version; None if it can be written beside it."""
        key = (shape.kind, shape.name)
        if self._spec(shape)[1] == stored.schema_hash:
            self._older.pop(key, None)
            return None
        older = self._find_older(shape, self._store.list_schema_versions(*key))
        if older is not None:
            self._older[key] = older
            return None
        self._older.pop(key, None)
        return self._diff_from(shape, stored)

    def _diff_from(self, shape: Shape, stored: StoredType) -> TypeDiff | None:
        return diff_specs(
            TypeSpec.from_json(stored.schema_json),
            self.spec(shape),
            stored.version,
            shape=shape,
            earlier=self.steps(shape).earlier_fields(),
        )

    def keep(self, key: TypeKey, before: str, after: str) -> str:
        """What is written in place of stored fields: those that the class does not know stay.

        Only a class of an older version leaves any.
        """
        older = self._older.get(key)
        if older is None:
            return after
        unknown, fields = older.unknown, decode_fields(after)
        kept = {
            name: value
            for name, value in decode_fields(before).items()
            if name not in fields and (unknown is None or name in unknown)
        }
        return codec.encode(fields | kept) if kept else after

    def shape(self, key: TypeKey) -> Shape:
        """The registered shape of a type."""
        shape = self._registry.find(*key)
        if shape is None:
            raise MigrationError(f"{key[0]} {key[1]} is not registered in this session")
        return shape

    # -- reading rows of any version ------------------------------------------------------------

    def standing(self, shape: Shape) -> _Standing:
        """How the program's class stands to what is stored of its type; see `refresh`."""
        key = (shape.kind, shape.name)
        known = self._standing.get(key)
        if known is None:
            known = self._standing[key] = self._find_standing(shape)
            if known.fills:
                self.fills = {**self.fills, key: known.fills}
        return known

    def _find_standing(self, shape: Shape) -> _Standing:
        stored = self._store.list_schema_versions(shape.kind, shape.name)
        own = self._spec(shape)[1]
        if not stored or [each.schema_hash for each in stored] == [own]:
            return _Standing(mixed=False, behind=False, fills={})
        if stored[-1].schema_hash != own:
            older = self._find_older(shape, stored)
            return older or _Standing(mixed=True, behind=True, fills={})
        steps, newest = Steps(stored), stored[-1].version
        return _Standing(
            mixed=not steps.covers(1, newest), behind=False, fills=_fills(shape, steps, newest)
        )

    def _find_older(self, shape: Shape, stored: Sequence[StoredType]) -> _Standing | None:
        """The standing of a class of an older version; None if it cannot be used any more.

        A value that became unique ends it: only a class that says so looks for others.
        """
        own = self._spec(shape)[1]
        version = max((each.version for each in stored if each.schema_hash == own), default=None)
        if version is None:
            return None
        steps, newest = self.steps(shape), stored[-1].version
        if not steps.covers(version, newest) or steps.made_unique(version):
            return None
        return _Standing(
            mixed=not steps.covers(1, version),
            behind=not steps.compare_alike(version),
            fills=_fills(shape, steps, version),
            version=version,
            unknown=steps.unknown_to(version),
        )

    def refresh(self, *, fields: bool) -> None:
        """Before a question: forget what is known of versions if somebody has changed them.

        Asked for when the question looks at `fields`, whose meaning may have changed, or when rows
        had to be adapted before. Reads that fit the class are spared the statement.
        """
        if fields or self._behind or self.settling:
            generation = self._store.schema_generation()
            if generation == self._generation and not self.settling:
                return
            with self._lock:
                self.settling = self._store.staging.settling()
                if generation != self._generation:
                    self.forget()
                    # The last of all: a thread that finds it goes on with what was found before.
                    self._generation = generation

    def loader(self, shape: Shape, version: int | None) -> Load | None:
        """How a row of this version becomes fields of the class; None if it already fits.

        MissingUpgraderError or SchemaOutdatedError if it cannot. A version that was not met before
        may be there because of a migration that settles: `settling` says so afterwards.
        """
        number = 1 if version is None else version
        key = (shape.kind, shape.name, number)
        try:
            return self._loaders[key]
        except KeyError:
            with self._lock:
                self._meet(key)
                made = self._loaders[key] = self._make_loader(shape, number)
                return made

    def meet(self, shape: Shape, version: int | None) -> None:
        """As `loader` does, look at `settling` for a row that becomes an object later, or never."""
        key = (shape.kind, shape.name, 1 if version is None else version)
        if key not in self._met:
            with self._lock:
                self._meet(key)

    def _meet(self, key: tuple[str, str, int]) -> None:
        self.settling = self._store.staging.settling()
        self._met.add(key)

    def forget(self) -> None:
        """The store's schema changed: look again."""
        self._loaders.clear()
        self._met.clear()
        self._standing.clear()
        self.fills = {}
        self._behind = False

    def _make_loader(self, shape: Shape, version: int) -> Load | None:
        stored = self._store.list_schema_versions(shape.kind, shape.name)
        own = self._spec(shape)[1]
        fitting = [each.version for each in stored if each.schema_hash == own]
        target = max(fitting, default=None)
        older = self.standing(shape).version
        if older is not None and self.steps(shape).covers(min(version, older), stored[-1].version):
            self._behind = True
            return self._narrowing(shape, stored, version, older)
        if target == version:
            return None
        if version in fitting and any(each.dropped for each in stored[version:target]):
            return None  # the type was dropped, and is now what it was before: no step led here
        if target is not None and version < target:
            steps = self.steps(shape)
            if steps.covers(version, target):
                return _filling(shape, steps.filling(version, target))
            return self._upgrading(shape, version, target)
        self._check_readable(shape, stored, version)
        self._behind = True
        return lambda _key, fields: shape.adapt(fields)

    def _upgrading(self, shape: Shape, version: int, target: int) -> Load:
        try:
            chain = self.chain(shape, version, target)
        except MissingUpgraderError as error:
            raise MissingUpgraderError(
                error.type_name, error.missing_versions, reading=True
            ) from None

        def load(key: ObjectKey, fields: dict[str, Any]) -> dict[str, Any]:
            return upgrade(shape, chain, key, fields, reading=True)[0]

        return load

    def _narrowing(
        self, shape: Shape, stored: Sequence[StoredType], version: int, older: int
    ) -> Load:
        """How a class of an older version reads rows: without what it does not know.

        SchemaOutdatedError for a row with a value that it has no type for, or without a field that
        it cannot do without.
        """
        filling = self.steps(shape).filling(version, older) if version < older else None

        def load(_key: ObjectKey, fields: dict[str, Any]) -> dict[str, Any]:
            try:
                return shape.narrowed(fields if filling is None else filling(fields))
            except (ValueError, TypeError, ArithmeticError):
                diff = self._diff_from(shape, stored[-1])
                raise SchemaOutdatedError([diff] if diff is not None else []) from None

        return load

    def _check_readable(self, shape: Shape, stored: list[StoredType], version: int) -> None:
        """A class with another schema can read a row if all it misses has a default."""
        found = [each for each in stored if each.version == version]
        if not found:
            return
        diff = self._diff_from(shape, found[0])
        if diff is None:
            return
        required = [name for name in diff.added if shape.fields[name].required]
        if required or any(name != "(open)" for name, _, _ in diff.reshaped):
            raise SchemaOutdatedError([diff])


def _filling(shape: Shape, filling: Filling) -> Load | None:
    """How a row that was not written anew becomes fields of the class; None if it fits as it is."""
    if not filling.changes:
        return None
    decode = shape.decode if shape.decoders else None
    if decode is None and not filling.widened:
        return lambda _key, fields: filling(fields)

    def load(_key: ObjectKey, fields: dict[str, Any]) -> dict[str, Any]:
        values = filling(fields) if decode is None else decode(filling(fields))
        for name in filling.widened:
            if values[name] is not None:
                values[name] = shape.widened(name, values[name])
        return values

    return load


def _fills(shape: Shape, steps: Steps, version: int) -> dict[str, str]:
    """What SQL is to put for fields that versions up to this one have added."""
    # To SQL a field that is missing is as good as one that is null.
    return {
        name: codec.encode_checked({name: value}).replace("%", "\\u0025")  # a driver's sign
        for before in sorted(steps.fills)
        for name, value in steps.fills[before].items()
        if before < version and value is not None and name in shape.fields
    }


def _registered(reader: StateReader, keys: Iterable[TypeKey]) -> dict[TypeKey, StoredType]:
    """The current version of those of these types that the store has, and were not dropped."""
    known = reader.current_types(keys)
    return {key: each for key, each in known.items() if not each.dropped}


def upgrade(
    shape: Shape,
    chain: Upgrader,
    key: ObjectKey,
    fields: dict[str, Any],
    *,
    reading: bool = False,
) -> tuple[dict[str, Any], str]:
    """A stored object's fields, through its upgraders, validated by the class of today; and as text.

    UpgraderError if that cannot be; what it says is left behind depends on whether it is for
    `reading`.
    """
    label = ":".join(part for part in key if part)
    failed = functools.partial(UpgraderError, shape.name, label, reading=reading)
    try:
        upgraded = chain(fields)
    except OntologiaError:
        raise
    except Exception as error:
        raise failed(f"the upgrader raised {error!r}") from error
    if not isinstance(upgraded, dict):
        raise failed(f"the upgrader gave {upgraded!r}, not a dict")
    try:
        values = shape.revive(key, upgraded)
        text = shape.dump(values)
    except Exception as error:  # whatever an upgrader may put where a value should be
        raise failed(f"the upgrader gave {error}") from error
    return values, text


def decode_fields(text: str) -> dict[str, Any]:
    """The fields in stored text."""
    fields: dict[str, Any] = codec.decode_stored(text)
    return fields
