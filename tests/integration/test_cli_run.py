"""`ontologia run`: a worker process for the handlers of a module."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from ontologia import Event, Field, Session
from ontologia.cli.main import app

PATIENCE = 60.0
ONTOLOGIA = [sys.executable, "-u", "-m", "ontologia"]
WORKER = """
import logging
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
        it.hear("runs 1 handlers")
        it.hear(f"event {event} (lamp.lit): lamps:light done")
        code, rest = it.stop(signal.SIGINT)

    assert code == 0
    assert json.loads(rest.splitlines()[-1]) == {"done": 1, "failed": 0}
    assert not any("VERSION" in line for line in it.lines)


def test_schedules_of_the_module_run(store, folder):
    """None fires within a test's patience; that they are there is seen at the first look."""
    (folder / "planned.py").write_text(
        "from ontologia import Event, Schedule\n"
        "from ontologia.runtime.scheduler import Scheduler\n"
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


def test_a_terminal_has_a_status_line(store, folder):
    emit(store, "a")
    mine, theirs = pty.openpty()

    with subprocess.Popen(
        [*ONTOLOGIA, "run", "lamps", "--datastore-uri", store],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    ) as process:
        os.close(theirs)
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        shown = b""
        while b"2 done, 0 failed attempts, 0 waiting" not in shown and (chunk := _read(mine)):
            shown += chunk
        process.send_signal(signal.SIGTERM)
        while _read(mine):
            pass
        watchdog.cancel()
    os.close(mine)

    assert process.returncode == 0
    assert b"lamps:light done at attempt 1" in shown


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


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
