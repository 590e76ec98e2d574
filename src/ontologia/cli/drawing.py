"""Trees and differences: in colour on a terminal, as plain text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ontologia.cli.output import harmless

if TYPE_CHECKING:
    from ontologia.runtime.delta import Change

Part: TypeAlias = str | tuple[str, str]
"""Text, or text and its style."""
Line: TypeAlias = Sequence[Part]
_SIGNS = {"created": ("+", "green"), "updated": ("~", "yellow"), "deleted": ("-", "red")}


@dataclass
class Node:
    """A line, and what hangs below it."""

    line: Line
    below: list[Node] = field(default_factory=list["Node"])

    def add(self, *line: Part) -> Node:
        """Hang a line below this one; what may hang below that."""
        node = Node(line)
        self.below.append(node)
        return node


def draw(tree: Node) -> None:
    """A tree."""
    print_lines(_lines(tree))


def _lines(tree: Node) -> Iterator[Line]:
    """From the top down, without recursion: a chain of events may be long."""
    waiting: list[tuple[Node, str, str]] = [(tree, "", "")]
    while waiting:
        node, lead, indent = waiting.pop()
        yield ((lead, "dim"), *node.line)
        last = len(node.below) - 1
        for number, each in reversed(list(enumerate(node.below))):
            end = number == last
            waiting.append(
                (each, indent + ("└─ " if end else "├─ "), indent + ("   " if end else "│  "))
            )


def print_lines(lines: Iterable[Line]) -> None:
    """Lines as they come. What is stored cannot move the cursor: control characters are shown."""
    if not sys.stdout.isatty():
        for line in lines:
            sys.stdout.write("".join(map(_plain, line)) + "\n")
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in lines:
        styled = [(_plain(part), part[1] if isinstance(part, tuple) else "") for part in line]
        console.print(Text.assemble(*styled), soft_wrap=True)


def _plain(part: Part) -> str:
    text = part if isinstance(part, str) else part[0]
    return harmless(text.replace("\n", " "))


def value(stored: Any) -> str:
    """A value as JSON, in one line."""
    import orjson

    return orjson.dumps(stored, default=str).decode()


def change_lines(word: str, change: Change) -> Iterator[Line]:
    """`~ Customer c1`, and each field that differs below it."""
    sign, style = _SIGNS[word]
    yield ((f"{sign} {change.type_name} {change_key(change)}", f"bold {style}"),)
    for name, (before, after) in sorted(change.fields.items()):
        if word == "created":
            yield (f"    {name}: ", (value(after), "green"))
        elif word == "deleted":
            yield (f"    {name}: ", (value(before), "red"))
        else:
            yield (f"    {name}: ", (value(before), "red"), " → ", (value(after), "green"))


def change_key(change: Change) -> str:
    """The key, or both ends and the instance, as text."""
    parts = (change.key, change.left_key, change.right_key, change.instance_key)
    return ":".join(part for part in parts if part)


def change_json(word: str, change: Change) -> dict[str, Any]:
    """The same for programs."""
    keys = {"key": change.key}
    if change.kind == "relation":
        keys = {
            "left": change.left_key,
            "right": change.right_key,
            "instance": change.instance_key or None,
        }
    fields = {
        name: {"before": before, "after": after}
        for name, (before, after) in sorted(change.fields.items())
    }
    return {"change": word, "kind": change.kind, "type": change.type_name, **keys, "fields": fields}
