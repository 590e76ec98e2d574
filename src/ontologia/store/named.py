"""SQL in files, one named statement after another:

-- name: head
-- The number of the last commit.
SELECT ...;
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from itertools import dropwhile

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
    """Without what is said about it: a statement's whole text is hashed whenever it is run.

    What makes a table is run once, and people read it.
    """
    text = body.strip()
    bare = "\n".join(dropwhile(lambda line: line.startswith("--"), text.splitlines()))
    return text if bare.startswith("CREATE") else bare
