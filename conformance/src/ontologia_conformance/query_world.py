"""A small world to ask random questions of, and a model that knows the answers.

The model is plain Python over the values that were drawn: a list of versions, three-valued logic,
`sorted`. It shares no code with the package, but for the canonical text that lists and objects
are ordered by, so that a misunderstanding would have to happen twice. Each part of a question has
two faces: `condition` or `expr`, which the package is asked with, and `holds` or `value`, which
say the same of an item of the model.
"""

from __future__ import annotations

import functools
import operator
import string
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from random import Random
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from ontologia import Entity, Field, Relation, Session, left, right
from ontologia.codec import encode
from ontologia.errors import EndpointDeleted
from ontologia.query import Path as Walk
from ontologia.query import QueryBuilder

# -- types ----------------------------------------------------------------------------------------


class Color(Enum):
    RED = "red"
    BLUE = "blue"
    INFRA = "Ünsichtbar"


class Thing(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str] = Field(index=True)
    note: Field[str | None]
    number: Field[int] = Field(index=True)
    few: Field[int | None]
    size: Field[float] = Field(index=True)
    rate: Field[float | None]
    flag: Field[bool] = Field(index=True)
    sure: Field[bool | None]
    price: Field[Decimal] = Field(index=True)
    cost: Field[Decimal | None]
    at: Field[datetime] = Field(index=True)
    local: Field[datetime | None]
    uid: Field[UUID]
    color: Field[Color] = Field(index=True)
    shade: Field[Color | None]
    items: Field[list[dict[str, object]]]
    data: Field[dict[str, object]]


class Place(Entity):
    number: Field[int] = Field(primary_key=True)
    label: Field[str | None]
    extra: Field[dict[str, object] | None]


class Link(Relation[Thing, Place]):
    weight: Field[int | None] = Field(index=True)
    data: Field[dict[str, object]]


class Visit(Relation[Thing, Place]):
    slot: Field[str] = Field(instance_key=True)
    fare: Field[Decimal | None]


class Step(Relation[Place, Thing]):
    rank: Field[int] = Field(instance_key=True)
    label: Field[str]


ENTITIES: list[type[Entity]] = [Thing, Place]
RELATIONS: list[type[Relation[Any, Any]]] = [Link, Visit, Step]
ENDS = {Link: (Thing, Place), Visit: (Thing, Place), Step: (Place, Thing)}
KEYS = {
    Thing: ("id",),
    Place: ("number",),
    Link: ("left_key", "right_key"),
    Visit: ("left_key", "right_key", "slot"),
    Step: ("left_key", "right_key", "rank"),
}

# -- values ---------------------------------------------------------------------------------------

# Small pools, so that random questions meet random data; now and then anything at all.
TEXTS = ["a", "ab", "A", "", "a%", "a_b", "b'", 'b"', "\\", "é", "e\u0301", "🦊", "a🦊", "\ufffd"]
TEXTS += ["\U0010ffff", "\ud7ff", "5", "true", "null", "\t", "a*b", "[a]?", "K\u212a\u0130\u017f"]
INTS = [0, 1, 2, 5, -1, 2**53 + 1, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 1.0, 5.0, 0.1, -2.5, 1e16, 2.0**53, 5e-324, 1e300, -1e300, 1 / 3]
DECIMALS = [Decimal(text) for text in ("0", "-0", "1", "1.0", "9", "10", "1E+1", "0.1", "-2.50")]
DECIMALS += [Decimal("1E-30"), Decimal("99.999"), Decimal("12345.678901")]
NAIVE = [datetime(2026, 1, 1, 12), datetime(2026, 1, 1, 12, 0, 0, 1), datetime(1, 1, 2)]
NAIVE += [datetime(9999, 12, 30, 23, 59, 59, 999999), datetime(2026, 1, 1, 13)]
ZONES = [UTC, timezone(timedelta(hours=2)), timezone(timedelta(hours=-5, minutes=-30))]
AWARE = [m.replace(tzinfo=UTC).astimezone(zone) for m in NAIVE for zone in ZONES]
UUIDS = [UUID(int=n << 100) for n in (0, 1, 0xABCDEF)]
NAMES = ["a", "a", "b", "b", "0", "c.d", 'q"', "\\", "'--", "é", "🦊", "\t", "[0]"]
SCALARS = [True, False] * 5 + [0, 1, 1.0, 5, "5", -2.5, *INTS, *FLOATS, *TEXTS]
THING_KEYS = ["a", "b", "B", "ab", "é'", "🦊", "1", '"', "\\"]
PLACE_KEYS = [1, 2, 10, -7]


