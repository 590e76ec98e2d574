"""The JSON of a message: what is none is refused, and named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import orjson
from pydantic_core import PydanticSerializationError

from ontologia.actors.parts import plain
from ontologia.codec import storable
from ontologia.errors import InvalidValueError

# Dates and dataclasses would come out as something else than they went in.
_JSON_ONLY = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS


def packed(value: dict[str, Any]) -> bytes:
    """The JSON of the four parts of a message; InvalidValueError if they are none."""
    try:
        body = orjson.dumps(value, plain, _JSON_ONLY)
        # NaN and infinity come out as null: rare enough to look again.
        if b"null" in body and not _is_finite(value):
            raise TypeError("it holds NaN or infinity, and JSON has neither")
    except (TypeError, RecursionError, PydanticSerializationError) as error:
        reason = error.__cause__ or error
        raise InvalidValueError(
            f"the {value['kind']} {value['type']} is not JSON: {reason}; it was not sent"
        ) from error
    return body


def _is_finite(value: object) -> bool:
    if isinstance(value, float):
        return storable(value)
    if isinstance(value, Mapping):
        return all(map(_is_finite, cast("Mapping[str, Any]", value).values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, cast("list[Any]", value)))
    return True
