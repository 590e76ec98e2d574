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
from ontologia.actors import adapter, client_timers, sockets
from ontologia.runtime import async_session
from ontologia.runtime.transfer import lines
from ontologia.runtime.views import paging
from ontologia.store.s3 import bucket
from ontologia.web import app, bodies, connection, create_app, guard, serving
from ontologia.web.console import access, live
from ontologia.web.console import app as console
from ontologia.web.console.pages import objects
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


def limits_of(heading: str) -> str:
    """The table of limits below a heading of SECURITY.md."""
    [table] = re.findall(rf"^## {heading}\n(.*?)^## ", SECURITY, re.MULTILINE | re.DOTALL)
    return table


def test_every_limit_of_the_server_is_in_one_table():
    table = limits_of("Limits of the server")
    parameters = inspect.signature(create_app).parameters
    settings = {name: field.default for name, field in OntologiaConfig.model_fields.items()}
    limits = {
        "connections": f"{settings['max_connections']}, or what the limit on open files leaves: "
        f"{serving._OTHER_FILES} are kept for other files, ",
        "connections of one address": f"{settings['max_connections_per_peer']}; ",
        "open files": "the limit of the process ",
        "head of a request": f"{guard._LONGEST_HEAD:,} bytes, {connection._MOST_LINES} lines, "
        f"{connection.HEAD_TIMEOUT:g} seconds ",
        "trailer after the chunks of a body": f"{serving._HEAD:,} bytes, {connection._MOST_LINES} lines ",
        f"chunks of a body with fewer than {connection._SMALL_CHUNK} bytes": f"{connection._MOST_SMALL_CHUNKS:,} ",
        "body of a request": f"{parameters['max_body_bytes'].default:,} bytes, "
        f"{parameters['body_timeout'].default:g} seconds ",
        "JSON of a body": f"{bodies.MOST_VALUES:,} values, {codec.MAX_DEPTH} levels, integers of "
        f"{codec._INT_MAX.bit_length() + 1} bits ",
        f"bodies of more than {bodies._SMALL:,} bytes that are decoded at the same time": "1 ",
        f"bodies in memory, what each has beyond {bodies._SMALL:,} bytes": f"{app._MOST_BYTES:,} bytes ",
        f"commands that run or wait for one of {async_session._THREADS} threads": f"{app._MOST_AT_ONCE} ",
        "idle time between two requests": f"{serving._KEEP_ALIVE} seconds ",
        "time in which a client reads nothing of an answer": f"{connection.WRITE_TIMEOUT:g} seconds ",
        "lines of the log with the same complaint about clients": "1 a second ",
        "time for clients when the server is stopped": f"{settings['shutdown_grace_ms'] // 1000} seconds ",
        "time for commands after that": f"{settings['shutdown_command_grace_ms'] // 1000} seconds ",
    }

    for what, limit in limits.items():
        assert f"\n| {what} | {limit}" in table
    assert table.count("\n| ") == 1 + len(limits)
    assert serving._HEAD == guard._LONGEST_HEAD


def test_every_limit_of_the_console_is_in_a_table():
    table = limits_of("Limits of the console")
    limits = {
        "form of the console": f"{console._MOST_BODY:,} bytes, {console._BODY_SECONDS:g} seconds, "
        f"{console._MOST_FIELDS:,} fields ",
        "logins of a console": f"{access._MOST_LOGINS:,} ",
        "pages of a console that are made at the same time": f"{console._THREADS} ",
        "time for the reads of a page": f"{paging.DEADLINE:g} second ",
        "parameters of a page's address; filters of a list": f"{console._MOST_PARAMETERS}; "
        f"{objects._MOST_FILTERS} ",
        "streams of open pages": f"{live._MOST:,}, of {live._MOST_FOLLOWERS} namespaces; ",
    }

    for what, limit in limits.items():
        assert f"\n| {what} | {limit}" in table
    assert table.count("\n| ") == 1 + len(limits)


def test_every_limit_of_sockets_and_files_is_in_another_one():
    table = limits_of("Limits of sockets and files")
    mib = 2**20
    limits = {
        "clients of a socket": f"{sockets.MOST_CLIENTS} ",
        "line of a client": f"{adapter.LINE_LIMIT // mib} MiB; on TCP the first one, with the token, "
        f"{sockets._TOKEN_LINE_LIMIT:,} bytes ",
        "requests of a client without an outcome, messages that actors are not done with": f"{adapter.MOST_IN_FLIGHT:,} "
        f"each, and {adapter.MOST_BYTES // mib} MiB of messages ",
        "bytes that wait for a client to read them": f"{sockets.MOST_WAITING // mib} MiB ",
        "time in which a client reads nothing, or on TCP does not send its token": f"{sockets.STALL:g} seconds ",
        "timers of a client, which end with its connection": f"{client_timers.MOST_TIMERS:,}, and "
        f"{client_timers.MOST_TIMER_BYTES // mib} MiB of the commands that set them ",
        "line of a file of `ontologia import`": f"{lines.LINE_LIMIT // mib} MiB ",
        "object in the bucket of an event store": f"{bucket.LARGEST // mib} MiB ",
    }

    for what, limit in limits.items():
        assert f"\n| {what} | {limit}" in table
    assert table.count("\n| ") == 1 + len(limits)


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
