"""`ontologia extensions`: listed, run as a process, reloaded, begun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from ontologia import Session
from tests.integration.commands import Terminal, invoke
from tests.integration.running import PATIENCE
from tests.unit.extension_folders import extension

ONTOLOGIA = [sys.executable, "-u", "-m", "ontologia"]
NOTIFIES = "events: {subscribes: [{topic: alert, handler: notify_user}]}"
ECHO = """
class Extension:
    async def initialize(self, context):
        self.ctx = context

    async def run(self, event):
        return "%s " + event.payload["text"]
"""
ECHOES = """
version: "2.0"
events: {subscribes: [{topic: user.message, handler: invoke_agent}]}
permissions: {subscribe: [user.message], read: [Customer]}
"""


@pytest.fixture(scope="session")
def backend(sqlite):
    """The hosts of test_extension_host.py have both databases."""
    return sqlite


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "extensions"


@pytest.fixture
def store(uri):
    Session(uri).close()
    return uri


class Running:
    """`ontologia extensions run` as a process; its lines as they come, and what is typed."""

    def __init__(self, folder, uri, *arguments, **environment):
        self.popen = subprocess.Popen(
            [*ONTOLOGIA, "extensions", "run", folder.name, *arguments, "--datastore-uri", uri],
            cwd=folder.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
        )
        self.lines = []
        self._watchdog = threading.Timer(PATIENCE, self.popen.kill)
        self._watchdog.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._watchdog.cancel()
        self.popen.kill()
        self.popen.wait(PATIENCE)
        self.popen.stdin.close()
        self.popen.stdout.close()

    def hear(self, words):
        for line in self.popen.stdout:
            self.lines.append(line)
            if words in line:
                return line
        raise AssertionError(f"never heard {words!r}; heard:\n{''.join(self.lines)}")

    def type(self, line):
        self.popen.stdin.write(f"{line}\n")
        self.popen.stdin.flush()

    def stop(self, number=signal.SIGTERM):
        self.popen.send_signal(number)
        rest = self.popen.stdout.read()
        return self.popen.wait(PATIENCE), rest


def emit(uri, topic, **payload):
    done = invoke("emit", topic, json.dumps(payload), "--datastore-uri", uri)
    assert done.exit_code == 0, done.stderr


# -- list and check ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "state", "code"), [("list", "unchecked", 0), ("check", "ready", 1)]
)
def test_a_row_has_state_topics_permissions_and_reasons(folder, command, state, code):
    extension(folder, "alerts", NOTIFIES)
    extension(folder, "broken", "nonsense: 1")
    extension(folder, "echo", ECHOES, main=ECHO % "")

    done = invoke("extensions", command, folder)

    assert done.exit_code == code
    reason = f"{folder / 'broken' / 'manifest.yaml'}: nonsense: is no key of a manifest; there are"
    head, alerts, broken, echo = done.stdout.splitlines()
    assert head.split("\t") == ["Extension", "Version", "State", "Topics", "Permissions", "Reason"]
    assert alerts.split("\t") == ["alerts", "-", state, "alert", "unrestricted", "-"]
    assert broken.split("\t")[:5] == ["broken", "-", "broken", "-", "-"]
    assert broken.split("\t")[5].startswith(reason)
    permissions = "subscribe user.message; read Customer"
    assert echo.split("\t") == ["echo", "2.0", state, "user.message", permissions, "-"]


def test_a_list_in_json_has_everything_of_each(folder):
    extension(folder, "alerts", NOTIFIES + "\ndepends_on: [gone]")
    extension(folder, "echo", ECHOES, main=ECHO % "")

    done = invoke("extensions", "list", folder, "--json")

    alerts, echo = map(json.loads, done.stdout.splitlines())
    assert alerts["subscribes"] == [{"topic": "alert", "handler": "notify_user", "max_attempts": 1}]
    assert alerts["permissions"] == "unrestricted"
    assert (alerts["state"], len(alerts["reasons"])) == ("broken", 1)
    assert echo["permissions"]["read"] == ["Customer"]
    assert (echo["state"], echo["reasons"]) == ("unchecked", [])


def test_a_list_imports_nothing(folder, tmp_path):
    touch = f"__import__('pathlib').Path({str(tmp_path)!r}, %r).touch()"
    extension(
        folder,
        "a",
        main=f"{touch % 'imported'}\nclass Extension:\n    async def initialize(self, context):\n"
        f"        {touch % 'started'}\n",
    )
    (folder / "a" / "__init__.py").write_text(touch % "packaged")
    extension(folder, "b", main="raise SystemExit('bad code')")

    done = invoke("extensions", "list", folder)

    assert done.exit_code == 0
    assert done.stdout.count("unchecked") == 2
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == []
    checked = invoke("extensions", "check", folder)
    assert checked.exit_code == 1
    assert "bad code" in checked.stdout
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_file()) == [
        "imported",
        "packaged",
    ]


def test_a_list_tells_what_manifests_and_settings_lack(folder):
    extension(folder, "a", "events: {subscribes: [{topic: x, handler: custom}]}")
    extension(folder, "b", NOTIFIES + "\ndepends_on: [a]")

    a, b = invoke("extensions", "list", folder).stdout.splitlines()[1:]

    assert "custom needs code, and there is none" in a
    assert "a is broken" in b


def test_a_check_of_good_ones_is_good(folder):
    extension(folder, "echo", ECHOES, main=ECHO % "")

    assert invoke("extensions", "check", folder).exit_code == 0


def test_a_folder_that_is_not_there_or_empty_is_not_found(tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        done = invoke("extensions", "list", place)
        assert done.exit_code == 4
        assert done.stderr.startswith("error: there ")


def test_a_missing_package_is_told_with_the_command_that_installs_it(folder):
    extension(folder, "alerts", NOTIFIES)
    program = (
        "import sys; sys.modules['yaml'] = None\n"
        "from ontologia.cli.start import main\n"
        f"sys.argv = ['ontologia', 'extensions', 'list', {str(folder)!r}]\n"
        "main()"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert done.stderr.startswith("error: extensions need the package pyyaml")
    assert "hint: pip install 'ontologia[extensions]'" in done.stderr


# -- run -----------------------------------------------------------------------------------------


@pytest.mark.req("BUS-059", "BUS-060")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_events_are_handled_and_what_is_typed_is_answered_until_a_signal(store, folder, number):
    extension(folder, "alerts", NOTIFIES)
    extension(folder, "echo", ECHOES, main=ECHO % "you said")

    with Running(folder, store) as host:
        host.hear("running 2 extensions: alerts, echo")
        emit(store, "alert", text="The cellar is under water")
        host.hear("The cellar is under water")
        host.type("hello")
        host.hear("you said hello")
        code, rest = host.stop(number)

    assert code == 0
    assert rest.endswith("stopped: 2 extensions\n")
    assert "Traceback" not in "".join(host.lines) + rest


@pytest.mark.thorough
def test_a_host_whose_input_has_ended_goes_on(store, folder):
    extension(folder, "alerts", NOTIFIES)

    with Running(folder, store, "--json") as host:
        host.hear("running 1 extension: alerts")
        host.popen.stdin.close()
        emit(store, "alert", text="still there")
        host.hear("still there")
        code, rest = host.stop()

    assert code == 0
    assert json.loads(rest.splitlines()[-1]) == {
        "extensions": {"alerts": {"state": "running", "reasons": []}}
    }


def test_a_host_without_any_input_reads_nothing(store, folder):
    extension(folder, "alerts", NOTIFIES)
    run = [*ONTOLOGIA, "extensions", "run", str(folder), "--datastore-uri", store]

    with subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&-', "sh", *run], stdout=subprocess.PIPE, text=True
    ) as host:
        watchdog = threading.Timer(PATIENCE, host.kill)
        watchdog.start()
        emit(store, "alert", text="heard")
        assert host.stdout.readline() == "heard\n"
        host.terminate()
        assert host.wait(PATIENCE) == 0
        watchdog.cancel()


def test_a_broken_extension_is_told_of_and_the_others_run(store, folder):
    extension(folder, "alerts", NOTIFIES)
    extension(folder, "bad", main="1 / 0")

    with Running(folder, store) as host:
        told = host.hear("extension bad is broken: ")
        host.hear("running 1 extension: alerts")
        code, rest = host.stop()

    assert "importing main raised ZeroDivisionError: division by zero (main.py, line 1)" in told
    assert (code, rest.splitlines()[-1]) == (0, "stopped: 1 extension")


def test_a_folder_of_which_nothing_can_run_is_an_error_and_events_wait(store, folder):
    extension(folder, "bad", main="1 / 0")
    emit(store, "alert", text="hello")

    done = invoke("extensions", "run", folder, "--datastore-uri", store)

    assert done.exit_code == 1
    assert "none of the extensions in" in done.stderr
    with Session(store) as session:
        assert [e["status"] for e in session.event_store.list_events("default")] == ["pending"]


@pytest.mark.thorough
def test_a_watched_extension_is_reloaded_when_its_code_changes(store, folder):
    extension(folder, "echo", ECHOES, main="1 / 0")

    with Running(folder, store, "--watch") as host:
        host.hear("extension echo is broken")
        extension(folder, "echo", ECHOES, main=ECHO % "first")
        host.hear("was reloaded: running")
        host.type("a")
        host.hear("first a")
        extension(folder, "echo", ECHOES, main=ECHO % "second")
        host.hear("was reloaded: running")
        host.type("b")
        host.hear("second b")
        code, rest = host.stop()

    assert (code, rest.splitlines()[-1]) == (0, "stopped: 1 extension")


@pytest.mark.thorough
def test_every_bus_is_given_all_events_under_its_own_name(store, folder):
    extension(folder, "alerts", NOTIFIES)

    with Running(folder, store) as one, Running(folder, store, "--bus", "other") as other:
        for host in (one, other):
            host.hear("running 1 extension")
        emit(store, "alert", text="for both")
        for host in (one, other):
            host.hear("for both")
            assert host.stop()[0] == 0

    with Session(store) as session:
        consumers = session.event_store.list_consumers("default")
    assert sorted(each["name"] for each in consumers) == ["bus:default", "bus:other"]


def test_extensions_read_and_write_the_types_of_a_program(store, folder, tmp_path):
    (tmp_path / "harbour_types.py").write_text(
        "from ontologia import Entity, Field\n"
        "class HarbourBoat(Entity):\n"
        "    name: Field[str] = Field(primary_key=True)\n"
        "    length: Field[int] = 0\n"
    )
    extension(
        folder,
        "boats",
        "events: {subscribes: [{topic: boat.seen, handler: invoke_agent}]}",
        main="""
