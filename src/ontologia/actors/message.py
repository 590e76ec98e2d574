"""Messages: what actors, adapters and the loop give to each other.

A message is a JSON object with `kind`, `type`, `data` and `metadata`, and nothing else. Whoever
sends one is parted from whoever gets it: `encode` makes bytes of it at the sender's side, and each
receiver gets an object of its own from those bytes. So nothing is shared, and what is not JSON
comes no further than the sender.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, Self, cast, dataclass_transform, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic._internal._model_construction import ModelMetaclass

from ontologia.actors.packing import packed
from ontologia.actors.parts import ErrorData, Metadata, checked_error, explain, new_id, plain
from ontologia.clock import now_ms
from ontologia.errors import InvalidValueError

Kind = Literal["command", "query", "event", "reply", "error"]
KINDS: frozenset[str] = frozenset(get_args(Kind))
REQUESTS = frozenset({"command", "query"})
OUTCOMES = frozenset({"reply", "error"})
TIMEOUT_TYPE = "Sys.RequestTimeout"
"""The one command that the loop carries out itself."""
TYPE_PATTERN = r"^[A-Z][a-zA-Z0-9]*\.[A-Z][a-zA-Z0-9]*$"
_TYPE = re.compile(TYPE_PATTERN)


def is_type(text: object) -> bool:
    """Whether this has the form `Domain.Action`."""
    return isinstance(text, str) and _fits(text)


@lru_cache(1000)  # a program has few types, and says one with each message
def _fits(type: str) -> bool:
    return _TYPE.fullmatch(type) is not None


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class MessageMeta(ModelMetaclass):
    """Tells type checkers that messages are frozen, so that a class may narrow `kind` and `type`."""


class Message(BaseModel, metaclass=MessageMeta):
    """One message. Derive from it, with a Literal `kind` and `type` and a type for `data`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    type: Annotated[str, Field(pattern=TYPE_PATTERN)]
    # In the annotation and not after it: a class that narrows `data` need not repeat a default.
    data: Annotated[Any, Field(default_factory=dict)]
    metadata: Metadata

    @staticmethod
    def command(
        type: str,
        data: object = None,
        *,
        cause: Message | None = None,
        correlation: str | None = None,
    ) -> Message:
        """A command: one actor carries it out and answers."""
        return caused("command", type, data, cause, correlation)

    @staticmethod
    def query(
        type: str,
        data: object = None,
        *,
        cause: Message | None = None,
        correlation: str | None = None,
    ) -> Message:
        """A query: one actor answers it."""
        return caused("query", type, data, cause, correlation)

    @staticmethod
    def event(
        type: str,
        data: object = None,
        *,
        cause: Message | None = None,
        correlation: str | None = None,
    ) -> Message:
        """An event: all who subscribed are told, and nobody answers."""
        return caused("event", type, data, cause, correlation)

    @classmethod
    def new(
        cls, data: object = None, *, cause: Message | None = None, correlation: str | None = None
    ) -> Self:
        """A message of this class, which has one literal `kind` and one literal `type`."""
        kinds, types = literals(cls, "kind"), literals(cls, "type")
        if len(kinds) != 1 or len(types) != 1:
            raise TypeError(
                f"{cls.__name__}.new() needs a class with one literal kind and one literal type; "
                f"use Message.command(type, data), .query or .event"
            )
        message = cls.model_validate(_parts(kinds[0], types[0], data, None, correlation))
        return message if cause is None else message.caused_by(cause)

    def reply(self, data: object = None) -> Message:
        """The answer to this message."""
        return caused("reply", self.type, data, self)

    def error(
        self, code: int, message: str, *, cause: Message | ErrorData | None = None, **context: Any
    ) -> Message:
        """The answer that this message failed; `context` is further JSON beside code and message."""
        behind = cause.data if isinstance(cause, Message) else cause
        found = {"code": code, "message": message, **context}
        if behind is not None:
            found["cause"] = plain(behind) if isinstance(behind, BaseModel) else behind
        checked_error(found)
        return caused("error", self.type, found, self)

    def caused_by(self, cause: Message) -> Self:
        """The same message as a consequence of `cause`, whose correlation it takes if it has none."""
        metadata = self.metadata.wire()
        metadata["causation"] = cause.metadata.id
        if "correlation" not in metadata and cause.metadata.correlation is not None:
            metadata["correlation"] = cause.metadata.correlation
        parts = {"kind": self.kind, "type": self.type, "data": self.data, "metadata": metadata}
        return cast(Self, self.__pydantic_validator__.validate_python(parts))

    def to_json(self) -> bytes:
        """The message as one line of JSON, without the newline; InvalidValueError if it is none."""
        return encode(self)

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """The message in this JSON; InvalidValueError says what is wrong with it."""
        try:
            message = cls.__pydantic_validator__.validate_json(text)
        except ValidationError as error:
            raise InvalidValueError(f"not a message: {explain(error)}") from None
        if message.kind == "error":
            checked_error(message.data)
        return cast(Self, message)

    @classmethod
    def from_data(cls, value: Mapping[str, Any]) -> Self:
        """The message in these plain dicts and lists, as a JSON decoder gives them."""
        try:
            message = cls.model_validate(value)
        except ValidationError as error:
            raise InvalidValueError(f"not a message: {explain(error)}") from None
        if message.kind == "error":
            checked_error(message.data)
        return message


