"""Any interleaving of units of work, held against a model that commits one after the other.

The model knows the version and value of each object, and for each unit what it has read, what it
has queued and on which version that depends. A commit of the model succeeds or fails as a whole;
the store must do the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import event, given, note
from hypothesis import strategies as st

from ontologia import Entity, Field, Session, Unit
from ontologia.errors import NotFoundError, ObjectExistsError, StateConflictError
from ontologia_conformance.tiers import examples

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

    def on(self, value: Value) -> Value:
        """An object with the fields of the patch, if there is one."""
        patch = self.patch or {}
        return patch.get("x", value[0]), patch.get("y", value[1])


@dataclass
class Model:
    """The store, as it should be."""

    head: int = 0
    state: dict[str, tuple[int, Value]] = field(default_factory=dict)

    def version(self, key: str) -> int:
        return self.state[key][0] if key in self.state else ABSENT

    def commit(self, wishes: dict[str, Wish], reads: dict[str, int]) -> type[Exception] | None:
        """Apply it, or say why not."""
        stale = {key for key, version in reads.items() if self.version(key) != version}
        failures: dict[str, type[Exception]] = {}
        after: dict[str, Value | None] = {}
        for key in sorted(wishes):
            wish, now = wishes[key], self.version(key)
            after[key] = wish.value
            if wish.read is not None and wish.read != now:
                if wish.creates:
                    failures[key] = ObjectExistsError
                elif not (wish.deletes and now == ABSENT):
                    stale.add(key)
            elif wish.patch is not None and now == ABSENT:
                failures[key] = NotFoundError
            elif wish.patch is not None:
                after[key] = wish.on(self.state[key][1])
        for key in wishes.keys() & (stale or failures.keys()):
            wishes[key].stale = wishes[key].patch is None or self.version(key) == ABSENT
        if stale or failures:
            return StateConflictError if stale else next(iter(failures.values()))
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


@dataclass
class Hand:
    """An instance that a unit's user has in hand, and what it should know."""

    obj: Counter
    version: int | None
    """Where it was read or written; ABSENT if it is known to be outdated."""
    shows: Wish | None = None
    """The wish whose values it has."""
    handed_out: bool = False
    """Whether the unit knows of it, beside the one that was ensured last."""