class Extension:
    async def initialize(self, context):
        self.ctx = context

    async def run(self, event):
        await self.ctx.ensure("HarbourBoat", event.payload)
        await self.ctx.commit()
        found = await self.ctx.query("HarbourBoat").where(("length", ">", 5)).collect()
        return f"long ones: {[each['name'] for each in found]}"
""",
    )

    with Running(folder, store, "--models", "harbour_types") as host:
        host.hear("running 1 extension")
        emit(store, "boat.seen", name="Ada", length=9)
        host.hear("long ones: ['Ada']")
        code, _ = host.stop()

    assert code == 0
    with Session(store) as session:
        [commit] = session.list_commits()
    assert commit["metadata"]["extension_id"] == "boats"


def test_settings_of_extensions_come_from_the_environment(store, folder):
    extension(
        folder,
        "named",
        "settings: {who: {type: string, required: true}}",
        main="""
class Extension:
    async def initialize(self, context):
        context.logger.info("I am %s", context.settings["who"])
""",
    )

    with Running(folder, store, ONTOLOGIA_EXT_NAMED_WHO="Ada") as host:
        host.hear("ontologia.extension.named: I am Ada")
        assert host.stop()[0] == 0


def test_a_signal_that_comes_just_before_the_loop_waits_is_noticed(store, folder):
    # That moment cannot be met on purpose; but without this descriptor it would be too late.
    extension(
        folder,
        "curious",
        main="""
