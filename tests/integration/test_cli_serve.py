"""`ontologia serve` and `ontologia worker`: a program's commands and handlers, as processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from typer.testing import CliRunner

from ontologia import Session
from ontologia.cli.main import app
from ontologia.commands import Env
from ontologia.queues import DomainEvent, open_queue
from tests.integration.commands import Terminal
from tests.integration.running import PATIENCE, until

ONTOLOGIA = [sys.executable, "-u", "-m", "ontologia"]
PROGRAM = """
import logging, pathlib, threading, time
from ontologia import Field
from ontologia.commands import DomainModel, api

@api.model("pier.boat")
class PierBoat(DomainModel):
    name: Field[str]

    @api.on_command("boat.launch")
    def launch(self, cmd):
        if cmd.payload.get("never"):
            self.env.models["pier.boat"].create({"name": "never"})
            print("HANGING", flush=True)
            threading.Event().wait()
        if cmd.payload.get("slowly"):
            print("LAUNCHING", flush=True)
            while not pathlib.Path("enough").exists():
                time.sleep(0.01)
        [boat] = self.env.models["pier.boat"].create({"name": cmd.payload["name"]})
        self.emit("boat.launched", {"name": cmd.payload["name"]})
        return boat.read()[0]

@api.on_event("boat.launched")
def cheer(event, env):
    if event.payload["name"] == "stuck":
        print("STUCK", flush=True)
        while not pathlib.Path("enough").exists():
            time.sleep(0.01)
    if event.payload["name"] == "doomed":
        raise SystemExit(3)
    if event.payload["name"] == "leaky" and not pathlib.Path("mended").exists():
        pathlib.Path("mended").touch()
        raise OSError("it leaks")
    logging.getLogger("mine").info("hurrah for %s", event.payload["name"])
