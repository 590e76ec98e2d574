"""An application with models, commands and hooks, for the tests of commands."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from types import ModuleType
from typing import Any

from ontologia import Field
from ontologia.commands import Command, DomainEvent, DomainModel, Env, api


@api.model("freight.shipment")
class FreightShipment(DomainModel):
    """Goods on their way."""

    reference: Field[str]
    status: Field[str] = Field(default="draft", index=True)
    weight: Field[int] = 0
    price: Field[Decimal | None] = None
    due: Field[datetime | None] = None
    tags: Field[list[str]] = Field(default_factory=list)
    address: Field[dict[str, Any]] = Field(default_factory=dict)

    @api.on_command("shipment.confirm")
    def confirm(self, cmd: Command) -> dict[str, Any]:
        """Say that a shipment will go."""
        cmd.record.write({"status": "confirmed"})
        self.env.emit("shipment.confirmed", {"shipment_id": cmd.model_id})
        found: dict[str, Any] = cmd.record.read()[0]
        return found

    @api.on_command("shipment.bulk_confirm")
    def bulk_confirm(self, cmd: Command) -> dict[str, Any]:
        ids = cmd.payload["ids"]
        for record in self.env.models["freight.shipment"].browse(*ids):
            record.write({"status": "confirmed"})
        return {"confirmed": len(ids)}

    @api.on_command("shipment.weigh")
    def weigh(self, cmd: Command) -> int:
        """Add to the weight: reads, then writes what it read and more."""
        weight: int = cmd.record.read()[0]["weight"] + cmd.payload["by"]
        cmd.record.write({"weight": weight})
        return weight

    @api.on_command("shipment.fail")
    def fail(self, cmd: Command) -> None:
        cmd.record.write({"status": "half done"})
        self.emit("shipment.half_done", {})
        raise LookupError("the truck is gone")

    @api.on_command("shipment.call")
    def call(self, cmd: Command) -> Any:
        """Whatever a test wants done: `payload["do"]` is a function of (model, command)."""
        return cmd.payload["do"](self, cmd)


@api.model("freight.note")
class FreightNote(DomainModel):
    """Anything at all."""


def application(*things: Any, name: str = "application") -> ModuleType:
    """A module that shows these things, and the two models above."""
    module = ModuleType(name)
    for number, thing in enumerate((FreightShipment, FreightNote, *things)):
        setattr(module, f"thing_{number}", thing)
    return module


def model(key: str, **members: Any) -> type[DomainModel]:
    """A model of this key with these methods."""
    return api.model(key)(type(key.replace(".", "_"), (DomainModel,), members))


def do(env: Env, what: Callable[[FreightShipment, Command], Any], id: str | None = None) -> Any:
    """Do something within a command."""
    return env.dispatch(Command("shipment.call", {"do": what}, "freight.shipment", id))


def queued(env: Env) -> list[DomainEvent]:
    """Take everything out of the env's queue."""
    assert env.queue is not None
    found: list[DomainEvent] = []
    while batch := env.queue.dequeue(100, 0):
        for delivery in batch:
            env.queue.ack(delivery.receipt_handle)
            found.append(delivery.event)
    return found