def any_text(random: Random) -> str:
    """Any text that can be stored: no U+0000, no surrogates."""
    ranges = [(1, 0x7F), (0x80, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF)]
    return "".join(chr(random.randint(*random.choice(ranges))) for _ in range(random.randint(1, 4)))


def any_float(random: Random) -> float:
    """Any finite number, short of where sums would overflow."""
    return random.uniform(-1, 1) * 10.0 ** random.randint(-300, 300)


def any_json(random: Random, depth: int = 3) -> Any:
    """Any JSON value, nested up to `depth`."""
    shape = random.choice(["scalar", "scalar", "null", "list", "object"]) if depth else "scalar"
    if shape == "list":
        return [any_json(random, depth - 1) for _ in range(random.randint(0, 3))]
    if shape == "object":
        return any_document(random, depth - 1)
    rare = random.choice([any_text, any_float])(random)
    return None if shape == "null" else random.choice([*SCALARS, rare, rare])


def any_document(random: Random, depth: int = 3) -> dict[str, Any]:
    """A JSON object."""
    names = random.choices(NAMES, k=random.randint(0, 2))
    often = ["a"] if random.random() < 0.6 else []
    return {name: any_json(random, depth) for name in [*often, *names]}


ORDERED: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
COMPARED = ORDERED | {"==": operator.eq, "!=": operator.ne}


def like(found: str, pattern: str) -> bool:
    """Whether a text has an SQL pattern: the places in it that the pattern may have come to."""
    places, characters = {0}, iter(pattern)
    for character in characters:
        if character == "%":
            places = {place for start in places for place in range(start, len(found) + 1)}
            continue
        wanted = next(characters) if character == "\\" else character
        any_one = character == "_"
        places = {
            place + 1
            for place in places
            if place < len(found) and (any_one or found[place] == wanted)
        }
    return len(found) in places


def ilike(found: str, pattern: str) -> bool:
    folded = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
    return like(found.translate(folded), pattern.translate(folded))


def any_pattern(random: Random, text: str) -> str:
    """A pattern that often fits this text."""
    parts = ["%"] if random.random() < 0.3 else []
    for character in text:
        kept = "\\" + character if character in "%_\\" else character
        parts.append(random.choice([kept, kept, kept.swapcase(), "_", "%", "", "\\" + character]))
    return "".join(parts) + random.choice(["", "", "%", "_", "\\%", "*", "?", "["])


LIKE = {"like": like, "ilike": ilike}
TEXTUAL = {"startswith": str.startswith, "endswith": str.endswith, "contains": str.__contains__}
TEXTUAL |= LIKE
ALL_OPS = (*COMPARED, *TEXTUAL, "in_", "is_null", "is_not_null", "is_true", "is_false")


@dataclass(frozen=True)
class Kind:
    """How values of a field are drawn, and how they may be asked for."""

    pool: list[Any]
    rare: Callable[[Random], Any] | None = None
    literals: list[Any] | None = None
    """What it is compared with, if not with the pool."""
    text: bool = False
    truth: bool = False
    number: bool = False
    json: bool = False
    optional: bool = False

    def draw(self, random: Random) -> Any:
        if self.optional and random.random() < 0.3:
            return None
        if self.rare is not None and (not self.pool or random.random() < 0.2):
            return self.rare(random)
        return random.choice(self.pool)

    @property
    def maybe(self) -> Kind:
        return replace(self, optional=True)

    @property
    def ops(self) -> list[str]:
        """What may be said of it."""
        found = ["==", "!=", "in_", "is_null", "is_not_null"]
        found += ORDERED if self.json or not self.truth else []
        return found + list(TEXTUAL) * self.text + ["is_true", "is_false"] * self.truth


