"""The console on a real server: `ontologia console`, live updates, and its end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from typer.testing import CliRunner

from ontologia import OntologiaConfig, Session
from ontologia.cli.main import app as cli
from ontologia.runtime.operator import Operator
from ontologia.web.serving import Server, listen
from tests.integration.console.conftest import Placed, bill, pack
from tests.integration.console.world import opened
from tests.integration.running import PATIENCE, until


@contextmanager
def served(app) -> Iterator[Server]:
    listener = listen("127.0.0.1", 0)
    server = Server(app, listener, OntologiaConfig())
    server.on_shutdown = app.live.end
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(PATIENCE)
        listener.close()
        app.close()
    assert not thread.is_alive()


@pytest.fixture
def console(shop) -> Iterator[tuple[Server, object]]:
    app = opened(shop)
    with served(app) as server:
        yield server, app


class Stream:
    """A client of the stream of a console, in a thread; `heard` has what it was told."""

    def __init__(self, url: str) -> None:
        self.heard: list[str] = []
        self.open = threading.Event()
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(url,))
        self._thread.start()
        assert self.open.wait(PATIENCE)

    def _run(self, url: str) -> None:
        with httpx.stream("GET", url, timeout=PATIENCE) as answer:
            for line in answer.iter_lines():
                self.open.set()
                if line.startswith("data: "):
                    self.heard += json.loads(line.removeprefix("data: "))
        self.ended.set()

    def join(self) -> None:
        self._thread.join(PATIENCE)


@pytest.mark.req("NEW-219")
def test_open_pages_are_told_what_changed(console, shop):
    server, app = console
    streams = [Stream(f"{server.url}/live") for _ in range(3)]
    shop.commit(event=Placed(order_id="o-20"))
    for each in streams:
        until(lambda each=each: "events" in each.heard)
    Operator(shop, "eve").pause("pack")  # as another tab does it
    for each in streams:
        until(lambda each=each: "commits" in each.heard)
    assert len(app.live._followers) == 1
    server.stop()
    for each in streams:
        assert each.ended.wait(PATIENCE)
        each.join()


def test_nobody_looks_while_nobody_listens(console):
    server, app = console
    with httpx.stream("GET", f"{server.url}/live", timeout=PATIENCE) as answer:
        lines = answer.iter_lines()  # kept: the stream is closed with it
        next(lines)
        assert len(app.live._followers) == 1
        [follower] = app.live._followers.values()
    until(lambda: not app.live._followers)
    follower.join()
    assert not follower._thread.is_alive()


def test_a_stream_of_another_namespace_hears_of_that(console, shop, open_session):
    server, _ = console
    other = open_session(namespace="other")
    stream = Stream(f"{server.url}/live?namespace=other")
    shop.event_store.announce(shop.event_store.log.untyped_row("a", "{}", shop.namespace))
    other.event_store.announce(other.event_store.log.untyped_row("b", "{}", "other"))
    until(lambda: "events" in stream.heard)
    server.stop()
    stream.join()


def test_reads_beside_a_run_disturb_nobody(console, shop):
    server, _ = console
    for number in range(30):
        shop.commit(event=Placed(order_id=f"p-{number}", amount=1))
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        runner = threading.Thread(
            target=shop.run, args=([bill, pack],), kwargs={"max_iterations": 80}
        )
        runner.start()
        statuses = {client.get(path).status_code for path in ("/", "/events", "/handlers") * 4}
        runner.join(PATIENCE)
    assert statuses == {200}


@contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen]:
    popen = subprocess.Popen(
        [sys.executable, "-m", "ontologia", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    watchdog = threading.Timer(PATIENCE, popen.kill)
    watchdog.start()
    try:
        yield popen
    finally:
        watchdog.cancel()
        popen.kill()
        popen.communicate()


def signs_in_once(said: dict[str, str]) -> str:
    """The first page after the login by the URL that was printed."""
    with httpx.Client(base_url=said["url"], timeout=PATIENCE, follow_redirects=True) as client:
        assert "Sign in" in client.get(said["login"]).text
        code = said["login"].partition("code=")[2]
        origin = {"Origin": said["url"]}
        page = client.post("/login", data={"code": code, "name": "ada"}, headers=origin)
        again = client.post("/login", data={"code": code, "name": "eve"}, headers=origin)
        assert again.status_code == 403
    return page.text


def test_the_command_prints_a_url_that_signs_in_once(tmp_path):
    uri = f"sqlite:///{tmp_path / 'app.db'}"
    with Session(uri) as session:
        session.commit(event=Placed(order_id="o-1"))
    options = ("--datastore-uri", uri, "--port", "0", "--json", "--label", "prod", "--read-only")
    with program("console", *options) as running:
        page = signs_in_once(json.loads(running.stdout.readline()))
        assert "ada@console" in page
        assert 'data-label="prod"' in page
        assert "read-only" in page
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE) == 0
    with Session(uri) as session:
        listed = session.event_store.list_sessions("default")
        assert len(listed) == 2, "the console is no session of its own"


def test_the_demo_has_its_console(tmp_path):
    options = ("--fast", "--path", str(tmp_path / "shop.db"), "--json", "--console")
    with program("demo", *options) as running:
        assert json.loads(running.stdout.readline())["namespace"] == "shop"
        assert "the card has expired" in signs_in_once(json.loads(running.stdout.readline()))
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE) == 0


def refused(tmp_path, *arguments: str) -> str:
    uri = f"sqlite:///{tmp_path / 'app.db'}"
    Session(uri).close()
    result = CliRunner().invoke(cli, ["console", "--datastore-uri", uri, "--port", "0", *arguments])
    assert result.exit_code == 1
    return result.output


def test_other_machines_need_a_token_and_a_name(tmp_path):
    token = tmp_path / "token"
    token.write_text("t" * 32)
    assert "other machines reach this address" in refused(tmp_path, "--host", "0.0.0.0")  # noqa: S104
    only = ("--host", "0.0.0.0", "--token-file", str(token))  # noqa: S104
    assert "--allow-host" in refused(tmp_path, *only)


def test_a_token_file_has_a_long_token(tmp_path):
    token = tmp_path / "token"
    assert "cannot be read" in refused(tmp_path, "--token-file", str(token))
    token.write_text("short")
    assert "fewer than 16" in refused(tmp_path, "--token-file", str(token))
