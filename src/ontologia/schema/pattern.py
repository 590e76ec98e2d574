"""SQL patterns: `%` is any text, `_` any one character, and a backslash takes the next as it is.

What a pattern means is said here once; a backend that writes patterns in another way, and Python,
which has none, translate from this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ontologia.errors import QueryError

LONGEST = 10_000
"""Characters in a pattern: SQLite takes 50,000 bytes, and one character may need four."""


class Piece(NamedTuple):
    """One character of a pattern, and whether it stands for others."""

    character: str
    wild: bool


def check_pattern(pattern: str, label: str) -> str:
    """The pattern; QueryError if it has no meaning."""
    if len(pattern) > LONGEST:
        raise QueryError(
            f"{label}: a pattern has at most {LONGEST:,} characters, got {len(pattern):,}"
        )
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise QueryError(
            f"{label}: the pattern {pattern!r:.200} ends in a backslash, with nothing to escape",
            hint="Write two backslashes for one that stands for itself.",
        )
    return pattern


def pieces(pattern: str) -> Iterator[Piece]:
    """The characters of a pattern, escapes resolved."""
    characters = iter(pattern)
    for character in characters:
        if character == "\\":
            yield Piece(next(characters), wild=False)
        else:
            yield Piece(character, wild=character in "%_")


def fixed_start(pattern: str) -> str:
    """What all text of this pattern begins with."""
    start = ""
    for character, wild in pieces(pattern):
        if wild:
            break
        start += character
    return start