STR = Kind(TEXTS, any_text, text=True)
INT = Kind(INTS, lambda random: random.randint(-(2**63), 2**63 - 1), INTS + FLOATS, number=True)
FLOAT = Kind(FLOATS, any_float, INTS + FLOATS, number=True)
BOOL = Kind([True, False], truth=True)
DECIMAL = Kind(
    DECIMALS,
    lambda random: Decimal(random.randint(-(10**9), 10**9)).scaleb(random.randint(-12, 3)),
    [*DECIMALS, 0, 1, 10, 0.1, -2.5],
    number=True,
)
COLOR = Kind(list(Color))
FREE = Kind([], any_document, SCALARS, text=True, truth=True, json=True)
THING_KEY = Kind(THING_KEYS, text=True)
PLACE_KEY = Kind(PLACE_KEYS, literals=[*PLACE_KEYS, 1.0, 1.5, 3], number=True)
PLACE_TEXT = Kind([str(key) for key in PLACE_KEYS], text=True)
FIELDS: dict[type, dict[str, Kind]] = {
    Thing: {
        "id": THING_KEY,
        "name": STR,
        "note": STR.maybe,
        "number": INT,
        "few": Kind([-3, -1, 0, 1, 2], number=True).maybe,
        "size": FLOAT,
        "rate": FLOAT.maybe,
        "flag": BOOL,
        "sure": BOOL.maybe,
        "price": DECIMAL,
        "cost": DECIMAL.maybe,
        "at": Kind(AWARE),
        "local": Kind(NAIVE).maybe,
        "uid": Kind(UUIDS, lambda random: UUID(int=random.getrandbits(128))),
        "color": COLOR,
        "shade": COLOR.maybe,
        "items": Kind(
            [],
            lambda random: [any_document(random) for _ in range(random.randint(0, 3))],
            SCALARS,
            text=True,
            truth=True,
            json=True,
        ),
        "data": FREE,
    },
    Place: {"number": PLACE_KEY, "label": STR.maybe, "extra": FREE.maybe},
    Link: {"left_key": THING_KEY, "right_key": PLACE_TEXT, "weight": INT.maybe, "data": FREE},
    Visit: {
        "left_key": THING_KEY,
        "right_key": PLACE_TEXT,
        "slot": Kind(["x", "x'", "é"], text=True),
        "fare": DECIMAL.maybe,
    },
    Step: {"left_key": PLACE_TEXT, "right_key": THING_KEY, "rank": PLACE_KEY, "label": STR},
}


def fingerprint(value: Any) -> str:
    """Equal for what is stored alike: 1, 1.0 and True differ, and so do 1.0 and 1.00 as decimals."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {fingerprint(value[k])}" for k in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(fingerprint, value)) + "]"
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
    return repr(value)


def turned(value: Any) -> Any:
    """The same, with the names of every object in reverse order."""
    if isinstance(value, list):
        return [turned(part) for part in value]
    return {n: turned(value[n]) for n in reversed(value)} if isinstance(value, dict) else value


# -- the model ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One version of one object."""

    cls: type
    key: tuple[str, ...]
    values: dict[str, Any]
    commit: int
    deleted: bool = False

    def seen(self) -> tuple[Any, ...]:
        return self.cls.__name__, self.key, self.commit, self.deleted, fingerprint(self.values)


@dataclass(frozen=True)
class Item:
    """What a question is answered with: an object, or a way from one along relations."""

    chain: tuple[tuple[Any, ...], ...]
    """An entity, then relations, each followed by what stands at its ends; or a relation alone."""
    order: tuple[Any, ...]
    """Where it comes when nothing else decides."""

    @property
    def places(self) -> dict[tuple[type, str], Row | None]:
        """What a condition may speak of."""
        sides = ("own", "left", "right")
        return {
            (rows[0].cls, side): row
            for rows in self.chain
            for side, row in zip(sides, rows, strict=False)
        }

    def seen(self) -> list[Any]:
        return [tuple(row and row.seen() for row in rows) for rows in self.chain]


