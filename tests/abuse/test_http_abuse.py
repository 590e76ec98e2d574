"""Clients that hold connections, memory and descriptors of a server: it goes on serving others.

`ONTOLOGIA_TEST_SAMPLES=10`, as `make soak` has it, is the size at which each of these once stopped a server.
"""

from __future__ import annotations

import os
import re
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from ontologia import OntologiaConfig, Session, codec
from ontologia.commands import Env
from ontologia.web import connection, serving
from ontologia.web.bodies import MOST_VALUES
from ontologia.web.serving import listen
from ontologia_conformance.tiers import samples
from tests.abuse.clients import (
    Address,
    begin_upload,
    connected,
    end_upload,
    is_closed,
    never_finish,
    never_read,
    pipeline,
    read,
    until_closed,
    upload,
)
from tests.abuse.limited import Limited
from tests.integration.running import PATIENCE, until
from tests.integration.web_world import AUTHORIZED, GO, HELD, client, heard, served

MODULES = ("tests.abuse.world", "tests.integration.web_world")
SILENT = max(130, samples(130))  # connections; at full size 1,300
DESCRIPTORS = max(96, samples(102.4))  # of the server; at full size 1,024
PATIENT = 1e6  # seconds; only what is tested ends anything
BIG = 4 * 1024 * 1024  # bytes of an answer; more than the kernel keeps for a client
MIB = 1024 * 1024

REFUSED = re.compile(rb"HTTP/1.1 503 .*\r\nretry-after: 1\r\n", re.DOTALL | re.IGNORECASE)


@contextmanager
def opened(uri: str, **settings) -> Iterator[Env]:
    HELD.clear()
    GO.clear()
    with (
        Session(uri, config=OntologiaConfig(**settings)) as session,
        Env(session, modules=MODULES) as env,
    ):
        yield env


def address(server) -> Address:
    return server._listener.getsockname()


def cargo(http: httpx.Client, size: int = 1) -> httpx.Response:
    return http.post("/commands/deck.cargo", json={"payload": {"bytes": size}})


# -- a process with few descriptors -----------------------------------------------------------------


@pytest.fixture
def room_for_clients():
    """This process may open as many files as its clients need."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.sampled
def test_silent_connections_keep_nobody_out_and_fill_no_log(uri, tmp_path, room_for_clients):
    began = time.monotonic()
    with Limited(uri, tmp_path, DESCRIPTORS) as server:
        with connected(server.address, SILENT):
            answers = [server.post("deck.cargo").status_code for _ in range(10)]
            code = server.stop()
        lines = server.lines().splitlines()

    assert answers == [200] * 10
    assert code == 0
    assert not [line for line in lines if "as many files open" in line], "there is room for others"
    assert not [line for line in lines if "Traceback" in line or "system resource" in line]
    seconds = time.monotonic() - began
    assert len(lines) < 10 + 2 * seconds, "more than one line a second of each complaint"


def test_without_a_descriptor_a_connection_is_closed_and_the_server_goes_on(uri, tmp_path):
    with Limited(uri, tmp_path, 96) as server:
        with httpx.Client(base_url=server.url, headers=AUTHORIZED, timeout=PATIENCE) as idle:
            assert idle.post("/commands/deck.hoard", json={"payload": {}}).json() > 0
            with connected(server.address, 1) as newcomers:
                until_closed(newcomers)
            # The idle connection has made room for this one.
            assert server.post("deck.release").status_code == 200
        assert server.post("deck.cargo").status_code == 200
        assert server.stop() == 0
        lines = server.lines()

    assert lines.count("as many files open as it may have") == 1
    assert "system resource" not in lines


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """This process has as many files open as it may have."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    hoard = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hoard[0] + 64, before[1]))
    try:
        with suppress(OSError):
            while True:
                hoard.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for each in hoard:
            os.close(each)


@pytest.fixture
def listener():
    with listen("127.0.0.1", 0) as made:
        made.listen()
        yield made


