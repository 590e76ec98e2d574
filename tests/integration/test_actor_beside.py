"""What takes a store long, and who waits for it: nobody, but for what must come after it."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import asynccontextmanager

import pytest

from ontologia import Session
from ontologia.actors import ActorLoop, Message
from ontologia.actors.bridge import StateActor, bridged
from ontologia.actors.store_actor import CONCURRENCY
from ontologia.commands import Env
from tests.integration import actor_store
from tests.integration.actor_store import BridgeSkipper
from tests.integration.actor_world import connected, echoing, eventually, line, serving

HOLD = {"name": "bridge.hold"}
LAY = {"name": "bridge.lay", "payload": {"color": "red"}}


@pytest.fixture(autouse=True)
def go():
    """`bridge.hold` is held until this is set, which it is at the end in any case."""
    actor_store.HELD.clear()
    actor_store.GO.clear()
    yield actor_store.GO
    actor_store.GO.set()


@asynccontextmanager
async def served(uri, tmp_path, **options):
    path, known = tmp_path / "o.sock", [echoing()[1]]
    with (
        Session(uri, entity_types=[BridgeSkipper]) as session,
        Env(session, modules=[actor_store]) as env,
    ):
        try:
            async with (
                serving(path, bridged(env, known), **options) as (loop, adapter),
                connected(path) as client,
                connected(path) as other,
            ):
                yield loop, adapter, client, other
        finally:
            actor_store.GO.set()  # or the threads would be waited for


def dispatched(data, **more):
    return line("Command.Dispatch", data, kind="command", **more)


def ensured(voyages, **more):
    fields = {"id": "s1", "rank": "mate", "voyages": voyages}
    data = {"objects": [{"type": "BridgeSkipper", "fields": fields}]}
    return line("State.Ensure", data, kind="command", **more)


def asked(**more):
    return line("State.Get", {"type": "BridgeSkipper", "key": "s1"}, **more)


async def said(client, *lines):
    """The answers to these lines, in their order; they may come in another one."""
    await client.send(*lines)
    found = {}
    for _ in lines:
        answer = await client.read()
        found[answer["metadata"]["causation"]] = answer
    return [found[json.loads(each)["metadata"]["id"]] for each in lines]


async def time_passes(tmp_path):
    """Enough to carry out a command, if anybody does: that of twenty others."""
    async with connected(tmp_path / "o.sock") as third:
        for n in range(20):
            await said(third, ensured(n))


@pytest.mark.req("CQR-009")
def test_a_command_that_hangs_holds_up_nobody(uri, tmp_path, go):
    async def main():
        async with served(uri, tmp_path) as (_, _, client, other):
            asking = asyncio.create_task(said(client, dispatched(HOLD)))
            await eventually(actor_store.HELD.is_set)
            answers = await said(other, ensured(1), asked(), line(data={"n": 1}), dispatched(LAY))
            done = asking.done()
            go.set()
            return [each["kind"] for each in answers], done, (await asking)[0]["data"]

    assert asyncio.run(main()) == (["reply"] * 4, False, {"result": "held"})


def test_a_question_that_takes_long_holds_up_no_other_and_no_change(uri, tmp_path, go, monkeypatch):
    asking, query = threading.Event(), StateActor._query

    def slow(self, data):
        asking.set()
        go.wait(60)
        return query(self, data)

    monkeypatch.setattr(StateActor, "_query", slow)

    async def main():
        async with served(uri, tmp_path) as (_, _, client, other):
            first = line("State.Query", {"type": "BridgeSkipper"})
            waiting = asyncio.create_task(said(client, first))
            await eventually(asking.is_set)
            answers = await said(other, ensured(1), asked())
            done = waiting.done()
            go.set()
            return [each["kind"] for each in answers], done, (await waiting)[0]["kind"]

    assert asyncio.run(main()) == (["reply", "reply"], False, "reply")


def test_changes_are_in_order_and_questions_behind_them_see_them(uri, tmp_path):
    async def main():
        async with served(uri, tmp_path) as (_, _, client, _):
            lines = [make() for n in range(40) for make in (lambda n=n: ensured(n), asked)]
            return [each["data"] for each in await said(client, *lines)]

    found = asyncio.run(main())
    commits = [each["commitId"] for each in found[::2]]
    seen = [each["fields"]["voyages"] for each in found[1::2]]

    assert commits == sorted(commits)
    assert all(voyages >= n for n, voyages in enumerate(seen)), seen
    assert seen[-1] == 39


def test_a_few_commands_at_a_time_are_carried_out_and_the_next_one_waits(uri, tmp_path, go):
    async def main():
        async with served(uri, tmp_path) as (loop, _, client, other):
            held = [dispatched(HOLD) for _ in range(CONCURRENCY)]
            asking = asyncio.create_task(said(client, *held))
            await eventually(lambda: loop.metrics()["mailboxes"]["commands"] == CONCURRENCY)
            waiting = asyncio.create_task(said(other, dispatched(LAY)))
            await eventually(lambda: loop.metrics()["mailboxes"]["commands"] == CONCURRENCY + 1)
            await time_passes(tmp_path)
            done = waiting.done()
            go.set()
            [laid] = await waiting
            return done, laid["kind"], len(await asking), loop.metrics()

    done, laid, answered, metrics = asyncio.run(main())

    assert (done, laid, answered) == (False, "reply", CONCURRENCY)
    assert metrics["mailboxes"]["commands"] == 0


def test_an_id_used_again_gets_the_answer_of_its_own_request(uri, tmp_path, go):
    async def main():
        async with served(uri, tmp_path, timeout=0.05) as (loop, adapter, client, _):
            [late] = await said(client, dispatched(HOLD, id="same"))
            adapter.timeout = None
            again = asyncio.create_task(said(client, dispatched(LAY, id="same")))
            await eventually(lambda: loop.metrics()["pending"]["adapters"] == 1)
            await time_passes(tmp_path)
            go.set()
            [answer] = await again
            return late["data"]["code"], answer["data"]

    code, found = asyncio.run(main())

    assert code == 504
    assert found["result"]["color"] == "red"


def test_a_loop_that_is_stopped_does_not_wait_for_a_command(uri, tmp_path, go):
    async def main():
        async with served(uri, tmp_path) as (loop, _, client, _):
            await client.send(dispatched(HOLD))
            await eventually(actor_store.HELD.is_set)
            loop.stop()
            return await client.read(), go.is_set()

    answer, was_over = asyncio.run(main())

    assert (answer["kind"], answer["data"]["code"]) == ("error", 503)
    assert not was_over


def test_what_a_loop_was_asked_for_keeps_it_alive_until_it_is_done(uri, go):
    async def main():
        with Session(uri) as session, Env(session, modules=[actor_store]) as env:
            known = [each for each in bridged(env) if each.id == "commands"]
            loop = ActorLoop(known)
            loop.enqueue(Message.command("Command.Dispatch", HOLD))
            running = asyncio.create_task(loop.run())
            await eventually(actor_store.HELD.is_set)
            alive = loop.alive
            go.set()
            async with asyncio.timeout(60):
                await running
            return alive

    assert asyncio.run(main())