@dataclass
class World:
    """A session and the model of what was written to it."""

    session: Session
    versions: list[Row] = field(default_factory=list)
    head: int = 0

    def write(self, operations: Iterable[Operation]) -> None:
        """One commit, in the store and in the model."""
        wanted: dict[tuple[type, tuple[str, ...]], dict[str, Any] | None] = {}
        for cls, values, deleted in operations:
            obj = cls(**values)
            (self.session.delete if deleted else self.session.ensure)(obj)
            key = tuple(str(values[name]) for name in KEYS[cls])
            wanted[cls, key] = None if deleted else values
        current = {(row.cls, row.key): row for row in self.at(None)}
        number, changed = self.head + 1, False
        for (cls, key), values in wanted.items():
            before = current.get((cls, key))
            if values is None and before is not None:
                self.versions.append(Row(cls, key, before.values, number, deleted=True))
            elif values is not None and (
                before is None or fingerprint(before.values) != fingerprint(values)
            ):
                self.versions.append(Row(cls, key, values, number))
            else:
                continue
            changed = True
        assert self.session.commit() == (number if changed else None)
        self.head += changed

    def at(self, commit: int | None) -> list[Row]:
        """The state after a commit."""
        latest: dict[Any, Row] = {}
        for row in self.versions:
            if commit is None or row.commit <= commit:
                latest[row.cls, row.key] = row
        return [row for row in latest.values() if not row.deleted]

    def items(self, cls: type, as_of: int | None, since: int | None) -> list[Item]:
        """All objects of a class after a commit; with `since`, all versions after that one."""
        state = self.at(as_of)
        if since is None:
            rows = [row for row in state if row.cls is cls]
            return [Item((_with_ends(row, state),), row.key) for row in rows]
        last = self.head if as_of is None else as_of
        rows = [row for row in self.versions if row.cls is cls and since < row.commit <= last]
        return [Item((_with_ends(row, state),), (row.commit, row.key)) for row in rows]

    def walks(self, start: type, hops: Iterable[type], as_of: int | None) -> list[Item]:
        """All ways from entities of a class along relations of these classes."""
        state = self.at(as_of)
        found = [(r.key[0], Item(((r,),), (r.key,))) for r in state if r.cls is start]
        here = start
        for hop in hops:
            near, far = (0, 1) if ENDS[hop][0] is here else (1, 0)
            found = [
                (row.key[far], Item((*item.chain, _with_ends(row, state)), (*item.order, row.key)))
                for key, item in found
                for row in state
                if row.cls is hop and row.key[near] == key
            ]
            here = ENDS[hop][far]
        return [item for _, item in found]


def _with_ends(row: Row, state: list[Row]) -> tuple[Any, ...]:
    ends = zip(ENDS.get(row.cls, ()), row.key, strict=False)
    by_key = {(other.cls, other.key): other for other in state}
    return (row, *(by_key.get((end, (key,))) for end, key in ends))


Operation = tuple[type, dict[str, Any], bool]
"""An object's class and values, and whether it is deleted."""
History = list[list[Operation]]


@st.composite
def operations(draw: Any, classes: Sequence[type]) -> Operation:
    """Make an object be there, or not. Its values hang on one number, which shrinks quickly."""
    cls = draw(st.sampled_from(classes))
    random = Random(draw(st.integers(0, 2**32)))
    values = {name: kind.draw(random) for name, kind in FIELDS[cls].items()}
    return cls, values, draw(st.sampled_from([False, False, False, True]))


@st.composite
def histories(
    draw: Any, *, classes: Sequence[type] = (Thing, Thing, Thing, Place, *RELATIONS), least: int = 8
) -> History:
    """What is written, commit by commit, with at least so many words in the first one.

    Relations may come before their ends, or outlive them; what was once said may be said again,
    in another order of words.
    """
    new = operations(classes)
    first = draw(st.lists(new, min_size=least, max_size=3 * least))
    again = st.sampled_from(first).map(lambda said: (said[0], turned(said[1]), said[2]))
    return [
        first,
        *draw(st.lists(st.lists(new | new | again, min_size=1, max_size=12), max_size=3)),
    ]


