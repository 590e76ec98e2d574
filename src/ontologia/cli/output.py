"""Answers: tables for eyes on a terminal, tabs for a pipe, JSON lines for programs.

Rows are printed as they come, however many they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal

import orjson
import typer

if TYPE_CHECKING:
    from ontologia.cli.call import Call

_WHOLE = 40
_WORD = 10  # letters of a word that a narrow column does not break
_GAP = 3  # between two columns
_PAGE = 500  # rows of one table on a terminal: its columns are as wide as the widest of them


def say(text: str) -> None:
    """A line for a reader."""
    typer.echo(text)


def show_json(value: Any, *, indent: bool = False) -> None:
    """One value, on a line of its own, or over several for eyes."""
    option = orjson.OPT_INDENT_2 if indent else 0
    sys.stdout.write(orjson.dumps(value, default=_plain, option=option).decode() + "\n")


def show_facts(call: Call, facts: Mapping[str, Any]) -> None:
    """Several facts about one thing, a line each; in JSON one value."""
    if call.json:
        show_json(facts)
        return
    terminal = sys.stdout.isatty()
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        said = name.replace("_", " ")
        say(f"{said:<{width}}  {cell(value)}" if terminal else f"{said}\t{_one_line(cell(value))}")


def show_rows(
    call: Call,
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    names: Sequence[str],
    nothing: str = "",
) -> None:
    """Rows as a table with these columns; in JSON every row as it is.

    `names` are the keys of a row under each column. `nothing` is said on a terminal if there are none.
    """
    if call.json:
        for row in rows:
            show_json(row)
        return
    cells = ([cell(row.get(name)) for name in names] for row in rows)
    if not sys.stdout.isatty():
        for line in chain([columns], cells):
            sys.stdout.write("\t".join(_one_line(text) for text in line) + "\n")
        return
    shown = False
    while page := list(islice(cells, _PAGE)):
        shown = True
        _show_page(columns, page)
    if not shown and nothing:
        say(nothing)


def _show_page(columns: Sequence[str], page: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    # An id is there to be copied: it stays in one piece, and wider texts are folded.
    whole = all(len(row[0]) <= _WHOLE for row in page)
    least = [
        max(_longest_word(name), min(_WORD, max(_longest_word(row[number]) for row in page)))
        for number, name in enumerate(columns)
    ]
    if whole:
        least[0] = max(len(text) for text in (columns[0], *(row[0] for row in page)))
    if sum(least) + _GAP * len(least) > console.width:
        _show_blocks(columns, page)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        figures = all(_is_figure(row[number]) for row in page)
        justify: Literal["left", "right"] = "right" if figures else "left"
        fixed = whole and number == 0
        table.add_column(
            name, justify=justify, overflow="fold", no_wrap=fixed, min_width=least[number]
        )
    for row in page:
        table.add_row(*(Text(harmless(text)) for text in row))
    console.print(table)


def _show_blocks(columns: Sequence[str], page: Sequence[Sequence[str]]) -> None:
    """For a terminal that is too narrow for a table: a line for each value, a gap after each row."""
    width = max(map(len, columns))
    for row in page:
        for name, text in zip(columns, row, strict=True):
            say(f"{name:<{width}}  {harmless(text)}")
        say("")


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def cell(value: Any) -> str:
    """A value as text for a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, str):
        return value
    return orjson.dumps(value, default=_plain).decode()


def counted(number: int, thing: str) -> str:
    """`1 object`, `2 objects`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def instant(value: datetime) -> str:
    """`2026-11-15 19:39:43`, in UTC."""
    return value.strftime("%Y-%m-%d %H:%M:%S")


def age(span: timedelta) -> str:
    """`2s ago`, `10m ago`, `3h ago`, `4d ago`."""
    seconds = max(0, int(span.total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"


def harmless(text: str) -> str:
    """For a terminal: what is stored cannot move its cursor, control characters are shown."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\n" else f"\\x{ord(each):02x}" for each in text
    )


def _one_line(text: str) -> str:
    return text.replace("\t", " ").replace("\r", " ").replace("\n", " ")


def _is_figure(text: str) -> bool:
    return text == "-" or text.replace(",", "").replace(".", "").lstrip("-").isdigit()


def _plain(value: Any) -> Any:
    return str(value)
