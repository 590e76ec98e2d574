"""The notation of `store.named`, as SQLite has it. Values and tables are written alike."""

from __future__ import annotations

from functools import cache

from ontologia.store.named import load

_LISTED = "IN (SELECT value FROM json_each({}))"
_MARKERS = {
    "IN @texts": _LISTED,
    "IN @numbers": _LISTED,
    "@bytes": "CAST({} AS BLOB)",
    "@json": "{}",
    "@lock": "",
    "@join": "CROSS JOIN",  # the planner keeps the order of its sides
}


@cache
def statements(*names: str) -> dict[str, str]:
    """The statements of these `.sql` files, by name. Read at first use."""
    return load("ontologia.store.sqlite", names, _MARKERS)
