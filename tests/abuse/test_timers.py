"""Timers of clients of a socket: bounded in number and bytes, whatever a client tries."""

from __future__ import annotations

import asyncio

import pytest

from ontologia.actors.client_timers import MOST_TIMER_BYTES, MOST_TIMERS
from tests.integration.actor_world import connected, echoing, line, serving
from tests.integration.running import PATIENCE

AN_HOUR = 3_600_000


def timer(delay=AN_HOUR, *, id=None, message=None, text=""):
    later = message or {"kind": "event", "type": "Tea.Ready", "data": {"text": text}}
    known = {} if id is None else {"id": id}
    data = {"delayMs": delay, "message": later}
    return line("Timer.Set", data, kind="command", **known)


def setting(delay=AN_HOUR, **more):
    """The message of a timer that sets another one."""
    inner = {"kind": "event", "type": "Tea.Ready", "data": {}}
    return {
        "kind": "command",
        "type": "Timer.Set",
        "data": {"delayMs": delay, "message": inner, **more},
    }


def story(tmp_path, told):
    async def main():
        _, echo = echoing()
        async with serving(tmp_path / "o.sock", [echo]) as (loop, _):
            await told(loop, lambda: connected(tmp_path / "o.sock"))

    asyncio.run(main())


async def until(condition):
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the loop tells nobody
            await asyncio.sleep(0)


async def timers(loop, number):
    await until(lambda: loop.metrics()["timers"] == number)


async def number_set(client, *lines):
    """How many of these were set; the others were refused."""
    await client.send(*lines)
    answers = [await client.read() for _ in lines]
    assert all(each["kind"] == "reply" or each["data"]["code"] == 429 for each in answers)
    return sum(each["kind"] == "reply" for each in answers)


@pytest.fixture
def three(monkeypatch):
    monkeypatch.setattr("ontologia.actors.client_timers.MOST_TIMERS", 3)


def test_a_client_has_a_thousand(tmp_path):
    async def told(loop, connect):
        async with connect() as client:
            assert await number_set(client, *(timer() for _ in range(MOST_TIMERS))) == MOST_TIMERS

            await client.send(timer())
            refused = await client.read()
            assert refused["data"]["code"] == 429
            assert "this one was not set" in refused["data"]["message"]
            await timers(loop, MOST_TIMERS)
            assert (await client.ask("Echo.Ask", {"n": 1}))["data"] == {"n": 1}

    story(tmp_path, told)


def test_a_client_has_eight_mebibytes(tmp_path):
    async def told(loop, connect):
        async with connect() as client:
            text = "x" * (MOST_TIMER_BYTES // 8 - 1_000)
            for _ in range(8):
                assert await number_set(client, timer(text=text)) == 1

            assert await number_set(client, timer(text=text)) == 0
            assert await number_set(client, timer(text="small")) == 1

    story(tmp_path, told)


def test_what_fires_or_is_cancelled_makes_room(three, tmp_path):
    async def told(loop, connect):
        async with connect() as client:
            await client.send(timer())
            kept = (await client.read())["data"]["timerId"]
            assert await number_set(client, timer(0), timer(0)) == 2
            await timers(loop, 1)
            assert await number_set(client, timer(), timer(), timer()) == 2

            await client.ask("Timer.Cancel", {"timerId": kept}, kind="command")

            assert await number_set(client, timer(), timer()) == 1

    story(tmp_path, told)


def test_one_that_is_no_timer_takes_no_room(three, tmp_path):
    async def told(loop, connect):
        async with connect() as client:
            for _ in range(4):
                answer = await client.ask("Timer.Set", {"delayMs": -1}, kind="command")
                assert answer["data"]["code"] == 400
            assert await number_set(client, *(timer() for _ in range(3))) == 3

    story(tmp_path, told)


def test_the_timers_of_a_client_are_cancelled_when_it_disconnects(three, tmp_path):
    async def told(loop, connect):
        async with connect() as other:
            assert await number_set(other, timer()) == 1
            for _ in range(4):
                async with connect() as client:
                    assert await number_set(client, *(timer() for _ in range(3))) == 3
                await timers(loop, 1)

            assert await number_set(other, timer(), timer(), timer()) == 2

    story(tmp_path, told)


def test_being_gone_before_it_is_routed_sets_none(three, tmp_path):
    async def main():
        _, echo = echoing()
        path = tmp_path / "o.sock"
        async with serving(path, [echo]) as (loop, adapter):
            for _ in range(8):
                async with connected(path) as client:
                    await client.send(*(line() for _ in range(100)), timer())
                    client.writer.transport.abort()
                await until(lambda: adapter.clients == 0)
            async with connected(path) as client:
                await client.answers_before(line())

            await timers(loop, 0)

    asyncio.run(main())


def test_giving_up_on_an_answer_brings_no_more(three, tmp_path):
    async def told(loop, connect):
        async with connect() as client:
            give_up = line("Sys.RequestTimeout", {"requestId": "same"}, kind="command")
            for _ in range(10):
                await client.send(timer(id="same"), give_up)
                await client.answers_before(line())

            await timers(loop, 3)

    story(tmp_path, told)


def test_a_timer_that_sets_a_timer_keeps_its_place(three, tmp_path):
    async def told(loop, connect):
        async with connect() as client:
            chained = [timer(0, message=setting()) for _ in range(3)]
            assert await number_set(client, *chained) == 3
            await timers(loop, 3)

            assert await number_set(client, *chained, timer()) == 0

    story(tmp_path, told)


def test_a_timer_that_sets_none_after_all_gives_its_place_back(three, tmp_path):
    async def told(loop, connect):
        async with connect() as client:
            assert await number_set(client, *(timer(0, message=setting(-1)) for _ in range(3))) == 3
            await timers(loop, 0)
            await client.answers_before(line())

            assert await number_set(client, *(timer() for _ in range(3))) == 3

    story(tmp_path, told)