import signal

class Extension:
    async def initialize(self, context):
        self.ctx = context

    async def start(self):
        descriptor = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
        self.ctx.logger.info("the loop is woken by signals: %s", descriptor >= 0)
""",
    )

    with Running(folder, store) as host:
        assert "True" in host.hear("the loop is woken by signals")
        host.hear("running 1 extension")
        code, _ = host.stop()

    assert code == 0


def test_a_second_signal_does_not_wait_for_a_handler(store, folder):
    extension(
        folder,
        "slow",
        "events: {subscribes: [{topic: go, handler: custom}]}",
        main="""
import asyncio

class Extension:
    async def initialize(self, context):
        context.subscribe_event("go", self.go)

    async def go(self, event):
        print("WORKING", flush=True)
        await asyncio.sleep(600)
""",
    )

    with Running(folder, store, ONTOLOGIA_SHUTDOWN_GRACE_MS="600000") as host:
        host.hear("running 1 extension")
        emit(store, "go")
        host.hear("WORKING")
        host.popen.send_signal(signal.SIGINT)
        host.hear("stopping when running handlers have ended; Ctrl+C does not wait for them")
        code, _ = host.stop(signal.SIGINT)

    assert code == 130


def test_a_signal_ends_a_start_that_takes_long(store, folder):
    extension(
        folder,
        "slow",
        main="""
import asyncio

class Extension:
    async def initialize(self, context):
        print("STARTING", flush=True)
        await asyncio.sleep(600)
