"""What the pages on HTTP say: the kinds of problems, and a shop that can be copied and served."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import threading
from pathlib import Path

import httpx

from ontologia import OntologiaConfig, codec
from ontologia.web import app, bodies, connection, create_app, guard, serving
from ontologia.web.problems import KINDS

DOCS = Path(__file__).parent.parent.parent / "docs"
REFERENCE = (DOCS / "reference/http.md").read_text()
SECURITY = (DOCS.parent / "SECURITY.md").read_text()
HOWTO = (DOCS / "howto/serve.md").read_text()
PATIENCE = 60.0


def test_every_kind_of_problem_is_documented_with_its_status():
    rows = re.findall(r"^\| (\d{3}) \| `([a-z-]+)` \|", REFERENCE, re.MULTILINE)

    assert [(int(status), name) for status, name in rows] == [
        (kind.status, kind.name) for kind in KINDS
    ]


def test_every_parameter_of_an_application_is_documented():
    [call] = re.findall(r"= create_app\(\s*(env,.*?),?\s*\)\n", REFERENCE, re.DOTALL)
    documented = dict(each.split("=") for each in re.split(r",\s+", call)[1:])
    parameters = inspect.signature(create_app).parameters

    assert ["env", *documented] == list(parameters)
    for name, value in documented.items():
        if name != "token":
            assert eval(value) == parameters[name].default  # noqa: S307


def test_every_limit_of_the_server_is_in_one_table():
    [table] = re.findall(r"^## Limits of the server\n(.*?)^## ", SECURITY, re.MULTILINE | re.DOTALL)
    parameters = inspect.signature(create_app).parameters
    settings = OntologiaConfig.model_fields
    limits = {
        "connections": f"{settings['max_connections'].default}, ",
        "connections of one address": f"{settings['max_connections_per_peer'].default}",
        "head of a request": f"{guard._LONGEST_HEAD:,} bytes, {connection._MOST_LINES} lines, "
        f"{connection.HEAD_TIMEOUT:g} seconds",
        "trailer after the chunks of a body": f"{serving._HEAD:,} bytes, {connection._MOST_LINES} lines",
        "body of a request": f"{parameters['max_body_bytes'].default:,} bytes, "
        f"{parameters['body_timeout'].default:g} seconds",
        "JSON of a body": f"{bodies.MOST_VALUES:,} values, {codec.MAX_DEPTH} levels",
        f"bodies in memory, what each has beyond {bodies._SMALL:,} bytes": f"{app._MOST_BYTES:,} bytes",
        "commands that run or wait for one of 16 threads": f"{app._MOST_AT_ONCE}",
        "idle time between two requests": f"{serving._KEEP_ALIVE} seconds",
        "time in which a client reads nothing of an answer": f"{connection.WRITE_TIMEOUT:g} seconds",
        "time for clients when the server is stopped": "5 seconds",
    }

    for what, limit in limits.items():
        assert f"\n| {what} | {limit}" in table
    assert f" {serving._OTHER_FILES} are kept for other files" in table
    assert settings["shutdown_grace_ms"].default == 5_000
    assert serving._HEAD == guard._LONGEST_HEAD


def test_the_shipping_of_the_howto_can_be_served_and_asked(tmp_path):
    [program] = re.findall(r"^```python\n(.*?)^```", HOWTO, re.MULTILINE | re.DOTALL)
    (tmp_path / "shipping.py").write_text(program)
    uri = f"sqlite:///{tmp_path / 'app.db'}"
    ontologia = [sys.executable, "-u", "-m", "ontologia"]
    subprocess.run([*ontologia, "init", uri], check=True, capture_output=True)
    command = [*ontologia, "serve", "shipping", "--with-worker", "--port", "0", "--token", "t"]

    with subprocess.Popen(
        [*command, "--datastore-uri", uri],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        watchdog = threading.Timer(PATIENCE, server.kill)
        watchdog.start()
        try:
            assert server.stdout is not None
            url = next(line for line in server.stdout if "serving 2 commands" in line).split()[-1]
            asked = [_ask(url, *each) for each in _requests()]
            again = _ask(url, *_requests()[1])
            assert any("confirmed: s-1" in line for line in server.stdout)
        finally:
            server.terminate()
            server.communicate()
            watchdog.cancel()

    assert [each.status_code for each in asked] == [200, 200]
    assert asked[1].json() == {"id": "s-1", "reference": "S-1", "status": "confirmed"}
    assert again.status_code == 409
    assert again.json()["detail"] == "already confirmed"
    assert server.returncode == 0


def _requests() -> list[tuple[str, str]]:
    """The commands that the page asks for with curl, with their bodies."""
    return re.findall(r"commands/(\S+) .*?-d '(.*?)'", HOWTO, re.DOTALL)


def _ask(url: str, name: str, body: str) -> httpx.Response:
    headers = {"Authorization": "Bearer t", "Content-Type": "application/json"}
    where = f"{url}/commands/{name}"
    return httpx.post(where, content=body.encode(), headers=headers, timeout=PATIENCE)
