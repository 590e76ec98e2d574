"""What one command, with everything it sets off, has read, queued and emitted so far."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ontologia.commands.command import Command
from ontologia.query import evaluate
from ontologia.query.builder import QueryBuilder
from ontologia.query.question import Question, both
from ontologia.query.traversal import Path
from ontologia.queues import DomainEvent
from ontologia.runtime.commits import WriteRequest, Written
from ontologia.runtime.intents import Intent, Intents, Queue
from ontologia.runtime.unit import UnitOfWork
from ontologia.schema.expression import In, Not, path_of
from ontologia.schema.registry import Registry
from ontologia.schema.shape import Shape
from ontologia.store.rows import Announcement, Claim, KeptReply, ObjectKey, RawChange, TypeKey

if TYPE_CHECKING:
    from ontologia.commands.recordset import RecordSet
    from ontologia.commands.work import Work

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
    """An event that was emitted."""

    event: DomainEvent
    fire_at: float | None = None
    """The Unix time from which on it is an event; None for at once."""
    dedup_key: str | None = None


class RevertibleIntents(Intents):
    """A queue that can be rolled back."""

    def __init__(self, registry: Registry, store_id: str) -> None:
        super().__init__(registry, store_id, checked=True)
        self.replaced: list[tuple[TypeKey, ObjectKey, Intent | None]] = []
        """What was queued for an object before each change."""

    def _merge(self, newer: Queue) -> None:
        for type_key, wanted in newer.items():
            known = self._queue.get(type_key, {})
            self.replaced += ((type_key, key, known.get(key)) for key in wanted)
        super()._merge(newer)

    def roll_back(self, length: int) -> None:
        """Take back what was queued since `replaced` had this length."""
        while len(self.replaced) > length:
            type_key, key, before = self.replaced.pop()
            wanted = self._queue[type_key]
            if before is not None:
                wanted[key] = before
            else:
                del wanted[key]
                if not wanted:
                    del self._queue[type_key]


class CommandUnit(UnitOfWork):
    """The unit of work of one command. Its queries see what it has queued.

    Everything it read by key must be unchanged when it commits. An object is read once, however
    often it is asked for.
    """

    def __init__(self, work: Work, id: str) -> None:
        core = work.core
        self._drafts = RevertibleIntents(core.registry, core.store.store_id)
        super().__init__(core, self._drafts)
        self.id = id
        self.name: str | None = None
        """The command it began with."""
        self.frames: list[Frame] = []
        self.hooking: frozenset[tuple[str, str | None, str | None]] = frozenset()
        """What hooks are running for: they do not run again for what they do themselves."""
        self.events: list[Emitted] = []
        self.tracked: list[Emitted] = []
        """The events of tracked fields that the commit changed."""
        self.reply: KeptReply | None = None
        """What is answered to the request that it does."""
        self._work = work
        self._thread: int | None = threading.get_ident()
        self._seen: dict[tuple[Shape, ObjectKey], Any] = {}
        """Objects as they were read, None where there was none."""

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

    def mark(self) -> tuple[int, int]:
        """A point to roll back to."""
        return len(self._drafts.replaced), len(self.events)

    def roll_back(self, mark: tuple[int, int]) -> None:
        """Take back what was queued and emitted since then."""
        self._drafts.roll_back(mark[0])
        del self.events[mark[1] :]

    # -- the commit -----------------------------------------------------------------------------

    write = UnitOfWork._write

    def _send(self, request: WriteRequest) -> Written:
        if not (request.queue or self.events or self.reply):
            return Written(None, [])  # what was only read need not be unchanged
        request.reads = {
            type_key: {
                key: version
                for key, version in versions.items()
                # One that is created must not be there, which is no conflict but RecordExists.
                if (intent := request.queue.get(type_key, {}).get(key)) is None
                or not intent.creates
            }
            for type_key, versions in request.reads.items()
        }
        announcing, claim = self._work.announcing, request.claim
        request.announcements = announcing.within(self.events, claim)
        request.source = f"command:{self.name}"
        request.reply = self.reply

        def tracked_changes(changes: Sequence[RawChange]) -> list[Announcement]:
            self.tracked = list(announcing.field_changes(self, changes))
            return announcing.within(self.tracked, claim)

        request.derive = tracked_changes
        return super()._send(request)

    def _fence(self) -> Claim | None:
        return self._work.announcing.claim()

    def _metadata(self) -> dict[str, Any]:
        metadata = super()._metadata() | {"command": self.name, "command_id": self.id}
        if (tenant_id := self._work.env.tenant_id) is not None:
            metadata["tenant_id"] = tenant_id
        return metadata

    # -- records --------------------------------------------------------------------------------

    def records(self, shape: Shape, ids: Sequence[str]) -> list[Any]:
        """These records, each an instance of its own; None where there is none.

        One statement for those that were not read before.
        """
        queued = self._intents.of(shape)
        missing = [id for id in ids if (id,) not in queued and (shape, (id,)) not in self._seen]
        if missing:
            key = shape.expression(shape.key or "")
            where = key == missing[0] if len(missing) == 1 else key.in_(missing)
            read = self._core.reader.objects(Question(shape, where=where))
            found = {obj.id: obj for obj in read}
            self._seen.update({(shape, (id,)): found.get(id) for id in missing})
        return [self._get(shape, (id,)) for id in ids]

    def knows(self, shape: Shape, id: str) -> bool:
        """Whether a record is there, as far as that is known without reading it."""
        intent = self._intents.of(shape).get((id,))
        if intent is not None:
            return intent.fields is not None
        return self._seen.get((shape, (id,))) is not None

    def _read(self, shape: Shape, place: ObjectKey) -> Any:
        if (shape, place) not in self._seen:
            self._seen[shape, place] = super()._read(shape, place)
        found = self._seen[shape, place]
        return None if found is None else _copied(found)

    # -- questions: query.builder.Answers ---------------------------------------------------------

    def query(self) -> QueryBuilder:
        """Ask for records; what was written here counts."""
        return QueryBuilder(self)

    def objects(self, question: Question) -> list[Any]:
        """The objects asked for."""
        mine = self._mine(question)
        if not mine:
            found = self._core.reader.objects(question)
        else:
            last = None if question.limit is None else question.offset + question.limit
            others = self._core.reader.objects(
                _without(question, mine)._replace(limit=last, offset=0)
            )
            items = self._items(question, others) + self._matching(question, mine)
            found = [item.payload for item in evaluate.answer(question._replace(where=None), items)]
        if not question.historical:
            for obj in found:
                if obj.id not in mine:  # it need not be read again
                    self._seen.setdefault((question.shape, (obj.id,)), obj)
        return found

    def paths(self, question: Question) -> list[Path[Any]]:
        """The ways asked for, as they are stored."""
        return self._core.reader.paths(question)

    def groups(self, question: Question) -> list[dict[str, Any]]:
        """One dict a group. Where records were written here, the others are read to group them."""
        mine = self._mine(question)
        if not mine:
            return self._core.reader.groups(question)
        own = self._matching(question, mine)
        if not question.group_by and [f.function for _, f in question.aggregates] == ["count"]:
            [row] = self._core.reader.groups(_without(question, mine))
            return [{alias: number + len(own) for alias, number in row.items()}]
        plain = Question(question.shape, where=question.where)
        others = self._items(plain, self._core.reader.objects(_without(plain, mine)))
        rows = evaluate.groups(question._replace(where=None), others + own)
        return self._core.reader.named(question, rows)

    def _mine(self, question: Question) -> dict[str, Intent]:
        """What was written here and may be part of the answer, by id."""
        if question.historical or question.hops:
            return {}
        return {id: intent for (id, *_), intent in self._intents.of(question.shape).items()}

    def _matching(self, question: Question, mine: dict[str, Intent]) -> list[evaluate.Item]:
        made = [
            self._core.reader.queued(question.shape, (id,), intent.fields, None)
            for id, intent in mine.items()
            if intent.fields is not None
        ]
        return evaluate.matching(question, self._items(question, made))

    def _items(self, question: Question, objects: Iterable[Any]) -> list[evaluate.Item]:
        return [self._core.reader.item(question, obj) for obj in objects]


def _without(question: Question, mine: dict[str, Intent]) -> Question:
    key = path_of(question.shape.expression(question.shape.key or ""))
    return question._replace(where=both(question.where, Not(In(key, tuple(mine)))))


_FIXED = (str, int, float, bool, type(None))


def _copied(obj: Any) -> Any:
    """An instance to change without changing this one: few fields hold anything that can be."""
    made = obj.__copy__()
    values = made.__dict__
    for name, value in values.items():
        if not isinstance(value, _FIXED):
            values[name] = copy.deepcopy(value)
    return made
