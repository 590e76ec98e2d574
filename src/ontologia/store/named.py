"""SQL in files, one named statement after another:

-- name: head
-- The number of the last commit.
SELECT ...;
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


@cache
def statements(package: str, *names: str) -> dict[str, str]:
    """The statements of these `sql/` files in a backend's package, by name. Read at first use."""
    found: dict[str, str] = {}
    for file in names:
        text = files(package).joinpath("sql", file).read_text("utf-8")
        parts = _NAME.split(text)[1:]
        found |= {name: _bare(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}
    return found


def _bare(body: str) -> str:
    """Without comments and indentation: a statement's whole text is hashed whenever it is run."""
    lines = (line.strip() for line in body.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--"))
