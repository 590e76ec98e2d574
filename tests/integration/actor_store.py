"""A quay whose berths are entities and whose commands raise as tests ask them to, for actors."""

from __future__ import annotations

import threading
from typing import Any

from ontologia import Entity, Event, Field, Relation
from ontologia.commands import Command, DomainModel, api
from ontologia.errors import (
    HeadMismatchError,
    LockContentionError,
    NotFoundError,
    StateConflictError,
)


class BridgeSkipper(Entity):
    id: Field[str] = Field(primary_key=True)
    rank: Field[str]
    voyages: Field[int] = Field(default=0)


class BridgeBerth(Entity):
    number: Field[int] = Field(primary_key=True)


class BridgeMoors(Relation[BridgeSkipper, BridgeBerth]):
    season: Field[int] = Field(instance_key=True)
    fee: Field[int]


class BridgeTideTurned(Event):
    height: Field[int]


ERRORS: dict[str, Any] = {
    "value": lambda: ValueError("too heavy"),
    "permission": lambda: PermissionError("not yours"),
    "file": lambda: PermissionError(13, "Permission denied", "/etc/secret"),
    "key": lambda: KeyError("secret"),
    "busy": lambda: LockContentionError("somebody", 5000),
    "conflict": lambda: StateConflictError("bridge.buoy", "b1"),
    "head": lambda: HeadMismatchError(expected=1, actual=2),
    "missing": lambda: NotFoundError("there is no crane 7"),
    "exit": lambda: SystemExit(3),
}
HELD = threading.Event()
GO = threading.Event()


@api.model("bridge.buoy")
class BridgeBuoy(DomainModel):
    color: Field[str]

    @api.on_command("bridge.lay")
    def lay(self, cmd: Command) -> Any:
        [buoy] = self.env.models["bridge.buoy"].create({"color": cmd.payload["color"]})
        self.emit("buoy.laid", {"color": cmd.payload["color"]})
        return buoy.read()[0]

    @api.on_command("bridge.fail")
    def fail(self, cmd: Command) -> Any:
        self.env.models["bridge.buoy"].create({"color": "lost"})
        raise ERRORS[cmd.payload["how"]]()

    @api.on_command("bridge.hold")
    def hold(self, cmd: Command) -> Any:
        HELD.set()
        GO.wait(60)
        return "held"
