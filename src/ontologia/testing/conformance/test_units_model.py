"""Any interleaving of units of work, held against a model that commits one after the other.

The model knows the version and value of each object, and for each unit what it has read, what it
has queued and on which version that depends. A commit of the model succeeds or fails as a whole;
the store must do the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ontologia import Entity, Field, Session, Unit
from ontologia.errors import NotFoundError, ObjectExistsError, StateConflictError

KEYS = ("a", "b")
UNITS = 3
ABSENT = 0


class Counter(Entity):
    id: Field[str]
    x: Field[int] = Field(default=0)
    y: Field[int] = Field(default=0)


Value = tuple[int, int]


@dataclass
class Wish:
    """What a unit has queued for one object."""

    value: Value | None = None
    patch: dict[str, int] | None = None
    read: int | None = None
    creates: bool = False
    stale: bool = False

    @property
    def deletes(self) -> bool:
        return self.value is None and self.patch is None


@dataclass
class Model:
    """The store, as it should be."""

    head: int = 0
    state: dict[str, tuple[int, Value]] = field(default_factory=dict)

    def version(self, key: str) -> int:
        return self.state[key][0] if key in self.state else ABSENT

    def commit(self, wishes: dict[str, Wish], reads: dict[str, int]) -> type[Exception] | None:
        """Apply it, or say why not."""
        stale = [key for key, version in reads.items() if self.version(key) != version]
        failure: type[Exception] | None = None
        after: dict[str, Value | None] = {}
        for key in sorted(wishes):
            wish, now = wishes[key], self.version(key)
            if wish.read is not None and wish.read != now:
                if wish.creates:
                    failure = failure or ObjectExistsError
                elif not (wish.deletes and now == ABSENT):
                    stale.append(key)
            elif wish.patch is not None:
                if now == ABSENT:
                    failure = failure or NotFoundError
                    continue
                x, y = self.state[key][1]
                after[key] = (wish.patch.get("x", x), wish.patch.get("y", y))
            else:
                after[key] = wish.value
        for key in stale:
            if key in wishes:
                wishes[key].stale = True
        if stale or failure:
            return StateConflictError if stale else failure
        changed = {
            key: value
            for key, value in after.items()
            if value != (self.state[key][1] if key in self.state else None)
        }
        if changed:
            self.head += 1
        for key, value in changed.items():
            if value is None:
                del self.state[key]
            else:
                self.state[key] = (self.head, value)
        return None


class Player:
    """A unit of work and what the model knows of it."""

    def __init__(self, session: Session, model: Model, checked: bool) -> None:
        self.unit: Unit = session.unit(reads="checked" if checked else None)
        self.model = model
        self.checked = checked
        self.wishes: dict[str, Wish] = {}
        self.reads: dict[str, int] = {}
        self.hands: dict[str, Counter] = {}
        """Objects that the unit has in its hands, at some version."""
        self.versions: dict[str, int | None] = {}

    def get(self, key: str) -> None:
        found = self.unit.get(Counter, key)
        wish = self.wishes.get(key)
        if wish is not None and wish.patch is None and not wish.stale:
            expected = wish.value
            version = wish.read or None
        else:
            stored = self.model.state.get(key)
            if self.checked:
                self.reads[key] = self.model.version(key)
            expected, version = (None, None) if stored is None else (stored[1], stored[0])
            if expected is not None and wish is not None and wish.patch and not wish.stale:
                x, y = expected
                expected = (wish.patch.get("x", x), wish.patch.get("y", y))
        assert (None if found is None else (found.x, found.y)) == expected
        if found is None:
            self.hands.pop(key, None)
        else:
            self.hands[key], self.versions[key] = found, version

    def query(self, key: str) -> None:
        found = self.unit.query().entities(Counter).collect()
        assert {each.id: (each.x, each.y) for each in found} == {
            name: value for name, (_, value) in self.model.state.items()
        }
        if self.checked:
            self.reads |= {name: version for name, (version, _) in self.model.state.items()}

    def change(self, key: str, number: int) -> None:
        """Change what was read and ensure it; without anything in hand, a new object."""
        obj = self.hands.get(key)
        before = self.wishes.get(key)
        if obj is None:
            obj = Counter(id=key, x=number)
            self.hands[key], self.versions[key] = obj, None
        obj.x = number
        self.unit.ensure(obj)
        read = self.versions[key]
        creates = read is None and before is not None and before.creates
        self.wishes[key] = Wish((obj.x, obj.y), None, ABSENT if creates else read, creates)

    def overwrite(self, key: str, number: int) -> None:
        self.unit.ensure(Counter(id=key, x=number), overwrite=True)
        self.wishes[key] = Wish((number, 0))

    def update(self, key: str, number: int) -> None:
        wish = self.wishes.get(key)
        if wish is not None and wish.deletes:
            return
        self.unit.update(Counter, key, y=number)
        if wish is None:
            self.wishes[key] = Wish(patch={"y": number})
        elif wish.patch is not None:
            self.wishes[key] = Wish(None, wish.patch | {"y": number}, wish.read)
        else:
            assert wish.value is not None
            self.wishes[key] = Wish((wish.value[0], number), None, wish.read, wish.creates)

    def create(self, key: str, number: int) -> None:
        wish = self.wishes.get(key)
        obj = Counter(id=key, x=number)
        try:
            self.unit.create(obj)
        except ObjectExistsError:
            assert wish is not None
            assert not wish.deletes
            return
        assert wish is None or wish.deletes
        if wish is None:
            self.wishes[key] = Wish((number, 0), None, ABSENT, True)
        else:
            self.wishes[key] = Wish((number, 0), None, wish.read, wish.creates)
        self.hands[key], self.versions[key] = obj, None

    def delete(self, key: str) -> None:
        obj = self.hands.get(key)
        before = self.wishes.get(key)
        self.unit.delete(Counter(id=key) if obj is None else obj)
        read = None if obj is None else self.versions[key]
        creates = read is None and before is not None and before.creates
        self.wishes[key] = Wish(None, None, ABSENT if creates else read, creates)

    def discard(self) -> None:
        assert self.unit.discard() == len(self.wishes)
        self.wishes, self.reads = {}, {}

    def commit(self) -> None:
        expected = self.model.commit(self.wishes, self.reads)
        if expected is not None:
            event(expected.__name__)
            with pytest.raises(expected) as caught:
                self.unit.commit()
            assert caught.type is expected
            return
        number = self.unit.commit()
        assert number is None or number == self.model.head
        for key in self.wishes:
            version = self.model.version(key)
            if self.checked and self.reads:
                self.reads[key] = version
            self._new_version(key, version)
        self.wishes = {}

    def _new_version(self, key: str, version: int) -> None:
        """What is in hand was written, unless another object was ensured after it."""
        obj = self.hands.get(key)
        if obj is None:
            return
        carried = obj._version
        self.versions[key] = None if carried is None else carried[0]
        assert carried is None or carried[0] <= version or version == ABSENT


STEP = st.tuples(
    st.integers(0, UNITS - 1),
    st.sampled_from(
        [
            *["get", "change", "commit"] * 2,
            *["read and change", "change and commit"] * 3,
            *["update", "create", "delete", "query", "overwrite", "discard"],
        ]
    ),
    st.sampled_from(KEYS),
    st.integers(1, 9),
)


@settings(max_examples=120, deadline=None)
@given(
    checked=st.lists(st.booleans(), min_size=UNITS, max_size=UNITS),
    steps=st.lists(STEP, min_size=10, max_size=50),
)
def test_units_do_what_one_after_the_other_would_do(
    fresh_uri: Any, checked: list[bool], steps: list[tuple[int, str, str, int]]
) -> None:
    model = Model()
    with Session(fresh_uri()) as session:
        players = [Player(session, model, each) for each in checked]
        for number, action, key, value in steps:
            player = players[number]
            match action:
                case "get" | "delete" | "query":
                    getattr(player, action)(key)
                case "discard" | "commit":
                    getattr(player, action)()
                case "read and change":
                    player.get(key)
                    player.change(key, value)
                case "change and commit":
                    player.change(key, value)
                    player.commit()
                case _:
                    getattr(player, action)(key, value)
        found = session.query().entities(Counter).collect()

    assert {each.id: (each.meta().commit_id, (each.x, each.y)) for each in found} == model.state
