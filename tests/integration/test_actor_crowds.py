"""More clients than there may be: one line for each that is too many, and the others are served."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from ontologia.actors import ActorLoop, TcpAdapter, UnixSocketAdapter
from ontologia.actors.sockets import MOST_CLIENTS, Complaints
from ontologia.errors import ConfigError
from ontologia.testing import ManualClock
from tests.integration.actor_world import Client, echoing, eventually, line
from tests.integration.running import PATIENCE

TOKEN = "open-sesame"  # noqa: S105
MOST = 3


class Place:
    """Where a loop listens, and how to come there."""

    def __init__(self, kind, tmp_path, **options):
        self.hello = b""
        if kind == "unix":
            self.adapter = UnixSocketAdapter(tmp_path / "o.sock", **options)
        else:
            self.adapter = TcpAdapter(token=TOKEN, **options)
            self.hello = json.dumps({"token": TOKEN}).encode() + b"\n"

    async def connect(self):
        if isinstance(self.adapter, UnixSocketAdapter):
            return Client(*await asyncio.open_unix_connection(self.adapter.path))
        return Client(*await asyncio.open_connection("127.0.0.1", self.adapter.port))

    def socket(self):
        """The same without asyncio, as most clients are."""
        if isinstance(self.adapter, UnixSocketAdapter):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(self.adapter.path))
        else:
            connection = socket.create_connection(("127.0.0.1", self.adapter.port))
        connection.settimeout(PATIENCE)
        return connection

    @asynccontextmanager
    async def crowded(self, most=MOST):
        """A loop with as many clients as there may be."""
        async with ActorLoop([echoing()[1]], adapters=[self.adapter]), AsyncExitStack() as left:
            clients = [await self.connect() for _ in range(most)]
            for each in clients:
                left.push_async_callback(each.close)
                await each.send(self.hello)
                await each.ask()
            yield clients


@pytest.fixture(params=["unix", "tcp"])
def place(request, tmp_path):
    return Place(request.param, tmp_path, most_clients=MOST)


def asked(place):
    """All that a client is told which asks and then reads, as most do."""
    with place.socket() as connection:
        connection.sendall(place.hello + line(data={"text": "x" * 100_000}))
        with connection.makefile("rb") as stream:
            return [json.loads(each) for each in stream]


def test_one_client_too_many_is_told_so_once_and_let_go(place, caplog):
    place.adapter._complaints = Complaints("here", ManualClock().monotonic)

    async def main():
        async with place.crowded() as clients:
            told = [await asyncio.to_thread(asked, place) for _ in range(2)]
            answers = [(await each.ask(data={"n": 1}))["data"] for each in clients]
            return told, answers, place.adapter.clients, place.adapter.served

    with caplog.at_level(logging.WARNING, "ontologia.actors"):
        told, answers, clients, served = asyncio.run(main())

    for [refused] in told:
        assert (refused["kind"], refused["data"]["code"]) == ("error", 503)
        assert "3 clients are connected" in refused["data"]["message"]
    assert answers == [{"n": 1}] * MOST
    assert (clients, served) == (MOST, MOST)
    assert caplog.text.count("a client is turned away") == 1, "a clock that stands still"


def test_clients_without_a_token_make_room_the_oldest_first(tmp_path, caplog):
    place = Place("tcp", tmp_path, most_clients=MOST)
    place.adapter._complaints = Complaints("here", ManualClock().monotonic)

    async def main():
        async with ActorLoop([echoing()[1]], adapters=[place.adapter]), AsyncExitStack() as left:
            silent = []
            for number in range(2 * MOST):
                silent.append(await place.connect())
                left.push_async_callback(silent[-1].close)
                await eventually(lambda served=number + 1: place.adapter.served == served)
            told = [await each.read() for each in silent[:MOST]]
            answer = await asyncio.to_thread(asked_once, place)
            told.append(await silent[MOST].read())
            await silent[-1].send(place.hello)
            return told, answer, await silent[-1].ask(data={"n": 3}), place.adapter.clients

    with caplog.at_level(logging.WARNING, "ontologia.actors"):
        told, answer, late, clients = asyncio.run(main())

    assert [each["data"]["code"] for each in told] == [503] * (MOST + 1)
    assert "has not sent its token" in told[0]["data"]["message"]
    assert (answer["data"], late["data"]) == ({"n": 2}, {"n": 3})
    assert clients <= MOST
    assert caplog.text.count("a client is disconnected") == 1


def test_clients_that_are_accepted_together_make_room_for_each_other(tmp_path):
    place = Place("tcp", tmp_path, most_clients=1)

    async def main():
        async with ActorLoop([echoing()[1]], adapters=[place.adapter]), AsyncExitStack() as left:
            # The kernel has them all before the loop accepts the first.
            sockets = [left.enter_context(place.socket()) for _ in range(3 * MOST)]
            await eventually(lambda: place.adapter.served == len(sockets))
            *evicted, last = sockets
            last.sendall(place.hello + line(data={"n": 2}))
            return [await asyncio.to_thread(first_line, each) for each in (*evicted, last)]

    *evicted, last = asyncio.run(main())

    assert {each["data"]["code"] for each in evicted} == {503}
    assert last["data"] == {"n": 2}


def first_line(connection):
    with connection.makefile("rb") as stream:
        return json.loads(stream.readline())


def test_complaints_are_one_line_a_second_and_counted(caplog):
    clock = ManualClock()
    complaints = Complaints("tcp:here:1", clock.monotonic)

    for _ in range(5):
        complaints.log("a client is turned away")
    clock.advance(seconds=1)
    complaints.log("a client is turned away")
    clock.advance(seconds=1)
    complaints.log("a client is turned away")

    assert caplog.messages == [
        "tcp:here:1: a client is turned away",
        "tcp:here:1: a client is turned away (and 4 more since the line before)",
        "tcp:here:1: a client is turned away",
    ]


def test_there_is_room_again_when_one_has_gone(place):
    async def main():
        async with place.crowded() as clients:
            await clients[0].close()
            await eventually(lambda: place.adapter.clients == MOST - 1)
            return await asyncio.to_thread(asked_once, place)

    assert asyncio.run(main())["data"] == {"n": 2}


def asked_once(place):
    with place.socket() as connection, connection.makefile("rb") as stream:
        connection.sendall(place.hello + line(data={"n": 2}))
        return json.loads(stream.readline())


def test_those_who_do_not_leave_when_they_are_told_are_not_kept(place, monkeypatch):
    monkeypatch.setattr("ontologia.actors.sockets._GRACE", 0.05)

    async def main():
        async with place.crowded(), AsyncExitStack() as left:
            for _ in range(2 * MOST):
                left.push_async_callback((await place.connect()).close)
            await eventually(lambda: not place.adapter._rejected)

    asyncio.run(main())


def test_a_crowd_of_those_who_do_not_leave_is_bounded_and_gone_at_the_end(place, monkeypatch):
    monkeypatch.setattr("ontologia.actors.sockets._GRACE", 3_600)

    async def main():
        async with AsyncExitStack() as left:
            async with place.crowded():
                for _ in range(4 * MOST):
                    client = await place.connect()
                    left.push_async_callback(client.close)
                    assert (await client.read())["data"]["code"] == 503
                kept = len(place.adapter._rejected)
            await eventually(lambda: not place.adapter._rejected)
            return kept

    assert asyncio.run(main()) == MOST


@pytest.mark.parametrize("kind", ["unix", "tcp"])
@pytest.mark.parametrize("most", [0, -1])
def test_a_socket_for_nobody_is_refused(kind, most, tmp_path):
    with pytest.raises(ConfigError, match=f"most_clients must be 1 or more, got {most}"):
        Place(kind, tmp_path, most_clients=most)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_there_is_a_limit_if_none_is_given(kind, tmp_path):
    place = Place(kind, tmp_path)

    async def main():
        async with place.crowded(MOST_CLIENTS):
            return await asyncio.to_thread(asked, place)

    [refused] = asyncio.run(main())

    assert f"{MOST_CLIENTS} clients are connected" in refused["data"]["message"]
