"""The bridge: a store for actors, and for programs in any language.

loop = ActorLoop(bridged(session, [memory]), adapters=[UnixSocketAdapter("run/ontologia.sock")])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from ontologia import codec
from ontologia.actors.capability import Capability, branches
from ontologia.actors.durable_timer import durable_timer
from ontologia.actors.message import Message, literals
from ontologia.actors.mirror import mirror
from ontologia.actors.store_actor import Data, StoreAccess, StoreActor, instant
from ontologia.commands import Command, Env
from ontologia.commands.domain import condition, orders
from ontologia.commands.replies import encoded_answer
from ontologia.commands.work import work_of
from ontologia.delivery.lineage import Lineage
from ontologia.errors import InvalidValueError, NotFoundError
from ontologia.queues.protocol import checked_name, encoded_payload
from ontologia.runtime.session import Session, core_of
from ontologia.runtime.unit import ClientUnit
from ontologia.schema.event import event_class, event_of
from ontologia.schema.expression import And, Condition
from ontologia.schema.shape import Shape
from ontologia.schema.stored import plain
from ontologia.store.events import checks
from ontologia.store.rows import Announcement, EventRow

_MOST = 10_000
Limit = Annotated[int, Field(ge=1, le=_MOST, strict=True)]
Number = Annotated[int, Field(ge=0, strict=True)]
Milliseconds = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]


def bridged(
    datastore: Session | Env, capabilities: Sequence[Capability] = (), *, name: str = "default"
) -> list[Capability]:
    """These capabilities, and those that reach a store.

    `State.Get`, `State.Query`, `State.History`, `State.Ensure`, `Event.Publish`, `Event.Inspect`,
    `Command.Dispatch`, `System.Describe`, and `Timer.Set` with `durable`. Commands are those of an
    `Env`; a session alone has none. Events of the store go to the capabilities that subscribe to
    them, once among all loops of a `name`. Session and env stay the caller's to close.
    """
    checks.name("a loop's name", name)
    env = datastore if isinstance(datastore, Env) else Env(datastore)
    store = StoreAccess(env.session)
    known = [
        durable_timer(store, name),
        _capability(
            "state",
            "Reads and writes entities and relations of the store",
            StateGet | StateQuery | StateHistory | StateEnsure,
            lambda: StateActor(store),
        ),
        _capability(
            "events",
            "Publishes and inspects events of the store",
            EventPublish | EventInspect,
            lambda: EventActor(store),
        ),
        _capability(
            "commands",
            "Carries out the commands of the program",
            CommandDispatch,
            lambda: CommandActor(store, env),
        ),
        *capabilities,
    ]
    others = [*known, mirror(env.session, name, tuple(known))]
    system: Capability = _capability(
        "system",
        "Tells what there is",
        SystemDescribe,
        # Described when it is spawned: by then the loop has validated the capabilities.
        lambda: SystemActor(store, env, [*others, system]),
    )
    return [*others, system]


def _capability(id: str, description: str, inbound: Any, spawn: Any) -> Capability:
    return Capability(
        id, description, inbound=inbound, outbound=Message, subscribes=(), spawn=spawn
    )


# -- Event.* ----------------------------------------------------------------------------------------


class EventData(Data):
    """An event: its type as it is stored, `order.placed`, and its payload."""

    type: str
    payload: dict[str, Any] = Field(default_factory=dict[str, Any])
    dedup_key: str | None = None
    """At most one event of the type has this key."""


class PublishData(EventData):
    """An event, now or for later."""

    delay_ms: Milliseconds | None = None
    due_at: Milliseconds | None = None

    @model_validator(mode="after")
    def _one_time(self) -> Self:
        if self.delay_ms is not None and self.due_at is not None:
            raise ValueError("give delayMs or dueAt, and not both")
        return self


class InspectData(Data):
    """The event to inspect."""

    event_id: str


class EventPublish(Message):
    """Store an event; answered with `{eventId, stored}`, where stored is false for a known key."""

    kind: Literal["command"]
    type: Literal["Event.Publish"]
    data: PublishData


class EventInspect(Message):
    """An event with its claims and failed attempts; error 404 if there is none."""

    kind: Literal["query"]
    type: Literal["Event.Inspect"]
    data: InspectData


class EventActor(StoreActor):
    """Publishes and inspects events."""

    def answer(self, message: EventPublish | EventInspect) -> dict[str, Any]:
        """The stored event, or its id."""
        if isinstance(message, EventPublish):
            return self._publish(message)
        wanted = message.data.event_id
        found = self.session.event_store.inspect_event(wanted, self.session.namespace)
        if found is None:
            raise NotFoundError(f"there is no event {wanted}")
        lists = {name: [_camel(each) for each in found[name]] for name in ("claims", "attempts")}
        return _camel({**found, **lists})

    def _publish(self, message: EventPublish) -> dict[str, Any]:
        data = message.data
        row = _event_row(self.session, data, message)
        stored = self.session.event_store.announce(
            row,
            delay=None if data.delay_ms is None else data.delay_ms / 1000,
            at=instant(data.due_at),
        )
        return {"eventId": stored.id, "stored": stored.id == row.id}


def _event_row(session: Session, data: EventData, message: Message) -> EventRow:
    """The row to store; validated by the event's class, if this program has one for its type."""
    type, correlation = checked_name(data.type), message.metadata.correlation
    payload = encoded_payload(type, data.payload)
    log, cls = session.event_store.log, event_class(type)
    if correlation is not None:
        checks.name("correlation", correlation)
    if cls is None:
        row = log.untyped_row(type, payload, session.namespace, dedup_key=data.dedup_key)
    else:
        event = event_of(cls, payload)
        unknown = sorted(set(data.payload) - set(cls.__event_fields__))
        if unknown:
            raise InvalidValueError(f"{type} has no field {unknown[0]!r}")
        row = log.row(event, session.namespace, Lineage(), dedup_key=data.dedup_key)
    return row if correlation is None else row._replace(correlation_id=correlation)


