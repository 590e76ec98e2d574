"""Messages between actors, adapters and the loop.

A message is a JSON object with `kind`, `type`, `data` and `metadata`, and nothing else. Sender and
receivers share no object: `encode` makes bytes on the sender's side, and each receiver gets its own
object, decoded from those bytes. Data that is not JSON fails at the sender.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from typing import Annotated, Any, Literal, Self, cast, dataclass_transform, get_args

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic._internal._model_construction import ModelMetaclass
from pydantic_core import PydanticSerializationError

from ontologia.clock import now_ms
from ontologia.codec import storable
from ontologia.errors import InvalidValueError
from ontologia.forking import in_forked_child

Kind = Literal["command", "query", "event", "reply", "error"]
KINDS: frozenset[str] = frozenset(get_args(Kind))
REQUESTS = frozenset({"command", "query"})
OUTCOMES = frozenset({"reply", "error"})
TIMEOUT_TYPE = "Sys.RequestTimeout"
"""The one command that the loop handles itself."""
TYPE_PATTERN = r"^[A-Z][a-zA-Z0-9]*\.[A-Z][a-zA-Z0-9]*$"
_TYPE = re.compile(TYPE_PATTERN)
# Dates and dataclasses would be decoded as another type than was encoded.
_JSON_ONLY = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS


def is_type(text: object) -> bool:
    """Whether this has the form `Domain.Action`."""
    return isinstance(text, str) and _matches_type(text)


@lru_cache(1000)  # a program has few types, and checks one per message
def _matches_type(type: str) -> bool:
    return _TYPE.fullmatch(type) is not None


class Metadata(BaseModel, frozen=True):
    """Identity and lineage of a message; additional trace fields are preserved."""

    model_config = ConfigDict(extra="allow")

    id: Annotated[str, Field(min_length=1, strict=True)]
    timestamp: Annotated[int, Field(ge=0, strict=True)]
    """Milliseconds since 1970."""
    correlation: Annotated[str | None, Field(strict=True)] = None
    causation: Annotated[str | None, Field(strict=True)] = None

    def wire(self) -> dict[str, Any]:
        """The JSON object, without unset fields."""
        found: dict[str, Any] = {"id": self.id, "timestamp": self.timestamp}
        if self.correlation is not None:
            found["correlation"] = self.correlation
        if self.causation is not None:
            found["causation"] = self.causation
        if self.__pydantic_extra__:
            found.update(self.__pydantic_extra__)
        return found


class ErrorData(BaseModel, frozen=True):
    """The data of an `error`: an HTTP status code, a sentence, and the error that caused it."""

    model_config = ConfigDict(extra="allow")

    code: Annotated[int, Field(ge=400, le=599, strict=True)]
    message: Annotated[str, Field(strict=True)]
    cause: ErrorData | None = None


def check_error_data(data: object) -> None:
    """InvalidValueError unless this is the data of an error."""
    try:
        ErrorData.model_validate(_jsonable(data) if isinstance(data, BaseModel) else data)
    except ValidationError as error:
        raise InvalidValueError(f"not the data of an error: {explain(error)}") from None


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
        return new_message("command", type, data, cause, correlation)

    @staticmethod
    def query(
        type: str,
        data: object = None,
        *,
        cause: Message | None = None,
        correlation: str | None = None,
    ) -> Message:
        """A query: one actor answers it."""
        return new_message("query", type, data, cause, correlation)

    @staticmethod
    def event(
        type: str,
        data: object = None,
        *,
        cause: Message | None = None,
        correlation: str | None = None,
    ) -> Message:
        """An event: goes to all subscribers and has no answer."""
        return new_message("event", type, data, cause, correlation)

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
        message = cls.model_validate(_fields(kinds[0], types[0], data, None, correlation))
        return message if cause is None else message.caused_by(cause)

    def reply(self, data: object = None) -> Message:
        """The answer to this message."""
        return new_message("reply", self.type, data, self)

    def error(
        self, code: int, message: str, *, cause: Message | ErrorData | None = None, **context: Any
    ) -> Message:
        """The answer that this message failed; `context` is added to the data as further JSON."""
        behind = cause.data if isinstance(cause, Message) else cause
        found = {"code": code, "message": message, **context}
        if behind is not None:
            found["cause"] = _jsonable(behind) if isinstance(behind, BaseModel) else behind
        check_error_data(found)
        return new_message("error", self.type, found, self)

    def caused_by(self, cause: Message) -> Self:
        """The same message with `cause` as its causation, and its correlation unless it has one."""
        metadata = self.metadata.wire()
        metadata["causation"] = cause.metadata.id
        if "correlation" not in metadata and cause.metadata.correlation is not None:
            metadata["correlation"] = cause.metadata.correlation
        fields = {"kind": self.kind, "type": self.type, "data": self.data, "metadata": metadata}
        return cast(Self, self.__pydantic_validator__.validate_python(fields))

    def to_json(self) -> bytes:
        """One line of JSON, without the newline; InvalidValueError if the data is not JSON."""
        return encode(self)

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Decode a message; InvalidValueError says what is wrong with it."""
        try:
            message = cls.__pydantic_validator__.validate_json(text)
        except ValidationError as error:
            raise InvalidValueError(f"not a message: {explain(error)}") from None
        if message.kind == "error":
            check_error_data(message.data)
        return cast(Self, message)

    @classmethod
    def from_data(cls, value: Mapping[str, Any]) -> Self:
        """The message in these plain dicts and lists, as a JSON decoder returns them."""
        try:
            message = cls.model_validate(value)
        except ValidationError as error:
            raise InvalidValueError(f"not a message: {explain(error)}") from None
        if message.kind == "error":
            check_error_data(message.data)
        return message


