"""What clients send that no server should have to read: too much, too slowly, or nonsense."""

from __future__ import annotations

import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ontologia.commands import Env
from ontologia.web import connection
from tests.integration.running import PATIENCE, until
from tests.integration.test_web_commands import post, problem
from tests.integration.web_world import (
    GO,
    HELD,
    TOKEN,
    client,
    crates,
    heard,
    plain_socket,
    served,
)

WORLD = "tests.integration.web_world"
JSON = {"Content-Type": "application/json"}
LIMIT = 10_000
HEAD = (
    f"POST /commands/crate.pack HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {TOKEN}\r\n"
    "Content-Type: application/json\r\n"
).encode()


@pytest.fixture(scope="session")
def backend(sqlite):
    """What this is about does not depend on the database."""
    return sqlite


@pytest.fixture
def env(uri):
    with Env(uri, modules=[WORLD]) as made:
        yield made


@pytest.fixture
def server(env):
    with served(env, max_body_bytes=LIMIT) as made:
        yield made


@pytest.fixture
def impatient(env):
    """A server that waits for no body."""
    with served(env, body_timeout=0.3) as made:
        yield made


@pytest.fixture
def http(server):
    with client(server) as made:
        yield made


def test_an_answer_does_not_wait_for_the_client_to_acknowledge_its_head(server, http):
    assert post(http, "crate.pack", {"ref": "r1"}).status_code == 200

    [connection] = server.server_state.connections
    its_socket = connection.transport.get_extra_info("socket")
    assert its_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def told(answer: bytes) -> dict:
    """The problem in an answer as it came over the wire."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.lower()
    assert b"connection: close" in head.lower()
    members = json.loads(body)
    assert head.split()[1] == str(members["status"]).encode()
    return members


def one_answer(connection_: socket.socket) -> bytes:
    """One answer and no more, of a connection that stays open; it may come in pieces."""
    answer = b""
    while True:
        head, found, body = answer.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if found and len(body) >= int(length[1] if length else 0):
            return answer
        piece = connection_.recv(65536)
        assert piece, f"the connection was closed after {answer!r}"
        answer += piece


# -- what it says -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "kind", "detail"),
    [
        (b"", 400, "malformed", "not JSON"),
        (b"{", 400, "malformed", "not JSON"),
        (b'{"payload": {"a": NaN}}', 400, "malformed", "not JSON"),
        (b'{"payload": {"a": Infinity}}', 400, "malformed", "not JSON"),
        (b'{"payload": {}} {}', 400, "malformed", "not JSON"),
        (b'{"payload": {"a": "\xff"}}', 400, "malformed", "not JSON"),
        (b'{"payload": {"a": "\\ud800"}}', 400, "malformed", "not JSON"),
        (b'{"payload": {"a": ' + b"[" * 4000 + b"]" * 4000 + b"}}", 400, "malformed", "not JSON"),
        (b'{"payload": {"a": ' + b"[" * 300 + b"]" * 300 + b"}}", 422, "invalid", "nested deeper"),
        (b'{"payload": {"a": "\\u0000"}}', 422, "invalid", "body.payload.a: text holds U+0000"),
        (b'{"payload": {"\\u0000": 1}}', 422, "invalid", "U+0000"),
        (b'{"payload": {"a": 9223372036854775808}}', 422, "invalid", "does not fit in 64 bits"),
        (b"[]", 422, "invalid", "the body is no JSON object"),
        (b"null", 422, "invalid", "the body is no JSON object"),
        (b"{}", 422, "invalid", "there is no payload"),
        (b'{"payload": null}', 422, "invalid", "payload is a JSON object"),
        (b'{"payload": []}', 422, "invalid", "payload is a JSON object"),
        (b'{"payload": {}, "tenant": "x"}', 422, "invalid", "and no 'tenant'"),
        (b'{"payload": {}, "model_key": 1}', 422, "invalid", "model_key is text, or null, got 1"),
        (b'{"payload": {}, "model_id": ""}', 422, "invalid", "model_id is text, or null, got ''"),
    ],
)
def test_a_body_that_is_no_command_is_refused(http, env, body, status, kind, detail):
    members = problem(http.post("/commands/crate.pack", content=body, headers=JSON), status, kind)

    assert detail in members["detail"]
    assert crates(env) == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json; charset=latin-1"},
        {"Content-Type": ""},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ],
)
def test_a_body_of_another_type_is_refused(http, env, headers):
    answer = http.post("/commands/crate.pack", content=b'{"payload": {}}', headers=headers)

    problem(answer, 415, "unsupported-media-type")
    assert crates(env) == []


def test_a_charset_may_be_said(http):
    headers = {"Content-Type": 'application/json; charset="UTF-8"'}
    answer = http.post("/commands/crate.pack", content=b'{"payload": {}}', headers=headers)

    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/", 404, "not-found"),
        ("GET", "/commands", 404, "not-found"),
        ("GET", "/health/", 404, "not-found"),
        ("GET", "/commands/crate.pack", 405, "method-not-allowed"),
        ("PUT", "/commands/crate.pack", 405, "method-not-allowed"),
        ("POST", "/health", 405, "method-not-allowed"),
        ("BREW", "/openapi.json", 405, "method-not-allowed"),
    ],
)
def test_what_the_framework_refuses_is_a_problem_too(http, method, path, status, kind):
    answer = http.request(method, path)

    problem(answer, status, kind)
    assert ("allow" in answer.headers) == (status == 405)


def test_what_is_no_http_is_a_problem_too(server):
    with plain_socket(server) as connection_:
        connection_.sendall(b"HELLO\r\n\r\n")

        assert told(heard(connection_))["type"] == "urn:ontologia:problem:malformed"


def test_who_is_refused_early_may_send_on_and_ask_again(server):
    """A client sends the head first. If it were cut off then, it might never see the answer."""
    body = b'{"payload": {"ref": "a"}}'
    with plain_socket(server) as connection_:
        connection_.sendall(HEAD.replace(b"crate.pack", b"crate.none"))
        connection_.sendall(b"Content-Length: %d\r\n\r\n" % len(body))
        connection_.sendall(body)
        refused = one_answer(connection_)

        connection_.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = one_answer(connection_)

    assert refused.startswith(b"HTTP/1.1 404")
    assert b"connection: close" not in refused
    assert answer.startswith(b"HTTP/1.1 200")


def test_who_asks_first_is_refused_at_once(server):
    with plain_socket(server) as connection_:
        connection_.sendall(HEAD.replace(TOKEN.encode(), b"wrong"))
        connection_.sendall(b"Expect: 100-continue\r\nContent-Length: 10\r\n\r\n")

        assert told(heard(connection_))["status"] == 401


# -- how much ---------------------------------------------------------------------------------------


def test_a_body_of_the_greatest_size_is_read_and_one_byte_more_is_not(http, env):
    frame = len(b'{"payload": {"ref": ""}}')
    largest = b'{"payload": {"ref": "' + b"x" * (LIMIT - frame) + b'"}}'

    assert http.post("/commands/crate.pack", content=largest, headers=JSON).status_code == 200
    too_large = http.post("/commands/crate.pack", content=largest + b" ", headers=JSON)

    problem(too_large, 413, "too-large")
    assert len(crates(env)) == 1


def test_a_huge_body_is_refused_before_it_comes(server):
    """Nothing of it is sent: who waits for it would wait for ever."""
    with plain_socket(server) as connection_:
        connection_.sendall(HEAD + b"Content-Length: 99999999999\r\n\r\n")

        assert told(heard(connection_))["status"] == 413


def test_a_huge_body_without_a_length_is_refused_as_soon_as_it_is_too_large(http, env):
    sent = 0

    def pieces():
        nonlocal sent
        for _ in range(100_000):
            sent += 1
            yield b" " * 1000

    answer = http.post("/commands/crate.pack", content=pieces(), headers=JSON)

    problem(answer, 413, "too-large")
    assert sent < 100_000
    assert crates(env) == []


def test_a_head_has_an_end(server):
    with plain_socket(server) as connection_:
        connection_.sendall(HEAD + b"X: " + b"x" * 100_000)

        assert told(heard(connection_))["status"] == 400


# -- how slowly -------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_body_that_does_not_come_is_not_waited_for(impatient, env):
    with plain_socket(impatient) as connection_:
        connection_.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")

        assert told(heard(connection_))["type"] == "urn:ontologia:problem:too-slow"
    assert crates(env) == []


@pytest.mark.thorough
def test_a_body_that_comes_in_drops_is_not_waited_for_either(impatient, env):
    with plain_socket(impatient) as connection_:
        connection_.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
        connection_.settimeout(0.01)
        answer = b""
        deadline = time.monotonic() + PATIENCE
        while not answer and time.monotonic() < deadline:
            connection_.sendall(b" ")
            try:
                answer = connection_.recv(65536)
            except TimeoutError:
                continue

        assert b" 408 " in answer.splitlines()[0]


def test_a_head_that_comes_in_drops_is_not_waited_for(env, monkeypatch):
    monkeypatch.setattr(connection, "HEAD_TIMEOUT", 0.2)
    with served(env) as server, plain_socket(server) as silent, plain_socket(server) as slow:
        slow.sendall(HEAD)

        assert told(heard(slow))["status"] == 408
        assert told(heard(silent))["status"] == 408


def test_the_second_head_of_a_connection_is_waited_for_no_longer(env, monkeypatch):
    with served(env) as server, plain_socket(server) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        assert one_answer(slow).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(connection, "HEAD_TIMEOUT", 0.2)
        slow.sendall(b"GET /health HT")

        assert told(heard(slow))["status"] == 408


def test_slow_clients_hold_up_nobody(env):
    """More of them than there are threads, each with a request that has not come to its end."""
    with served(env) as server, client(server) as http:
        slow = [plain_socket(server) for _ in range(40)]
        opened = [each.__enter__() for each in slow]
        for each in opened:
            each.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")

        answer = post(http, "crate.pack", {"ref": "quick"})

        for each in slow:
            each.__exit__(None, None, None)
    assert answer.status_code == 200
    assert crates(env) == ["quick"]


def test_a_client_that_goes_away_is_no_error(server, http, caplog):
    with plain_socket(server) as connection_:
        connection_.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")

    assert post(http, "crate.pack", {"ref": "a"}).status_code == 200
    assert caplog.records == []


def test_too_many_requests_at_once_are_told_to_come_back(env, monkeypatch):
    monkeypatch.setattr("ontologia.web.app._MOST_AT_ONCE", 1)
    HELD.clear()
    GO.clear()
    with served(env) as server, client(server) as http, ThreadPoolExecutor(1) as pool:
        held = pool.submit(post, http, "crate.hold")
        until(HELD.is_set)

        answer = post(http, "crate.pack", {"ref": "a"})
        GO.set()

    assert held.result().status_code == 200
    problem(answer, 503, "unavailable")
    assert answer.headers["retry-after"] == "1"


# -- heads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("more", "status"), [(0, 401), (1, 400)])
def test_a_head_that_comes_at_once_has_the_same_end(server, more, status):
    """It is whole when it is looked at, so there is nothing of it that would have to be waited for."""
    fixed = len("/x") + len("Host") + len("h") + 4 + len("X") + 4
    with plain_socket(server) as connection_:
        connection_.sendall(
            b"GET /x HTTP/1.1\r\nHost: h\r\nX: " + b"x" * (65_536 - fixed + more) + b"\r\n\r\n"
        )
        answer = one_answer(connection_)

    assert answer.split()[1] == str(status).encode()
    assert (b"at most 65,536 bytes" in answer) == bool(more)


def test_a_body_has_one_length(server, env):
    """What stands in front might go by the other one, and take the rest for a request of its own."""
    body = b'{"payload": {}}'
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    with plain_socket(server) as connection_:
        connection_.sendall(
            HEAD + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n" % len(chunk)
        )
        connection_.sendall(chunk + b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")

        assert told(heard(connection_))["type"] == "urn:ontologia:problem:malformed"
    assert crates(env) == []


def test_a_body_of_http_1_0_has_no_transfer_encoding(server, env):
    """What stands in front, and knows HTTP/1.0, takes the body for a request of its own."""
    body = b'{"payload": {"ref": "a"}}'
    with plain_socket(server) as connection_:
        connection_.sendall(HEAD.replace(b"HTTP/1.1", b"HTTP/1.0"))
        connection_.sendall(
            b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        )

        assert told(heard(connection_))["type"] == "urn:ontologia:problem:malformed"
    assert crates(env) == []


# -- without a token --------------------------------------------------------------------------------


@pytest.fixture
def open_server(env):
    with served(env, token=None, only_local=True) as made:
        yield made


OF_THIS_MACHINE = [
    {},
    *({"Host": name} for name in ("localhost:8000", "LOCALHOST", "127.9.9.9", "[::1]:8000")),
    *({"Origin": url} for url in ("http://localhost:3000", "https://127.0.0.1")),
]
OF_ELSEWHERE = [
    *({"Host": name} for name in ("rebound.example:8000", "localhost.rebound.example")),
    *({"Host": name} for name in ("192.168.1.7", "[::1", "")),
    *({"Host": name} for name in ("elsewhere.example@localhost", "elsewhere.example\\@localhost")),
    *({"Host": name} for name in ("localhost/", "localhost?", "localhost#", "localhost:80:80")),
    *(
        {"Origin": url}
        for url in ("https://elsewhere.example", "http://localhost.elsewhere.example")
    ),
    *({"Origin": url} for url in ("null", "", "localhost", "//localhost")),
    *({"Origin": f"http://elsewhere.example{sign}@localhost"} for sign in ("", "\\", "/")),
    *({"Origin": f"http://localhost{more}"} for more in ("/", "/path", "\\", "?", "#")),
    *({"Origin": f"{scheme}://localhost"} for scheme in ("file", "ftp", "chrome-extension")),
]


def test_without_a_token_no_page_of_another_site_is_let_in(open_server, env):
    with client(open_server, headers={}) as http:
        for headers in OF_THIS_MACHINE:
            assert post(http, "crate.pack", {"ref": "a"}, headers=headers).status_code == 200, (
                headers
            )
        for headers in OF_ELSEWHERE:
            problem(post(http, "crate.pack", headers=headers), 403, "forbidden")
            assert http.get("/health", headers=headers).status_code == 403, headers

    assert crates(env) == ["a"] * len(OF_THIS_MACHINE)


def test_without_a_host_nobody_is_let_in_without_a_token(open_server):
    with plain_socket(open_server) as connection_:
        connection_.sendall(b"GET /health HTTP/1.0\r\n\r\n")

        assert told(heard(connection_))["status"] == 403
