"""`ontologia run`: a worker process for the handlers of a module."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from typer.testing import CliRunner

from ontologia import Event, Field, Session
from ontologia.cli.main import app
from tests.integration.commands import Terminal
from tests.integration.running import PATIENCE, until

ONTOLOGIA = [sys.executable, "-u", "-m", "ontologia"]
WORKER = """
import logging, pathlib, threading, time
from ontologia import Entity, Event, Field, Relation, Schedule, on_event

class Lamp(Entity):
    id: Field[str] = Field(primary_key=True)

class Lights(Relation[Lamp, Lamp]):
    pass

class Abstract(Entity, abstract=True):
    id: Field[str] = Field(primary_key=True)

class LampLit(Event):
    lamp: Field[str]

@on_event(LampLit)
async def light(ctx):
    if ctx.event.lamp == "broken" and ctx.attempt == 1:
        raise OSError("no oil")
    logging.getLogger("mine").info("lighting %s", ctx.event.lamp)
    ctx.ensure(Lamp(id=ctx.event.lamp))
    ctx.commit()

@on_event(LampLit)
def count(ctx):
    if ctx.event.lamp == "broken" and ctx.attempt == 1:
        raise ValueError("one too many")
    print("VERSION 1", ctx.event.lamp, flush=True)

some = [light]

@on_event(LampLit)
def wait(ctx):
    print("WAITING", flush=True)
    while not pathlib.Path("enough").exists():
        time.sleep(0.01)

@on_event(LampLit)
def fail(ctx):
    raise ValueError("no " + ctx.event.lamp)

barrier = threading.Barrier(2)

@on_event(LampLit)
def meet(ctx):
    barrier.wait(timeout=30)

waits, fails, meets = [wait], [fail], [meet]
del wait, fail, meet  # only by their lists
"""


class LampLit(Event):
    lamp: Field[str]


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "program"
    place.mkdir()
    (place / "lamps.py").write_text(WORKER)
    return place


@pytest.fixture
def store(uri):
    Session(uri).close()
    return uri


class Worker:
    """`ontologia run`, as a process; its lines as they come."""

    def __init__(self, folder, uri, *arguments):
        self.popen = subprocess.Popen(
            [*ONTOLOGIA, "run", *arguments, "--datastore-uri", uri],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        self.lines = []
        self._watchdog = threading.Timer(PATIENCE, self.popen.terminate)
        self._watchdog.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._watchdog.cancel()
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            self.popen.wait(PATIENCE)
        self.popen.stdout.close()

    def hear(self, *words):
        """The next line in which all these words are."""
        for line in self.popen.stdout:
            self.lines.append(line)
            if all(word in line for word in words):
                return line
        raise AssertionError(f"never heard {words}; heard:\n{''.join(self.lines)}")

    def stop(self, number=signal.SIGTERM):
        self.popen.send_signal(number)
        rest = self.popen.stdout.read()
        self.lines.append(rest)
        return self.popen.wait(PATIENCE), rest


def emit(uri, *lamps, namespace=None):
    ids = []
    with Session(uri, namespace) as session:
        for lamp in lamps:
            event = LampLit(lamp=lamp)
            session.commit(event=event)
            ids.append(event.id)
    return ids


@pytest.mark.thorough
def test_a_worker_runs_what_a_module_has_and_logs_ids(store, folder):
    [first, second] = emit(store, "a", "broken")

    with Worker(folder, store, "lamps") as worker:
        worker.hear(f"event {first} (lamp.lit): lamps:light done at attempt 1")
        failed = worker.hear(f"event {second} (lamp.lit): lamps:light failed at attempt 1")
        worker.hear(f"event {second} (lamp.lit): lamps:", "done at attempt 2")
        worker.hear(f"event {second} (lamp.lit): lamps:", "done at attempt 2")
        code, rest = worker.stop()

    assert code == 0
    assert "OSError: no oil" in failed
    assert "stopped: 4 done, 2 failed attempts" in rest
    assert any(
        f"INFO mine: lighting a [event={first} handler=lamps:light]" in line
        for line in worker.lines
    )
    assert "\x1b" not in "".join(worker.lines)


def test_types_of_the_module_are_registered(store, folder, sql):
    with Worker(folder, store, "lamps") as worker:
        worker.hear("runs 2 handlers")
        worker.stop()

    names = sql("SELECT type_kind, type_name FROM schema_registry ORDER BY 1, 2")
    assert names == [["entity", "Lamp"], ["relation", "Lights"]]


def test_an_attribute_chooses_and_ctrl_c_stops(store, folder):
    [event] = emit(store, "a", namespace="north")

    with Worker(
        folder, store, "lamps:some", "--namespace", "north", "--workers", "3", "--json"
    ) as it:
        it.hear("runs 1 handler\n")
        it.hear(f"event {event} (lamp.lit): lamps:light done")
        code, rest = it.stop(signal.SIGINT)

    assert code == 0
    assert json.loads(rest.splitlines()[-1]) == {"done": 1, "failed": 0}
    assert not any("VERSION" in line for line in it.lines)


def test_schedules_of_the_module_run(store, folder):
    """None fires within a test's patience; that they are there is seen at the first look."""
    (folder / "planned.py").write_text(
        "from ontologia import Event, Schedule\n"
        "from ontologia.engine.scheduler import Scheduler\n"
        "class Due(Event):\n    pass\n"
        "schedules = [Schedule(event=Due(), cron='0 2 * * *')]\n"
        "plain = Scheduler.add\n"
        "def add(self, given):\n"
        "    print('SCHEDULES', len(list(given)), flush=True)\n"
        "    return plain(self, given)\n"
        "Scheduler.add = add\n"
    )

    with Worker(folder, store, "planned") as worker:
        assert worker.hear("SCHEDULES") == "SCHEDULES 1\n"
        worker.hear("runs 0 handlers")
        assert worker.stop()[0] == 0


