"""Answers: tables for eyes on a terminal, tabs for a pipe, JSON lines for programs.

Rows are printed as they come, however many they are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import typer

if TYPE_CHECKING:
    from ontologia.cli.call import Call

_WHOLE = 40  # letters of a word that is not broken, however narrow its column
_FOLDED = 10  # letters of each line of a longer one, at least
_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_GAP = 3  # between two columns
_PAGE = 500  # rows of one table on a terminal: its columns are as wide as the widest of them


def say(text: str) -> None:
    """A line for a reader; what is in it of others is harmless."""
    typer.echo(harmless(text))


@contextmanager
def progress(verb: str) -> Generator[Callable[[str], None]]:
    """What is being done, for eyes on a terminal; it takes a while on a large store."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as status:
        yield lambda what: status.update(f"{verb} {what}")


def show_json(value: Any, *, indent: bool = False) -> None:
    """One value, on a line of its own, or over several for eyes."""
    import orjson

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
        if terminal:
            say(f"{said:<{width}}  {cell(value)}")
        else:
            _write_line([said, cell(value)])


def show_rows(
    call: Call,
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    names: Sequence[str],
    nothing: str = "",
) -> bool:
    """Rows as a table with these columns; in JSON every row as it is. Whether there were any.

    `names` are the keys of a row under each column. `nothing` is said on a terminal if there are none.
    """
    shown = False
    if call.json:
        for row in rows:
            shown = True
            show_json(row)
        return shown
    cells = ([cell(row.get(name)) for name in names] for row in rows)
    if not sys.stdout.isatty():
        _write_line(columns)
        for line in cells:
            shown = True
            _write_line(line)
        return shown
    while page := list(islice(cells, _PAGE)):
        shown = True
        _show_page(columns, page)
    if not shown and nothing:
        say(nothing)
    return shown


def _write_line(cells: Sequence[str]) -> None:
    sys.stdout.write("\t".join(map(_one_line, cells)) + "\n")


def _show_page(columns: Sequence[str], page: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    shown = [[harmless(text) for text in row] for row in page]
    widths = _widths([columns, *shown], console.width - _GAP * len(columns))
    if widths is None:
        _show_blocks(columns, page)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        figures = all(_is_figure(row[number]) for row in shown)
        justify: Literal["left", "right"] = "right" if figures else "left"
        table.add_column(name, justify=justify, overflow="fold", width=widths[number])
    for row in shown:
        table.add_row(*map(Text, row))
    console.print(table)


def _show_blocks(columns: Sequence[str], page: Sequence[Sequence[str]]) -> None:
    """For a terminal that is too narrow for a table: a line for each value, a gap after each row."""
    width = max(map(len, columns))
    for row in page:
        for name, text in zip(columns, row, strict=True):
            say(f"{name:<{width}}  {text}")
        say("")


def _widths(rows: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """How wide to make each column; None if there is no room for what must be in one piece.

    Ids and names are there to be copied: they are not broken. Where texts are too long, the widest
    columns give way.
    """
    from rich.cells import cell_len

    def least_of(word: str) -> int:
        size = cell_len(word)
        return size if size <= _WHOLE or _ID.search(word) else _FOLDED

    least, widths = [], []
    for number, column in enumerate(zip(*rows, strict=True)):
        longest = max(cell_len(line) for text in column for line in text.splitlines() or [""])
        word = max((least_of(word) for text in column for word in text.split()), default=0)
        whole = number == 0 and longest <= _WHOLE  # what a row is about stands on one line
        least.append(longest if whole else word)
        widths.append(max(min(longest, room), least[-1]))
    if sum(least) > room:
        return None
    while sum(widths) > room:
        wide = [number for number, width in enumerate(widths) if width > least[number]]
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


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
    import orjson

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
    """Text that cannot move the cursor of a terminal, nor look like a line of this program.

    Control characters are shown. Each line after the first is indented, and further than this program
    indents its own lines, such as hints.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else "\n    " if each == "\n" else f"\\x{ord(each):02x}"
        for each in text
    )


def _one_line(text: str) -> str:
    return harmless(text.replace("\t", " ").replace("\r", " ").replace("\n", " "))


def _is_figure(text: str) -> bool:
    return text == "-" or text.replace(",", "").replace(".", "").lstrip("-").isdigit()


def _plain(value: Any) -> Any:
    return str(value)
