"""The pytest plugin, as a project of its own uses it."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parent.parent.parent
PLUGIN = "ontologia.testing.plugin"
SHOP = """
from datetime import timedelta
import pytest
from ontologia import (
    Discard, Entity, Event, Field, OntologiaConfig, Retry, Schedule, Session, on_event,
)

class Parcel(Entity):
    id: Field[str]

class ParcelSent(Event):
    parcel: Field[str]

class ParcelSeen(Event):
    parcel: Field[str]

@on_event(ParcelSent, name="parcels.note")
def note(ctx):
    ctx.ensure(Parcel(id=ctx.event.parcel))
    ctx.commit()
    ctx.emit(ParcelSeen(parcel=ctx.event.parcel))
    ctx.emit(ParcelSeen(parcel="later"), delay=60)

@on_event(ParcelSent, name="parcels.waver")
async def waver(ctx):
    if ctx.event.parcel == "lost":
        raise Discard("nobody knows it")
    if ctx.attempt == 1:
        raise Retry("not yet", after=30)

@on_event(ParcelSeen, name="parcels.see")
def see(ctx):
    pass
"""


@pytest.fixture
def project(pytester, monkeypatch):
    """A project with a module `shop` and its tests, on a path that knows no other plugins."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(shop=SHOP)

    def run(tests: str, *options: str):
        pytester.makepyfile(test_shop="from shop import *\n" + tests)
        return pytester.runpytest_subprocess("-p", PLUGIN, "-W", "error", *options)

    return run


def test_handlers_are_run_until_nothing_is_left_and_what_became_of_it_is_counted(project):
    done = project(
        """
def test_a_parcel(session, drain, emitted, clock):
    began = clock.now()
    session.commit(event=ParcelSent(parcel="p1"))
    assert drain([note, see]) == (2, 0, 0)
    assert [each.id for each in session.query().entities(Parcel).collect()] == ["p1"]
    assert [each.model_dump() for each in emitted(ParcelSeen)] == [{"parcel": "p1"}]
    assert isinstance(emitted(ParcelSent)[0], ParcelSent)
    with pytest.raises(TypeError, match="takes an Event class"):
        emitted("parcel.sent")
    assert emitted(ParcelSent)[0].created_at is not None
    assert clock.now() == began

def test_a_parcel_waits(session, drain, emitted, clock, dead_letters):
    began = clock.now()
    session.commit(event=ParcelSent(parcel="p1"))
    session.commit(event=ParcelSent(parcel="lost"))
    assert drain([waver]) == (0, 1, 1)
    assert drain([waver], within=29) == (0, 0, 0)
    assert drain([waver], within=timedelta(seconds=1)) == (1, 0, 0)  # calls add up
    assert (clock.now() - began).total_seconds() == 30
    assert drain([waver], within=12) == (0, 0, 0)
    assert (clock.now() - began).total_seconds() == 42
    [letter] = dead_letters()
    assert (letter["handler"], letter["last_error"]) == ("parcels.waver", "nobody knows it")

def test_what_was_deferred_comes_when_its_time_has(session, drain, emitted):
    session.commit(event=ParcelSent(parcel="p1"))
    drain([note, see])
    assert len(emitted(ParcelSeen)) == 1
    assert drain([note, see], within=60) == (1, 0, 0)
    assert [each.parcel for each in emitted(ParcelSeen)] == ["p1", "later"]

def test_a_schedule_ticks(session, drain, emitted):
    session.add_schedule(Schedule(event=ParcelSeen(parcel="hourly"), cron="0 * * * *"))
    assert drain([see], within=3 * 3600) == (3, 0, 0)

def test_more_events_than_an_iteration_takes(session, drain):
    for number in range(1001):
        session.event_store.enqueue(ParcelSeen(parcel=str(number)), session.namespace)
    assert drain([see]).done == 1001

seen = set()

@pytest.mark.parametrize("again", [1, 2])
def test_ids_are_the_same_in_each_run(session, again):
    event = ParcelSent(parcel="p1")
    session.commit(event=event)
    seen.add(event.id)
    assert len(seen) == 1
"""
    )

    done.assert_outcomes(passed=7)


