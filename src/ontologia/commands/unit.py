"""What one command, with everything it sets off, has read, written and announced so far."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from ontologia.commands.command import Command
from ontologia.errors import InvalidValueError, RecordExists, RecordNotFound
from ontologia.query import evaluate
from ontologia.query.builder import QueryBuilder
from ontologia.query.question import Question, both
from ontologia.query.traversal import Path
from ontologia.queues import DomainEvent
from ontologia.runtime.intents import ABSENT, Intent, Versions
from ontologia.schema.expression import In, Not
from ontologia.schema.shape import Shape
from ontologia.store.database import Tx
from ontologia.store.rows import ObjectKey, TypeKey

if TYPE_CHECKING:
    from ontologia.commands.recordset import RecordSet
    from ontologia.runtime.session import Session

Fields = dict[str, Any]
Place = tuple[str, str]
"""(model key, record id)"""
_DEEPEST = 40


class Frame:
    """One command that is being carried out."""

    __slots__ = ("command", "record")

    def __init__(self, command: Command, record: RecordSet | None) -> None:
        self.command = command
        self.record = record

    @property
    def place(self) -> tuple[str, str | None, str | None]:
        """What it does, and to which record."""
        id = None if self.record is None else self.record.id
        return (self.command.name, self.command.model_key, id)


class Emitted(NamedTuple):
    """An event that was announced."""

    event: DomainEvent
    fire_at: float | None = None
    """The Unix time from which on it is an event; None for at once."""
    dedup_key: str | None = None


class Mark(NamedTuple):
    """A point to go back to."""

    drafts: int
    events: int


class CommandUnit:
    """The unit of work of one command. Its queries see what it has written.

    Nothing of it is in the store before its end. What it read must be unchanged by then.
    """

    def __init__(self, session: Session, id: str) -> None:
        self.id = id
        self.name: str | None = None
        """The command it began with."""
        self.frames: list[Frame] = []
        self.hooking: frozenset[tuple[str, str | None, str | None]] = frozenset()
        """What hooks are running for: they do not run again for what they do themselves."""
        self.events: list[Emitted] = []
        self.also: Callable[[Tx], None] | None = None
        """Something else to write at the end."""
        self._thread: int | None = threading.get_ident()
        self.intents = session._new_intents(checked=True)
        self._reader = session._reader
        self._read: dict[Place, Any] = {}
        """Records as they were read, None where there was none: read once, however often asked."""
        self._undo: list[tuple[TypeKey, ObjectKey, Intent | None]] = []

    # -- its life -------------------------------------------------------------------------------

    def is_going_on(self) -> bool:
        """Whether what is done here and now is part of it.

        Contexts are copied: into threads (`asyncio.to_thread`), and into tasks that outlive it.
        What happens there is not part of it, and must not be lost in it.
        """
        return self._thread == threading.get_ident()

    def end(self) -> None:
        """Take up nothing more."""
        self._thread = None

    # -- the commands in it ---------------------------------------------------------------------

    def enter(self, frame: Frame) -> None:
        """Begin to carry out a command."""
        if len(self.frames) >= _DEEPEST:
            names = " > ".join(each.command.name for each in self.frames[-4:])
            raise RecursionError(f"commands call each other more than {_DEEPEST} deep: … {names}")
        self.name = self.name or frame.command.name
        self.frames.append(frame)

    def mark(self) -> Mark:
        """A point to go back to."""
        return Mark(len(self._undo), len(self.events))

    def roll_back(self, mark: Mark) -> None:
        """Take back what was written and announced since then."""
        while len(self._undo) > mark.drafts:
            self.intents.put(*self._undo.pop())
        del self.events[mark.events :]

    # -- records --------------------------------------------------------------------------------

    def fields(self, shape: Shape, ids: Sequence[str]) -> list[Fields | None]:
        """The fields of these records, as copies; None where there is no record.

        One statement for those that were not read before.
        """
        missing = [id for id in ids if not self._has(shape, id)]
        if missing:
            key = shape.expression(shape.key or "")
            where = key == missing[0] if len(missing) == 1 else key.in_(missing)
            found = {obj.id: obj for obj in self._reader.objects(Question(shape, where=where))}
            self._read.update({(shape.name, id): found.get(id) for id in missing})
        return [self._look(shape, id) for id in ids]

    def _has(self, shape: Shape, id: str) -> bool:
        return (id,) in self.intents.of(shape) or (shape.name, id) in self._read

    def _look(self, shape: Shape, id: str) -> Fields | None:
        intent = self.intents.of(shape).get((id,))
        if intent is not None:
            return _fields(shape, intent)
        read = self._read[shape.name, id]
        self.intents.note(shape, (id,), ABSENT if read is None else read._version[0])
        return None if read is None else _copy(read.__dict__)

    def create(self, shape: Shape, values: Fields) -> Fields:
        """Write a new record; RecordExists, here or at the end, if there is one of its id."""
        fields = shape.validate(values)
        id: str = fields["id"]
        intent = self.intents.of(shape).get((id,))
        known = self._read.get((shape.name, id)) if intent is None else intent.fields
        if known is not None:
            raise RecordExists(shape.name, id)
        text = shape.dump(fields)
        if intent is not None:  # deleted before
            self._put(shape, id, intent._replace(fields=text))
        else:
            self._put(shape, id, Intent(text, ABSENT, creates=True))
        return fields

    def update(self, shape: Shape, id: str, values: Fields) -> Fields:
        """Change some fields of a record."""
        [fields] = self.fields(shape, [id])
        if fields is None:
            raise RecordNotFound(shape.name, [id])
        for name in values:
            if not shape.has(name):
                raise InvalidValueError(
                    f"{shape.name}: {name!r} is not a field (it has {', '.join(shape.fields)})"
                )
        fields |= shape.assigned(fields, values)
        self._put(shape, id, self._changed(shape, id, shape.dump(fields)))
        return fields

    def delete(self, shape: Shape, id: str) -> None:
        """Write that a record is no more."""
        [fields] = self.fields(shape, [id])
        if fields is None:
            raise RecordNotFound(shape.name, [id])
        self._put(shape, id, self._changed(shape, id, None))

    def _changed(self, shape: Shape, id: str, text: str | None) -> Intent:
        """The intent for a record that is there, or that this unit creates."""
        before = self.intents.of(shape).get((id,))
        return Intent(text) if before is None else before._replace(fields=text)

    def _put(self, shape: Shape, id: str, intent: Intent) -> None:
        type_key: TypeKey = (shape.kind, shape.name)
        self._undo.append((type_key, (id,), self.intents.put(type_key, (id,), intent)))

    def reads(self) -> Versions:
        """What must be unchanged at the end; a record that is created must not be there."""
        return {
            type_key: {
                key: version
                for key, version in versions.items()
                if not self.intents.creates(type_key, key)
            }
            for type_key, versions in self.intents.reads.items()
        }

    # -- questions: query.builder.Answers ---------------------------------------------------------

    def query(self) -> QueryBuilder:
        """Ask for records; what was written here counts."""
        return QueryBuilder(self)

    def objects(self, question: Question) -> list[Any]:
        """The objects asked for."""
        mine = self._mine(question)
        if not mine:
            found = self._reader.objects(question)
        else:
            last = None if question.limit is None else question.offset + question.limit
            others = self._reader.objects(_without(question, mine)._replace(limit=last, offset=0))
            items = self._items(question, others) + self._matching(question, mine)
            found = [item.payload for item in evaluate.answer(question._replace(where=None), items)]
        if not question.historical:
            self._remember(question.shape, found)
        return found

    def paths(self, question: Question) -> list[Path[Any]]:
        """The ways asked for, as they are stored."""
        return self._reader.paths(question)

    def groups(self, question: Question) -> list[dict[str, Any]]:
        """One dict a group. Where records were written here, the others are read to group them."""
        mine = self._mine(question)
        if not mine:
            return self._reader.groups(question)
        own = self._matching(question, mine)
        if not question.group_by and [f.function for _, f in question.aggregates] == ["count"]:
            [row] = self._reader.groups(_without(question, mine))
            return [{alias: number + len(own) for alias, number in row.items()}]
        plain = Question(question.shape, where=question.where)
        others = self._items(plain, self._reader.objects(_without(plain, mine)))
        rows = evaluate.groups(question._replace(where=None), others + own)
        return self._reader.named(question, rows)

    def _mine(self, question: Question) -> dict[str, Intent]:
        """What was written here and may be part of the answer, by id."""
        if question.historical or question.hops:
            return {}
        return {id: intent for (id, *_), intent in self.intents.of(question.shape).items()}

    def _matching(self, question: Question, mine: dict[str, Intent]) -> list[evaluate.Item]:
        made = [
            self._reader.queued(question.shape, (id,), intent.fields, None)
            for id, intent in mine.items()
            if intent.fields is not None
        ]
        return evaluate.matching(question, self._items(question, made))

    def _items(self, question: Question, objects: Iterable[Any]) -> list[evaluate.Item]:
        return [self._reader.item(question, obj) for obj in objects]

    def _remember(self, shape: Shape, found: Iterable[Any]) -> None:
        """What was found need not be read again."""
        for obj in found:
            if not self._has(shape, obj.id):
                self._read[shape.name, obj.id] = obj


def _without(question: Question, mine: dict[str, Intent]) -> Question:
    key = question.shape.expression(question.shape.key or "")._path
    return question._replace(where=both(question.where, Not(In(key, tuple(mine)))))


_FIXED = (str, int, float, bool, type(None))


def _copy(fields: Fields) -> Fields:
    """Fields that can be changed without changing these: few hold anything that can."""
    return {
        name: value if isinstance(value, _FIXED) else copy.deepcopy(value)
        for name, value in fields.items()
    }


def _fields(shape: Shape, intent: Intent) -> Fields | None:
    if intent.fields is None:
        return None
    fields: Fields = orjson.loads(intent.fields)
    return shape.decode(fields)
