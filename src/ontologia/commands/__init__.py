"""Commands: intents that are carried out now, in one unit of work, with hooks around them.

from ontologia.commands import Command, DomainModel, Env, api

@api.model("logistics.shipment")
class Shipment(DomainModel):
    status: Field[str] = "draft"

    @api.on_command("shipment.confirm")
    def confirm(self, cmd: Command) -> dict:
        cmd.record.write({"status": "confirmed"})
        self.env.emit("shipment.confirmed", {"shipment_id": cmd.model_id})
        return cmd.record.read()[0]
"""

from ontologia.commands import api
from ontologia.commands.bus import CommandBus
from ontologia.commands.command import Command
from ontologia.commands.env import Env
from ontologia.commands.model import DomainModel
from ontologia.commands.recordset import Records, RecordSet
from ontologia.commands.registry import CommandTarget, Registry
from ontologia.errors import (
    CommandHandlerNotFound,
    DuplicateHandler,
    RecordExists,
    RecordNotFound,
)
from ontologia.queues import DomainEvent
from ontologia.queues.current import get_current_tenant_id, set_current_tenant_id

__all__ = [
    "Command",
    "CommandBus",
    "CommandHandlerNotFound",
    "CommandTarget",
    "DomainEvent",
    "DomainModel",
    "DuplicateHandler",
    "Env",
    "RecordExists",
    "RecordNotFound",
    "RecordSet",
    "Records",
    "Registry",
    "api",
    "get_current_tenant_id",
    "set_current_tenant_id",
]
