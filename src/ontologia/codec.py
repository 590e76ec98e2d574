"""The one JSON codec: canonical on the way in, refusing what JSON or a database would bend.

Canonical means sorted keys, no spaces, UTF-8: equal values give equal text, so two versions of an
object can be compared as text. Refused, each with the place where it was found: NaN and infinity
(JSON has none), U+0000 and lone surrogates (PostgreSQL has none), integers past 64 bits (SQLite
has none), keys that are not text, and anything that is not JSON.
"""

from __future__ import annotations

import json
import math
from typing import Any

import orjson

from ontologia.errors import InvalidValueError, shown

MAX_DEPTH = 200  # orjson stops at 254; this leaves room for what is wrapped around a value
_CANONICAL = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_DIGITS = bytes(ord("0") if chr(byte) in "0123456789" else 0 for byte in range(256))
_LONG_NUMBER = b"0" * 19  # the fewest digits of an integer past 64 bits


def encode(value: Any, *, where: str = "value") -> str:
    """Canonical JSON text of `value`, every part of it checked."""
    check(value, where)
    return encode_checked(value, where=where)


def encode_checked(value: Any, *, where: str = "value") -> str:
    """Canonical JSON text of a value whose numbers were checked when they came in.

    Text is looked at here, in its encoded form, where that costs next to nothing.
    """
    try:
        text = orjson.dumps(value, option=_CANONICAL).decode()
    except (orjson.JSONEncodeError, RecursionError) as error:
        _find_fault(value, where, 0)
        raise InvalidValueError(f"{where}: {error}") from error
    # This may be text that only looks like an escaped U+0000: rare enough to look again.
    if "\\u0000" in text:
        _find_fault(value, where, 0)
    return text


def decode_stored(text: str | bytes) -> Any:
    """The value of text that this codec has encoded; InvalidValueError if it is not JSON.

    For text from anywhere else there is `decode`: here integers past 64 bits become floats.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidValueError(f"not JSON: {error}") from error


def decode(text: str | bytes) -> Any:
    """The value of JSON text from outside, every integer exact; `check` refuses those past 64 bits."""
    value = decode_stored(text)
    # orjson reads integers past 64 bits as floats. Looking for long numbers costs less than parsing
    # with a parser that does not, and few texts have one.
    if len(text) >= len(_LONG_NUMBER):
        encoded = text.encode() if isinstance(text, str) else text
        if _LONG_NUMBER in encoded.translate(_DIGITS):
            return _decode_exactly(text)
    return value


def _decode_exactly(text: str | bytes) -> Any:
    """The value of text that is JSON, by a slower parser."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InvalidValueError(f"nested deeper than {MAX_DEPTH} levels") from error


def check(value: Any, where: object = "value") -> None:
    """Raise InvalidValueError, naming the place, unless `value` is JSON that every store keeps."""
    if type(value) is str:
        _check_text(value, where)
    elif not storable(value):
        _find_fault(value, str(where), 0)


def storable(value: Any, depth: int = 0) -> bool:
    """Whether `value` is JSON that every store keeps, but for its text, which the codec looks at."""
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return True
    if kind is int:
        return bool(_INT_MIN <= value <= _INT_MAX)
    if kind is float:
        return math.isfinite(value)
    if depth >= MAX_DEPTH:
        return False
    if kind is dict:
        if any(type(key) is not str for key in value):
            return False
        value = value.values()
    elif kind is not list:
        return False
    for item in value:  # noqa: SIM110 - a generator costs more than most values do
        if type(item) is not str and not storable(item, depth + 1):
            return False
    return True


def _find_fault(value: Any, where: str, depth: int) -> None:
    """Go through a value that is not storable, or whose text is not, and say where it is wrong."""
    kind = type(value)
    if kind is str:
        _check_text(value, where)
    elif kind is int and not _INT_MIN <= value <= _INT_MAX:
        raise InvalidValueError(f"{where}: {shown(value)} does not fit in 64 bits")
    elif kind is float and not math.isfinite(value):
        raise InvalidValueError(f"{where}: {value} is not a JSON number")
    elif kind is dict or kind is list:
        if depth >= MAX_DEPTH:
            raise InvalidValueError(f"{where}: nested deeper than {MAX_DEPTH} levels")
        _find_in_parts(value, where, depth)
    elif value is not None and kind not in (bool, int, float):
        raise InvalidValueError(
            f"{where}: {kind.__name__} is not JSON",
            hint="Give the field this type, so that it is converted both ways, or convert it first.",
        )


def _find_in_parts(value: dict[Any, Any] | list[Any], where: str, depth: int) -> None:
    if isinstance(value, list):
        for index, item in enumerate(value):
            _find_fault(item, f"{where}[{index}]", depth + 1)
        return
    for key, item in value.items():
        if type(key) is not str:
            raise InvalidValueError(
                f"{where}: key {shown(key)} is {type(key).__name__}; JSON keys are text"
            )
        _check_text(key, f"{where} key")
        _find_fault(item, f"{where}.{key}", depth + 1)


def _check_text(value: str, where: object) -> None:
    if "\0" in value:
        raise InvalidValueError(f"{where}: text holds U+0000, which not every database can keep")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidValueError(
            f"{where}: text holds a lone surrogate, which is not Unicode"
        ) from error