def test_the_session_has_the_default_settings_wherever_the_tests_are_run(
    project, pytester, monkeypatch
):
    pytester.makefile(".toml", ontologia='event_max_attempts = 1\ndefault_namespace = "live"')
    pytester.makefile(".toml", pyproject="[tool.ontologia]\nmax_batch_size = 1")
    monkeypatch.setenv("ONTOLOGIA_EVENT_CLAIM_LEASE_MS", "1")

    done = project(
        """
def test_it(session, clock):
    config = session.config
    assert (session.namespace, config.event_max_attempts) == ("default", 10)
    assert (config.max_batch_size, config.event_claim_lease_ms) == (10_000, 30_000)
    assert config.clock is clock
"""
    )

    done.assert_outcomes(passed=1)


def test_a_handler_is_checked_in_three_lines(project):
    done = project(
        """
from ontologia.testing import check_idempotent

def test_noting_a_parcel_can_be_tried_again():
    check_idempotent(note, ParcelSent(parcel="p1"))

@on_event(ParcelSent, name="parcels.count")
def count(ctx):
    ctx.ensure(Parcel(id=str(ctx.query().entities(Parcel).count())))
    ctx.commit()

def test_counting_cannot():
    check_idempotent(count, ParcelSent(parcel="p1"))
"""
    )

    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        ["E*parcels.count is not idempotent*", "E*Parcel 1: is there; undisturbed it is not"]
    )
    done.stdout.no_fnmatch_line("*idempotent.py:*")  # a user is shown the test, not our code


def test_a_fixture_of_the_users_own_takes_the_place_of_ours_and_the_others_work_with_it(
    project, pytester
):
    pytester.makeconftest(
        """
import pytest
from ontologia import OntologiaConfig, Session

@pytest.fixture
def session(clock):
    with Session("sqlite://", namespace="mine", config=OntologiaConfig(clock=clock)) as session:
        yield session

@pytest.fixture
def emitted():
    return "something else"
"""
    )

    done = project(
        """
def test_it(session, drain, emitted):
    session.commit(event=ParcelSeen(parcel="p1"))
    assert session.namespace == "mine"
    assert drain([see]).done == 1
    assert emitted == "something else"
"""
    )

    done.assert_outcomes(passed=1)


@pytest.fixture
def installed(pytester, monkeypatch):
    """The plugin, as an installer would make it known; and a test that uses it."""
    info = pytester.mkdir("installed-0.dist-info")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 0\n")
    (info / "RECORD").write_text("ontologia/__init__.py,,\nontologia/testing/plugin.py,,\n")
    (info / "entry_points.txt").write_text(f"[pytest11]\nontologia = {PLUGIN}\n")
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)
    pytester.makepyfile("def test_it(session): assert session.head == 0")


OTHERS = ("-p", "no:schemathesis", "-p", "no:xdist")  # which take their time


@pytest.mark.thorough
def test_the_plugin_is_found_by_its_name_and_can_be_left_out(installed, pytester):
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert declared["pytest11"] == {"ontologia": PLUGIN}

    pytester.runpytest_subprocess(*OTHERS, "-W", "error").assert_outcomes(passed=1)
    pytester.runpytest_subprocess(*OTHERS, "-p", "no:ontologia").assert_outcomes(errors=1)


@pytest.mark.thorough
def test_a_program_that_has_imported_the_package_can_start_pytest(installed, pytester):
    options = [*OTHERS, "-W", "error"]
    program = f"import ontologia, pytest; raise SystemExit(pytest.main({options}))"

    done = pytester.run(sys.executable, "-c", program)

    assert done.ret == 0


def test_nothing_heavy_is_loaded_until_a_fixture_is_used(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        """
import sys

def test_it(clock):
    loaded = {name for name in sys.modules if name.split(".")[0] == "ontologia"}
    assert loaded == {"ontologia", "ontologia.errors", "ontologia.testing",
                      "ontologia.testing.clock", "ontologia.testing.plugin"}
    assert not {"apsw", "pydantic", "orjson", "hypothesis"} & {*sys.modules}
"""
    )

    pytester.runpytest_subprocess("-p", PLUGIN).assert_outcomes(passed=1)