class Player:
    """A unit of work and what the model knows of it."""

    def __init__(self, session: Session, model: Model, checked: bool) -> None:
        self.unit: Unit = session.unit(reads="checked" if checked else None)
        self.model = model
        self.checked = checked
        self.wishes: dict[str, Wish] = {}
        self.reads: dict[str, int] = {}
        self.hands: dict[str, Hand] = {}

    def pending(self, key: str) -> Wish | None:
        wish = self.wishes.get(key)
        return None if wish is None or wish.stale else wish

    def get(self, key: str) -> None:
        found = self.unit.get(Counter, key)
        wish = self.pending(key)
        self.hands.pop(key, None)
        if wish is not None and wish.patch is None:
            expected, version = wish.value, wish.read or None
        else:
            stored = self.model.state.get(key)
            if self.checked:
                self.reads[key] = self.model.version(key)
            version, expected = (None, None) if stored is None else stored
            if expected is not None and wish is not None:
                expected = wish.on(expected)
        assert (None if found is None else (found.x, found.y)) == expected
        if found is not None:
            self.hands[key] = Hand(found, version, wish, handed_out=wish is not None)

    def query(self, key: str) -> None:
        found = self.unit.query().entities(Counter).collect()
        assert {each.id: (each.x, each.y) for each in found} == {
            name: value for name, (_, value) in self.model.state.items()
        }
        if self.checked:
            self.reads |= {name: version for name, (version, _) in self.model.state.items()}

    def change(self, key: str, number: int) -> None:
        """Change what was read and ensure it; without anything in hand, a new object."""
        before = self.wishes.get(key)
        hand = self.hands.setdefault(key, Hand(Counter(id=key, x=number), None))
        hand.obj.x = number
        self.unit.ensure(hand.obj)
        creates = hand.version is None and before is not None and before.creates
        read = ABSENT if creates else hand.version
        self.wishes[key] = Wish((hand.obj.x, hand.obj.y), None, read, creates)
        hand.shows = self.wishes[key]

    def _replace(self, key: str) -> None:
        """What is queued is replaced by something that the instance in hand does not show."""
        hand = self.hands.get(key)
        if hand is not None and hand.shows is not None and hand.shows is self.wishes.get(key):
            hand.handed_out = True

    def overwrite(self, key: str, number: int) -> None:
        self._replace(key)
        self.unit.ensure(Counter(id=key, x=number), overwrite=True)
        self.wishes[key] = Wish((number, 0))

    def update(self, key: str, number: int) -> None:
        wish = self.pending(key)
        if wish is not None and wish.deletes:
            with pytest.raises(NotFoundError):
                self.unit.update(Counter, key, y=number)
            return
        self.unit.update(Counter, key, y=number)
        if wish is None:
            self._replace(key)
            self.wishes[key] = Wish(patch={"y": number})
        elif wish.patch is not None:
            self.wishes[key] = Wish(None, wish.patch | {"y": number}, wish.read)
        else:
            assert wish.value is not None
            self.wishes[key] = Wish((wish.value[0], number), None, wish.read, wish.creates)
            hand = self.hands.get(key)
            if hand is not None and hand.shows is wish:
                hand.handed_out = True

    def create(self, key: str, number: int) -> None:
        wish = self.pending(key)
        obj = Counter(id=key, x=number)
        if wish is not None and not wish.deletes:
            with pytest.raises(ObjectExistsError):
                self.unit.create(obj)
            return
        self.unit.create(obj)
        if wish is None:
            self.wishes[key] = Wish((number, 0), None, ABSENT, True)
        else:
            self.wishes[key] = Wish((number, 0), None, wish.read, wish.creates)
        self.hands[key] = Hand(obj, None, self.wishes[key])

    def delete(self, key: str) -> None:
        hand = self.hands.get(key)
        before = self.wishes.get(key)
        self.unit.delete(Counter(id=key) if hand is None else hand.obj)
        read = None if hand is None else hand.version
        creates = read is None and before is not None and before.creates
        self.wishes[key] = Wish(None, None, ABSENT if creates else read, creates)
        if hand is not None:
            hand.shows = self.wishes[key]

    def discard(self) -> None:
        assert self.unit.discard() == len(self.wishes)
        self.wishes, self.reads = {}, {}
        for hand in self.hands.values():
            hand.shows, hand.handed_out = None, False

    def commit(self) -> None:
        versions = {key: self.model.version(key) for key in KEYS}
        expected = self.model.commit(self.wishes, self.reads)
        if expected is not None:
            event(expected.__name__)
            with pytest.raises(expected) as caught:
                self.unit.commit()
            assert caught.type is expected
            return
        number = self.unit.commit()
        assert number is None or number == self.model.head
        for key, wish in self.wishes.items():
            if self.checked and self.reads:
                self.reads[key] = self.model.version(key)
            if key in self.hands:
                self._settle(key, self.hands[key], wish, versions[key])
        self.wishes = {}

    def _settle(self, key: str, hand: Hand, written: Wish, before: int) -> None:
        """What is in hand has the new version if it shows what was written, else an old one."""
        whole = hand.shows is not None and hand.shows.patch is None
        if hand.shows is written and (whole or hand.version == before):
            hand.version = self.model.version(key) or None
        elif hand.handed_out and hand.version is None:
            hand.version = before
        hand.shows, hand.handed_out = None, False
        carried = hand.obj._version
        assert (None if carried is None else carried[0]) == hand.version


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


@examples(120)
@given(
    checked=st.lists(st.booleans(), min_size=UNITS, max_size=UNITS),
    steps=st.lists(STEP, min_size=10, max_size=50),
)
def test_units_do_what_one_after_the_other_would_do(
    fresh_uri: Any, checked: list[bool], steps: list[tuple[int, str, str, int]]
) -> None:
    note(f"{checked} {steps}")
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
        for player in players:
            player.unit.discard()

    assert {each.id: (each.meta().commit_id, (each.x, each.y)) for each in found} == model.state