@pytest.mark.thorough
def test_a_changed_file_starts_the_worker_again(store, folder):
    with Worker(folder, store, "lamps", "--reload") as worker:
        worker.hear("runs 2 handlers")
        emit(store, "a")
        worker.hear("VERSION 1 a")

        (folder / "lamps.py").write_text("def broken(")
        worker.hear("lamps.py changed; starting again")
        worker.hear("the worker ended with code 1; waiting for a change")
        (folder / "lamps.py").write_text(WORKER.replace("VERSION 1", "VERSION 2"))
        worker.hear("lamps.py changed; starting again")
        worker.hear("runs 2 handlers")
        emit(store, "b")
        worker.hear("VERSION 2 b")
        code, rest = worker.stop(signal.SIGINT)

    assert code == 0
    assert "stopped:" in rest


@pytest.mark.thorough
def test_a_reloaded_worker_is_told_everything(store, folder):
    emit(store, "elsewhere")
    first, second = emit(store, "a", "b", namespace="north")

    with Worker(
        *(folder, store, "lamps:meets", "--reload"),
        *("--workers", "2", "--namespace", "north", "--json"),
    ) as worker:
        worker.hear("lamps:meet done at attempt 1")  # neither ends before both have begun
        worker.hear("lamps:meet done at attempt 1")
        code, rest = worker.stop()

    assert code == 0
    assert json.loads(rest.splitlines()[-1]) == {"done": 2, "failed": 0}
    assert all(any(f"event {each} " in line for line in worker.lines) for each in (first, second))


def test_a_worker_ends_well_when_what_reloads_it_is_killed(store, folder):
    with Worker(folder, store, "lamps", "--reload") as worker, Session(store) as session:
        worker.hear("runs 2 handlers")
        [pid] = {row["pid"] for row in sessions(session)} - {os.getpid()}

        worker.popen.kill()

        try:
            until(lambda: all(row["stopped_at"] for row in sessions(session) if row["pid"] == pid))
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert worker.popen.returncode == -signal.SIGKILL


def test_a_worker_that_is_stopped_before_it_runs_has_the_code_of_the_signal(store, folder):
    (folder / "slow.py").write_text("print('IMPORTED', flush=True)\nimport time\ntime.sleep(60)\n")

    with Worker(folder, store, "slow", "--reload") as worker:
        worker.hear("IMPORTED")
        code, _ = worker.stop()

    assert code == 128 + signal.SIGTERM


def sessions(session):
    return session.event_store.list_sessions(session.namespace)


@pytest.mark.thorough
def test_a_terminal_has_a_status_line(store, folder):
    emit(store, "a")

    with Terminal("run", "lamps", "--datastore-uri", store, cwd=folder) as terminal:
        terminal.see("2 done, 0 failed attempts, 0 waiting; Ctrl+C stops")
        terminal.process.send_signal(signal.SIGTERM)
        code = terminal.end()

    assert code == 0
    assert "lamps:light done at attempt 1" in terminal.shown


@pytest.mark.thorough
def test_the_status_line_says_that_handlers_are_waited_for(store, folder):
    emit(store, "slow")

    with Terminal("run", "lamps:waits", "--datastore-uri", store, cwd=folder) as terminal:
        terminal.see("WAITING")
        terminal.process.send_signal(signal.SIGINT)
        terminal.see("stopping when running handlers have ended; Ctrl+C does not wait for them")
        (folder / "enough").touch()
        code = terminal.end()

    assert code == 0
    assert "stopped: 1 done" in terminal.shown


