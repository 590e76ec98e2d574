"""Actors in processes of their own: what blocks or dies there hurts nobody else."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys

import pytest

from ontologia.actors import Actor, ActorLoop, Capability, Message
from ontologia.actors.process import ProcessActor
from ontologia.delivery.retry import Backoff
from ontologia.errors import ActorBootError
from tests.unit.actor_world import (
    MEMORY,
    Desk,
    MemoryGet,
    RiskyActor,
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
    waits = []

    class Recorded:
        def delay_ms(self, failures, draw):
            waits.append(failures)
            return 0

    actor = ProcessActor("risky", risky().spawn, risky().inbound, backoff=Recorded())

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


class Late(Actor):
    """Cannot be made while a file is not there."""

    def __init__(self) -> None:
        if not os.path.exists(os.environ["ONTOLOGIA_TEST_LATE"]):
            raise OSError("not yet")

    async def handle(self, message: Message) -> None:
        if message.type == "Risky.Die":
            self.reply(message, {"last": "words"})
            os._exit(3)
        self.reply(message, {"pid": os.getpid()})


@pytest.mark.thorough
def test_messages_wait_while_the_process_cannot_be_started_again(tmp_path, monkeypatch):
    there = tmp_path / "there"
    there.touch()
    monkeypatch.setenv("ONTOLOGIA_TEST_LATE", str(there))
    actor = ProcessActor("late", Late, risky().inbound, backoff=Backoff(1, 1, 0))

    async def told():
        faults, said = asyncio.Queue(), asyncio.Queue()
        actor.add_event_listener("error", faults.put_nowait)
        actor.add_event_listener("message", said.put_nowait)
        await actor.start()
        there.unlink()
        actor.post_message(Message.command("Risky.Die"))
        actor.post_message(Message.query("Risky.Who"))
        found = [(await faults.get()).error for _ in range(3)]
        there.touch()
        answers = [(await said.get()).data.data for _ in range(2)]
        await actor.stop()
        return found, answers

    [ended, *failed], [died, who] = run(told())
    assert "exit code 3" in ended
    assert failed == ["its process could not be started again: OSError: not yet"] * 2
    assert died == {"last": "words"}
    assert "pid" in who, "it was given to a process that could not be made, or there were two"


# -- where it finds what it needs -----------------------------------------------------------------

SCRIPT = """
import asyncio, os, sys
from typing import Literal
from ontologia.actors import Actor, ActorLoop, Capability, Message
{first}

class WhoAreYou(Message):
    kind: Literal["query"]
    type: Literal["Script.Who"]

class Scripted(Actor):
    async def handle(self, message: WhoAreYou) -> None:
        self.reply(message, {{"pid": os.getpid(), "argv": sys.argv[1:], "beside": {said}}})

async def main():
    who = Capability("who", "", inbound=WhoAreYou, outbound=Message, spawn=Scripted,
                     isolation="process")
    async with ActorLoop([who]) as loop:
        answer = await loop.request(Message.query("Script.Who"))
        print(answer.data["pid"] != os.getpid(), answer.data["argv"], answer.data["beside"])

{last}
"""
GUARDED = 'if __name__ == "__main__":\n    asyncio.run(main())'


def _ran(folder, *command, **parts):
    parts = {"first": "import beside_it", "said": "beside_it.WORD", "last": GUARDED} | parts
    (folder / "beside_it.py").write_text("WORD = 'here'")
    (folder / "scripted.py").write_text(SCRIPT.format(**parts))
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        input=SCRIPT.format(**parts),
    )


@pytest.mark.parametrize("command", [("scripted.py", "x"), ("-m", "scripted", "x")])
def test_an_actor_of_the_script_itself_may_have_a_process(tmp_path, command):
    ran = _ran(tmp_path, *command)

    assert (ran.stdout, ran.stderr) == ("True ['x'] here\n", "")


@pytest.mark.thorough
def test_a_process_that_blocks_does_not_outlive_the_program(tmp_path):
    first = "import beside_it, signal, time"
    kills_it = "os.kill(os.getppid(), signal.SIGKILL)"
    ran = _ran(tmp_path, "scripted.py", first=first, said=f"{kills_it} or time.sleep(300)")

    # It came to an end in time: what was left of it would hold the other end of the pipes.
    assert ran.returncode == -signal.SIGKILL


def test_the_process_finds_what_the_program_finds(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "far_away.py").write_text("WORD = 'far'")

    first = "sys.path.append('far'); import far_away"
    ran = _ran(tmp_path, "scripted.py", first=first, said="far_away.WORD")

    assert (ran.stdout, ran.stderr) == ("True [] far\n", "")


def test_a_script_without_a_guard_is_told_what_it_lacks(tmp_path):
    ran = _ran(tmp_path, "scripted.py", last="asyncio.run(main())")

    assert ran.returncode == 1
    assert 'guard the start of the program by: if __name__ == "__main__":' in ran.stderr


def test_a_program_that_is_in_no_file_is_told_to_write_one(tmp_path):
    ran = _ran(tmp_path, "-")

    assert "ActorBootError" in ran.stderr
    assert "__main__:Scripted is in no file; write it in a module" in ran.stderr


def test_a_module_that_cannot_be_imported_there_fails_the_boot(tmp_path):
    first = "assert __name__ == '__main__', 'only once'"
    ran = _ran(tmp_path, "scripted.py", first=first, said="1")

    assert "who: spawn: RuntimeError: AssertionError: only once" in ran.stderr


def test_what_no_other_process_could_find_is_said_before_anything_runs():
    class Local(Actor):
        pass

    class LocalGet(MemoryGet):
        pass

    class Made:
        def __call__(self):
            return RiskyActor()

    def problems(**changes):
        parts = {"inbound": MemoryGet, "spawn": RiskyActor} | changes
        with pytest.raises(ActorBootError) as raised:
            ActorLoop([Capability("it", "", outbound=Message, isolation="process", **parts)])
        return raised.value.problems

    [local] = problems(spawn=Local)
    [made] = problems(spawn=Made())
    [partly] = problems(spawn=functools.partial(RiskyActor))
    [get] = problems(inbound=LocalGet)
    assert "spawn must be importable to run in a process" in local
    assert "<locals>.Local is not at the top of a module" in local
    assert all("is not a class or function of a module" in each for each in (made, partly))
    assert "inbound must be importable to run in a process" in get


def test_a_process_that_is_killed_comes_back():
    listener, listening = ear("Sys.ActorFault")

    async def story(loop):
        before = await loop.request(Message.query("Risky.Who"))
        os.kill(before.data["pid"], signal.SIGKILL)
        await listener.wait_for()
        after = await loop.request(Message.query("Risky.Who"))
        return before.data["pid"], after.data["pid"]

    before, after = _with(story, listening)
    assert before != after
    assert "signal 9" in listener.heard[0].data["error"]
    assert _is_gone(after)
