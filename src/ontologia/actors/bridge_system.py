"""`Command.Dispatch` and `System.Describe`: what a program can do, and what there is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from ontologia import codec
from ontologia.actors.capability import Capability
from ontologia.actors.message import Message, literals
from ontologia.actors.schema import branches
from ontologia.actors.storing import Data, Place, StoreActor
from ontologia.commands import Command, Env
from ontologia.commands.replies import encoded_answer


class DispatchData(Data):
    """A command of the program: its name, its payload, and the record it is about."""

    name: str
    payload: dict[str, Any] = Field(default_factory=dict[str, Any])
    model_key: str | None = None
    model_id: str | None = None
    idempotency_key: str | None = None
    """Asked for again under the same key, nothing is done and the first answer given."""


class CommandDispatch(Message):
    """Carry out a command; answered with `{result}`."""

    kind: Literal["command"]
    type: Literal["Command.Dispatch"]
    data: DispatchData


class SystemDescribe(Message):
    """What there is: `{capabilities, commands}`, with the JSON Schema of each message."""

    kind: Literal["query"]
    type: Literal["System.Describe"]
    data: Annotated[dict[str, Any], Field(default_factory=dict[str, Any])]


class CommandActor(StoreActor):
    """Carries out commands, a few at a time; those about one record one after the other."""

    def __init__(self, place: Place, env: Env) -> None:
        super().__init__(place)
        self._env = env

    def may_run_beside(self, message: Message) -> bool:
        """Always: commands may take their time, and an `Env` sees to it that none disturbs another."""
        return True

    def answer(self, message: CommandDispatch) -> dict[str, Any]:
        """What the command returned."""
        data, env = message.data, self._env
        command = Command(data.name, data.payload, data.model_key, data.model_id)
        if data.idempotency_key is not None:
            return {"result": env.dispatch(command, idempotency_key=data.idempotency_key)}
        # The answer is a part of the unit of work: a command whose answer nobody can be given is
        # not carried out.
        with env._working(command):
            text = encoded_answer(command, env.dispatch(command))
        return {"result": codec.decode(text)}


class SystemActor(StoreActor):
    """Tells what there is."""

    def __init__(self, place: Place, env: Env, capabilities: Sequence[Capability]) -> None:
        super().__init__(place)
        self._described = {
            "capabilities": [_described(each) for each in capabilities],
            "commands": sorted(env.registry.commands),
        }

    def answer(self, message: SystemDescribe) -> dict[str, Any]:
        """What there is."""
        return self._described


def commands(place: Place, env: Env) -> Capability:
    """The capability that carries out commands."""
    return Capability(
        "commands",
        "Carries out the commands of the program",
        inbound=CommandDispatch,
        outbound=Message,
        subscribes=(),
        spawn=lambda: CommandActor(place, env),
    )


def system(place: Place, env: Env, others: Sequence[Capability]) -> Capability:
    """The capability that describes itself and the others."""
    own = Capability(
        "system",
        "Tells what there is",
        inbound=SystemDescribe,
        outbound=Message,
        subscribes=(),
        # Described when it is made: by then the loop has looked at what is wrong with the others.
        spawn=lambda: SystemActor(place, env, (*others, own)),
    )
    return own


def _described(capability: Capability) -> dict[str, Any]:
    return {
        "id": capability.id,
        "description": capability.description,
        "subscribes": list(capability.subscribes),
        "handles": list(_handles(capability.inbound)),
    }


def _handles(inbound: Any) -> Iterable[dict[str, Any]]:
    for branch in branches(inbound):
        schema = branch.model_json_schema(by_alias=True)
        for kind in literals(branch, "kind"):
            for type in literals(branch, "type"):
                yield {"kind": kind, "type": type, "schema": schema}
