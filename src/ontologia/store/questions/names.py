"""Names of indexes."""

from __future__ import annotations

import hashlib

_LONGEST = 63  # PostgreSQL cuts off what is longer


def index_name(
    kind: str, type_name: str, field: str, value_kind: str, fill: str | None = None
) -> str:
    """A name for the index of a field: readable where the names are plain, and always unique."""
    what = (type_name, field, value_kind, *(() if fill is None else (fill,)))
    mark = hashlib.sha256(".".join(what).encode()).hexdigest()
    plain = f"{type_name}_{field}".replace(".", "_")
    return f"idx_{kind}_{plain}_{mark[:8]}" if plain.isascii() else f"idx_{kind}_{mark[:24]}"


def short_index_name(
    kind: str, type_name: str, field: str, value_kind: str, fill: str | None = None
) -> str:
    """The same, where names have a limit."""
    name = index_name(kind, type_name, field, value_kind, fill)
    return name if len(name) <= _LONGEST else f"idx_{kind}_{name[-8:]}_{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