def _camel(names: dict[str, Any]) -> dict[str, Any]:
    return {to_camel(name): value for name, value in names.items()}


# -- State.* ----------------------------------------------------------------------------------------


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
    """One object, as of a commit."""

    as_of: Number | None = None


class HistoryData(Named):
    """One object, from a commit on."""

    since: Number | None = None
    limit: Limit = _MOST


class QueryData(Data):
    """The objects of one type for which all of `where` holds: `[["tier", "=", "gold"]]`."""

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
    """Objects to ensure, objects to delete, and an event to emit: one transaction."""

    objects: list[Wanted] = Field(default_factory=list[Wanted])
    delete: list[Named] = Field(default_factory=list[Named])
    event: EventData | None = None
    expected_head: Number | None = None


class StateGet(Message):
    """One object; error 404 if there is none."""

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
    """One commit; answered with `{commitId, eventId}`, both null if nothing had to be written."""

    kind: Literal["command"]
    type: Literal["State.Ensure"]
    data: EnsureData


class StateActor(StoreActor):
    """Reads concurrently, and writes in the order of the messages."""

    def answer(self, message: StateGet | StateQuery | StateHistory | StateEnsure) -> dict[str, Any]:
        """The objects read, or the ids of what was written."""
        if isinstance(message, StateGet):
            return self._get(message.data)
        if isinstance(message, StateQuery):
            return {"objects": [_shown(each) for each in self._query(message.data)]}
        if isinstance(message, StateHistory):
            return {"versions": [_shown(each) for each in self._history(message.data)]}
        return self._ensure(message.data, message)

    def _get(self, data: GetData) -> dict[str, Any]:
        query = self._query_one(data)
        found = (query if data.as_of is None else query.as_of(data.as_of)).first()
        if found is None:
            raise NotFoundError(f"there is no {data.type} {_key(data)}")
        return _shown(found)

    def _query(self, data: QueryData) -> list[Any]:
        cls = self.store.type(data.type)
        shape: Shape = cls.__shape__
        query = self._query_all(cls)
        where = condition(shape, data.where)
        query = query if where is None else query.where(where)
        if data.order_by is not None:
            query = query.order_by(*orders(shape, data.order_by))
        if data.as_of is not None:
            query = query.as_of(data.as_of)
        found: list[Any] = query.limit(data.limit).offset(data.offset).collect()
        return found

    def _history(self, data: HistoryData) -> list[Any]:
        query = self._query_one(data)
        query = query.with_history() if data.since is None else query.history_since(data.since)
        found: list[Any] = query.limit(data.limit).collect()
        if not found and data.since is None:
            raise NotFoundError(f"there never was a {data.type} {_key(data)}")
        return found

    def _ensure(self, data: EnsureData, message: Message) -> dict[str, Any]:
        unit = ClientUnit(core_of(self.session), {"message_id": message.metadata.id})
        for wanted in data.objects:
            cls = self.store.type(wanted.type)
            ends = {
                f"{side}_key": end
                for side, end in (("left", wanted.left), ("right", wanted.right))
                if end is not None
            }
            unit.ensure(cls(**wanted.fields, **ends))
        for named in data.delete:
            unit.delete(_to_delete(self.store.type(named.type), named))
        rows = [] if data.event is None else [_event_row(self.session, data.event, message)]
        written = unit.write([Announcement(row) for row in rows], data.expected_head)
        event_id = written.stored[0].id if written.stored else None
        return {"commitId": written.commit_id, "eventId": event_id}

    def _query_all(self, cls: type[Any]) -> Any:
        shape: Shape = cls.__shape__
        query = self.session.query()
        return query.entities(cls) if shape.kind == "entity" else query.relations(cls)

    def _query_one(self, named: Named) -> Any:
        cls = self.store.type(named.type)
        return self._query_all(cls).where(_is(cls.__shape__, named))


