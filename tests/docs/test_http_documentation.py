"""What the pages on HTTP say: the kinds of problems, and a shop that can be copied and served."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import threading
from pathlib import Path

import httpx

from ontologia.web import create_app
from ontologia.web.problems import KINDS

DOCS = Path(__file__).parent.parent.parent / "docs"
REFERENCE = (DOCS / "reference/http.md").read_text()
HOWTO = (DOCS / "howto/serve.md").read_text()
PATIENCE = 60.0


def test_every_kind_of_problem_is_documented_with_its_status():
    rows = re.findall(r"^\| (\d{3}) \| `([a-z-]+)` \|", REFERENCE, re.MULTILINE)

    assert [(int(status), name) for status, name in rows] == [
        (kind.status, kind.name) for kind in KINDS
    ]


def test_every_parameter_of_an_application_is_documented():
    [call] = re.findall(r"create_app\((env, .*)\)", REFERENCE)
    documented = dict(each.split("=") for each in call.split(", ")[1:])
    parameters = inspect.signature(create_app).parameters

    assert ["env", *documented] == list(parameters)
    for name, value in documented.items():
        if name != "token":
            assert eval(value) == parameters[name].default  # noqa: S307


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
