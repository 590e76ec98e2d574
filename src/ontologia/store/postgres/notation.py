"""The notation of `store.named`, as the driver of PostgreSQL wants it."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from ontologia.store.named import load

_PACKAGE = "ontologia.store.postgres"
_MARKERS = {
    # An array, which an index is searched for; the planner knows nothing of the rows of a function.
    "IN @texts": "= ANY(ARRAY(SELECT jsonb_array_elements_text({}::jsonb)))",
    "IN @numbers": "= ANY(ARRAY(SELECT value::bigint FROM jsonb_array_elements_text({}::jsonb)))",
    "@bytes": "{}",
    "@json": "{}::jsonb",
    "@lock": "{}",
    "@join": "JOIN",
}
_VALUE = re.compile(r"'[^']*'|:(?<!::)(\w+)")  # or what is quoted; no cast
_MADE = re.compile(r"^CREATE .*?(?:TABLE|VIEW)(?: IF NOT EXISTS)? ontologia\.(\w+)", re.MULTILINE)


@cache
def statements(*names: str) -> dict[str, str]:
    """The statements of these `.sql` files, by name, with tables in `ontologia`. Read at first use."""
    return {name: _spelled(text) for name, text in load(_PACKAGE, names, _MARKERS).items()}


def _spelled(text: str) -> str:
    """`:name` as `%(name)s`, and the tables of the layout with their schema."""
    bound = _VALUE.sub(lambda value: f"%({value[1]})s" if value[1] else value[0], text)
    return _table().sub(lambda table: f"{table[1]}ontologia.{table[2]}", bound)


@cache
def _table() -> re.Pattern[str]:
    """A table of the layout, where a statement names it."""
    layout = files(_PACKAGE).joinpath("sql", "layout.sql").read_text("utf-8")
    tables = "|".join(_MADE.findall(layout))
    return re.compile(rf"((?:FROM|JOIN|INTO|UPDATE|USING)\s+)({tables})\b")
