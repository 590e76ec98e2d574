"""Who gets what: tables made of the capabilities before anything runs.

All that is wrong with all capabilities is told at once, each line naming its capability.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ontologia.actors.imported import name_of
from ontologia.actors.message import REQUESTS, TIMEOUT_TYPE, is_type
from ontologia.actors.schema import Decoder, Handle, Schema, branches, decode
from ontologia.errors import ActorBootError, InvalidValueError

_RESERVED = frozenset({("command", TIMEOUT_TYPE)})
_MEMBERS = ("id", "description", "inbound", "outbound", "subscribes", "spawn")


@dataclass(frozen=True, slots=True)
class Route:
    """One receiver of a message, and how the message is made for it."""

    capability_id: str
    decoder: Decoder


class Router:
    """The indexes of handlers and subscriptions."""

    def __init__(self, capabilities: Iterable[Any]) -> None:
        self.handlers: dict[Handle, Route] = {}
        self.subscriptions: dict[str, list[Route]] = {}
        self.outbound: dict[str, Schema] = {}
        self._problems: list[str] = []
        for position, capability in enumerate(capabilities):
            name = _name(capability, position)
            faults = list(_shape(capability))
            if not faults and name in self.outbound:
                faults = ["there is another capability with this id"]
            self._note(name, faults)
            if not faults:
                self._add(capability)
        if self._problems:
            raise ActorBootError(self._problems)

    def index(self) -> dict[str, list[str]]:
        """Each type of event with the ids of those who subscribed."""
        return {
            each: [route.capability_id for route in routes]
            for each, routes in self.subscriptions.items()
        }

    def _add(self, capability: Any) -> None:
        inbound = Schema(capability.inbound, open_allowed=False)
        outbound = Schema(capability.outbound, open_allowed=True)
        self.outbound[capability.id] = outbound
        self._note(capability.id, [f"inbound: {each}" for each in inbound.problems])
        self._note(capability.id, [f"outbound: {each}" for each in outbound.problems])
        self._claim(capability.id, inbound)
        self._subscribe(capability, inbound)
        if getattr(capability, "isolation", "task") == "process":
            self._note(capability.id, list(_unfit_for_a_process(capability)))

    def _claim(self, name: str, inbound: Schema) -> None:
        for handle, decoder in inbound.decoders.items():
            kind, type = handle
            if handle in _RESERVED:
                self._note(name, [f"inbound: the {kind} {type} belongs to the loop"])
            elif kind in REQUESTS:
                other = self.handlers.setdefault(handle, Route(name, decoder))
                if other.capability_id != name:
                    said = f"the {kind} {type} is already that of {other.capability_id!r}"
                    self._note(name, [f"inbound: {said}; each has one capability"])
            elif kind != "event":
                said = f"a {kind} ({type}) goes to whoever asked"
                self._note(name, [f"inbound: {said}; only commands, queries and events come in"])

    def _subscribe(self, capability: Any, inbound: Schema) -> None:
        for each in dict.fromkeys(capability.subscribes):
            if is_type(each):
                decoder = inbound.decoders.get(("event", each), decode)
                route = Route(capability.id, decoder)
                self.subscriptions.setdefault(each, []).append(route)
            else:
                said = f'{each!r} is not a type of events; they are written "Domain.Action"'
                self._note(capability.id, [f"subscribes: {said}"])

    def _note(self, name: str, faults: Sequence[str]) -> None:
        self._problems += [f"{name}: {fault}" for fault in faults]


def _name(capability: Any, position: int) -> str:
    found = getattr(capability, "id", None)
    return found if isinstance(found, str) and found else f"capability number {position + 1}"


def _shape(capability: Any) -> Iterable[str]:
    """What is missing or of the wrong type; a module or any other object will do as well."""
    missing = [each for each in _MEMBERS if not hasattr(capability, each)]
    if missing:
        yield from (f"{each} is missing" for each in missing)
        return
    if not isinstance(capability.id, str) or not capability.id:
        yield f"id must be a text, got {capability.id!r}"
    if not isinstance(capability.description, str):
        yield f"description must be a text, got {capability.description!r}"
    if not isinstance(capability.subscribes, list | tuple):
        yield f"subscribes must be a list of types, got {capability.subscribes!r}"
    if not callable(capability.spawn):
        yield f"spawn must be a function or class, got {capability.spawn!r}"
    isolation = getattr(capability, "isolation", "task")
    if isolation not in ("task", "process"):
        yield f'isolation must be "task" or "process", got {isolation!r}'


def _unfit_for_a_process(capability: Any) -> Iterable[str]:
    for what, things in (("spawn", [capability.spawn]), ("inbound", branches(capability.inbound))):
        for each in things:
            try:
                name_of(each)
            except InvalidValueError as error:
                yield f"{what} must be importable to run in a process: {error.args[0]}"
