"""The reference is made from the code: all of it, and what is checked in is what would be made."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import griffe
import pytest
import typer
from tools import site
from tools.reference import DOCS, PAGES
from tools.reference.api import PACKAGES, api_page, public_names
from tools.reference.errors import tree
from tools.reference.options import commands, options_page
from tools.reference.tables import names_in

from ontologia import OntologiaConfig, errors
from ontologia.cli.main import app
from ontologia.clock import Clock
from ontologia.store.postgres.ddl import ddl

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_makes_of_it(name):
    page = (DOCS / name).read_text()

    assert PAGES[name](page) == page, "python -m tools.reference writes it anew"


def test_every_package_with_names_to_import_is_in_the_reference():
    exporting = {
        f"ontologia.{path.parent.name}"
        for path in (ROOT / "src/ontologia").glob("*/__init__.py")
        if re.search(r"^__all__ = \[\n", path.read_text(), re.MULTILINE)
    }

    # Their few names are called by programs that have a page: http.md, conformance.md.
    assert exporting - {*PACKAGES} <= {"ontologia.web", "ontologia.cli"}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_is_in_the_reference(package):
    exported = getattr(import_module(package), "__all__", None) or public_names(package)
    found = set(re.findall(rf"^::: {re.escape(package)}\.(\w+)$", api_page(package), re.MULTILINE))

    assert found == {name for name in exported if not name.startswith("_")}
    assert len(found) > 0


@pytest.fixture(scope="module")
def written():
    """The package as its reference is made of it."""
    return griffe.load("ontologia", search_paths=[ROOT / "src"])


@pytest.mark.thorough
@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_and_method_says_what_it_does(package, written):
    place = package.removeprefix("ontologia").removeprefix(".")
    silent = []
    for name in public_names(package):
        value = getattr(import_module(package), name)
        shown = written[f"{place}.{name}".lstrip(".")]
        if not shown.has_docstring and not inspect.ismodule(value):
            silent.append(name)
        if inspect.isclass(value):
            silent += [f"{name}.{method}" for method in _silent_methods(value)]

    assert silent == []


def _silent_methods(cls):
    for name, member in vars(cls).items():
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        # What a base says counts for those who do it; what a clock promises is said by Clock.
        said = inspect.getdoc(getattr(cls, name, None)) or hasattr(Clock, name)
        if not name.startswith("_") and inspect.isfunction(function) and not said:
            yield name


def test_every_error_has_its_row():
    listed = [cls for cls, _ in tree(errors.OntologiaError)]
    there = {v for v in vars(errors).values() if inspect.isclass(v) and issubclass(v, Exception)}

    assert {*listed} == there
    assert len(listed) == len(there)


def test_every_setting_has_its_row():
    page = (DOCS / "reference/settings.md").read_text()

    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [*OntologiaConfig.model_fields]


def test_every_table_of_either_database_is_there(session, sql):
    page = (DOCS / "reference/tables.md").read_text()
    titles = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^## .*$", page, re.MULTILINE))))
    kept = (
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite%'"
    )

    assert titles == {row[0] for row in sql(kept)}
    assert titles == {*names_in(ddl("ontologia"))}


def test_every_command_has_its_section_with_all_its_options():
    page = options_page()
    root = typer.main.get_command(app)
    found = [*commands(root, root.context_class(root, info_name="ontologia"))]

    assert len(found) > 30
    for command, context in found:
        section = page.split(f"\n## {context.command_path}\n")[1].split("\n## ")[0]
        for parameter in command.params:
            if {*parameter.opts} & {
                "--datastore-uri",
                "--namespace",
                "--json",
                "--debug",
                "--help",
            }:
                continue
            for word in parameter.opts if parameter.opts[0].startswith("-") else []:
                assert f"{word}" in section, (context.command_path, word)


def test_the_navigation_names_every_page_and_no_other(tmp_path):
    site.gather(tmp_path / "docs")

    assert site.problems(tmp_path / "docs") == []


def test_links_of_the_home_page_lead_to_pages_of_the_site():
    page = site.from_root("index.md", "README.md")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page)

    assert "docs/" not in "".join(targets)
    assert [
        each for each in targets if not (DOCS / each).exists() and each not in site.made_pages()
    ] == []


@pytest.mark.thorough
def test_the_site_is_built_without_a_warning_and_needs_no_other_server():
    done = subprocess.run(
        [sys.executable, "-m", "tools.site"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    built = ROOT / "build/site"
    assert json.loads((built / "search.json").read_text())
    for page in built.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?://[^\" >]+)", page.read_text()
        )
        assert loaded == [], page