def test_without_a_descriptor_one_connection_after_the_other_is_closed(listener):
    with connected(listener.getsockname(), 3) as newcomers:
        with no_descriptor_left():
            for _ in newcomers:
                with pytest.raises(BlockingIOError):
                    listener.accept()

        until_closed(newcomers)


def test_a_spare_descriptor_that_was_lost_is_had_again(listener):
    os.close(listener._spare)
    listener._spare = None  # as when another thread opens a file where it was
    with connected(listener.getsockname(), 2) as newcomers:
        listener.accept()[0].close()
        with no_descriptor_left(), pytest.raises(BlockingIOError):
            listener.accept()

        until_closed(newcomers)


# -- connections ------------------------------------------------------------------------------------


LIMITS_OF_TWO = [
    {"max_connections_per_peer": 2},
    {"max_connections": 2, "max_connections_per_peer": 0},
]


@pytest.mark.parametrize("limits", LIMITS_OF_TWO)
def test_a_new_connection_takes_the_place_of_the_one_that_has_waited_longest(uri, limits):
    with (
        opened(uri, **limits) as env,
        served(env) as server,
        connected(address(server), 5) as silent,
    ):
        until_closed(silent[:3])

        assert not any(map(is_closed, silent[3:]))
        with client(server) as http:
            assert cargo(http).status_code == 200
        until_closed(silent[3:4])
        assert not is_closed(silent[4])


@pytest.mark.parametrize("limits", LIMITS_OF_TWO)
def test_active_clients_with_the_token_keep_their_connections_and_a_new_one_is_refused(
    uri, monkeypatch, limits
):
    monkeypatch.setattr(connection, "ACTIVE", PATIENT)
    with (
        opened(uri, **limits) as env,
        served(env) as server,
        client(server) as one,
        client(server) as other,
    ):
        answers = [cargo(one), cargo(other)]
        theirs = set(server.server_state.connections)
        with client(server) as newcomer:
            refused = cargo(newcomer)
        answers += [cargo(one), cargo(other)]

        assert theirs <= server.server_state.connections

    assert [each.status_code for each in answers] == [200] * 4
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["connection"] == "close"


@pytest.mark.parametrize("limits", LIMITS_OF_TWO)
def test_of_idle_clients_with_the_token_the_one_that_waits_longest_makes_room(
    uri, monkeypatch, limits
):
    monkeypatch.setattr(connection, "ACTIVE", 0.0)
    with (
        opened(uri, **limits) as env,
        served(env) as server,
        client(server) as first,
        client(server) as second,
        client(server) as third,
    ):
        assert cargo(first).status_code == 200
        [oldest] = server.server_state.connections
        assert cargo(second).status_code == 200
        [newer] = server.server_state.connections - {oldest}
        assert cargo(third).status_code == 200

        until(lambda: oldest not in server.server_state.connections)
        assert newer in server.server_state.connections


@pytest.mark.parametrize("limits", LIMITS_OF_TWO)
def test_connections_without_the_token_make_room_first(uri, monkeypatch, limits):
    monkeypatch.setattr(connection, "ACTIVE", 0.0)
    with opened(uri, **limits) as env, served(env) as server, client(server) as http:
        assert cargo(http).status_code == 200
        [its] = server.server_state.connections
        with connected(address(server), 4) as silent:
            until_closed(silent[:3])

            assert its in server.server_state.connections
            assert not is_closed(silent[3])


def test_who_makes_room_is_told_so(uri):
    with (
        opened(uri, max_connections=1) as env,
        served(env) as server,
        connected(address(server), 2) as [older, _newer],
    ):
        assert REFUSED.match(heard(older))


def test_the_peer_with_the_most_connections_makes_room(uri):
    with (
        opened(uri, max_connections=4) as env,
        served(env) as server,
        connected(address(server), 1, "127.0.0.9") as [lone],
        connected(address(server), 3, "127.0.0.2") as crowd,
        connected(address(server), 2, "127.0.0.3"),
    ):
        until_closed(crowd[:2])

        assert not is_closed(lone)
        assert not is_closed(crowd[2])