def open_world(uri: str, history: History) -> World:
    """The store with that history, and its model. Close `world.session`."""
    world = World(Session(uri, entity_types=ENTITIES, relation_types=RELATIONS))
    for batch in history:
        world.write(batch)
    return world


def seen(answer: Any) -> list[Any]:
    """What the package answered, to be compared with an item's `seen`."""
    if not isinstance(answer, Walk):
        return [_seen_with_ends(answer)]
    return [_seen_with_ends(answer.source), *map(_seen_with_ends, answer.relations)]


def _seen_with_ends(obj: Any) -> tuple[Any, ...]:
    ends = ("left", "right") if isinstance(obj, Relation) else ()
    return (_seen(obj), *(_seen_end(obj, side) for side in ends))


def _seen_end(obj: Any, side: str) -> Any:
    try:
        return _seen(getattr(obj, side))
    except EndpointDeleted:
        return None


def _seen(obj: Any) -> tuple[Any, ...]:
    meta = obj.meta()
    key = (meta.key,) if meta.key else (meta.left_key, meta.right_key, meta.instance_key or None)
    key = tuple(part for part in key if part is not None)
    return meta.type_name, key, meta.commit_id, meta.deleted is True, fingerprint(vars(obj))


# -- questions ------------------------------------------------------------------------------------

Spot = tuple[type, str, type]
"""Whose field it is, seen from where, and the class that has it."""


def places(root: type, hops: tuple[type, ...] = ()) -> list[Spot]:
    """What a question may speak of; a relation walked twice would be ambiguous."""
    found: list[Spot] = [(root, "own", root)]
    for relation in (*hops, root):
        if relation in ENDS and hops.count(relation) < 2:
            first, second = ENDS[relation]
            found += [(relation, "left", first), (relation, "right", second)]
            found += [(relation, "own", relation)] if relation in hops else []
    return found


def walk(value: Any, steps: Iterable[str | int]) -> Any:
    """The value inside a JSON value; None where there is none."""
    for step in steps:
        fits = isinstance(value, dict if isinstance(step, str) else list)
        if not fits or (step not in value if isinstance(step, str) else step >= len(value)):
            return None
        value = value[step]
    return value


@dataclass(frozen=True)
class Term:
    """A value of an item."""

    owner: type
    side: str
    name: str
    kind: Kind
    steps: tuple[str | int, ...] = ()
    each: tuple[str | int, ...] | None = None

    def __repr__(self) -> str:
        return repr(self.expr)

    @property
    def expr(self) -> Any:
        start: Any = {"own": lambda cls: cls, "left": left, "right": right}[self.side](self.owner)
        expr = getattr(start, self.name)
        if self.steps and all(isinstance(s, str) and "." not in s for s in self.steps):
            expr = expr.path(".".join(map(str, self.steps)))
        else:
            for step in self.steps:
                expr = expr[step]
        if self.each is not None:
            expr = expr.any_path(self.each[0])
            for step in self.each[1:]:
                expr = expr[step]
        return expr

    def of(self, row: Row | None) -> Any:
        return None if row is None else walk(row.values[self.name], self.steps)

    def value(self, item: Item) -> Any:
        return self.of(item.places[self.owner, self.side])


def sort_key(value: Any) -> tuple[int, Any]:
    """Missing, then false and true, numbers, text (and what is kept as text), the rest."""
    if value is None:
        return 0, 0
    if isinstance(value, bool):
        return 1, value
    if isinstance(value, int | float | Decimal):
        return 2, value
    if isinstance(value, dict | list):
        return 4, encode(value)
    return 3, value.value if isinstance(value, Enum) else value


