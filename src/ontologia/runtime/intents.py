"""The queue of a unit of work: what should become of objects, and what must be true before.

Nothing here touches a database. A commit takes a snapshot of the queue, `changes` resolves it
against the current versions inside the transaction, and `settle` takes out what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import is_
from typing import Any, NamedTuple, TypeAlias, TypeVar

import orjson

from ontologia import codec
from ontologia.errors import (
    DefinitionError,
    InvalidTypeError,
    NotFoundError,
    ObjectExistsError,
    OntologiaError,
    shown,
)
from ontologia.schema.base import SchemaObject
from ontologia.schema.entity import Entity
from ontologia.schema.registry import Registry
from ontologia.schema.relation import Relation, instance_key_of
from ontologia.schema.shape import Shape
from ontologia.store.rows import Current, ObjectKey, RawChange, State, TypeKey, raw_change

ABSENT = 0
"""The version of an object that does not exist."""


class Intent(NamedTuple):
    """What should become of one object, and what must be true of it before."""

    fields: str | None = None
    """Canonical fields; None if the object should not exist, or with a patch."""
    read: int | None = None
    """The version that must still be current; None for no condition."""
    patch: str | None = None
    """Encoded fields to set in the current version, which must exist."""
    creates: bool = False
    """Whether an object that is there already is an ObjectExistsError, and no conflict."""
    obj: Any = None
    """The instance that carries the new version after the commit."""


_intent: Callable[[Iterable[Any]], Intent] = partial(tuple.__new__, Intent)

Queue: TypeAlias = dict[TypeKey, dict[ObjectKey, Intent]]
Versions: TypeAlias = dict[TypeKey, dict[ObjectKey, int]]
"""The version of each object; ABSENT where there is none."""


class Stale(NamedTuple):
    """An object that is not, or no longer, at the version that was read."""

    type_key: TypeKey
    key: ObjectKey
    read: int
    found: int


_STALE = "_stale"
Failure = TypeVar("Failure", bound=OntologiaError)


def with_stale(error: Failure, stale: Iterable[Stale]) -> Failure:
    """The error of a commit, with the queued objects that it failed for."""
    vars(error)[_STALE] = tuple(stale)
    return error


def stale_of(error: BaseException) -> Sequence[Stale]:
    """The queued objects that a commit failed for; () if the error has nothing to do with any."""
    return getattr(error, _STALE, ())


class Intents:
    """A queue with one intent per object: the last one counts.

    An object is encoded when it is queued: what is wrong with it is raised there, and changing it
    afterwards changes nothing. For one thread at a time.
    """

    def __init__(self, registry: Registry, store_id: str, *, checked: bool = False) -> None:
        self._registry = registry
        self._store_id = store_id
        self._queue: Queue = {}
        self._refused: Queue = {}
        self._stale: Queue = {}
        self._handed: dict[tuple[TypeKey, ObjectKey], list[tuple[Intent, Any, int | None]]] = {}
        """Instances of queued objects beside `Intent.obj`: as of which intent, read at which version."""
        self.checked = checked
        """Whether everything that is read must be unchanged at commit."""
        self.reads: Versions = {}
        """What was read, if that is checked."""

    def __len__(self) -> int:
        return sum(map(len, self._queue.values()))

    def labels(self) -> list[str]:
        """The queued objects, as messages name them."""
        return [label(*place) for place in _places(self._queue)]

    # -- what should be true ----------------------------------------------------------------

    def ensure(self, objects: object, *, overwrite: bool = False) -> None:
        """Queue one object or an iterable of them: all of them, or none if one is wrong."""
        self._state(objects, overwrite, deletes=False)

    def delete(self, objects: object, *, overwrite: bool = False) -> None:
        """Queue the deletion of one object or an iterable of them."""
        self._state(objects, overwrite, deletes=True)

    def _state(self, objects: object, overwrite: bool, *, deletes: bool) -> None:
        """Queue what should be true of objects: their fields, or that they do not exist."""
        queued: Queue = {}
        store_id = self._store_id
        for cls, group in groupby(_instances(objects), type):
            shape = self._registry.add(cls)
            known = self.of(shape)
            wanted = queued.setdefault((shape.kind, shape.name), {})
            plain, dump = shape.key if shape.keys_are_text else None, shape.dump
            for obj in group:  # 100,000 may be queued at once: each step here counts
                values = obj.__dict__
                key = object_key(obj, shape) if plain is None else (values[plain],)
                read, creates = None, False
                if not overwrite:
                    origin = getattr(obj, "_origin", None)
                    if origin is not None:
                        if origin[2] == store_id:
                            read = ABSENT if origin[1] else origin[0]
                        else:
                            read = getattr(obj, "_others", {}).get(store_id)
                    if known and read is None:
                        # What this unit creates must not be there, whatever follows.
                        before = known.get(key)
                        if before is not None and before.creates:
                            read, creates = ABSENT, True
                text = None if deletes else dump(values)
                wanted[key] = _intent((text, read, None, creates, obj))
        self._merge(queued)

    def create(self, objects: object) -> None:
        """Queue objects that must not exist yet; ObjectExistsError if one is queued already."""
        queued: Queue = {}
        for obj in _instances(objects):
            shape = self._registry.add(type(obj))
            key, wanted = object_key(obj, shape), queued.setdefault((shape.kind, shape.name), {})
            before = wanted.get(key) or self.pending(shape, key)
            if before is not None and (before.fields is not None or before.patch is not None):
                raise ObjectExistsError(shape.name, key, queued=True)
            text = shape.dump(obj.__dict__)
            if before is None:
                wanted[key] = Intent(text, ABSENT, None, True, obj)
            else:  # it is deleted before: what is there now does not matter
                wanted[key] = before._replace(fields=text, obj=obj)
        self._merge(queued)

    def update(self, shape: Shape, key: ObjectKey, values: dict[str, Any]) -> None:
        """Queue new values of some fields, whatever the others are by then."""
        self._registry.add(shape.cls)
        patch = codec.encode_checked(shape.encode_some(values), where=shape.name)
        before = self.pending(shape, key)  # what a commit found to be stale is replaced
        if before is not None and before.fields is None and before.patch is None:
            raise NotFoundError(
                f"{label((shape.kind, shape.name), key)} is deleted by this unit of work",
                hint="Ensure the whole object, or create it anew.",
            )
        if before is None:
            intent = Intent(patch=patch)
        elif before.patch is not None:
            both = orjson.loads(before.patch) | orjson.loads(patch)
            intent = before._replace(patch=codec.encode_checked(both, where=shape.name))
        else:
            fields = shape.patched(orjson.loads(before.fields or "{}"), patch, key)
            intent = before._replace(fields=fields, obj=None)  # which does not have these values
        self._merge({(shape.kind, shape.name): {key: intent}})

    def of(self, shape: Shape) -> dict[ObjectKey, Intent]:
        """Everything queued for objects of one type."""
        return self._queue.get((shape.kind, shape.name), {})

    def _merge(self, newer: Queue) -> None:
        for type_key, wanted in newer.items():
            known = self._queue.setdefault(type_key, wanted)
            if known is wanted:
                continue
            for key in known.keys() & wanted.keys():
                before = known[key]
                if before.obj is not None and before.obj is not wanted[key].obj:
                    self._hand_out((type_key, key), before, before.obj)  # it is outdated then
            known.update(wanted)

    def pending(self, shape: Shape, key: ObjectKey) -> Intent | None:
        """What is queued for an object; None also where a commit found that it is stale."""
        if not self._queue:
            return None
        intent = self.of(shape).get(key)
        stale = self._stale.get((shape.kind, shape.name), {}).get(key)
        return None if intent is stale else intent

    def hand_out(
        self, shape: Shape, key: ObjectKey, intent: Intent, obj: Any, read: int | None = None
    ) -> None:
        """Note an instance that shows what is queued, so that a commit gives it its version."""
        self._hand_out(((shape.kind, shape.name), key), intent, obj, read)

    def _hand_out(
        self, place: tuple[TypeKey, ObjectKey], intent: Intent, obj: Any, read: int | None = None
    ) -> None:
        self._handed.setdefault(place, []).append((intent, obj, read))

    # -- what was read ------------------------------------------------------------------------

    def note(self, shape: Shape, key: ObjectKey, version: int) -> None:
        """Remember what was read, if that is checked. Reading again renews it."""
        if self.checked:
            self.reads.setdefault((shape.kind, shape.name), {})[key] = version

    # -- commits ------------------------------------------------------------------------------

    def snapshot(self) -> Queue:
        """What is queued at this moment; it stays queued until `settle`."""
        return {type_key: dict(wanted) for type_key, wanted in self._queue.items()}

    def settle(
        self, queue: Queue, commit_id: int | None, unchanged: Versions, state: State
    ) -> None:
        """Take out what a commit wrote, and give objects and reads their new versions.

        `state` is what was current before. What was queued for the same object since the snapshot
        stays.
        """
        written = (commit_id or ABSENT, 0, self._store_id)
        for type_key, wanted in queue.items():
            same, reads = unchanged.get(type_key, {}), self.reads.get(type_key)
            for key, (text, _, patch, _, obj) in wanted.items():
                origin = written
                if key in same:
                    version = same[key]
                    if obj is not None and getattr(obj, "_origin", None) == (
                        version,
                        0,
                        self._store_id,
                    ):
                        obj = None  # it carries it already
                    origin = (version, 0, self._store_id)
                elif text is None and patch is None:
                    origin = (ABSENT, 0, self._store_id)
                if obj is not None:
                    _give_version(obj, origin)
                if reads is not None:
                    reads[key] = origin[0]
                if self._handed:
                    self._settle_handed(type_key, key, wanted[key], origin[0], state)
        self._remove(queue)

    def _settle_handed(
        self, type_key: TypeKey, key: ObjectKey, written: Intent, version: int, state: State
    ) -> None:
        """An instance that shows what was written is at its version; another one is outdated."""
        before = version_of(state, type_key, key)
        for intent, obj, read in self._handed.pop((type_key, key), ()):
            if obj is written.obj:
                continue  # it was ensured or deleted itself since then
            if intent is written and (intent.patch is None or read == before):
                _give_version(obj, (version, 0, self._store_id))
            elif getattr(obj, "_origin", None) is None:
                _give_version(obj, (before, int(before == ABSENT), self._store_id))

    def refuse(self, queue: Queue, stale: Iterable[Stale] = ()) -> None:
        """Note that a commit failed to write this, until it is written or queued anew.

        To write it later would part it from the event that was to announce it, and from what it
        was to depend on.
        """
        self._refused = queue
        self.mark_stale(queue, stale)

    def mark_stale(self, queue: Queue, stale: Iterable[Stale]) -> None:
        """Hide these intents from reads: what is stored is shown instead.

        A patch is shown on whatever is there.
        """
        for each in stale:
            intent = queue.get(each.type_key, {}).get(each.key)
            if intent is not None and (intent.patch is None or each.found == ABSENT):
                self._stale.setdefault(each.type_key, {})[each.key] = intent

    def refused(self) -> list[str]:
        """What a commit failed to write and was not queued anew, as messages name it."""
        return [
            label(type_key, key)
            for type_key, wanted in self._refused.items()
            for key, intent in wanted.items()
            if self._queue.get(type_key, {}).get(key) is intent
        ]

    def drop_refused(self) -> int:
        """Take out what a commit failed to write; how many objects that was."""
        before = len(self)
        self._remove(self._refused)
        return before - len(self)

    def clear(self) -> int:
        """Take out everything; how many objects that was."""
        dropped = len(self)
        self._queue, self._refused, self._stale, self._handed = {}, {}, {}, {}
        return dropped

    def _remove(self, queue: Queue) -> None:
        for type_key, wanted in queue.items():
            mine = self._queue.get(type_key, {})
            if len(mine) == len(wanted) and all(map(is_, mine.values(), wanted.values())):
                mine = {}
            for key, intent in wanted.items() if mine else ():
                if mine.get(key) is intent:
                    del mine[key]
            if not mine:
                self._queue.pop(type_key, None)
        self._refused, self._stale = {}, {}


Patch: TypeAlias = Callable[[TypeKey, ObjectKey, Current, str], str]
"""Gives the canonical fields of a current version with those of a patch set in it."""


Same: TypeAlias = Callable[[TypeKey, ObjectKey, Current, str], bool]
"""Whether a current version, written before compatible changes of its type, reads as these fields."""


Keep: TypeAlias = Callable[[TypeKey, str, str], str]
"""Gives new fields together with those of the current version that the program does not know."""


def changes(
    queue: Queue, reads: Versions, state: State, patch: Patch, same: Same, keep: Keep
) -> tuple[list[RawChange], list[Stale]]:
    """What a commit of the queue changes, and what is stale; then nothing may be written.

    ObjectExistsError if something to be created is there, NotFoundError if something to be
    updated is not.
    """
    found: list[RawChange] = []
    stale = [
        Stale(type_key, key, read, now)
        for type_key, versions in reads.items()
        for key, read in versions.items()
        if (now := version_of(state, type_key, key)) != read
    ]
    failures: list[tuple[OntologiaError, Stale]] = []
    for type_key, wanted in queue.items():
        current = state.get(type_key, {})
        for key in sorted(wanted):  # neighbouring rows are written together
            after, read, some, creates, _ = wanted[key]
            stored = current.get(key)
            before, version, now = stored or (None, None, ABSENT)
            if read is not None:
                if read != now:
                    if creates:
                        here = Stale(type_key, key, ABSENT, now)
                        failures.append((ObjectExistsError(type_key[1], key), here))
                    elif after is not None or now != ABSENT:  # deleting what is deleted is fine
                        stale.append(Stale(type_key, key, read, now))
            elif some is not None:
                if stored is None:
                    missing = Stale(type_key, key, ABSENT, ABSENT)
                    failures.append((not_there(type_key, key, "nothing was written"), missing))
                    continue
                after = patch(type_key, key, stored, some)
            if before != after:
                if before is not None and after is not None:
                    if stored is not None and same(type_key, key, stored, after):
                        continue
                    after = keep(type_key, before, after)
                    if before == after:
                        continue
                found.append(raw_change((*type_key, key, before, after, version or 1, None)))
    if failures and not stale:
        raise with_stale(failures[0][0], [each for _, each in failures])
    return found, list(dict.fromkeys(stale))


def version_of(state: State, type_key: TypeKey, key: ObjectKey) -> int:
    """The current version of an object; ABSENT if there is none."""
    stored = state.get(type_key, {}).get(key)
    return ABSENT if stored is None else stored[2]


def not_there(type_key: TypeKey, key: ObjectKey, left: str | None = None) -> NotFoundError:
    """For an object that must exist; `left` says what was left behind."""
    return NotFoundError(
        f"there is no {label(type_key, key)}{f'; {left}' if left else ''}",
        hint="create() makes it; get() gives None where there is none.",
    )


def label(type_key: TypeKey, key: ObjectKey) -> str:
    """An object as messages name it."""
    return f"{type_key[1]} {':'.join(part for part in key if part)!r}"


def object_key(obj: Any, shape: Shape) -> ObjectKey:
    """The key columns of an object."""
    values = obj.__dict__
    if shape.keys_are_text:
        return (values[shape.key],)
    if shape.key is not None:
        return (shape.key_text(values[shape.key]),)
    return (values["left_key"], values["right_key"], instance_key_of(obj))


def _places(queue: Queue) -> Iterator[tuple[TypeKey, ObjectKey]]:
    return ((type_key, key) for type_key, wanted in queue.items() for key in wanted)


_set_origin = SchemaObject._origin.__set__  # type: ignore[attr-defined]  # pyright: ignore


def _give_version(obj: SchemaObject, origin: tuple[int, int, str]) -> None:
    """What was written is at this version now; what was deleted is a new object if it is ensured."""
    before = getattr(obj, "_origin", None)
    if before is None and origin[0] != ABSENT:
        _set_origin(obj, origin)
    elif before is not None and before[2] != origin[2]:  # it was read from another store
        others = {**getattr(obj, "_others", {}), origin[2]: origin[0]}
        if origin[0] == ABSENT:
            del others[origin[2]]
        object.__setattr__(obj, "_others", others)
    elif origin[0] != ABSENT or origin[1]:
        _set_origin(obj, origin if before is None or len(before) < 4 else (*origin, before[3]))
    elif before is not None:
        object.__delattr__(obj, "_origin")


def _instances(objects: object) -> Iterable[Any]:
    if isinstance(objects, Entity | Relation):
        yield objects
        return
    if isinstance(objects, str | bytes | dict | SchemaObject) or not isinstance(objects, Iterable):
        raise InvalidTypeError(
            f"expected an entity, a relation or several of them, got {shown(objects):.200}"
        )
    for obj in objects:
        if not isinstance(obj, Entity | Relation):
            if isinstance(obj, type):
                raise DefinitionError(f"{obj!r} is a class; pass an instance of it")
            raise InvalidTypeError(f"expected an entity or a relation, got {shown(obj):.200}")
        yield obj