def test_peers_without_the_token_do_not_end_an_upload(uri, monkeypatch):
    monkeypatch.setattr(connection, "ACTIVE", 0.0)
    with (
        opened(uri, max_connections=4) as env,
        served(env) as server,
        connected(address(server), 1, "127.0.0.9") as [uploading],
    ):
        begin_upload(uploading)
        until(lambda: [each for each in server.server_state.connections if each.has_token])
        for peer in range(2, 8):
            with connected(address(server), 4, f"127.0.0.{peer}") as churning:
                until_closed(churning[:1])

        end_upload(uploading)
        assert uploading.recv(65536).startswith(b"HTTP/1.1 200")


def test_who_is_being_served_keeps_its_connection(uri):
    with opened(uri, max_connections=1) as env, served(env) as server, client(server) as http:
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(http.post, "/commands/crate.hold", json={"payload": {}})
            until(HELD.is_set)
            with client(server) as other:
                refused = other.get("/health")
            GO.set()

        assert held.result().status_code == 200
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["content-type"] == "application/problem+json"


@pytest.mark.sampled
@pytest.mark.parametrize("answer", [40_000, BIG], ids=["little", "much"])
def test_a_client_that_does_not_read_is_dropped(uri, monkeypatch, answer):
    """Also if less is left than asyncio takes without a word, 64 KiB."""
    monkeypatch.setattr(connection, "WRITE_TIMEOUT", 0.1)
    monkeypatch.setattr(serving, "_UNREAD", 4096)
    with (
        opened(uri) as env,
        served(env) as server,
        connected(address(server), samples(2)) as deaf,
    ):
        for each in deaf:
            never_read(each, answer)

        until(lambda: server.server_state.total_requests >= len(deaf))
        until(lambda: not server.server_state.connections)


