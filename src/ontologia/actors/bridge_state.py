"""`State.*`: what is stored, for programs that know types by their names."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ontologia.actors.bridge_events import EventData, row_of
from ontologia.actors.capability import Capability
from ontologia.actors.message import Message
from ontologia.actors.storing import Data, Place, StoreActor
from ontologia.commands.domain import condition, orders
from ontologia.errors import InvalidValueError, NotFoundError
from ontologia.runtime.commits import WriteRequest
from ontologia.schema.expression import And, Condition
from ontologia.schema.shape import Shape
from ontologia.schema.stored import plain
from ontologia.store.rows import Announcement

_MOST = 10_000
Limit = Annotated[int, Field(ge=1, le=_MOST, strict=True)]
Number = Annotated[int, Field(ge=0, strict=True)]


class Named(Data):
    """One object: an entity by its `key`, a relation by `left`, `right` and perhaps `instance`."""

    type: str
    key: Any = None
    left: Any = None
    right: Any = None
    instance: Any = None

    @model_validator(mode="after")
    def _entity_or_relation(self) -> Self:
        ends = (self.left is None) + (self.right is None)
        if (self.key is None) == (ends == 2) or ends == 1:
            raise ValueError("give the key of an entity, or left and right of a relation")
        return self


class GetData(Named):
    """Which, and as of which commit."""

    as_of: Number | None = None


class HistoryData(Named):
    """Which, and from which commit on."""

    since: Number | None = None
    limit: Limit = _MOST


class QueryData(Data):
    """Of one type, those for which all of `where` holds: `[["tier", "=", "gold"]]`."""

    type: str
    where: list[Any] = Field(default_factory=list[Any])
    order_by: str | None = None
    limit: Limit = 100
    offset: Number = 0
    as_of: Number | None = None


class Wanted(Data):
    """An object as it should be, with all its fields."""

    type: str
    fields: dict[str, Any]
    left: Any = None
    right: Any = None


class EnsureData(Data):
    """What should be true, what should not be there, and the event that says so: all or nothing."""

    objects: list[Wanted] = Field(default_factory=list[Wanted])
    delete: list[Named] = Field(default_factory=list[Named])
    event: EventData | None = None
    expected_head: Number | None = None


class StateGet(Message):
    """One object; error 404 if it is not there."""

    kind: Literal["query"]
    type: Literal["State.Get"]
    data: GetData


class StateQuery(Message):
    """Objects of a type, as `{objects}`."""

    kind: Literal["query"]
    type: Literal["State.Query"]
    data: QueryData


class StateHistory(Message):
    """All versions of one object, the oldest first, as `{versions}`."""

    kind: Literal["query"]
    type: Literal["State.History"]
    data: HistoryData


class StateEnsure(Message):
    """One commit; answered with `{commitId, eventId}`, both null if nothing was to be written."""

    kind: Literal["command"]
    type: Literal["State.Ensure"]
    data: EnsureData


class StateActor(StoreActor):
    """Reads, and writes in the order in which it is asked."""

    def answer(self, message: StateGet | StateQuery | StateHistory | StateEnsure) -> dict[str, Any]:
        """What is stored, or was written."""
        if isinstance(message, StateGet):
            return self._get(message.data)
        if isinstance(message, StateQuery):
            return {"objects": [_shown(each) for each in self._query(message.data)]}
        if isinstance(message, StateHistory):
            return {"versions": [_shown(each) for each in self._history(message.data)]}
        return self._ensure(message.data, message)

    def _get(self, data: GetData) -> dict[str, Any]:
        cls = self.place.type(data.type)
        query = self._question(cls).where(_is(cls.__shape__, data))
        found = (query if data.as_of is None else query.as_of(data.as_of)).first()
        if found is None:
            raise NotFoundError(f"there is no {data.type} {_key(data)}")
        return _shown(found)

    def _query(self, data: QueryData) -> list[Any]:
        cls = self.place.type(data.type)
        shape: Shape = cls.__shape__
        query = self._question(cls)
        where = condition(shape, data.where)
        query = query if where is None else query.where(where)
        if data.order_by is not None:
            query = query.order_by(*orders(shape, data.order_by))
        if data.as_of is not None:
            query = query.as_of(data.as_of)
        found: list[Any] = query.limit(data.limit).offset(data.offset).collect()
        return found

    def _history(self, data: HistoryData) -> list[Any]:
        cls = self.place.type(data.type)
        query = self._question(cls).where(_is(cls.__shape__, data))
        query = query.with_history() if data.since is None else query.history_since(data.since)
        found: list[Any] = query.limit(data.limit).collect()
        if not found and data.since is None:
            raise NotFoundError(f"there never was a {data.type} {_key(data)}")
        return found

    def _ensure(self, data: EnsureData, message: Message) -> dict[str, Any]:
        intents = self.session._new_intents()
        for wanted in data.objects:
            cls = self.place.type(wanted.type)
            ends = {
                f"{side}_key": end
                for side, end in (("left", wanted.left), ("right", wanted.right))
                if end is not None
            }
            intents.ensure(cls(**wanted.fields, **ends))
        for named in data.delete:
            intents.delete(_to_delete(self.place.type(named.type), named))
        said = [] if data.event is None else [row_of(self.session, data.event, message)]
        written = self.session._commits.write(
            WriteRequest(
                intents.snapshot(),
                self.session._metadata() | {"message_id": message.metadata.id},
                [Announcement(row) for row in said],
                expected_head=data.expected_head,
            )
        )
        if said:
            self.session._store.events.wake()
        event_id = written.stored[0].id if written.stored else None
        return {"commitId": written.commit_id, "eventId": event_id}

    def _question(self, cls: type[Any]) -> Any:
        shape: Shape = cls.__shape__
        query = self.session.query()
        return query.entities(cls) if shape.kind == "entity" else query.relations(cls)


def _is(shape: Shape, named: Named) -> Condition:
    parts: list[Any] = [
        shape.expression(name) == value for name, value in _key_fields(shape, named).items()
    ]
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _to_delete(cls: type[Any], named: Named) -> Any:
    """An object of which only the key is known, which is all that a deletion looks at."""
    obj: Any = object.__new__(cls)
    object.__setattr__(obj, "__dict__", _key_fields(cls.__shape__, named))
    return obj


def _key_fields(shape: Shape, named: Named) -> dict[str, Any]:
    """The fields that say which object it is; InvalidValueError if they do not fit its type."""
    if shape.kind == "entity":
        given = {shape.key or "": named.key}
    else:
        given = {"left_key": named.left, "right_key": named.right}
        if shape.instance_key is not None:
            given[shape.instance_key] = named.instance
    if (named.key is None) is (shape.kind == "entity") or None in given.values():
        needed = "its key" if shape.kind == "entity" else "left and right"
        more = "" if shape.instance_key is None else f", and its {shape.instance_key} as instance"
        raise InvalidValueError(f"{shape.name} is a {shape.kind}; give {needed}{more}")
    return {name: shape.validate_one(name, value) for name, value in given.items()}


def _key(named: Named) -> str:
    if named.key is not None:
        return repr(named.key)
    ends = f"from {named.left!r} to {named.right!r}"
    return ends if named.instance is None else f"{ends}, {named.instance!r}"


def _shown(obj: Any) -> dict[str, Any]:
    meta, shape = obj.meta(), type(obj).__shape__
    keys = {"key": meta.key}
    if shape.kind == "relation":
        keys = {"left": meta.left_key, "right": meta.right_key}
        if shape.instance_key is not None:
            keys["instance"] = meta.instance_key
    shown = {"type": shape.name, **keys, "commitId": meta.commit_id}
    deleted = {"deleted": True} if meta.deleted else {}
    return {**shown, **deleted, "fields": plain(shape, obj.__dict__)}


def state(place: Place) -> Capability:
    """The capability."""
    return Capability(
        "state",
        "Reads and writes entities and relations of the store",
        inbound=StateGet | StateQuery | StateHistory | StateEnsure,
        outbound=Message,
        subscribes=(),
        spawn=lambda: StateActor(place),
    )
