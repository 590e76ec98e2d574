"""The suite itself: which tests a tier has, the servers that processes share, any way to start it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.integration.processes import ROOT, Process
from tests.integration.running import until
from tests.servers import own_server, shared_servers

PLUGIN = ("-p", "ontologia_conformance.tiers")
TESTS = """
import pytest
from ontologia_conformance.tiers import samples

@pytest.fixture(params=["sqlite", "postgres18", "postgres16"])
def backend(request):
    return request.param

@pytest.mark.req("A-1")
def test_somewhere(backend): pass

@pytest.mark.each_database
def test_on_both(backend): pass

@pytest.mark.parametrize("backend", ["postgres18", "postgres16"])
def test_on_servers(backend): pass

@pytest.mark.thorough
@pytest.mark.req("{row}")
def test_long(): pass

@pytest.mark.sampled
def test_sample():
    print("tried", samples(40))
"""


def run_pytest(
    folder: Path, *arguments: str, tier: str = "", row: str = "A-1", in_folder: str = "tests"
) -> str:
    """Run a suite of five functions; what pytest printed."""
    (folder / in_folder).mkdir(exist_ok=True)
    (folder / in_folder / "test_some.py").write_text(TESTS.format(row=row))
    (folder / "pytest.ini").write_text(f"[pytest]\ntestpaths = {in_folder}\n")
    settings = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # which takes longer than the tests
    settings |= {"ONTOLOGIA_TEST_TIER": tier} if tier else {}
    ours = {name: each for name, each in os.environ.items() if "ONTOLOGIA_TEST" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGIN, "-vs", *arguments],
        cwd=folder,
        env=ours | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def ran(told: str) -> set[str]:
    """The tests that ran."""
    lines = [line.split()[0] for line in told.splitlines() if line.startswith("tests/test_some")]
    return {line.partition("::test_")[2] for line in lines}


def test_the_tiers_together_are_all_tests(tmp_path):
    everything = run_pytest(tmp_path)
    quick = run_pytest(tmp_path, tier="quick")
    rest = run_pytest(tmp_path, tier="rest")

    kept = {"somewhere[sqlite]", "on_both[sqlite]", "on_both[postgres18]", "on_servers[postgres18]"}
    assert ran(quick) == {*kept, "sample"}
    assert ran(rest) == (ran(everything) - ran(quick)) | {"sample"}
    assert len(ran(everything)) == 10
    assert [each.count("tried 4\n") for each in (everything, quick, rest)] == [0, 1, 0]
    assert [each.count("tried 40\n") for each in (everything, quick, rest)] == [1, 0, 1]


@pytest.mark.parametrize("folder", ["conformance", "ontologia_conformance"])
def test_in_a_conformance_suite_the_newest_server_is_quick(tmp_path, folder):
    told = run_pytest(tmp_path, tier="quick", in_folder=folder)

    assert "test_somewhere[postgres18]" in told
    assert "test_somewhere[postgres16]" not in told


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "1")], ids=["alone", "workers"])
def test_a_row_that_only_thorough_tests_prove_stops_a_run_of_everything(tmp_path, options):
    told = run_pytest(tmp_path, *options, tier="quick", row="A-2")

    assert "1 failed in" in told
    assert "`make test` would not prove A-2" in told
    assert ran(told) == set()
    assert ran(run_pytest(tmp_path, "tests/test_some.py", tier="quick", row="A-2"))


def test_a_tier_that_there_is_not_is_refused(tmp_path):
    assert "is 'fast', not quick, rest or all" in run_pytest(tmp_path, tier="fast")


# -- servers --------------------------------------------------------------------------------------


def test_processes_share_a_server_and_have_databases_of_their_own():
    with shared_servers() as servers:
        one, two = (servers.database_for(name, 18, servers.port) for name in ("one", "two"))
        again = servers.database_for("one", 18, servers.port)

        with psycopg.connect(one) as first, psycopg.connect(two) as second:
            assert first.info.port == second.info.port
            assert [first.info.dbname, second.info.dbname] == ["one", "two"]
            for connection in (first, second):
                taken = connection.execute("SELECT pg_try_advisory_xact_lock(1)").fetchone()
                assert taken == (True,)
    assert again == one
    assert not answers(one)


def test_a_run_that_is_killed_leaves_no_server_behind():
    own_server().stop()  # skips where there is none
    with Process(
        "from ontologia_conformance.servers import SharedPostgres\n"
        "servers = SharedPostgres()\n"
        "say('uri', servers.database_for('some', 18, servers.port))\n"
        "listen()"
    ) as owner:
        uri = owner.hear("uri")
        assert answers(uri)
        owner.kill()

        until(lambda: not answers(uri))


def answers(uri: str) -> bool:
    try:
        psycopg.connect(uri, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


# -- any way to start it --------------------------------------------------------------------------


def test_it_passes_in_the_background_without_a_terminal_and_with_a_long_path(tmp_path):
    long = tmp_path / ("long" * 30)
    long.mkdir()
    tests = (
        "test_cli_tail.py::test_a_terminal_gets_colours[sqlite]",
        "test_actor_sockets.py::test_a_request_on_the_socket_is_answered",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
        + [f"tests/integration/{test}" for test in tests],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(long)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )

    assert "2 passed" in done.stdout, done.stdout + done.stderr