""",
    )

    with Running(folder, store) as host:
        host.hear("STARTING")
        code, rest = host.stop()

    assert code == 0
    assert "did not end within" not in rest


LEFT = {
    "thread": "await asyncio.to_thread(time.sleep, 600)",
    "task": "self.task = asyncio.create_task(self.stubborn())",
}


@pytest.mark.thorough
@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT.keys())
def test_what_an_extension_leaves_behind_keeps_no_host_from_ending(store, folder, body):
    extension(
        folder,
        "slow",
        main=f"""
import asyncio, time

class Extension:
    async def initialize(self, context):
        context.subscribe_event("go", self.go)

    async def go(self, event):
        print("WORKING", flush=True)
        {body}

    async def stubborn(self):
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                pass
""",
    )

    with Running(folder, store, ONTOLOGIA_SHUTDOWN_GRACE_MS="100") as host:
        host.hear("running 1 extension")
        emit(store, "go")
        host.hear("WORKING")
        code, rest = host.stop()

    assert code == 0
    assert "left to themselves, since they do not end: t" in rest
    assert "stopped: 1 extension" in rest


@pytest.mark.thorough
@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT.keys())
def test_what_is_left_behind_keeps_no_error_from_being_told(body):
    source = f"""
import asyncio, time
from ontologia.cli.loops import run_to_the_end

class Extension:
    async def begin(self):
        {body}

    async def stubborn(self):
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                pass

async def fail():
    global beginning
    beginning = asyncio.create_task(Extension().begin())
    await asyncio.sleep(0.05)
    raise ValueError("nothing can run")

run_to_the_end(fail())
"""

    done = subprocess.run(
        [sys.executable, "-c", source],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )

    assert done.returncode == 1
    assert "ValueError: nothing can run" in done.stderr


def test_a_terminal_is_not_moved_by_what_is_sent(store, folder):
    extension(folder, "alerts", NOTIFIES)

    with Terminal("extensions", "run", str(folder), "--datastore-uri", store) as terminal:
        terminal.see("running 1 extension: alerts")
        emit(store, "alert", text="up\x1b[2J")
        terminal.see(r"up\x1b[2J")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0


# -- new -----------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_new_extension_has_a_test_that_passes_and_runs(tmp_path, store, monkeypatch):
    monkeypatch.chdir(tmp_path)

    done = invoke("extensions", "new", "kitchen_timer")
    tested = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "extensions/kitchen_timer"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )

    assert done.exit_code == 0, done.stderr
    assert "kitchen_timer: main.py, manifest.yaml, test_kitchen_timer.py" in done.stdout
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "1 passed" in tested.stdout
    left = [
        path for path in (tmp_path / "extensions").rglob("*") if path.suffix in (".py", ".yaml")
    ]
    assert [path.name for path in left if "my_extension" in path.read_text().lower()] == []

    with Running(tmp_path / "extensions", store) as host:
        host.hear("running 1 extension: kitchen_timer")
        emit(store, "kitchen_timer.asked", name="Ada")
        host.hear("Hello, Ada!")
        assert host.stop()[0] == 0


def test_a_new_extension_writes_over_nothing(tmp_path):
    place = tmp_path / "here"
    first = invoke("extensions", "new", "mine", "--into", place, "--json")
    (place / "mine" / "main.py").write_text("my work")

    again = invoke("extensions", "new", "mine", "--into", place)

    assert json.loads(first.stdout)["files"] == ["main.py", "manifest.yaml", "test_mine.py"]
    assert again.exit_code == 1
    assert "is there already; nothing was written" in again.stderr
    assert (place / "mine" / "main.py").read_text() == "my work"


@pytest.mark.parametrize("name", ["My-Extension", "5", "", "../up"])
def test_a_name_that_cannot_be_an_id_is_a_usage_error(tmp_path, name):
    done = invoke("extensions", "new", name, "--into", tmp_path)

    assert done.exit_code == 2
    assert "an id has a-z, 0-9 and _" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_named_and_not_there_is_made(folder, place, tmp_path, monkeypatch):
    extension(folder, "alerts", NOTIFIES)
    uri = place("sqlite")
    monkeypatch.chdir(tmp_path)

    unnamed = invoke("extensions", "run", folder)
    with Running(folder, uri) as host:
        host.hear("There was no store there yet; a new one was made.")
        host.hear("running 1 extension")
        with Session(uri) as session:
            assert session.head == 0
        code, _ = host.stop()

    assert (unnamed.exit_code, code) == (4, 0)