class EncodedMessage:
    """A new message as JSON bytes only: sending it needs no `Message` object."""

    __slots__ = ("body", "kind", "type")

    def __init__(self, kind: str, type: str, data: object, cause: Message | None) -> None:
        """InvalidValueError if the type is malformed, or the data is not JSON."""
        if not _matches_type(type):
            raise InvalidValueError(f"not a message: {type!r} is no type")
        self.kind, self.type = kind, type
        if cause is None:
            fields = _fields(kind, type, data, None, None)
        else:
            origin = cause.metadata
            fields = _fields(kind, type, data, origin.id, origin.correlation)
        self.body = _encode_fields(fields)


def decoded(message: Message | EncodedMessage) -> Message:
    """The message as a `Message`."""
    return Message.from_json(message.body) if isinstance(message, EncodedMessage) else message


def encode(message: Message | EncodedMessage) -> bytes:
    """The JSON of a message; InvalidValueError if its data is not JSON."""
    if isinstance(message, EncodedMessage):
        return message.body
    fields = message.__dict__  # pydantic's attribute access is slower
    return _encode_fields({**fields, "metadata": fields["metadata"].wire()})


def _encode_fields(fields: dict[str, Any]) -> bytes:
    try:
        body = orjson.dumps(fields, _jsonable, _JSON_ONLY)
        # orjson writes NaN and infinity as null: rare enough to look again.
        if b"null" in body and not _is_finite(fields):
            raise TypeError("it holds NaN or infinity, and JSON has neither")
    except (TypeError, RecursionError, PydanticSerializationError) as error:
        reason = error.__cause__ or error
        raise InvalidValueError(
            f"the {fields['kind']} {fields['type']} is not JSON: {reason}; it was not sent"
        ) from error
    return body


def _jsonable(value: object) -> Any:
    """The JSON of a pydantic model; TypeError for any other object."""
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


def literals(branch: Any, field: str) -> tuple[str, ...]:
    """The literal values a class allows for `kind` or `type`; () if it allows any text."""
    found = branch.model_fields.get(field) if hasattr(branch, "model_fields") else None
    annotation = None if found is None else found.annotation
    is_literal = getattr(annotation, "__origin__", None) is Literal
    return tuple(map(str, get_args(annotation))) if is_literal else ()


def expects_outcome(message: Message | EncodedMessage) -> bool:
    """Whether it is answered: a command or query, except the command that times out another."""
    if message.kind == "command":
        return message.type != TIMEOUT_TYPE
    return message.kind == "query"


def timeout_command(request_id: str) -> Message:
    """The command that ends a request with a timeout error, unless it has an outcome by then."""
    return Message.command(TIMEOUT_TYPE, {"requestId": request_id})


_validate = Message.__pydantic_validator__.validate_python


def new_message(
    kind: str,
    type: str,
    data: object = None,
    cause: Message | None = None,
    correlation: str | None = None,
) -> Message:
    """A message with a new id and timestamp, in the lineage of `cause` if that is given."""
    if cause is None:
        return message_with(kind, type, data, None, correlation)
    origin = cause.metadata
    return message_with(kind, type, data, origin.id, correlation or origin.correlation)


def message_with(
    kind: str,
    type: str,
    data: object = None,
    causation: str | None = None,
    correlation: str | None = None,
) -> Message:
    """A message with a new id and timestamp, and this lineage."""
    try:
        fields = _fields(kind, type, data, causation, correlation)
        return _validate(fields)  # type: ignore[no-any-return]
    except ValidationError as error:
        raise InvalidValueError(f"not a message: {explain(error)}") from None


def _fields(
    kind: str, type: str, data: object, causation: str | None, correlation: str | None
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"id": new_id(), "timestamp": now_ms()}
    if causation is not None:
        metadata["causation"] = causation
    if correlation is not None:
        metadata["correlation"] = correlation
    body = {} if data is None else data
    return {"kind": kind, "type": type, "data": body, "metadata": metadata}


class _IdGenerator:
    """Ids: a random part per process and a number. Cheap, since every message needs one."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self._process, self._next = os.urandom(12).hex(), count(1)

    def new(self) -> str:
        return f"{self._process}-{next(self._next):x}"


_ids = _IdGenerator()
new_id = _ids.new
in_forked_child(_ids.renew)


def explain(error: ValidationError) -> str:
    """What is wrong, and where, in one line."""
    found = [
        f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']}"
        for each in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
    return "; ".join(found[:3]) + more


def describe_exception(error: BaseException) -> str:
    """Class and text of an exception, as text that JSON can hold. Never raises."""
    try:
        return escape_surrogates(f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - its __str__ is the user's, too
        return type(error).__name__


def escape_surrogates(text: str) -> str:
    """Text that JSON can hold: file names may contain bytes that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
