"""How long a key may be: as long as PostgreSQL's indexes can hold, on every database."""

from __future__ import annotations

from collections.abc import Iterable

from ontologia.errors import InvalidValueError
from ontologia.store.rows import ObjectKey, RawChange

LONGEST_KEY = 2_000
"""Bytes of UTF-8; of a relation, those of its keys together. An index entry of PostgreSQL has 2,704,
and holds the name of the type, too."""


def check_keys(changes: Iterable[RawChange]) -> None:
    """InvalidValueError if an object is created with a key that is too long.

    Those that earlier versions stored in SQLite files can be changed and deleted.
    """
    for kind, type_name, key, before, *_ in changes:
        if before is None and _bytes(key) > LONGEST_KEY:
            which = "key" if kind == "entity" else "keys, taken together,"
            raise InvalidValueError(
                f"the {which} of {type_name} {':'.join(filter(None, key))[:40]!r}… would have "
                f"{_bytes(key):,} bytes, and {LONGEST_KEY:,} are the most; nothing was written",
                hint="Use a shorter key, such as a hash, and keep the long text in a field.",
            )


def _bytes(key: ObjectKey) -> int:
    characters = sum(map(len, key))
    if 4 * characters <= LONGEST_KEY:
        return characters
    return sum(len(part.encode()) for part in key)
