"""Statements in files: what is shared is written once, and a mistake in a file is loud."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from importlib.resources import files
from itertools import count
from pathlib import Path

import pytest

import ontologia.store
from ontologia.store.named import load
from ontologia.store.postgres import notation as postgres
from ontologia.store.sqlite import notation as sqlite

STORE = Path(ontologia.store.__file__).parent
FILES = sorted(path.name for path in STORE.glob("sql/*.sql"))
BACKENDS = {"sqlite": sqlite, "postgres": postgres}
MARKERS = {"@lock": "", "@join": "CROSS JOIN", "@bytes": "BYTES({})"}
Backend = Callable[..., str]
NUMBERS = count()  # a package is imported once


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """A package with a `sql/replies.sql` of its own."""

    def make(*statements: str) -> str:
        name = f"backend_of_statements_{next(NUMBERS)}"
        folder = tmp_path / name / "sql"
        folder.mkdir(parents=True)
        (folder.parent / "__init__.py").touch()
        (folder / "replies.sql").write_text("\n\n".join(statements))
        return name

    monkeypatch.syspath_prepend(tmp_path)
    return make


def test_a_backend_has_the_shared_statements_and_its_own(backend: Backend) -> None:
    package = backend(
        "-- name: delete_replies\n-- Said of it.\nDELETE FROM replies;",
        "-- name: count_replies\nSELECT @bytes(key) FROM replies r @join locks l @lock(FOR UPDATE);",
    )

    found = load(package, ["replies.sql"], MARKERS)

    assert found["delete_replies"] == "DELETE FROM replies;"
    assert found["count_replies"] == "SELECT BYTES(key) FROM replies r CROSS JOIN locks l ;"
    assert found["get_reply"].startswith("SELECT request_hash")


def test_a_statement_that_each_backend_has_of_its_own_may_not_be_missing(backend: Backend) -> None:
    package = backend("-- name: delete_reply\nDELETE FROM replies;")

    with pytest.raises(ValueError, match=f"delete_replies has no text in {package}"):
        load(package, ["replies.sql"], MARKERS)


def test_a_shared_statement_has_no_second_text(backend: Backend) -> None:
    package = backend(
        "-- name: delete_replies\nDELETE FROM replies;", "-- name: get_reply\nSELECT 1;"
    )

    with pytest.raises(ValueError, match="get_reply has a text of its own beside the shared one"):
        load(package, ["replies.sql"], MARKERS)


def test_a_name_is_given_once(backend: Backend) -> None:
    package = backend(*["-- name: delete_replies\nDELETE FROM replies;"] * 2)

    with pytest.raises(ValueError, match="are called delete_replies"):
        load(package, ["replies.sql"], MARKERS)


@pytest.mark.parametrize("marker", ["@looks", "IN @bytes(:ids)"])
def test_an_unknown_marker_is_refused(backend: Backend, marker: str) -> None:
    package = backend(f"-- name: delete_replies\nDELETE FROM replies WHERE key {marker};")

    with pytest.raises(ValueError, match=r"delete_replies has (@looks|IN @bytes), .* no marker"):
        load(package, ["replies.sql"], MARKERS)


def test_values_and_tables_are_spelled_as_the_driver_wants_them() -> None:
    found = postgres.statements("claims.sql")

    assert found["adopt_ready"] == (
        "UPDATE ontologia.ready SET consumer_id = %(consumer_id)s WHERE consumer_id = %(old_id)s;"
    )
    assert "%(types)s::text IS NULL OR r.type = ANY(ARRAY(SELECT jsonb_array" in found["take"]
    assert "SELECT * FROM ontologia.events WHERE id = c.event_id" in found["take"]
    assert "FROM picked" in found["take"]  # which is no table


def test_no_statement_is_written_twice() -> None:
    """Two backends that say the same share it."""
    alike = []
    for file in FILES:
        texts = [_own(package, file) for package in BACKENDS]
        alike += [name for name in texts[0] if texts[0][name] == texts[1].get(name)]

    assert alike == []


def _own(backend: str, file: str) -> dict[str, str]:
    path = files("ontologia.store").joinpath(backend, "sql", file)
    parts = path.read_text().split("-- name: ")[1:] if path.is_file() else ()
    found: dict[str, str] = {}
    for part in parts:
        name, *lines = part.splitlines()
        found[name] = " ".join(" ".join(x for x in lines if not x.startswith("--")).split())
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_code_and_the_files_name_the_same_statements(backend: str) -> None:
    there = {name for file in FILES for name in BACKENDS[backend].statements(file)}
    there |= set(BACKENDS[backend].statements("layout.sql"))
    code = [
        path
        for path in STORE.rglob("*.py")
        if path.relative_to(STORE).parts[0] not in set(BACKENDS) - {backend}
    ]

    asked = {name for path in code for name in _asked(path)}

    assert asked - there == set()
    assert len(asked) > 100


def _asked(path: Path) -> Iterator[str]:
    """What is taken by name from a mapping of statements."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            mapping = ast.unparse(node.value).lower()
            if mapping.endswith(("sql", "_state", "state", "hot", "layout")):
                yield node.slice.value