def _is(shape: Shape, named: Named) -> Condition:
    terms: list[Any] = [
        shape.expression(name) == value for name, value in _key_fields(shape, named).items()
    ]
    return terms[0] if len(terms) == 1 else And(tuple(terms))


def _to_delete(cls: type[Any], named: Named) -> Any:
    """An object with only its key, which is all that a deletion reads."""
    obj: Any = object.__new__(cls)
    object.__setattr__(obj, "__dict__", _key_fields(cls.__shape__, named))
    return obj


def _key_fields(shape: Shape, named: Named) -> dict[str, Any]:
    """The fields that identify the object; InvalidValueError if they do not fit its type."""
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


# -- Command.Dispatch -------------------------------------------------------------------------------


class DispatchData(Data):
    """A command of the program: its name, its payload, and the record it is about."""

    name: str
    payload: dict[str, Any] = Field(default_factory=dict[str, Any])
    model_key: str | None = None
    model_id: str | None = None
    idempotency_key: str | None = None
    """A second command with the same key does nothing and gets the first one's answer."""


class CommandDispatch(Message):
    """Carry out a command; answered with `{result}`."""

    kind: Literal["command"]
    type: Literal["Command.Dispatch"]
    data: DispatchData


class CommandActor(StoreActor):
    """Carries out commands concurrently; those about one record one after the other."""

    def __init__(self, store: StoreAccess, env: Env) -> None:
        super().__init__(store)
        self._env = env

    def may_run_concurrently(self, message: Message) -> bool:
        """Always: commands may be slow, and an `Env` isolates them from each other."""
        return True

    def answer(self, message: CommandDispatch) -> dict[str, Any]:
        """What the command returned."""
        data, env = message.data, self._env
        command = Command(data.name, data.payload, data.model_key, data.model_id)
        if data.idempotency_key is not None:
            return {"result": env.dispatch(command, idempotency_key=data.idempotency_key)}
        # Encoded within the unit of work: a command whose answer is not JSON is rolled back.
        with work_of(env).working(command):
            text = encoded_answer(command, env.dispatch(command))
        return {"result": codec.decode_stored(text)}


# -- System.Describe --------------------------------------------------------------------------------


class SystemDescribe(Message):
    """What there is: `{capabilities, commands}`, with the JSON Schema of each message."""

    kind: Literal["query"]
    type: Literal["System.Describe"]
    data: Annotated[dict[str, Any], Field(default_factory=dict[str, Any])]


class SystemActor(StoreActor):
    """Describes capabilities and commands."""

    def __init__(self, store: StoreAccess, env: Env, capabilities: Sequence[Capability]) -> None:
        super().__init__(store)
        self._described = {
            "capabilities": [_described(each) for each in capabilities],
            "commands": sorted(env.registry.commands),
        }

    def answer(self, message: SystemDescribe) -> dict[str, Any]:
        """The description."""
        return self._described


def _described(capability: Capability) -> dict[str, Any]:
    return {
        "id": capability.id,
        "description": capability.description,
        "subscribes": list(capability.subscribes),
        "handles": list(_handles(capability.inbound)),
    }


def _handles(inbound: Any) -> Iterable[dict[str, Any]]:
    for branch in branches(inbound):
        schema = branch.model_json_schema(by_alias=True)
        for kind in literals(branch, "kind"):
            for type in literals(branch, "type"):
                yield {"kind": kind, "type": type, "schema": schema}
