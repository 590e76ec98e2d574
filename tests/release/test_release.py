"""The release: a wheel and an archive of the sources that install and work where nothing else is."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import ontologia
from tests.release.pythons import pythons

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).parents[2]
FOUND = pythons()


def _run(*command, cwd, **options):
    done = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        **options,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The two files of a release; the wheel is made from the archive, and not from this folder."""
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    [wheel], [sources] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sources


def test_the_version_is_said_once(built):
    said = [
        path
        for path in (ROOT / "src").rglob("*.py")
        if f'"{ontologia.__version__}"' in path.read_text()
    ]

    assert [path.relative_to(ROOT) for path in said] == [Path("src/ontologia/__init__.py")]
    assert [each.name for each in built] == [
        f"ontologia-{ontologia.__version__}-py3-none-any.whl",
        f"ontologia-{ontologia.__version__}.tar.gz",
    ]


def test_the_wheel_has_every_file_of_the_package_and_no_other(built):
    package = ROOT / "src/ontologia"
    wanted = {
        f"ontologia/{path.relative_to(package)}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
        [metadata] = [wheel.read(name).decode() for name in names if name.endswith("/METADATA")]
    inside = {name for name in names if ".dist-info/" not in name}

    assert inside == wanted
    assert "ontologia/py.typed" in inside
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata


def test_the_archive_has_what_somebody_needs_to_work_on_it(built):
    with tarfile.open(built[1]) as sources:
        names = {name.partition("/")[2] for name in sources.getnames()}

    for name in ("Makefile", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "zensical.toml"):
        assert name in names
    assert {"tests/release/test_release.py", "docs/tutorial.md", "tools/site.py"} <= names
    assert [name for name in names if name.endswith((".pyc", ".db"))] == []


def test_the_changelog_knows_the_version_that_is_being_made():
    heads = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert heads[0] == "Unreleased" or heads[0].startswith(f"{ontologia.__version__} ")


def test_this_python_is_among_those_that_are_tried():
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in FOUND


@pytest.mark.parametrize("version", FOUND)
def test_it_installs_and_works_where_nothing_else_is(version, built, tmp_path):
    _run(FOUND[version], "-m", "venv", "there", cwd=tmp_path)
    programs = tmp_path / "there/bin"
    _run(programs / "pip", "install", "--quiet", built[0], cwd=tmp_path)

    work = tmp_path / "work"
    work.mkdir()
    smoke = ROOT / "tests/release/smoke.py"
    assert _run(programs / "python", "-W", "error", smoke, cwd=work) == ontologia.__version__
    assert _run(programs / "ontologia", "--version", cwd=work).endswith(ontologia.__version__)
    assert "gold" in _run(programs / "ontologia", "query", "entities", "Customer", cwd=work)
    assert "promote" in _run(programs / "ontologia", "why", "Customer", "c1", cwd=work)
    assert "o-1" in _run(programs / "ontologia", "demo", "--fast", cwd=work)
    assert _run(programs / "pip", "check", cwd=work) == "No broken requirements found."
    lacking = subprocess.run(
        [programs / "ontologia", "info", "--datastore-uri", "postgresql://localhost/shop"],
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    assert lacking.returncode == 5
    assert "ontologia[postgres]" in lacking.stderr
