"""A page of the documentation, done by a reader: every program on it, from top to bottom.

    python tests/docs/pages.py PAGE

runs the page in the working directory. All its ```python blocks share one namespace, in order. Of a
line such as `session.head  # 3` or `print(session.head)  # 3`, the comment is what it gives, up to `...`. A
block that begins with `# shop.py` or `# ontologia.toml` is a file of that name. In a ```console block each
`$ ontologia …` and `$ python …` is typed at a terminal, and shows what stands below it; `...` stands for anything.

A comment before a block, which readers do not see, may say two things:

    <!-- before: from shop import Order -->     done first: what the reader is thought to have
    <!-- not run: it needs a server -->         and why

It is a process of its own, and no module of the tests is imported: a page may call its types as it likes.
"""

from __future__ import annotations

import ast
import io
import os
import pty
import re
import shlex
import subprocess
import sys
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

_PIECE = re.compile(
    r"^<!-- (?P<mark>before|not run):\s(?P<said>.*?)-->\n"
    r"|^(?P<in> *)```(?P<kind>\w+)\n(?P<text>.*?)^(?P=in)```$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# ([\w/]+\.(?:py|toml))\n")
# A comment that begins like a value: [Customer(id='c1')], {'a': 1}, 'gold', 3, None.
_VALUE = re.compile(r"[\[{('\"\d-]|(True|False|None)\b|[A-Z]\w*\(")
MASKS = (
    (r"\x1b\[[0-9;?]*[a-zA-Z]", ""),
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d([.,]\d+)?(\+00:00)?", "TIME"),
    (r"[\d.]+ (ms|s)\b", "SPAN"),
    (r"SQLite [\d.]+", "SQLITE"),
    (r"(token:?) \S+", r"\1 TOKEN"),
)


class Block(NamedTuple):
    """A block of code, or what a comment says."""

    kind: str
    text: str
    line: int


def blocks_of(page: str) -> Iterator[Block]:
    """What there is to do, in order; without the blocks that a comment takes out."""
    skipped = False
    for found in _PIECE.finditer(page):
        line = page.count("\n", 0, found.start()) + 1
        if found["mark"] == "not run":
            assert found["said"].strip(), f"line {line}: not run, and why?"
            skipped = True
        elif found["mark"]:
            yield Block("before", textwrap.dedent(found["said"]), line)
        else:
            if not skipped:
                yield Block(found["kind"], textwrap.dedent(found["text"]), line + 1)
            skipped = False


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a ```console block, each with the lines that it shows."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected.splitlines()


def assert_shown(expected: list[str], shown: str, command: str) -> None:
    """These lines and no others, but for what `...` stands for."""
    wanted = [masked(line) for line in expected if line != "^C"]
    lines = [masked(line) for line in shown.splitlines()]
    # Without rules, and without what a terminal has only for a while: bars, and a wheel that turns.
    found = [line for line in lines if line.strip("─ ") and not re.search("━|^[⠀-⣿]", line)]
    pattern = "".join(".*" if line == "..." else re.escape(line) + "\n" for line in wanted)
    assert re.fullmatch(pattern, "".join(f"{line}\n" for line in found), re.DOTALL), (
        f"{command} showed:\n" + "\n".join(found) + "\nand not:\n" + "\n".join(wanted)
    )


def masked(line: str) -> str:
    """A line without what differs from run to run."""
    for pattern, name in MASKS:
        line = re.sub(pattern, name, line)
    return " ".join(line.split())


class Reader:
    """Somebody who types what the page says, in the working directory."""

    def __init__(self, page: Path) -> None:
        self._page = page
        module = sys.modules["page"] = ModuleType("page")  # what classes and handlers are found by
        self._names: dict[str, Any] = vars(module)
        self._names["_shows"] = _shows

    def reads(self) -> None:
        """Do everything on the page."""
        for block in blocks_of(self._page.read_text("utf-8")):
            if block.kind in ("python", "toml") and (file := _FILE.match(block.text)):
                path = Path(file[1])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, "utf-8")
            elif block.kind in ("python", "before"):
                self._runs(block)
            elif block.kind == "console":
                for command, expected in commands(block.text):
                    assert_shown(expected, self._types(command, expected), command)

    def _runs(self, block: Block) -> None:
        tree = ast.parse(block.text)
        _Told(_comments(block.text)).visit(tree)
        ast.increment_lineno(ast.fix_missing_locations(tree), block.line - 1)
        exec(compile(tree, str(self._page), "exec"), self._names)  # noqa: S102

    def _types(self, command: str, expected: list[str]) -> str:
        program, *words = shlex.split(command)
        code, shown = at_a_terminal(
            sys.executable, *(["-m", "ontologia"] if program == "ontologia" else []), *words
        )
        assert program in ("ontologia", "python"), f"who is {program}?"
        told = any(line.startswith("error:") for line in expected)
        assert code == 0 or told, f"{command} ended with {code}:\n{shown}"
        return shown


def at_a_terminal(*command: str, columns: int = 160) -> tuple[int, str]:
    """Run a program whose output is a terminal; its exit code and what was shown."""
    mine, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        while chunk := _read(mine):
            shown += chunk
    os.close(mine)
    return process.returncode, shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def _comments(text: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {
        token.start[0]: token.string.lstrip("# ")
        for token in tokens
        if token.type == tokenize.COMMENT
    }


class _Told(ast.NodeTransformer):
    """Lets each line whose comment is a value be compared with it."""

    def __init__(self, comments: dict[int, str]) -> None:
        self._comments = comments

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        told = self._comments.get(node.end_lineno or 0, "")
        if _VALUE.match(told):
            printed = _printed(node.value)
            shows = ast.Name("_shows", ast.Load())
            value = ast.Call(shows, [ast.Constant(told), printed or node.value], [])
            node.value = value if printed is None else ast.Call(_PRINT, [value], [])
        return node


_PRINT = ast.Name("print", ast.Load())


def _printed(value: ast.expr) -> ast.expr | None:
    """What stands in a print(...)."""
    match value:
        case ast.Call(ast.Name("print"), [printed], []):
            return printed
    return None


def _shows(told: str, value: object) -> object:
    """The comment is the value, with words after it or `...` for the rest."""
    shown = value if isinstance(value, str) and told[0] not in "'\"" else repr(value)
    assert told.startswith(str(shown)) or (
        "..." in told and str(shown).startswith(told.split("...")[0])
    ), f"it gives {shown}, and not {told}"
    return value


if __name__ == "__main__":
    sys.path.insert(0, "")
    Reader(Path(sys.argv[1]).resolve()).reads()
