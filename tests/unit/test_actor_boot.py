"""What is wrong with capabilities is said before anything runs, all of it, with names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Annotated, Any, Literal, Union

import pytest
from pydantic import Field

from ontologia.actors import Actor, ActorLoop, Capability, Message
from ontologia.actors.router import RoutingTable
from ontologia.errors import ActorBootError
from tests.unit.actor_world import (
    MEMORY,
    Desk,
    MemoryActor,
    MemoryChanged,
    MemoryGet,
    MemorySet,
    UnbornActor,
    of,
    run,
)


class AnyType(Message):
    kind: Literal["command"]


class AnyKind(Message):
    type: Literal["Any.Kind"]


class Several(Message):
    kind: Literal["command", "query"]
    type: Literal["Several.One", "Several.Two"]


class BadName(Message):
    kind: Literal["command"]
    type: Literal["bad name"]


class Reserved(Message):
    kind: Literal["command"]
    type: Literal["Sys.RequestTimeout"]


class More(Message):
    kind: Literal["command"]
    type: Literal["More.Fields"]
    more: int


class AReply(Message):
    kind: Literal["reply"]
    type: Literal["Memory.Get"]


def _capability(id="it", **changes: Any):
    members = {
        "inbound": MemoryGet,
        "outbound": Message,
        "subscribes": [],
        "spawn": MemoryActor,
        "description": "",
    }
    return SimpleNamespace(id=id, **(members | changes))


def _problems(*capabilities):
    with pytest.raises(ActorBootError) as raised:
        ActorLoop(capabilities)
    return raised.value.problems


@pytest.mark.req("CQR-043", "CQR-045", "CQR-047", "CQR-049")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"description": None}, "description must be a text"),
        ({"spawn": "MemoryActor"}, "spawn must be a function or class"),
        ({"subscribes": "Memory.Changed"}, "subscribes must be a list"),
        ({"subscribes": None}, "subscribes must be a list"),
        ({"subscribes": ["Memory.Changed", "memory changed"]}, "'memory changed' is not a type"),
        ({"isolation": "thread"}, 'isolation must be "task" or "process"'),
        ({"inbound": None}, "inbound: None is not a class derived from Message"),
        ({"inbound": MemoryGet | int}, "inbound: int is not a class derived from Message"),
        ({"inbound": Message}, "inbound: Message takes any kind"),
        ({"inbound": AnyType}, "inbound: AnyType takes any type"),
        ({"inbound": AnyKind | MemoryGet}, "inbound: AnyKind takes any kind"),
        ({"inbound": BadName}, "inbound: BadName has the type 'bad name'"),
        ({"inbound": Reserved}, "Sys.RequestTimeout belongs to the loop"),
        ({"inbound": More}, "inbound: More has the field more"),
        ({"inbound": AReply}, "a reply (Memory.Get) goes to whoever asked"),
        ({"outbound": None}, "outbound: None is not a class derived from Message"),
        ({"outbound": ...}, "outbound: Ellipsis is not a class derived from Message"),
        ({"isolation": "process", "spawn": lambda: None}, "spawn must be importable"),
    ],
)
def test_what_is_wrong_is_said_with_the_name_of_the_capability(changes, said):
    [problem] = _problems(_capability("broken", **changes))

    assert problem.startswith("broken: ")
    assert said in problem


@pytest.mark.req("CQR-043")
@pytest.mark.parametrize(
    "member", ["id", "description", "inbound", "outbound", "subscribes", "spawn"]
)
def test_a_missing_member_is_named(member):
    capability = _capability("broken")
    delattr(capability, member)

    [problem] = _problems(MEMORY, capability)

    name = "capability number 3" if member == "id" else "broken"
    assert problem == f"{name}: {member} is missing"


@pytest.mark.req("CQR-046")
@pytest.mark.parametrize("inbound", [MemoryGet, MemorySet], ids=["query", "command"])
def test_two_capabilities_cannot_have_the_same_command_or_query(inbound):
    [problem] = _problems(MEMORY, _capability("copy", inbound=inbound))

    assert "already that of 'memory'" in problem
    assert problem.startswith("copy: ")


def test_two_capabilities_cannot_have_the_same_id():
    [problem] = _problems(MEMORY, _capability("memory", inbound=Several))

    assert problem == "memory: there is another capability with this id"


def test_the_commands_of_the_timer_are_taken():
    from ontologia.actors import TimerSet

    [problem] = _problems(_capability("mine", inbound=TimerSet))

    assert "already that of 'timer'" in problem


@pytest.mark.req("CQR-043", "CQR-087")
def test_all_problems_are_told_at_once():
    desk = Desk()

    with pytest.raises(ActorBootError) as raised:
        ActorLoop(
            [
                _capability("one", inbound=AnyType | BadName),
                _capability("two", subscribes=["nothing"], outbound=int),
            ],
            adapters=[desk],
        )

    assert len(raised.value.problems) == 4
    assert all(each in str(raised.value) for each in raised.value.problems)
    assert desk.loop is None


@pytest.mark.req("CQR-044", "CQR-050")
@pytest.mark.parametrize(
    ("inbound", "handles"),
    [
        (MemoryGet, 1),
        (MemorySet | MemoryGet, 2),
        (Union[MemorySet, MemoryGet], 2),  # noqa: UP007
        (Annotated[MemorySet | MemoryGet, Field(discriminator="type")], 2),
        (Several, 4),
        (Several | MemoryGet, 5),
    ],
)
def test_handles_are_read_from_the_schema(inbound, handles):
    table = RoutingTable([_capability(inbound=inbound)])

    mine = [each for each in table.handlers.values() if each.capability_id == "it"]
    assert len(mine) == handles


@pytest.mark.req("CQR-048", "CQR-049")
def test_several_may_subscribe_to_one_event_and_inbound_alone_does_not_subscribe():
    table = RoutingTable(
        [
            _capability("one", subscribes=["Memory.Changed", "Memory.Changed"]),
            _capability("two", inbound=MemoryChanged | Several, subscribes=["Memory.Changed"]),
            _capability("three", inbound=MemoryChanged | of(None).inbound),
        ]
    )

    assert table.index() == {"Memory.Changed": ["one", "two"]}


@pytest.mark.req("CQR-087")
def test_actors_that_cannot_be_made_are_named_and_the_others_stopped():
    stopped, desk = [], Desk()

    class Fine(Actor):
        async def stop(self):
            stopped.append(1)
            await super().stop()

    loop = ActorLoop(
        [
            _capability("fine", inbound=Several, spawn=Fine),
            _capability("unborn", spawn=UnbornActor),
            _capability("odd", inbound=MemorySet, spawn=object),
        ],
        adapters=[desk],
    )

    with pytest.raises(ActorBootError) as raised:
        run(loop.run())

    assert [each.split(":")[0] for each in raised.value.problems] == ["unborn", "odd"]
    assert "no room" in str(raised.value)
    assert stopped == [1]
    assert desk.loop is None


def test_a_boot_that_fails_is_raised_from_the_block():
    async def story():
        async with ActorLoop([_capability("unborn", spawn=UnbornActor)]):
            pytest.fail("it is not ready")

    with pytest.raises(ActorBootError, match="unborn: spawn: OSError: no room"):
        run(story())


def test_adapters_have_names_of_their_own():
    with pytest.raises(ActorBootError, match="desk: there is another adapter"):
        ActorLoop([MEMORY], adapters=[Desk(), Desk()])


def test_a_capability_takes_its_schemas_by_name():
    with pytest.raises(TypeError):
        Capability("memory", "", MemoryGet, Message, [], MemoryActor)
