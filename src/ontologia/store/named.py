"""Statements in `.sql` files, one after another, each under its name:

    -- name: head
    -- The number of the last commit.
    SELECT MAX(id) FROM commits;

`store/sql/` has the statements that all databases share. A backend's own `sql/` has those that it
says in its own way, complete. Both are written in one notation, which a backend spells out when it
loads them. A value is `:name`, bound by name, or by position in the order in which a statement names
its values first; one that is compared with NULL alone is cast, or PostgreSQL would not know its
type. Tables have their bare names. These markers stand for what differs throughout:

    IN @texts(:ids)       is in a JSON list of texts
    IN @numbers(:ids)     is in a JSON list of whole numbers
    @bytes(payload)       text that is read as bytes where the database may hold what is no text
    @json(metadata)       a text column as JSON, to be asked with ->>
    @lock(FOR UPDATE)     a row lock; nothing where one writer excludes all others
    @join                 a join of which the left side is read first
    @own                  the whole statement: every backend has one of its own
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain

_NAME = "\n-- name: "
_SAID = re.compile(r"\A(?:--.*\n)+")
_MARKER = re.compile(r"((?:IN )?@\w+)(?:\(([^()]*)\))?")
_OWN = "@own;"


def load(package: str, names: Sequence[str], markers: Mapping[str, str]) -> dict[str, str]:
    """The statements of these `.sql` files, by name: the shared ones, and those of a backend.

    `package` is the backend's. `markers` has what it says for each marker; {} is what that was
    given. ValueError if a statement has two texts or none, or a marker that is not in `markers`.
    """
    shared, own = _together("ontologia.store", names), _together(package, names)
    for name, text in shared.items():
        if (text == _OWN) is not (name in own):
            wrong = "has no text" if text == _OWN else "has a text of its own beside the shared one"
            raise ValueError(f"the statement {name} {wrong} in {package}")
    return {name: _marked(name, text, markers) for name, text in (shared | own).items()}


def _together(package: str, names: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in chain.from_iterable(_read(package, file) for file in names):
        if name in found:
            raise ValueError(f"two statements in the files of {package} are called {name}")
        found[name] = text
    return found


@cache
def _read(package: str, file: str) -> list[tuple[str, str]]:
    """Names and texts, as they stand in a file; [] if the package has no such file."""
    path = files(package).joinpath("sql", file)
    text = path.read_text("utf-8") if path.is_file() else ""
    parts = (part.partition("\n") for part in f"\n{text}".split(_NAME)[1:])
    return [(name, _bare(body)) for name, _, body in parts]


def _bare(body: str) -> str:
    """Without what is said about it: a statement's whole text is hashed whenever it is run.

    What makes a table is run once, and people read it.
    """
    text = body.strip()
    bare = _SAID.sub("", text, count=1)
    return text if bare.startswith("CREATE") else bare


def _marked(name: str, text: str, markers: Mapping[str, str]) -> str:
    """A statement with what the backend says for its markers."""

    def said(marker: re.Match[str]) -> str:
        if marker[1] not in markers:
            raise ValueError(f"the statement {name} has {marker[1]}, which is no marker")
        return markers[marker[1]].format(marker[2])

    return _MARKER.sub(said, text) if "@" in text else text
