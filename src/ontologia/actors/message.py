"""Messages: what actors, adapters and the loop give to each other.

A message is a JSON object with `kind`, `type`, `data` and `metadata`, and nothing else. Whoever
sends one is parted from whoever gets it: `encode` makes bytes of it at the sender's side, and each
receiver gets an object of its own from those bytes. So nothing is shared, and what is not JSON
comes no further than the sender.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import count
from typing import Annotated, Any, Literal, Self, cast, dataclass_transform, get_args

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic._internal._model_construction import ModelMetaclass
from pydantic_core import PydanticSerializationError

from ontologia.clock import now_ms
from ontologia.codec import storable
from ontologia.errors import InvalidValueError

Kind = Literal["command", "query", "event", "reply", "error"]
KINDS: frozenset[str] = frozenset(get_args(Kind))
REQUESTS = frozenset({"command", "query"})
OUTCOMES = frozenset({"reply", "error"})
TIMEOUT_TYPE = "Sys.RequestTimeout"
"""The one command that the loop carries out itself."""
TYPE_PATTERN = r"^[A-Z][a-zA-Z0-9]*\.[A-Z][a-zA-Z0-9]*$"
_TYPE = re.compile(TYPE_PATTERN)
# Dates and dataclasses would come out as something else than they went in.
_JSON_ONLY = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS


def is_type(text: object) -> bool:
    """Whether this has the form `Domain.Action`."""
    return isinstance(text, str) and _TYPE.fullmatch(text) is not None


class Metadata(BaseModel, frozen=True):
    """Who a message is and where it comes from; further trace fields are carried along."""

    model_config = ConfigDict(extra="allow")

    id: Annotated[str, Field(min_length=1, strict=True)]
    timestamp: Annotated[int, Field(ge=0, strict=True)]
    """Milliseconds since 1970."""
    correlation: Annotated[str | None, Field(strict=True)] = None
    causation: Annotated[str | None, Field(strict=True)] = None

    def wire(self) -> dict[str, Any]:
        """As it stands in JSON: without what is not set."""
        found: dict[str, Any] = {"id": self.id, "timestamp": self.timestamp}
        if self.correlation is not None:
            found["correlation"] = self.correlation
        if self.causation is not None:
            found["causation"] = self.causation
        if self.__pydantic_extra__:
            found.update(self.__pydantic_extra__)
        return found


class ErrorData(BaseModel, frozen=True):
    """The data of an `error`: a code as in HTTP, a sentence, and the error behind it."""

    model_config = ConfigDict(extra="allow")

    code: Annotated[int, Field(ge=400, le=599, strict=True)]
    message: Annotated[str, Field(strict=True)]
    cause: ErrorData | None = None


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
        return _caused("command", type, data, cause, correlation)

    @staticmethod
    def query(
        type: str,
        data: object = None,
        *,
        cause: Message | None = None,
        correlation: str | None = None,
    ) -> Message:
        """A query: one actor answers it."""
        return _caused("query", type, data, cause, correlation)

    @staticmethod
    def event(
        type: str,
        data: object = None,
        *,
        cause: Message | None = None,
        correlation: str | None = None,
    ) -> Message:
        """An event: all who subscribed are told, and nobody answers."""
        return _caused("event", type, data, cause, correlation)

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
        return _caused("reply", self.type, data, self, None)

    def error(
        self, code: int, message: str, *, cause: Message | ErrorData | None = None, **context: Any
    ) -> Message:
        """The answer that this message failed; `context` is further JSON beside code and message."""
        behind = cause.data if isinstance(cause, Message) else cause
        found = {"code": code, "message": message, **context}
        if behind is not None:
            found["cause"] = _plain(behind) if isinstance(behind, BaseModel) else behind
        checked_error(found)
        return _caused("error", self.type, found, self, None)

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


def encode(message: Message) -> bytes:
    """The JSON of a message; InvalidValueError if its data is none."""
    parts = message.__dict__  # attributes of a model are looked up at some cost
    value = {**parts, "metadata": parts["metadata"].wire()}
    try:
        body = orjson.dumps(value, _plain, _JSON_ONLY)
        # NaN and infinity come out as null: rare enough to look again.
        if b"null" in body and not _is_finite(value):
            raise TypeError("it holds NaN or infinity, and JSON has neither")
    except (TypeError, RecursionError, PydanticSerializationError) as error:
        reason = error.__cause__ or error
        raise InvalidValueError(
            f"the {message.kind} {message.type} is not JSON: {reason}; it was not sent"
        ) from error
    return body


def explain(error: ValidationError) -> str:
    """What is wrong, and where, in one line."""
    found = [
        f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']}"
        for each in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
    return "; ".join(found[:3]) + more


def checked_error(data: object) -> None:
    """InvalidValueError unless this is the data of an error."""
    try:
        ErrorData.model_validate(_plain(data) if isinstance(data, BaseModel) else data)
    except ValidationError as error:
        raise InvalidValueError(f"not the data of an error: {explain(error)}") from None


def literals(branch: Any, field: str) -> tuple[str, ...]:
    """The literal values a class allows for `kind` or `type`; none if it allows any text."""
    found = branch.model_fields.get(field) if hasattr(branch, "model_fields") else None
    annotation = None if found is None else found.annotation
    is_literal = getattr(annotation, "__origin__", None) is Literal
    return tuple(map(str, get_args(annotation))) if is_literal else ()


def timeout_of(request_id: str) -> Message:
    """The command that ends a request which has no outcome by now."""
    return Message.command(TIMEOUT_TYPE, {"requestId": request_id})


_validate = Message.__pydantic_validator__.validate_python


class _Names:
    """Ids: a random part for each process and a number. Cheap, since every message needs one."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self._process, self._next = os.urandom(12).hex(), count(1)

    def new(self) -> str:
        return f"{self._process}-{next(self._next):x}"


_names = _Names()
new_id = _names.new
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_names.renew)


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


def _caused(
    kind: str, type: str, data: object, cause: Message | None, correlation: str | None
) -> Message:
    if cause is None:
        return made(kind, type, data, None, correlation)
    origin = cause.metadata
    return made(kind, type, data, origin.id, correlation or origin.correlation)


def _plain(value: object) -> Any:
    """What a class of pydantic stands for in JSON."""
    if isinstance(value, BaseModel):
        return value.model_dump(
            mode="json", by_alias=True, exclude_none=isinstance(value, ErrorData)
        )
    raise TypeError(f"{type(value).__name__} is not a type of JSON")


def _is_finite(value: object) -> bool:
    if isinstance(value, float):
        return storable(value)
    if isinstance(value, Mapping):
        return all(map(_is_finite, cast("Mapping[str, Any]", value).values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, cast("list[Any]", value)))
    return True
