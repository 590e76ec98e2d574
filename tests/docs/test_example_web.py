"""The two web services among the examples: served, asked, stopped, killed."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx
import pytest

from tests.docs.applications import Application, assert_told, objects
from tests.integration.running import PATIENCE, until

pytestmark = pytest.mark.thorough
ADA = {"email": "ada@example.com"}


@pytest.fixture(params=["fastapi", "asgi"])
def app(request, tmp_path):
    if request.param == "fastapi":
        pytest.importorskip("fastapi")
    return Application(f"{request.param}/signups", tmp_path)


@pytest.fixture
def fastapi(tmp_path):
    pytest.importorskip("fastapi")
    return Application("fastapi/signups", tmp_path)


@pytest.fixture
def uri(tmp_path):
    """Where the examples keep their database, unless they are told otherwise."""
    return f"sqlite:///{tmp_path / 'signups.db'}"


def events(session):
    return [
        (event["type"], event["status"])
        for event in session.event_store.list_events(session.namespace)
    ]


def test_a_service_welcomes_whoever_signs_up_and_stops_cleanly(app, uri, open_session, request):
    lines = app.run("-m", "signups")
    assert_told(request.node.callspec.params["app"], lines)

    assert lines[1] == "{'id': 'ada', 'commit': 1}"
    assert "{'id': 'ada', 'email': 'ada@example.com', 'welcomed': True}" in lines
    assert "topped" in lines[-1]
    assert objects(uri, "Welcome") == {"ada": {"user_id": "ada", **ADA}}
    session = open_session()
    assert events(session) == [("user.signed.up", "acked")]
    assert session.event_store.check() == []
    others = [
        each
        for each in session.event_store.list_sessions("default")
        if each["session_id"] != session.session_id
    ]
    assert others
    assert all(each["stopped_at"] for each in others)


SERVED = """
import os
from signups.__main__ import ask, served
with served() as address:
    ask("PUT", f"{address}/users/ada", {"email": "ada@example.com"})
print(sorted(each for each in os.listdir() if each.startswith("signups.db")))
"""


def test_a_service_that_stops_closes_its_store(app):
    """The last who closes a database of SQLite's takes away the log beside it."""
    assert app.run("-c", SERVED) == ["['signups.db']"]


@contextmanager
def served(app):
    """The service as a process; its address. At the end of the block it is killed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["-m", "uvicorn", "signups.app:app", "--port", str(port)]
    with app.start(*arguments) as process:
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        try:
            assert any("Uvicorn running" in line for line in process.stderr)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            watchdog.cancel()
            process.communicate()


def test_whoever_had_an_answer_is_welcomed_although_the_service_was_killed(
    fastapi, uri, open_session
):
    with served(fastapi) as address:
        assert httpx.put(f"{address}/users/ada", json=ADA).json() == {"id": "ada", "commit": 1}

    with served(fastapi) as address:
        again = httpx.put(f"{address}/users/ada", json=ADA).json()
        assert again == {"id": "ada", "commit": None}
        until(lambda: httpx.get(f"{address}/users/ada").json()["welcomed"])

    session = open_session()
    assert [type for type, _ in events(session)] == ["user.signed.up"]
    assert session.head == 2
    assert session.event_store.check() == []


def test_a_store_that_cannot_be_opened_is_told_by_the_server(app):
    (app.folder / "signups.db").write_text("This is no database, and longer than its header." * 9)

    done = subprocess.run(
        [sys.executable, "-m", "uvicorn", "signups.app:app", "--port", "0"],
        cwd=app.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )

    assert done.returncode == 3
    assert "signups.db" in done.stderr


def test_a_service_passes_its_own_tests(app):
    app.passes_its_own_tests("signups")
