"""Actors in processes of their own: what blocks or dies there hurts nobody else."""

from __future__ import annotations

import asyncio
import os

import pytest

from ontologia.actors import ActorLoop, Capability, Message
from ontologia.actors.process import ProcessActor
from ontologia.errors import ActorBootError
from tests.unit.actor_world import (
    MEMORY,
    Desk,
    MemoryGet,
    UnbornActor,
    calm,
    ear,
    risky,
    run,
    set_,
    until,
)


def _with(story, *more):
    async def told():
        async with ActorLoop([risky(), *more]) as loop:
            return await story(loop)

    return run(told())


def _is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_an_actor_in_a_process_answers_emits_and_asks_like_any_other():
    listener, listening = ear("Risky.Asked")

    async def story(loop):
        await loop.request(set_("a", 5))
        who = await loop.request(Message.query("Risky.Who", correlation="corr-1"))
        relayed = await loop.request(Message.query("Risky.Relay", {"key": "a"}))
        missing = await loop.request(Message.query("Risky.Relay", {"wrong": "a"}))
        await listener.wait_for()
        await calm(loop)
        return who, relayed, missing, loop.metrics()

    who, relayed, missing, metrics = _with(story, MEMORY, listening)
    assert who.data["pid"] != os.getpid()
    assert relayed.data == {"value": 5}
    assert missing.data["code"] == 400
    assert listener.heard[0].data == who.data
    assert listener.heard[0].metadata.causation == who.metadata.causation
    assert listener.heard[0].metadata.correlation == "corr-1"
    assert metrics["mailboxes"]["risky"] == 0
    assert metrics["signals"] == {}
    assert _is_gone(who.data["pid"])


@pytest.mark.req("CQR-017")
def test_a_crash_costs_the_message_at_hand_and_the_process_comes_back():
    listener, listening = ear("Sys.ActorFault")

    async def story(loop):
        before = await loop.request(Message.query("Risky.Who"))
        answers = await asyncio.gather(
            loop.request(Message.command("Risky.Die")),
            loop.request(Message.query("Risky.Who")),
            loop.request(Message.command("Risky.Die")),
            loop.request(Message.query("Risky.Who")),
            loop.request(set_()),
        )
        await listener.wait_for(2)
        return before, *answers

    before, died, after, died_again, last, other = _with(story, MEMORY, listening)
    for each in (died, died_again):
        assert each.data["code"] == 500
        assert "exit code 3" in each.data["message"]
    assert len({each.data["pid"] for each in (before, after, last)}) == 3
    assert other.data == {"stored": True}
    assert [each.data["messageType"] for each in listener.heard] == ["Risky.Die"] * 2


@pytest.mark.req("CQR-009", "CQR-014")
def test_a_process_that_blocks_holds_up_nobody_and_is_killed_at_the_end(monkeypatch):
    monkeypatch.setattr("ontologia.actors.process._GRACE", 0.05)

    async def story(loop):
        pid = (await loop.request(Message.query("Risky.Who"))).data["pid"]
        await calm(loop)
        stuck = asyncio.create_task(loop.request(Message.command("Risky.Sleep")))
        await asyncio.sleep(0)
        answer = await loop.request(set_())
        return pid, stuck, answer, loop.metrics()["mailboxes"]["risky"]

    pid, _, answer, waiting = _with(story, MEMORY)
    assert answer.data == {"stored": True}
    assert waiting == 1
    assert _is_gone(pid)


def test_a_fault_in_a_process_is_told_with_its_traceback():
    listener, listening = ear("Sys.ActorFault")

    async def story(loop):
        answer = await loop.request(Message.command("Risky.Raise"))
        await listener.wait_for()
        await calm(loop)
        return answer

    answer = _with(story, listening)
    assert answer.data == {"code": 500, "message": "Risky.Raise failed: ValueError: not today"}
    [signal] = listener.heard
    assert "not today" in signal.data["traceback"]
    assert signal.data["messageType"] == "Risky.Raise"


@pytest.mark.req("CQR-087")
@pytest.mark.parametrize(
    ("spawn", "said"), [(UnbornActor, "no room"), (object, "must derive from Actor")]
)
def test_an_actor_that_cannot_be_made_in_its_process_fails_the_boot(spawn, said):
    desk = Desk()
    unborn = Capability(
        "unborn", "", inbound=MemoryGet, outbound=Message, spawn=spawn, isolation="process"
    )

    with pytest.raises(ActorBootError, match=f"unborn: spawn: .*{said}"):
        run(ActorLoop([unborn], adapters=[desk]).run())
    assert desk.loop is None


def test_the_wait_before_a_process_is_started_again_grows_until_it_does_its_work():
    actor = ProcessActor("risky", risky().spawn, risky().inbound)
    waits = []

    class Recorded:
        def delay_ms(self, failures, draw):
            waits.append(failures)
            return 0

    actor._backoff = Recorded()

    async def told():
        faults, outcomes = asyncio.Queue(), asyncio.Queue()
        actor.add_event_listener("error", faults.put_nowait)
        actor.add_event_listener("message", outcomes.put_nowait)
        await actor.start()
        for type in ("Die", "Die", "Who", "Die"):
            kind = Message.query if type == "Who" else Message.command
            actor.post_message(kind(f"Risky.{type}"))
        for _ in range(3):
            await faults.get()
        await until(lambda: len(waits) == 3)
        await actor.stop()
        return outcomes.qsize()

    assert run(told()) == 5
    assert waits == [1, 2, 1]