class Sealed:
    """A message that exists as JSON alone: what is sent at once needs no object."""

    __slots__ = ("body", "kind", "type")

    def __init__(self, kind: str, type: str, data: object, cause: Message | None) -> None:
        """InvalidValueError if it is no message, or its data is not JSON."""
        if not _fits(type):
            raise InvalidValueError(f"not a message: {type!r} is no type")
        self.kind, self.type = kind, type
        if cause is None:
            parts = _parts(kind, type, data, None, None)
        else:
            origin = cause.metadata
            parts = _parts(kind, type, data, origin.id, origin.correlation)
        self.body = packed(parts)


def opened(said: Message | Sealed) -> Message:
    """The message itself."""
    return Message.from_json(said.body) if isinstance(said, Sealed) else said


def encode(message: Message | Sealed) -> bytes:
    """The JSON of a message; InvalidValueError if its data is none."""
    if isinstance(message, Sealed):
        return message.body
    parts = message.__dict__  # attributes of a model are looked up at some cost
    value = {**parts, "metadata": parts["metadata"].wire()}
    return packed(value)


def literals(branch: Any, field: str) -> tuple[str, ...]:
    """The literal values a class allows for `kind` or `type`; none if it allows any text."""
    found = branch.model_fields.get(field) if hasattr(branch, "model_fields") else None
    annotation = None if found is None else found.annotation
    is_literal = getattr(annotation, "__origin__", None) is Literal
    return tuple(map(str, get_args(annotation))) if is_literal else ()


def is_answered(message: Message | Sealed) -> bool:
    """Whether it has an outcome: a command or query, but for the one that ends another."""
    if message.kind == "command":
        return message.type != TIMEOUT_TYPE
    return message.kind == "query"


def timeout_of(request_id: str) -> Message:
    """The command that ends a request which has no outcome by now."""
    return Message.command(TIMEOUT_TYPE, {"requestId": request_id})


_validate = Message.__pydantic_validator__.validate_python


def made(
    kind: str,
    type: str,
    data: object = None,
    causation: str | None = None,
    correlation: str | None = None,
) -> Message:
    """A new message, with an id and a timestamp of its own."""
    try:
        parts = _parts(kind, type, data, causation, correlation)
        return _validate(parts)  # type: ignore[no-any-return]
    except ValidationError as error:
        raise InvalidValueError(f"not a message: {explain(error)}") from None


def _parts(
    kind: str, type: str, data: object, causation: str | None, correlation: str | None
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"id": new_id(), "timestamp": now_ms()}
    if causation is not None:
        metadata["causation"] = causation
    if correlation is not None:
        metadata["correlation"] = correlation
    body = {} if data is None else data
    return {"kind": kind, "type": type, "data": body, "metadata": metadata}


def caused(
    kind: str,
    type: str,
    data: object,
    cause: Message | None,
    correlation: str | None = None,
) -> Message:
    """A new message, as a consequence of another if there is one."""
    if cause is None:
        return made(kind, type, data, None, correlation)
    origin = cause.metadata
    return made(kind, type, data, origin.id, correlation or origin.correlation)