@dataclass(frozen=True)
class Leaf:
    """One statement about one value."""

    term: Term
    op: str
    operand: Any = None

    @property
    def condition(self) -> Any:
        if self.op in COMPARED:
            return COMPARED[self.op](self.term.expr, self.operand)
        given = () if self.operand is None else (self.operand,)
        return getattr(self.term.expr, self.op)(*given)

    def holds(self, item: Item) -> bool | None:
        row = item.places[self.term.owner, self.term.side]
        if row is None:
            return None
        found = self.term.of(row)
        if self.term.each is None:
            return self.fits(found)
        listed = found if isinstance(found, list) else []
        return any(self.fits(walk(e, self.term.each)) for e in listed if isinstance(e, dict))

    def fits(self, found: Any) -> bool | None:
        """Whether the statement is true of this value; None where that is unknown."""
        match self.op:
            case "is_null" | "is_not_null":
                return (found is None) is (self.op == "is_null")
            case "is_true" | "is_false":
                return found is (self.op == "is_true")
            case "in_" if not self.operand:
                return False
            case _ if found is None:
                return None
            case "in_":
                return any(self._equal(found, value) for value in self.operand)
            case "==" | "!=":
                return self._equal(found, self.operand) is (self.op == "==")
            case _ if self.op in TEXTUAL:
                return TEXTUAL[self.op](found, self.operand) if isinstance(found, str) else None
            case _:
                mine, other = self._sides(found, self.operand)
                return ORDERED[self.op](mine[1], other[1]) if mine[0] == other[0] < 4 else None

    def _equal(self, found: Any, value: Any) -> bool:
        mine, other = self._sides(found, value)
        return mine == other

    def _sides(self, found: Any, value: Any) -> tuple[tuple[int, Any], tuple[int, Any]]:
        if isinstance(found, Decimal) and isinstance(value, float):
            value = Decimal(str(value))
        return sort_key(found), sort_key(value)


@dataclass(frozen=True)
class Both:
    parts: tuple[Any, ...]

    @property
    def condition(self) -> Any:
        return functools.reduce(operator.and_, [part.condition for part in self.parts])

    def holds(self, item: Item) -> bool | None:
        found = [part.holds(item) for part in self.parts]
        return False if False in found else None if None in found else True


@dataclass(frozen=True)
class Either:
    parts: tuple[Any, ...]

    @property
    def condition(self) -> Any:
        return functools.reduce(operator.or_, [part.condition for part in self.parts])

    def holds(self, item: Item) -> bool | None:
        found = [part.holds(item) for part in self.parts]
        return True if True in found else None if None in found else False


@dataclass(frozen=True)
class No:
    part: Any

    @property
    def condition(self) -> Any:
        return ~self.part.condition

    def holds(self, item: Item) -> bool | None:
        found = self.part.holds(item)
        return None if found is None else not found


@dataclass(frozen=True)
class Asked:
    """A question for objects or for ways."""

    root: type
    hops: tuple[type, ...] = ()
    claims: tuple[Any, ...] = ()
    orders: tuple[tuple[Term, bool], ...] = ()
    limit: int | None = None
    offset: int | None = None
    as_of: int | None = None
    since: int | None = None
    """All versions after this commit; -1 is `with_history`."""

    def query(self, builder: QueryBuilder) -> Any:
        start: Any = builder.relations if self.root in ENDS else builder.entities
        query = start(self.root)
        for hop in self.hops:
            query = query.via(hop)
        query = query.where(*(claim.condition for claim in self.claims))
        query = query.order_by(
            *(term.expr.desc() if down else term.expr for term, down in self.orders)
        )
        for name in ("limit", "offset", "as_of"):
            if getattr(self, name) is not None:
                query = getattr(query, name)(getattr(self, name))
        if self.since is not None:
            query = query.with_history() if self.since < 0 else query.history_since(self.since)
        return query

    def matching(self, world: World) -> list[Item]:
        """What satisfies the conditions."""
        if self.hops:
            every = world.walks(self.root, self.hops, self.as_of)
        else:
            every = world.items(self.root, self.as_of, self.since)
        return [item for item in every if all(claim.holds(item) is True for claim in self.claims)]

    def answer(self, world: World) -> list[Item]:
        """That, in order, and no more than was asked for."""
        found = sorted(self.matching(world), key=lambda item: item.order)
        for term, down in reversed(self.orders):
            found.sort(key=lambda item: sort_key(term.value(item)), reverse=down)
        found = found[self.offset or 0 :]
        return found if self.limit is None else found[: self.limit]


def _drawn_values(history: History, cls: type, name: str) -> list[Any]:
    return [values[name] for batch in history for c, values, _ in batch if c is cls]


