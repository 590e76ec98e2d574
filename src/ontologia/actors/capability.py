"""Capabilities: the messages an actor takes and sends, and how the actor is made.

`inbound` and `outbound` are classes derived from Message, or unions of them. `Schema` reads them: a
finite list of handles, pairs of kind and type, and for each a decoder from JSON to a typed message.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from ontologia.actors.message import (
    KINDS,
    OUTCOMES,
    TIMEOUT_TYPE,
    EncodedMessage,
    Message,
    explain,
    is_type,
    literals,
)
from ontologia.errors import InvalidValueError

Isolation = Literal["task", "process"]
Handle = tuple[str, str]
Decoder = Callable[[bytes], Message]
RESERVED: Handle = ("command", TIMEOUT_TYPE)
_FIELDS = tuple(Message.model_fields)

decode: Decoder = Message.__pydantic_validator__.validate_json


@dataclass(frozen=True, slots=True)
class Capability:
    """One capability; the loop makes one actor of it."""

    id: str
    description: str
    _: KW_ONLY
    inbound: Any
    """The messages it takes: a class derived from Message, or a union of such, each with a literal
    `kind` and `type`. Each command and query belongs to one capability."""
    outbound: Any
    """The messages it sends, likewise; `Message` itself stands for any."""
    subscribes: Sequence[str] = ()
    """The types of events it receives."""
    spawn: Callable[[], object]
    """Makes the actor: an Actor, or any object with the methods of a Worker."""
    isolation: Isolation = "task"
    """`"process"` gives the actor a process of its own, which may block and crash."""


def branches(schema: Any) -> Iterator[Any]:
    """The members of a union, also nested or annotated; else the schema itself."""
    origin = get_origin(schema)
    if origin is Annotated:
        yield from branches(get_args(schema)[0])
    elif origin in (Union, types.UnionType):
        for each in get_args(schema):
            yield from branches(each)
    elif hasattr(schema, "__value__"):  # an alias made with `type X = ...`
        yield from branches(schema.__value__)
    else:
        yield schema


class Schema:
    """The handles of an `inbound` or `outbound`. What is wrong with it is in `problems`."""

    def __init__(self, schema: Any, *, open_allowed: bool) -> None:
        self.problems: list[str] = []
        self.classes: set[type] = set()
        """Branches whose instances were validated when they were made."""
        self.is_open = False
        """Whether it has a branch that takes any kind or type."""
        found: dict[Handle, list[Any]] = {}
        for branch in branches(schema):
            fault = self._fault(branch)
            if fault:
                self.problems.append(fault)
                continue
            self._read(branch, found, open_allowed)
        self.decoders = {handle: _decoder(tuple(several)) for handle, several in found.items()}
        self._any = (
            _decoder(tuple(branches(schema))) if self.is_open and not self.problems else None
        )

    def checker(self, message: Message | EncodedMessage) -> Decoder | None:
        """The decoder that still has to accept this outgoing message; None if none has to.

        InvalidValueError if the schema does not name the message. Errors are always allowed, and so
        are replies that it does not name.
        """
        handle = (message.kind, message.type)
        decoder = self.decoders.get(handle) or self._any
        if decoder is not None:
            return None if type(message) in self.classes else decoder
        if message.kind not in OUTCOMES and handle != RESERVED:
            raise InvalidValueError(f"outbound has no {message.kind} {message.type}")
        return None

    def _fault(self, branch: Any) -> str | None:
        if not (isinstance(branch, type) and issubclass(branch, Message)):
            return f"{_name(branch)} is not a class derived from Message"
        try:
            if branch.model_rebuild() is False:
                return f"{_name(branch)} has annotations that cannot be resolved"
        except (PydanticUserError, NameError) as error:
            return f"{_name(branch)} has annotations that cannot be resolved: {error}"
        more = sorted(set(branch.model_fields) - set(_FIELDS))
        if more:
            return f"{_name(branch)} has the field {more[0]}; a message has {', '.join(_FIELDS)}"
        return None

    def _read(self, branch: Any, found: dict[Handle, list[Any]], open_allowed: bool) -> None:
        kinds, names = literals(branch, "kind"), literals(branch, "type")
        if KINDS.issubset(kinds):
            kinds = ()
        self.classes.add(branch)
        if not kinds or not names:
            self.is_open = True
            if not open_allowed:
                what = "kind" if not kinds else "type"
                self.problems.append(
                    f"{_name(branch)} takes any {what}; write {what}: Literal[...] with its values"
                )
            return
        self.problems += [
            f'{_name(branch)} has the type {each!r}; types are written "Domain.Action"'
            for each in names
            if not is_type(each)
        ]
        self.problems += [
            f"{_name(branch)} has the kind {each!r}" for each in kinds if each not in KINDS
        ]
        for kind in kinds:
            for each in names:
                found.setdefault((kind, each), []).append(branch)


def decode_as(decoder: Decoder, body: bytes) -> Message:
    """A new message from these bytes; InvalidValueError if they do not fit."""
    try:
        return decoder(body)
    except ValidationError as error:
        raise InvalidValueError(explain(error)) from None


@cache  # the same classes have the same decoder
def _decoder(several: tuple[Any, ...]) -> Decoder:
    if len(several) == 1:
        return several[0].__pydantic_validator__.validate_json  # type: ignore[no-any-return]
    union: Any = Union[several]  # noqa: UP007 - the number of members varies
    adapter: TypeAdapter[Message] = TypeAdapter(union)
    return adapter.validate_json


def _name(branch: Any) -> str:
    return getattr(branch, "__name__", None) or repr(branch)
