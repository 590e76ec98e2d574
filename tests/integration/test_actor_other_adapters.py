"""The loop over TCP with a token, and over stdin and stdout."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from ontologia.actors import ActorLoop, TcpAdapter
from ontologia.errors import ConfigError
from tests.integration.actor_world import Client, echoing, eventually, line
from tests.integration.running import PATIENCE

TOKEN = "open-sesame"  # noqa: S105
HELLO = json.dumps({"token": TOKEN}).encode() + b"\n"


async def talk(*pieces: bytes, **options):
    """What a client is told that sends these pieces, and then nothing."""
    adapter = TcpAdapter(token=TOKEN, **options)
    async with ActorLoop([echoing()[1]], adapters=[adapter]):
        client = Client(*await asyncio.open_connection("127.0.0.1", adapter.port))
        for piece in pieces:
            await client.send(piece)
            await asyncio.sleep(0)
        if options.get("stall") is None:
            client.writer.write_eof()
        async with asyncio.timeout(PATIENCE):
            text = await client.reader.read()
        await client.close()
    return [json.loads(each) for each in text.splitlines()]


@pytest.mark.req("CQR-073")
def test_a_client_with_the_token_is_served():
    first, second = asyncio.run(talk(HELLO[:5], HELLO[5:] + line(data={"n": 1}), line(data={})))

    assert (first["kind"], first["data"]) == ("reply", {"n": 1})
    assert second["kind"] == "reply"


@pytest.mark.parametrize(
    "hello",
    [
        b'{"token": "wrong"}\n',
        b'{"token": 7}\n',
        b'{"token": ""}\n',
        b"[]\n",
        b"nonsense\n",
        b"\n",
        b'{"token": "\xc3\xa4"}\n',
        b"x" * 10_000,
        line(),
    ],
)
def test_a_client_without_the_token_is_told_once_and_let_go(hello):
    [refused] = asyncio.run(talk(hello + line(data={"n": 1})))

    assert (refused["kind"], refused["data"]["code"]) == ("error", 401)
    assert TOKEN not in refused["data"]["message"]


def test_a_client_that_shows_no_token_is_let_go_after_a_while():
    [refused] = asyncio.run(talk(HELLO[:5], stall=0.1))

    assert refused["data"]["code"] == 401


def test_a_first_line_without_an_end_is_not_waited_for():
    [refused] = asyncio.run(talk(b"x" * 10_000, stall=3_600))

    assert refused["data"]["code"] == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104
def test_other_machines_are_let_in_only_if_told(host):
    async def main(**options):
        adapter = TcpAdapter(host, token=TOKEN, **options)
        async with ActorLoop([echoing()[1]], adapters=[adapter]):
            return adapter.port

    with pytest.raises(ConfigError, match="can be reached from other machines"):
        asyncio.run(main())
    if host == "0.0.0.0":  # noqa: S104 - not every machine has the other
        assert asyncio.run(main(anywhere=True)) > 0


def test_a_token_is_needed_and_a_port_that_is_taken_is_said():
    with pytest.raises(ConfigError, match="needs a token"):
        TcpAdapter(token="")

    async def main():
        first = TcpAdapter(token=TOKEN)
        async with ActorLoop([echoing()[1]], adapters=[first]):
            await ActorLoop([], adapters=[TcpAdapter(port=first.port, token=TOKEN)]).run()

    with pytest.raises(ConfigError, match=r"cannot listen at 127\.0\.0\.1, port"):
        asyncio.run(main())


PROGRAM = """
import asyncio
from tests.integration.actor_world import echoing
from ontologia.actors import ActorLoop, StdioAdapter
asyncio.run(ActorLoop([echoing()[1]], adapters=[StdioAdapter(line_limit=300_000)]).run())
"""
STDIO = [sys.executable, "-c", PROGRAM]


@pytest.mark.thorough
def test_a_program_that_is_started_by_another_speaks_through_stdin_and_stdout():
    lines = [line(data={"n": n}) for n in range(3_000)] + [b"nonsense\n", b"x" * 300_001 + b"\n"]

    done = subprocess.run(
        STDIO, check=False, input=b"".join(lines), capture_output=True, timeout=PATIENCE
    )

    answers = [json.loads(each) for each in done.stdout.splitlines()]
    replies = [each["data"]["n"] for each in answers if each["kind"] == "reply"]
    errors = [each["data"]["code"] for each in answers if each["kind"] == "error"]
    assert (done.returncode, done.stderr) == (0, b"")
    assert replies == list(range(3_000))
    assert errors == [400, 413]


@pytest.mark.req("CQR-089")
def test_input_may_be_a_file_and_the_loop_ends_when_all_is_written(tmp_path):
    (tmp_path / "in").write_bytes(line(data={"size": 200_000}) * 1 + line(data={"n": 2}))

    with open(tmp_path / "in") as given, open(tmp_path / "out", "wb") as taken:
        done = subprocess.run(STDIO, check=False, stdin=given, stdout=taken, timeout=PATIENCE)

    answers = [json.loads(each) for each in (tmp_path / "out").read_bytes().splitlines()]
    assert done.returncode == 0
    assert [len(answers[0]["data"]["text"]), answers[1]["data"]["n"]] == [200_000, 2]


def test_a_program_that_is_asked_nothing_ends():
    done = subprocess.run(STDIO, check=False, input=b"", capture_output=True, timeout=PATIENCE)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_program_ends_when_nobody_reads_what_it_says():
    process = subprocess.Popen(STDIO, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.close()
    process.stdin.write(line())
    process.stdin.flush()

    code = process.wait(PATIENCE)
    process.stdin.close()

    assert code == 0


def test_adapters_of_several_kinds_serve_one_loop(tmp_path):
    from ontologia.actors import UnixSocketAdapter

    async def main():
        unix, tcp = UnixSocketAdapter(tmp_path / "o.sock"), TcpAdapter(token=TOKEN)
        async with ActorLoop([echoing()[1]], adapters=[unix, tcp]):
            one = Client(*await asyncio.open_unix_connection(tmp_path / "o.sock"))
            other = Client(*await asyncio.open_connection("127.0.0.1", tcp.port))
            await other.send(HELLO)
            found = [(await each.ask(data={"n": n}))["data"] for n, each in enumerate((one, other))]
            await one.close()
            await other.close()
            await eventually(lambda: unix.clients + tcp.clients == 0)
            return found

    assert asyncio.run(main()) == [{"n": 0}, {"n": 1}]