def _ways_in(value: Any, most: int = 3) -> list[tuple[str | int, ...]]:
    """The paths of everything inside a JSON value."""
    if most == 0 or not isinstance(value, dict | list):
        return [()]
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return [(), *((step, *way) for step, part in parts for way in _ways_in(part, most - 1))]


@st.composite
def terms(
    draw: Any,
    where: list[Spot],
    history: History,
    fits: Callable[[Kind], bool] = lambda kind: True,
    *,
    each: bool = False,
) -> Term:
    """A field of one of these places; inside JSON, mostly something that is really there."""
    fields = [
        (*spot, name, kind)
        for spot in where
        for name, kind in FIELDS[spot[2]].items()
        for _ in range(4 if kind.json else 2 if kind.number else 1)
        if fits(kind)
    ]
    owner, side, cls, name, kind = draw(st.sampled_from(fields))
    if not kind.json:
        return Term(owner, side, name, kind)
    documents = _drawn_values(history, cls, name)
    there = [(way, walk(document, way)) for document in documents for way in _ways_in(document)]
    names = st.sampled_from(NAMES)
    if each and draw(st.booleans()):
        lists = [way for way, value in there if isinstance(value, list)]
        inner = st.tuples(names.filter(lambda name: "." not in name))
        inner |= st.tuples(st.sampled_from("ab"), names | st.integers(0, 2))
        return Term(owner, side, name, FREE, draw(st.sampled_from(lists or [()])), draw(inner))
    steps = st.lists(names | st.integers(0, 2), max_size=3).map(tuple)
    steps |= st.sampled_from([way for way, _ in there] or [()])
    return Term(owner, side, name, FREE, draw(steps))


@st.composite
def leaves(draw: Any, where: list[Spot], history: History, ops: Container[str] = ALL_OPS) -> Leaf:
    """A statement, about a value that was drawn as often as about any other."""
    term = draw(terms(where, history, lambda kind: any(o in ops for o in kind.ops), each=True))
    kind = term.kind
    op = draw(st.sampled_from([op for op in kind.ops if op in ops]))
    if op.startswith("is_"):
        return Leaf(term, op)
    there = _there(term, where, history)
    if op in TEXTUAL:
        text = draw(st.sampled_from([v for v in there if isinstance(v, str)] + TEXTS))
        if op in LIKE:
            return Leaf(term, op, any_pattern(Random(draw(st.integers(0, 2**32))), text))
        start = draw(st.integers(0, len(text)))
        return Leaf(term, op, draw(st.sampled_from([text[start:], text[:start]])))
    literal = st.sampled_from(kind.pool if kind.literals is None else kind.literals)
    literal = literal | st.sampled_from(there) if there else literal
    if op == "in_":
        return Leaf(term, op, tuple(draw(st.lists(literal, max_size=3))))
    if op in ORDERED:
        literal = literal.filter(lambda value: not isinstance(value, bool))
    return Leaf(term, op, draw(literal))


def _there(term: Term, where: list[Spot], history: History) -> list[Any]:
    """The single values that were drawn at that place."""
    [cls] = [cls for owner, side, cls in where if (owner, side) == (term.owner, term.side)]
    found = [walk(value, term.steps) for value in _drawn_values(history, cls, term.name)]
    if term.each is not None:
        listed = [value for value in found if isinstance(value, list)]
        found = [walk(element, term.each) for value in listed for element in value]
    return [value for value in found if value is not None and not isinstance(value, dict | list)]


@st.composite
def claims(draw: Any, where: list[Spot], history: History, depth: int = 3) -> Any:
    """A statement, or statements joined with `&`, `|` and `~`."""
    shapes = ["leaf", "leaf", "leaf", "and", "or", "or", "not"]
    shape = draw(st.sampled_from(shapes)) if depth else "leaf"
    if shape == "leaf":
        return draw(leaves(where, history))
    inner = claims(where, history, depth - 1)
    if shape == "not":
        return No(draw(inner))
    parts = tuple(draw(st.lists(inner, min_size=2, max_size=3)))
    return Both(parts) if shape == "and" else Either(parts)
