"""What can be read from the `inbound` and `outbound` of a capability.

Both are classes derived from Message, or unions of them. Reading them gives a finite list of
handles, pairs of kind and type, and for each a decoder that makes a typed message of JSON.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from ontologia.actors.message import (
    KINDS,
    OUTCOMES,
    TIMEOUT_TYPE,
    Message,
    Sealed,
    is_type,
    literals,
)
from ontologia.actors.parts import explain
from ontologia.errors import InvalidValueError

Handle = tuple[str, str]
Decoder = Callable[[bytes], Message]
_FIELDS = frozenset(Message.model_fields)

decode: Decoder = Message.__pydantic_validator__.validate_json


def branches(schema: Any) -> Iterator[Any]:
    """The members of a union, of unions in it and of what is annotated; else the schema itself."""
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
    """The handles of a schema. What is wrong with it is in `problems`."""

    def __init__(self, schema: Any, *, open_allowed: bool) -> None:
        self.problems: list[str] = []
        self.classes: set[type] = set()
        """Branches whose instances were checked when they were made."""
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

    def checker(self, message: Message | Sealed) -> Decoder | None:
        """What the bytes of this outgoing message have yet to pass; None if there is nothing.

        InvalidValueError if the schema does not speak of it. Errors are always allowed, and so are
        replies of which it does not speak.
        """
        handle = (message.kind, message.type)
        decoder = self.decoders.get(handle) or self._any
        if decoder is not None:
            return None if type(message) in self.classes else decoder
        if message.kind not in OUTCOMES and handle != _RESERVED:
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
        more = sorted(set(branch.model_fields) - _FIELDS)
        if more:
            return f"{_name(branch)} has the field {more[0]}; a message has {', '.join(_ORDER)}"
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


_ORDER = tuple(Message.model_fields)
_RESERVED = ("command", TIMEOUT_TYPE)


def decode_as(decoder: Decoder, body: bytes) -> Message:
    """A message of its own from these bytes; InvalidValueError if they do not fit."""
    try:
        return decoder(body)
    except ValidationError as error:
        raise InvalidValueError(explain(error)) from None


@cache  # so that the same classes have the same decoder
def _decoder(several: tuple[Any, ...]) -> Decoder:
    if len(several) == 1:
        return several[0].__pydantic_validator__.validate_json  # type: ignore[no-any-return]
    union: Any = Union[several]  # noqa: UP007 - of as many as there are
    adapter: TypeAdapter[Message] = TypeAdapter(union)
    return adapter.validate_json


def _name(branch: Any) -> str:
    return getattr(branch, "__name__", None) or repr(branch)
