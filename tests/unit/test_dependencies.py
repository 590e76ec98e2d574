"""What the package imports is what `pyproject.toml` declares, and the other way round."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOR_DEVELOPERS = {"bench", "dev", "docs", "fuzz"}
OF_PYDANTIC = {"annotated-types", "pydantic_core"}  # it says which versions fit
OF_JINJA2 = {"markupsafe"}  # what escapes for it
BY_NAME = {"tzdata", "pyyaml"}  # read by zoneinfo; imported by importlib


def distribution(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower()


def declared():
    """The distributions that users install, by the package's own needs and by extra."""
    extras = PROJECT["optional-dependencies"]
    users = [need for extra in extras.keys() - FOR_DEVELOPERS for need in extras[extra]]
    found = {distribution(each) for each in [*PROJECT["dependencies"], *users]}
    return found | ({"psycopg-pool"} if "psycopg" in found else set())  # by its extra `pool`


@cache
def imported():
    """The distributions that the code imports, at its top or later."""
    known = packages_distributions()
    names = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names.add(node.module.partition(".")[0])
    others = names - set(sys.stdlib_module_names) - {"ontologia"}
    return {known[name][0].lower() for name in others if name in known}


def test_everything_that_is_imported_is_declared():
    assert imported() - OF_PYDANTIC - OF_JINJA2 - declared() == set()


def test_everything_that_is_declared_is_imported():
    assert declared() - BY_NAME - imported() == set()