def test_a_client_that_reads_slowly_is_not(uri, monkeypatch):
    monkeypatch.setattr(connection, "WRITE_TIMEOUT", PATIENT)
    with (
        opened(uri) as env,
        served(env) as server,
        connected(address(server), 1) as [slow],
    ):
        never_read(slow, BIG)
        until(lambda: [each for each in server.server_state.connections if each.flow.write_paused])
        [its] = server.server_state.connections
        read(slow, BIG // 2)
        its.loop.call_soon_threadsafe(its._check_reading)  # as when the time is over

        read(slow, BIG // 2)


@pytest.mark.thorough
def test_clients_that_send_requests_and_read_no_answer_are_dropped(uri, monkeypatch):
    monkeypatch.setattr(connection, "WRITE_TIMEOUT", 2.0)
    with (
        opened(uri) as env,
        served(env) as server,
        connected(address(server), samples(2)) as deaf,
        ThreadPoolExecutor(len(deaf)) as pool,
    ):
        list(pool.map(pipeline, deaf))

        until(lambda: not server.server_state.connections)


def test_a_server_ends_whatever_its_clients_do(uri, monkeypatch):
    monkeypatch.setattr(connection, "WRITE_TIMEOUT", PATIENT)
    monkeypatch.setattr(connection, "HEAD_TIMEOUT", PATIENT)
    with (
        opened(uri, shutdown_grace_ms=100) as env,
        served(env, body_timeout=PATIENT) as server,
        connected(address(server), 3) as clients,
    ):
        silent, unfinished, deaf = clients
        never_finish(unfinished)
        never_read(deaf, BIG)
        until(lambda: server.server_state.total_requests)

        server.stop()
        until_closed([silent, unfinished])
        # `served` has waited for its end.


def test_a_server_ends_whatever_clients_do_that_send_requests_and_read_no_answer(uri, monkeypatch):
    monkeypatch.setattr(connection, "WRITE_TIMEOUT", PATIENT)
    with (
        opened(uri, shutdown_grace_ms=100) as env,
        served(env) as server,
        connected(address(server), 1) as [deaf],
    ):
        never_read(deaf, BIG)
        never_read(deaf, BIG)
        until(lambda: server.server_state.total_requests)
        [its] = server.server_state.connections
        until(lambda: not its.cycle.response_complete)  # its second answer waits for the first

        server.stop()
        until(lambda: not server.server_state.connections)


def test_a_command_that_runs_is_answered_however_long_it_takes_a_server_to_end(uri):
    with (
        opened(uri, shutdown_grace_ms=0) as env,
        served(env) as server,
        connected(address(server), 1) as [unfinished],
        client(server) as http,
        ThreadPoolExecutor(1) as pool,
    ):
        never_finish(unfinished)
        held = pool.submit(http.post, "/commands/crate.hold", json={"payload": {}})
        until(HELD.is_set)
        server.stop()
        until_closed([unfinished])  # whom it waits for, it waits for no more
        GO.set()

        assert held.result().status_code == 200


# -- what takes the loop long to read ---------------------------------------------------------------


def answer_to(server, *pieces: bytes) -> bytes:
    """The beginning of what is answered to these bytes; it need not read them all."""
    with connected(address(server), 1) as [one]:
        with suppress(ConnectionError):
            for each in pieces:
                one.sendall(each)
        return one.recv(12)


HEAD = (
    b"POST /commands/deck.cargo HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer open-sesame\r\n"
    b"Content-Type: application/json\r\n"
)
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("chunks", "status"), [(b"1\r\n \r\n" * 999, b"200"), (b"1\r\n \r\n" * 1000, b"400"),
                           ((b"40\r\n" + b" " * 64 + b"\r\n") * 2000, b"200")]
)  # fmt: skip
def test_a_body_has_a_thousand_small_chunks_and_not_one_more(uri, chunks, status):
    last = b'f\r\n{"payload": {}}\r\n0\r\n\r\n'
    with opened(uri) as env, served(env) as server:
        assert answer_to(server, CHUNKED + chunks + last) == b"HTTP/1.1 " + status


def test_the_chunks_of_each_request_are_counted_anew(uri):
    whole = CHUNKED + b"1\r\n \r\n" * 999 + b'f\r\n{"payload": {}}\r\n0\r\n\r\n'
    with opened(uri) as env, served(env) as server, connected(address(server), 1) as [one]:
        for _ in range(2):
            one.sendall(whole)
            answer = b""
            while not answer.endswith(b'""'):
                piece = one.recv(65536)
                assert piece, answer
                answer += piece
            assert answer.startswith(b"HTTP/1.1 200")


def test_who_is_refused_can_read_why_and_the_log_has_one_line(uri, caplog):
    """The rest of what it has sent is read; a connection that is closed before is reset."""
    request = CHUNKED.replace(b"open-sesame", b"wrong") + b"1\r\n \r\n" * 100_000
    with opened(uri) as env, served(env) as server, connected(address(server), 1) as [one]:
        one.sendall(request)

        assert heard(one).startswith(b"HTTP/1.1 400 ")
        one.close()
        until(lambda: not server.server_state.connections)
    assert [each.getMessage() for each in caplog.records] == ["Invalid HTTP request received."]


def test_who_is_refused_and_goes_on_sending_is_dropped(uri, monkeypatch):
    monkeypatch.setattr(connection, "_LINGER", 0.05)
    with opened(uri) as env, served(env) as server, connected(address(server), 1) as [one]:
        one.sendall(b"nonsense\r\n\r\n")
        until(lambda: not server.server_state.connections)  # although this end is open


@pytest.mark.parametrize(("lines", "status"), [(256, b"200"), (257, b"400")])
@pytest.mark.parametrize("newline", [b"\r\n", b"\n"])
def test_a_head_has_256_lines_and_not_one_more(uri, lines, status, newline):
    """Also if it comes in pieces; the lines of a body that comes with it do not count."""
    head = HEAD + b"a: b\r\n" * (lines - 5) + b"Content-Length: 315\r\n\r\n"
    body = b'{"payload":\n{}}' + b"\n" * 300
    request = (head + body).replace(b"\r\n", newline)
    with opened(uri) as env, served(env) as server:
        assert answer_to(server, request) == b"HTTP/1.1 " + status
        assert answer_to(server, request[:1000], request[1000:]) == b"HTTP/1.1 " + status


@pytest.mark.parametrize(("lines", "status"), [(256, b"200"), (257, b"400")])
def test_a_trailer_has_256_lines_and_not_one_more(uri, lines, status):
    request = CHUNKED + b'f\r\n{"payload": {}}\r\n0\r\n' + b"a: b\r\n" * lines + b"\r\n"
    with opened(uri) as env, served(env) as server:
        assert answer_to(server, request) == b"HTTP/1.1 " + status


def test_other_connections_have_their_turn_after_16_kib(uri, monkeypatch):
    read_at_once = []
    data_received = connection.Connection.data_received

    def noted(self, data):
        read_at_once.append(len(data))
        data_received(self, data)

    monkeypatch.setattr(connection.Connection, "data_received", noted)
    with opened(uri) as env, served(env) as server:
        assert upload(address(server), 500_000).startswith(b"HTTP/1.1 200")

    assert max(read_at_once) <= 16_384


# -- bodies -----------------------------------------------------------------------------------------


@pytest.mark.sampled
def test_bodies_that_never_end_keep_nobody_out(uri, monkeypatch, room_for_clients):
    count = samples(25.6)
    monkeypatch.setattr("ontologia.web.app._MOST_AT_ONCE", count)
    with (
        opened(uri, max_connections_per_peer=0) as env,
        served(env) as server,
        connected(address(server), count) as unfinished,
        client(server) as http,
    ):
        for each in unfinished:
            never_finish(each)

        assert cargo(http).status_code == 200


def test_the_memory_of_all_bodies_is_bounded_and_small_ones_are_served(uri, monkeypatch):
    monkeypatch.setattr("ontologia.web.app._MOST_BYTES", 600_000 - 65_536)
    with (
        opened(uri) as env,
        served(env) as server,
        connected(address(server), 1) as [unfinished],
        client(server) as http,
    ):
        never_finish(unfinished, 600_000)
        bodies = server.config.app.routes[0].endpoint._bodies
        until(lambda: bodies._bytes == 600_000 - 65_536)

        until(lambda: REFUSED.match(upload(address(server), 300_000)))
        assert cargo(http).status_code == 200
        unfinished.close()
        until(lambda: upload(address(server), 300_000).startswith(b"HTTP/1.1 200"))


def test_a_body_that_was_carried_out_leaves_room_for_others(uri, monkeypatch):
    monkeypatch.setattr("ontologia.web.app._MOST_BYTES", 300_000)
    with opened(uri) as env, served(env) as server:
        answers = [upload(address(server), 300_000) for _ in range(3)]

    assert [each.split()[1] for each in answers] == [b"200"] * 3


JSON = {"Content-Type": "application/json"}


def body(values: str) -> bytes:
    return b'{"payload": {"a": [%s]}}' % values.encode()


MANY = {
    "arrays": "[]," * (MOST_VALUES - 4) + "[]",
    "objects": '{"a": 1}, ' * (MOST_VALUES // 2 - 3) + '{"a": 1}, 1',
    "texts": '",[{\\"\\\\",' * (MOST_VALUES - 4) + '""',
    "spaces": "[ \n]," * (MOST_VALUES - 4) + "{ }",
}


@pytest.mark.parametrize("kind", MANY)
def test_a_body_has_so_many_values_and_not_one_more(uri, kind):
    with opened(uri) as env, served(env, max_body_bytes=4 * MIB) as server, client(server) as http:
        most = http.post("/commands/deck.cargo", content=body(MANY[kind]), headers=JSON)
        more = http.post("/commands/deck.cargo", content=body(MANY[kind] + ",1"), headers=JSON)

    assert most.status_code == 200
    assert more.status_code == 422
    assert "at most 100,000 JSON values; nothing was done" in more.json()["detail"]


def test_text_without_an_end_is_refused_as_soon_as_any(uri):
    """Each of its quotes could be the beginning of a text."""
    endless = b'{"payload": {"a": "' + b',\\"' * 300_000
    with opened(uri) as env, served(env) as server, client(server) as http:
        answer = http.post("/commands/deck.cargo", content=endless, headers=JSON)

    assert answer.status_code == 400


def test_a_body_is_decoded_by_the_thread_that_carries_out_the_command(uri, monkeypatch):
    threads = set()

    def decode(text):
        threads.add(threading.current_thread())
        return decoded(text)

    decoded = codec.decode
    monkeypatch.setattr(codec, "decode", decode)
    with opened(uri) as env, served(env) as server, client(server) as http:
        assert cargo(http).status_code == 200

    assert [each.name.startswith("ontologia") for each in threads] == [True], threads


LARGE = b'{"payload": {}}'.ljust(65_537)


def post_large(http: httpx.Client, name: str) -> int:
    return http.post(f"/commands/{name}", content=LARGE, headers=JSON).status_code


def test_large_bodies_are_decoded_one_at_a_time_and_those_that_wait_hold_no_thread(
    uri, monkeypatch
):
    """Each thread that decodes keeps the loop waiting for the interpreter's lock."""
    count = 17  # one more than there are threads
    decoding = []
    go = threading.Event()

    def decode(text):
        if len(text) == len(LARGE):
            decoding.append(text)
            assert go.wait(PATIENCE)
        return decoded(text)

    decoded = codec.decode
    monkeypatch.setattr(codec, "decode", decode)
    with (
        opened(uri) as env,
        served(env) as server,
        client(server) as http,
        ThreadPoolExecutor(count) as pool,
    ):
        try:
            answers = [pool.submit(post_large, http, "deck.cargo") for _ in range(count)]
            commands = server.config.app.routes[0].endpoint
            until(lambda: commands._at_once == count)
            until(lambda: decoding)
            assert cargo(http).status_code == 200

            assert len(decoding) == 1
        finally:
            go.set()
        assert [each.result() for each in answers] == [200] * count


def test_a_large_body_does_not_wait_for_the_command_of_another_one(uri):
    with (
        opened(uri) as env,
        served(env) as server,
        client(server) as http,
        ThreadPoolExecutor(1) as pool,
    ):
        held = pool.submit(post_large, http, "crate.hold")
        until(HELD.is_set)

        assert post_large(http, "deck.cargo") == 200
        assert not held.done()
        GO.set()
        assert held.result() == 200


@pytest.mark.sampled
def test_bodies_of_many_values_take_no_memory_that_matters(uri, tmp_path):
    """At full size 24 bodies of 1 MiB: decoded, they would be 500 MiB."""
    count = max(2, samples(2.4))
    with Limited(uri, tmp_path, 1024) as server:
        before = peak(server.popen.pid)
        assert post_at_once(server, body("[]," * (MIB // 3 - 20) + "[]"), count) == {422}
        grown = peak(server.popen.pid) - before

    assert grown < 16 * MIB + 4 * MIB * count


@pytest.mark.sampled
def test_bodies_of_as_many_values_as_allowed_are_in_memory_one_after_the_other(uri, tmp_path):
    """At full size 24 bodies of 400 KB, just within the limit: decoded by 16 threads, 200 MiB more."""
    with Limited(uri, tmp_path, 1024) as server:
        before = peak(server.popen.pid)
        at_once = post_at_once(server, body('{"":[]},' * 49_900 + "[]"), max(2, samples(2.4)))
        assert at_once == {200}
        grown = peak(server.popen.pid) - before

    assert grown < 128 * MIB


def post_at_once(server: Limited, content: bytes, count: int) -> set[int]:
    """What so many requests with this body are answered with."""
    url, headers = f"{server.url}/commands/deck.cargo", AUTHORIZED | JSON

    def post(_: int) -> int:
        return httpx.post(url, content=content, headers=headers, timeout=PATIENCE).status_code

    with ThreadPoolExecutor(count) as pool:
        return set(pool.map(post, range(count)))


def peak(pid: int) -> int:
    """The most memory that a process has had, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