"""
BARE = "from ontologia.commands import DomainModel, api\n"


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "program"
    place.mkdir()
    (place / "pier.py").write_text(PROGRAM)
    (place / "bare.py").write_text(BARE)
    return place


@pytest.fixture
def store(uri):
    Session(uri).close()
    return uri


class Program:
    """One of the two as a process; its lines as they come."""

    def __init__(self, folder, uri, *arguments, bearer=None):
        variables = {name: value for name, value in os.environ.items() if name != "ONTOLOGIA_TOKEN"}
        self.popen = subprocess.Popen(
            [*ONTOLOGIA, *arguments, "--datastore-uri", uri],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**variables, "PYTHONDONTWRITEBYTECODE": "1"}
            | ({} if bearer is None else {"ONTOLOGIA_TOKEN": bearer}),
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
        self.popen.stdout.close()

    def hear(self, *words):
        """The next line in which all these words are."""
        for line in self.popen.stdout:
            self.lines.append(line)
            if all(word in line for word in words):
                return line
        raise AssertionError(f"never heard {words}; heard:\n{''.join(self.lines)}")

    def url(self):
        return self.hear("serving 1 command at").split()[-1]

    def stop(self, number=signal.SIGTERM):
        self.popen.send_signal(number)
        return self.end()

    def end(self):
        rest = self.popen.stdout.read()
        self.lines.append(rest)
        return self.popen.wait(PATIENCE), rest


def served(folder, uri, *arguments, bearer="t", modules=("pier",)):
    return Program(folder, uri, "serve", *modules, "--port", "0", *arguments, bearer=bearer)


def launch(url, name, *, bearer="t", **payload):
    headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
    body = {"payload": {"name": name, **payload}}
    return httpx.post(f"{url}/commands/boat.launch", json=body, headers=headers, timeout=PATIENCE)


def boats(uri, folder):
    sys.path.insert(0, str(folder))
    try:
        with Env(uri, modules=["pier"]) as env:
            return sorted(each["name"] for each in env.models["pier.boat"].search([]).read())
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("pier")


@pytest.mark.thorough
@pytest.mark.req("EDE-062")
def test_a_server_carries_out_commands_and_a_worker_beside_handles_their_events(store, folder):
    with served(folder, store, "--with-worker") as server:
        url = server.url()
        answer = launch(url, "Ada")
        server.hear("INFO mine: hurrah for Ada [event=")
        server.hear("(boat.launched): done at attempt 1")
        health = httpx.get(f"{url}/health", headers={"Authorization": "Bearer t"}).json()
        code, rest = server.stop()

    assert answer.json()["name"] == "Ada"
    assert health["worker"]["succeeded"] == 1
    assert code == 0
    assert "stopped: 2 requests answered, 1 event done" in rest
    assert boats(store, folder) == ["Ada"]


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_running_request_come_to_its_end(store, folder, number):
    with served(folder, store) as server, ThreadPoolExecutor(1) as pool:
        url = server.url()
        asked = pool.submit(launch, url, "Ada", slowly=True)
        server.hear("LAUNCHING")
        server.popen.send_signal(number)
        until(lambda: refuses(url))
        (folder / "enough").touch()
        answer = asked.result(PATIENCE)
        code, _ = server.end()

    assert answer.json()["name"] == "Ada"
    assert code == 0
    assert boats(store, folder) == ["Ada"]


def refuses(url):
    try:
        httpx.get(f"{url}/health", timeout=PATIENCE)
    except httpx.TransportError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_wait_and_leaves_nothing(store, folder, number):
    with served(folder, store) as server, ThreadPoolExecutor(1) as pool:
        url = server.url()
        asked = pool.submit(launch, url, "Ada", slowly=True)
        server.hear("LAUNCHING")
        server.popen.send_signal(number)
        until(lambda: refuses(url))
        code, rest = server.stop(number)
        with pytest.raises(httpx.TransportError):
            asked.result(PATIENCE)

    assert code == 130
    assert "interrupted" in rest
    assert "graceful" not in rest, "it waited for its grace to be over"
    assert boats(store, folder) == []


@pytest.mark.parametrize("options", [(), ("--with-worker",)])
def test_a_command_that_never_returns_does_not_keep_the_server(store, folder, monkeypatch, options):
    """A thread cannot be ended, but the process: the database takes back what was not committed."""
    monkeypatch.setenv("ONTOLOGIA_SHUTDOWN_GRACE_MS", "100")
    monkeypatch.setenv("ONTOLOGIA_SHUTDOWN_COMMAND_GRACE_MS", "100")
    with served(folder, store, *options) as server, ThreadPoolExecutor(1) as pool:
        url = server.url()
        launch(url, "Ada")
        asked = pool.submit(launch, url, "Bob", never=True)
        server.hear("HANGING")
        code, rest = server.stop()
        with pytest.raises(httpx.TransportError):
            asked.result(PATIENCE)

    assert code == 1
    assert "waiting for commands that still run (1), up to 0.1 seconds" in rest
    assert "ended while commands were running that did not return (1)" in rest
    assert boats(store, folder) == ["Ada"]


@pytest.mark.thorough
def test_a_handler_beside_the_server_comes_to_its_end(store, folder):
    with served(folder, store, "--with-worker", "--json") as server:
        url = server.url()
        launch(url, "stuck")
        server.hear("STUCK")
        server.popen.send_signal(signal.SIGTERM)
        until(lambda: refuses(url))
        with pytest.raises(subprocess.TimeoutExpired):
            server.popen.wait(1.0)
        (folder / "enough").touch()
        code, rest = server.end()

    assert code == 0
    told = json.loads(rest.splitlines()[-1])
    assert told["requests"] >= 1
    assert told["worker"]["succeeded"] == 1


@pytest.mark.thorough
def test_a_server_ends_with_its_worker(store, folder):
    """Who asked for both is told, and does not find out when events have waited for days."""
    with served(folder, store, "--with-worker") as server:
        launch(server.url(), "doomed")
        code, _ = server.end()

    assert code == 3


@pytest.mark.thorough
def test_without_a_token_one_is_made_and_shown_once(store, folder):
    with served(folder, store, bearer=None) as server:
        token = server.hear("token for this run: ").split()[-1]
        url = server.url()
        refused = launch(url, "Ada", bearer=None)
        wrong = launch(url, "Ada", bearer="t")
        answer = launch(url, "Ada", bearer=token)
        code, _ = server.stop()

    assert len(token) >= 40
    assert "".join(server.lines).count(token) == 1
    assert (refused.status_code, wrong.status_code, answer.status_code) == (401, 401, 200)
    assert code == 0


@pytest.mark.thorough
def test_a_token_is_an_option_too_and_is_not_shown(store, folder):
    with served(folder, store, "--token", "secret", bearer=None) as server:
        answer = launch(server.url(), "Ada", bearer="secret")
        server.stop()

    assert answer.status_code == 200
    assert "secret" not in "".join(server.lines)


@pytest.mark.thorough
def test_no_auth_is_open_to_programs_of_this_machine(store, folder):
    with served(folder, store, "--no-auth", bearer=None) as server:
        url = server.url()
        answer = launch(url, "Ada", bearer=None)
        rebound = httpx.get(f"{url}/health", headers={"Host": "rebound.example"})
        server.stop()

    assert answer.status_code == 200
    assert rebound.status_code == 403


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("pier --no-auth --host 0.0.0.0", 1, "Set ONTOLOGIA_TOKEN, or listen at 127.0.0.1"),
        ("pier --no-auth --host ::", 1, "--no-auth is for the addresses of this machine"),
        ("pier --no-auth --token x", 2, "there is a token, and --no-auth"),
        ("pier --token ''", 2, "it is empty"),
        ("pier --token 'a b'", 1, "a token is made of letters"),
        ("pier --host no.such.host.invalid", 1, "cannot listen at no.such.host.invalid"),
        ("pier --port 70000", 2, "65535"),
        ("not_there", 4, "there is no module not_there"),
        ("bare", 4, "bare: there are no commands"),
    ],
)
def test_what_cannot_be_served_is_said(store, folder, monkeypatch, arguments, code, said):
    import shlex

    monkeypatch.syspath_prepend(folder)
    monkeypatch.delenv("ONTOLOGIA_TOKEN", raising=False)
    # Were it served, this would wait for ever.
    monkeypatch.setattr("ontologia.web.serving.Server.serve_forever", lambda _: None)

    asked = ["serve", *shlex.split(arguments), "--datastore-uri", store]
    done = CliRunner().invoke(app, asked if "--port" in arguments else [*asked, "--port", "0"])
    for name in ("pier", "bare"):
        sys.modules.pop(name, None)

    assert done.exit_code == code, done.output
    assert said in " ".join(done.stderr.split())


@pytest.mark.thorough
def test_a_port_that_is_taken_is_said(store, folder):
    with served(folder, store) as server:
        port = server.url().rpartition(":")[2]
        other = Program(folder, store, "serve", "pier", "--port", port, bearer="t")
        with other:
            code, rest = other.end()
        server.stop()

    assert code == 1
    assert f"cannot listen at 127.0.0.1, port {port}: Address already in use" in rest
    assert "Traceback" not in rest


def test_without_the_packages_the_command_that_brings_them_is_said(store, folder):
    (folder / "starlette.py").write_text("raise ImportError('not here')")
    with served(folder, store) as server:
        code, rest = server.end()

    assert code == 1
    assert "HTTP needs the package starlette" in rest
    assert "hint: pip install 'ontologia[web]'" in rest


# -- worker -----------------------------------------------------------------------------------------


def launched(uri, folder, *names):
    with served(folder, uri) as server:
        url = server.url()
        for name in names:
            assert launch(url, name).status_code == 200
        assert server.stop()[0] == 0


@pytest.mark.thorough
@pytest.mark.req("EDE-062")
def test_a_worker_handles_what_a_server_announced(store, folder):
    launched(store, folder, "Ada", "leaky")

    with Program(folder, store, "worker", "pier") as worker:
        done = worker.hear("(boat.launched): done at attempt 1")
        worker.hear(
            "(boat.launched): worker:default failed at attempt 1, again in 0.2 s: OSError: it leaks"
        )
        worker.hear("(boat.launched): done at attempt 2")
        code, rest = worker.stop()

    [event] = re.findall(r"event (\S+) ", done)
    assert any(f"hurrah for Ada [event={event}]" in line for line in worker.lines)
    assert code == 0
    assert "stopped: 2 done, 1 failed attempts" in rest


@pytest.mark.req("EDE-049", "EDE-051")
def test_a_worker_handles_the_events_of_a_kafka_topic(store, folder, monkeypatch, kafka):
    options = {"group.protocol": "consumer"}
    queue = open_queue("kafka", bootstrap_servers=kafka.servers, topic=kafka.topic, options=options)
    for name in ("Ada", "leaky"):
        queue.enqueue(DomainEvent.build(name="boat.launched", payload={"name": name}))
    queue.close()
    for name, value in {
        "DEFAULT_MESSAGE_BROKER_PROVIDER": "kafka",
        "KAFKA_BOOTSTRAP_SERVERS": kafka.servers,
        "KAFKA_TOPIC": kafka.topic,
        "KAFKA_OPTIONS": json.dumps(options),
    }.items():
        monkeypatch.setenv(f"ONTOLOGIA_{name}", value)

    with Program(folder, store, "worker", "pier") as worker:
        worker.hear(f"a worker handles events of kafka: {kafka.servers}, topic {kafka.topic!r}")
        worker.hear("(boat.launched): done at attempt 2")
        code, rest = worker.stop()

    assert code == 0
    assert "stopped: 2 done, 1 failed attempts" in rest


@pytest.mark.thorough
def test_every_group_has_every_event(store, folder):
    launched(store, folder, "Ada")

    for group in ("mails", "bills"):
        with Program(folder, store, "worker", "pier", "--group", group, "--json") as worker:
            worker.hear(f"group '{group}'")
            worker.hear("hurrah for Ada")
            worker.hear("done at attempt 1")
            code, rest = worker.stop(signal.SIGINT)
        assert code == 0
        assert json.loads(rest.splitlines()[-1]) == {"done": 1, "failed": 0}


@pytest.mark.thorough
def test_a_running_handler_comes_to_its_end_unless_it_is_interrupted(store, folder):
    launched(store, folder, "stuck")

    with Program(folder, store, "worker", "pier") as worker:
        worker.hear("STUCK")
        worker.popen.send_signal(signal.SIGTERM)  # two of a kind may come as one
        code, rest = worker.stop(signal.SIGINT)
    assert code == 130
    assert "interrupted" in rest

    with Program(folder, store, "worker", "pier") as worker:
        worker.hear("STUCK")
        worker.popen.send_signal(signal.SIGTERM)
        (folder / "enough").touch()
        code, rest = worker.end()
    assert code == 0
    assert "done at attempt 1" in rest, "an interrupt counts as no attempt"


@pytest.mark.thorough
def test_a_terminal_has_a_status_line_of_the_worker(store, folder):
    launched(store, folder, "stuck")

    with Terminal("worker", "pier", "--datastore-uri", store, cwd=folder) as terminal:
        terminal.see("STUCK")
        terminal.process.send_signal(signal.SIGTERM)
        terminal.see("stopping when running handlers have ended")
        (folder / "enough").touch()
        code = terminal.end()

    assert code == 0
    assert "stopped: 1 done, 0 failed attempts" in terminal.shown


@pytest.mark.parametrize(
    ("module", "provider", "code", "said"),
    [
        ("not_there", "store", 4, "there is no module not_there"),
        ("bare", "store", 4, "bare: there are no handlers of events"),
        ("pier", "inmemory", 1, "no other process can see its events"),
        ("pier", "none", 1, "ontologia serve --with-worker"),
    ],
)
def test_what_no_worker_can_handle_is_said(
    store, folder, monkeypatch, module, provider, code, said
):
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("ONTOLOGIA_DEFAULT_MESSAGE_BROKER_PROVIDER", provider)

    done = CliRunner().invoke(app, ["worker", module, "--datastore-uri", store])
    for name in ("pier", "bare"):
        sys.modules.pop(name, None)

    assert done.exit_code == code, done.output
    assert said in " ".join(done.stderr.split())


def test_a_server_that_announces_nothing_has_no_worker(store, folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("ONTOLOGIA_DEFAULT_MESSAGE_BROKER_PROVIDER", "none")

    asked = ["serve", "pier", "--port", "0", "--with-worker", "--datastore-uri", store]
    done = CliRunner().invoke(app, asked)
    sys.modules.pop("pier", None)

    assert done.exit_code == 1
    assert "a worker needs a queue" in done.stderr