def test_what_an_error_says_moves_no_cursor(store, folder):
    emit(store, "\x1b[2J")

    with Terminal("run", "lamps:fails", "--datastore-uri", store, cwd=folder) as terminal:
        terminal.see("ValueError: no \\x1b[2J")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 0

    assert "\x1b[2J" not in terminal.shown


@pytest.mark.parametrize(
    ("text", "target", "code", "said"),
    [
        ("", "not_there --reload", 4, "there is no module not_there"),
        ("", "bare", 4, "bare has neither handlers nor schedules"),
        ("", "not_there", 4, "there is no module not_there"),
        ("", "bare:handlers", 4, "module bare has no handlers"),
        ("handlers = [print]", "bare:handlers", 1, "neither a handler nor a schedule"),
        ("handlers = []", "bare:handlers", 4, "bare:handlers has neither"),
    ],
)
def test_a_module_with_nothing_to_run_is_said_to_be_so(
    store, tmp_path, monkeypatch, text, target, code, said
):
    (tmp_path / "bare.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    done = CliRunner().invoke(app, ["run", *target.split(), "--datastore-uri", store])
    sys.modules.pop("bare", None)

    assert done.exit_code == code
    assert said in done.stderr


def test_no_worker_is_no_number_of_workers(store):
    assert CliRunner().invoke(app, ["run", "x", "--workers", "0"]).exit_code == 2


def test_a_worker_makes_no_store(folder, tmp_path):
    done = subprocess.run(
        [*ONTOLOGIA, "run", "lamps", "--datastore-uri", str(tmp_path / "none.db")],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode != 0
    assert "none.db" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "none.db").exists()


def test_a_folder_of_its_own_environment_is_not_watched(folder):
    from ontologia.cli.reload import _files

    for name in ("lib/inner.py", "env/pyvenv.cfg", "env/a.py", ".git/b.py", "__pycache__/c.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(textwrap.dedent(""))

    found: Iterator[str] = _files([str(folder)])

    assert sorted(os.path.relpath(each, folder) for each in found) == ["lamps.py", "lib/inner.py"]


LANTERNS = """
from ontologia import Event, Field, on_event

class LanternLit(Event):
    lantern: Field[str]

class LanternDoused(Event):
    pass

@on_event(LanternLit, name="relight", priority=200)
def relight(ctx):
    print("RELIT", ctx.event.lantern, ctx.event.chain_depth)
    ctx.emit(LanternLit(lantern=ctx.event.lantern))

@on_event(LanternDoused, name="leave")
def leave(ctx):
    ctx.session.stop()
"""


@pytest.fixture
def lanterns(store, tmp_path, monkeypatch):
    """`ontologia run` in this process; an event that ends it waits for a consumer that is known."""
    (tmp_path / "lanterns.py").write_text(LANTERNS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lanterns", raising=False)
    with Session(store) as session:
        events = session.event_store
        events.consumers.register("default", "leave", ["lantern.doused"])
        events.consumers.register("default", "retired", ["lantern.lit"])
        for kind, payload in (("lit", '{"lantern":"a"}'), ("doused", "{}")):
            events.announce(events.log.untyped_row(f"lantern.{kind}", payload, "default"))

    def run(*arguments):
        done = CliRunner().invoke(app, ["run", "lanterns", *arguments, "--datastore-uri", store])
        assert done.exit_code == 0, done.output
        return done

    return run


@pytest.mark.req("ONT-099")
def test_a_worker_logs_a_chain_at_its_limit_and_goes_on(lanterns, monkeypatch):
    monkeypatch.setenv("ONTOLOGIA_MAX_EVENT_CHAIN_DEPTH", "0")

    done = lanterns()

    assert "RELIT a 0\n" in done.stdout
    assert "relight failed for good, a dead letter now: EventLoopLimitError" in done.stderr
    assert "stopped: 1 done, 1 failed attempts" in done.stdout


@pytest.mark.req("NEW-030")
def test_a_worker_says_what_a_new_handler_gets_and_which_consumers_it_does_not_run(lanterns):
    done = lanterns("--start", "now")

    assert (
        "consumer relight is new to lantern.lit in namespace 'default': it skips 1" in done.stderr
    )
    assert "that this program does not run: retired (1 waiting)\n" in done.stderr
    assert "RELIT" not in done.stdout
    assert "consumer leave" not in done.stderr
