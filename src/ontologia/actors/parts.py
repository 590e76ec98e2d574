"""What messages are made of: an id, metadata, and the data of an error."""

from __future__ import annotations

import os
from itertools import count
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ontologia.errors import InvalidValueError
from ontologia.forking import in_forked_child


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


def plain(value: object) -> Any:
    """What a class of pydantic stands for in JSON; TypeError for anything else."""
    if isinstance(value, BaseModel):
        return value.model_dump(
            mode="json", by_alias=True, exclude_none=isinstance(value, ErrorData)
        )
    raise TypeError(f"{type(value).__name__} is not a type of JSON")


def checked_error(data: object) -> None:
    """InvalidValueError unless this is the data of an error."""
    try:
        ErrorData.model_validate(plain(data) if isinstance(data, BaseModel) else data)
    except ValidationError as error:
        raise InvalidValueError(f"not the data of an error: {explain(error)}") from None


def explain(error: ValidationError) -> str:
    """What is wrong, and where, in one line."""
    found = [
        f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']}"
        for each in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
    return "; ".join(found[:3]) + more


def told(error: BaseException) -> str:
    """What an exception says, whatever is in it and whether or not it can be asked."""
    try:
        return readable(f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - its __str__ is the user's, too
        return type(error).__name__


def readable(text: str) -> str:
    """Text that JSON can carry: names of files may have bytes that are no text."""
    return text.encode("utf-8", "backslashreplace").decode()


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
in_forked_child(_names.renew)
