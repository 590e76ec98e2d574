"""A client that sends more than the actors get done is slowed down, and nobody else is."""

from __future__ import annotations

import asyncio
import json
import os
import threading

import pytest

from ontologia.actors import ActorLoop, Capability, Message, StdioAdapter
from ontologia.actors.adapter import MOST_IN_FLIGHT
from tests.integration.actor_world import (
    Deaf,
    Listener,
    connected,
    echoing,
    eventually,
    line,
    serving,
)
from tests.integration.running import PATIENCE

MANY = 7 * MOST_IN_FLIGHT
BOUND = 5 * MOST_IN_FLIGHT  # what is counted, and one piece of the stream


class Stuck(Listener):
    """Handles nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def handle(self, message: Message) -> None:
        await self.go.wait()
        await super().handle(message)


def stuck(id="stuck"):
    actor = Stuck()
    return actor, Capability(
        id, "", inbound=Deaf, outbound=Message, subscribes=["Flood.Rose"], spawn=lambda: actor
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "o.sock"


def told(story):
    """Tell a story, which must come to an end."""
    return asyncio.run(asyncio.wait_for(story, PATIENCE / 2))


def _waiting(loop):
    metrics = loop.metrics()
    return sum(metrics["lanes"].values()) + sum(metrics["mailboxes"].values())


@pytest.mark.thorough
@pytest.mark.req("CQR-076", "CQR-014", "CQR-015")
def test_requests_that_time_out_at_a_stuck_actor_do_not_pile_up_in_its_mailbox(path):
    async def main():
        actor, echo = echoing()
        served = serving(path, [echo], timeout=0.02)
        async with served as (loop, _), connected(path) as client:
            flood = [line(data={"held": True})] + [line(data={"n": n}) for n in range(MANY)]
            sending = asyncio.create_task(client.send(*flood))
            answers = [await client.read() for _ in range(MOST_IN_FLIGHT)]
            for _ in range(3):  # as often as it would be read again if only requests counted
                await eventually(lambda: loop.metrics()["pending"]["adapters"] == 0)
                await asyncio.sleep(0)
            most = _waiting(loop)
            actor.go.set()
            answers += [await client.read() for _ in range(MANY + 1 - MOST_IN_FLIGHT)]
            await sending
            await eventually(lambda: len(actor.seen) == MANY + 1)
            return most, answers, [each.data.get("n") for each in actor.seen]

    most, answers, seen = told(main())

    assert MOST_IN_FLIGHT <= most < BOUND
    assert seen == [None, *range(MANY)]
    assert len({each["metadata"]["causation"] for each in answers}) == MANY + 1


@pytest.mark.req("CQR-076", "CQR-014")
def test_events_for_a_stuck_actor_wait_with_their_client_and_all_of_them_come(path):
    async def main():
        one, first = stuck("one")
        two, second = stuck("two")
        _, echo = echoing()
        served = serving(path, [first, second, echo])
        async with served as (loop, _), connected(path) as client, connected(path) as other:
            flood = [line("Flood.Rose", {"n": n}, kind="event") for n in range(MANY)]
            sending = asyncio.create_task(client.send(*flood))
            await eventually(lambda: _waiting(loop) >= 2 * MOST_IN_FLIGHT)
            one.go.set()  # it is not read again while one of the two is stuck
            served_meanwhile = [(await other.ask(data={"n": n}))["data"]["n"] for n in range(200)]
            await eventually(lambda: not loop.metrics()["mailboxes"]["one"])
            most = _waiting(loop)
            two.go.set()
            await sending
            await eventually(lambda: len(one.heard) == len(two.heard) == MANY)
            return served_meanwhile, most, one.heard, two.heard

    served_meanwhile, most, one, two = told(main())

    assert served_meanwhile == list(range(200))
    assert most < BOUND
    for heard in (one, two):
        assert [each.data["n"] for each in heard] == list(range(MANY))


@pytest.mark.req("CQR-076", "CQR-014")
def test_long_lines_for_a_stuck_actor_count_by_their_bytes(path, monkeypatch):
    monkeypatch.setattr("ontologia.actors.adapter.MOST_BYTES", 1_000_000)
    text, many = "x" * 10_000, 500

    async def main():
        actor, capability = stuck()
        _, echo = echoing()
        served = serving(path, [capability, echo])
        async with served as (loop, _), connected(path) as client, connected(path) as other:
            flood = [line("Flood.Rose", {"n": n, "text": text}, kind="event") for n in range(many)]
            sending = asyncio.create_task(client.send(*flood))
            await eventually(lambda: _waiting(loop) >= 100)
            for n in range(200):
                await other.ask(data={"n": n})
            most = _waiting(loop)
            actor.go.set()
            await sending
            await eventually(lambda: len(actor.heard) == many)
            return most, [each.data["n"] for each in actor.heard]

    most, heard = told(main())

    assert most < 200, "a hundred, and one piece of the stream"
    assert heard == list(range(many))


@pytest.mark.req("CQR-076")
def test_events_that_nobody_wants_and_requests_that_nobody_takes_do_not_count(path):
    async def main():
        _, echo = echoing()
        async with serving(path, [echo]), connected(path) as client:
            unwanted = [line("Flood.Fell", kind="event") for _ in range(2 * MOST_IN_FLIGHT)]
            missing = [line("Flood.Ask") for _ in range(2 * MOST_IN_FLIGHT)]
            twice = [line(data={"n": 1}, id="same") for _ in range(2 * MOST_IN_FLIGHT)]
            sending = asyncio.create_task(client.send(*unwanted, *missing, *twice))
            codes = [(await client.read())["data"].get("code") for _ in missing + twice]
            await sending
            return codes, await client.ask(data={"n": 2})

    codes, after = told(main())

    assert codes.count(404) == 2 * MOST_IN_FLIGHT
    assert codes.count(None) >= 1
    assert set(codes) == {404, 409, None}
    assert after["data"] == {"n": 2}


# -- on stdin and stdout --------------------------------------------------------------------------


class Pipes:
    """Two pipes with a loop at their far ends; what goes in is written by a thread."""

    def __init__(self, lines):
        input_fd, self.input = os.pipe()
        self.output, output_fd = os.pipe()
        self.adapter = StdioAdapter(timeout=None, input_fd=input_fd, output_fd=output_fd)
        self._far, self._lines = (input_fd, output_fd), lines
        self._writer = threading.Thread(target=self._write, daemon=True)

    def _write(self):
        with os.fdopen(self.input, "wb") as stream:
            stream.writelines(self._lines)

    def start(self):
        self._writer.start()

    def read(self):
        """All answers, until there are no more."""
        with os.fdopen(self.output, "rb") as stream:
            return [json.loads(next(stream)) for _ in self._lines]

    def close(self):
        for each in self._far:
            os.close(each)


async def _settled(measured):
    """What this comes to: no thread has changed it while others have run many times."""
    last, same = measured(), 0
    while same < 300:
        await asyncio.to_thread(int)
        now = measured()
        last, same = now, same + 1 if now == last else 0
    return last


@pytest.mark.thorough
@pytest.mark.req("CQR-076")
def test_no_more_is_read_from_stdin_than_actors_get_done():
    lines = [line(data={"held": True}), *(line(data={"n": n}) for n in range(MANY))]
    pipes = Pipes(lines)

    async def story():
        actor, echo = echoing()
        async with ActorLoop([echo], adapters=[pipes.adapter]) as loop:
            pipes.start()
            await eventually(lambda: loop.metrics()["pending"]["adapters"] >= MOST_IN_FLIGHT)
            most = await _settled(lambda: loop.metrics()["pending"]["adapters"])
            actor.go.set()
            return most, await asyncio.to_thread(pipes.read)

    most, answers = told(story())
    pipes.close()

    assert most < BOUND, "all of it was read"
    assert [each["data"].get("n") for each in answers] == [None, *range(MANY)]


@pytest.mark.req("CQR-076")
def test_nothing_is_read_from_stdin_while_nobody_reads_stdout():
    pipes = Pipes([line(data={"n": n, "more": "x" * 100}) for n in range(MANY)])

    async def story():
        actor, echo = echoing()
        async with ActorLoop([echo], adapters=[pipes.adapter]):
            pipes.start()
            await eventually(lambda: pipes.adapter.buffered >= MOST_IN_FLIGHT)
            seen = await _settled(lambda: len(actor.seen))
            return pipes.adapter.buffered, seen, await asyncio.to_thread(pipes.read)

    most, seen, answers = told(story())
    pipes.close()

    assert most < BOUND
    assert seen < MANY, "all of it was read"
    assert [each["data"]["n"] for each in answers] == list(range(MANY))
