"""Any bytes, sent to a server: it never fails, never hangs, and answers whoever comes next."""

from __future__ import annotations

import json
import re
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ontologia.commands import Env
from tests.fuzz.strategies import JSON, TEXT, examples
from tests.integration.web_world import TOKEN, client, heard, plain_socket, served

FOUND = sorted((Path(__file__).parent / "corpus/http").glob("*"))
STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")
HEAD = {
    b"Host": b"h",
    b"Authorization": b"Bearer " + TOKEN.encode(),
    b"Content-Type": b"application/json",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("http") / "fuzz.db"
    with (
        Env(f"sqlite:///{path}", modules=["tests.integration.web_world"]) as env,
        served(env, max_body_bytes=10_000, body_timeout=2) as made,
    ):
        yield made


def send(server, data: bytes) -> None:
    """Send bytes, and nothing after them; whatever is answered is no failure."""
    with plain_socket(server) as connection:
        with suppress(ConnectionError):  # it need not read to the end what it has refused
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        with suppress(ConnectionError):
            answer = heard(connection)
    statuses = [int(each) for each in STATUS.findall(answer)]
    assert not answer or answer.startswith(b"HTTP/1.1 "), answer[:200]
    assert [each for each in statuses if each >= 500] == [], answer[:500]
    assert b"Traceback" not in answer


def assert_alive(server) -> None:
    with client(server) as http:
        assert http.get("/health").status_code == 200


def request(method: bytes, target: bytes, headers: dict[bytes, bytes], body: bytes) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (method, target)]
    lines += [b"%s: %s" % each for each in headers.items()]
    return b"\r\n".join([*lines, b"", body])


BYTES = st.binary(max_size=20)
METHODS = st.sampled_from([b"GET", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"TRACE", b"get"]) | BYTES
TARGETS = st.sampled_from(
    [
        *(b"/commands/crate.pack", b"/commands/", b"/commands/%00", b"/commands/%ff", b"/", b"*"),
        *(b"/health", b"/openapi.json", b"http://h/health", b"/commands/crate.pack?x=%zz", b"//"),
    ]
) | BYTES.map(lambda path: b"/" + path)
EXTRA = st.dictionaries(
    st.sampled_from(
        [
            *(b"Content-Length", b"Transfer-Encoding", b"Expect", b"Connection", b"Upgrade"),
            *(b"Idempotency-Key", b"Content-Type", b"Content-Encoding", b"Authorization", b"Host"),
        ]
    )
    | BYTES,
    st.sampled_from([b"0", b"5", b"-1", b"99999999999999999999", b"chunked", b"100-continue"])
    | st.sampled_from([b"close", b"websocket", b"application/json; charset=utf-16", b"gzip", b""])
    | BYTES,
    max_size=3,
)
BODIES = st.one_of(
    BYTES,
    JSON.map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries(
        {}, optional={"payload": JSON, "ref": JSON, "model_id": JSON, "command": TEXT}
    ).map(lambda value: json.dumps(value).encode()),
    st.just(b"[" * 5000),
    st.just(b'5\r\n{"a":\r\n'),
)


@examples(120)
@given(method=METHODS, target=TARGETS, extra=EXTRA, body=BODIES, honest=st.booleans())
def test_a_request_that_is_nearly_one_is_answered_or_dropped(
    server, method, target, extra, body, honest
):
    length = {b"Content-Length": str(len(body)).encode()} if honest else {}
    send(server, request(method, target, HEAD | length | extra, body))


@examples(60)
@given(data=st.binary(max_size=200))
@example(data=b"")
@example(data=b"\r\n\r\n")
@example(data=b"GET / HTTP/9.9\r\n\r\n")
@example(data=b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n")
@example(data=b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000 + b"\r\n")
def test_bytes_that_are_no_request_are_refused_or_dropped(server, data):
    send(server, data)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_what_was_found_once_is_not_found_again(server, path):
    send(server, path.read_bytes())


def test_after_all_of_it_the_server_is_there(server):
    assert_alive(server)
