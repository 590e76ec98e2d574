"""The release: wheels and archives of the sources that install and work where nothing else is."""

from __future__ import annotations

import os
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
    # What it runs is not of the tier, nor on the server, of this run.
    ours = {k: v for k, v in os.environ.items() if not k.startswith("ONTOLOGIA_TEST_")}
    options.setdefault("env", ours)
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
    """The two files of `ontologia`."""
    return _built(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def conformance(tmp_path_factory):
    """The two files of `ontologia-conformance`."""
    return _built(ROOT / "conformance", tmp_path_factory.mktemp("dist"))


def _built(project, folder):
    """The wheel, which is made from the archive and not from this checkout, and the archive."""
    _run(sys.executable, "-m", "build", "--outdir", folder, project, cwd=folder)
    [wheel], [sources] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sources


def _contents(built):
    """The files of a wheel, those of its metadata apart, and the metadata."""
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
        [metadata] = [wheel.read(name).decode() for name in names if name.endswith("/METADATA")]
    about = {name for name in names if ".dist-info/" in name}
    return names - about, about, metadata


def _files(package):
    """The files of a package in this checkout, as a wheel names them."""
    return {
        f"{package.name}/{path.relative_to(package)}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


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
    inside, about, metadata = _contents(built)

    assert inside == _files(ROOT / "src/ontologia")
    assert "ontologia/py.typed" in inside
    assert any(name.endswith("/licenses/LICENSE") for name in about)
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata


def test_the_wheel_holds_neither_the_bench_nor_the_conformance_suite(built):
    inside, _, _ = _contents(built)

    others = re.compile(r"bench|conformance|simulation")
    assert [name for name in inside if others.search(name)] == []


def test_the_conformance_suite_is_for_this_version_and_no_other(conformance):
    inside, about, metadata = _contents(conformance)
    version = ontologia.__version__

    assert [each.name for each in conformance] == [
        f"ontologia_conformance-{version}-py3-none-any.whl",
        f"ontologia_conformance-{version}.tar.gz",
    ]
    assert f"Requires-Dist: ontologia[testing]=={version}\n" in metadata
    assert inside == _files(ROOT / "conformance/src/ontologia_conformance")
    assert "ontologia_conformance/py.typed" in inside
    assert any(name.endswith("/licenses/LICENSE") for name in about)
    assert (ROOT / "conformance/LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_the_archive_has_what_somebody_needs_to_work_on_it(built):
    with tarfile.open(built[1]) as sources:
        names = {name.partition("/")[2] for name in sources.getnames()}

    for name in ("Makefile", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "zensical.toml"):
        assert name in names
    assert {"tests/release/test_release.py", "docs/tutorial.md", "tools/site.py"} <= names
    assert {"conformance/pyproject.toml", "bench/__main__.py"} <= names
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
    _run(programs / "python", "-c", "import ontologia.testing", cwd=work)  # it needs no pytest
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


def test_the_conformance_suite_and_the_simulator_run_where_they_are_installed(
    built, conformance, tmp_path
):
    _run(sys.executable, "-m", "venv", "there", cwd=tmp_path)
    programs = tmp_path / "there/bin"
    _run(programs / "pip", "install", "--quiet", built[0], conformance[0], cwd=tmp_path)

    work = tmp_path / "work"
    work.mkdir()
    suite = ("--pyargs", "ontologia_conformance.test_event_tables", "-k", "sqlite", "-q")
    assert re.search(r"\d passed", _run(programs / "pytest", *suite, cwd=work))
    simulation = ("-m", "ontologia_conformance.simulation", "--seeds", "3")
    assert "3 seeds in" in _run(programs / "python", *simulation, cwd=work)
    assert _run(programs / "pip", "check", cwd=work) == "No broken requirements found."
