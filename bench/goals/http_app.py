"""What the server of the load test serves: a command that writes a record and announces it."""

from __future__ import annotations

import os
from typing import Any

from ontologia import Field
from ontologia.commands import Command, DomainEvent, DomainModel, Env, api

HANDLED = "BENCH_HANDLED"
"""The variable that names a file: each handled event is a line of it."""


@api.model("bench.ticket")
class BenchTicket(DomainModel):
    number: Field[int]

    @api.on_command("ticket.draw")
    def draw(self, cmd: Command) -> dict[str, Any]:
        """Draw a ticket."""
        [ticket] = self.env.models["bench.ticket"].create({"number": cmd.payload["number"]})
        self.emit("ticket.drawn", {"ticket": ticket.id})
        return {"id": ticket.id}


@api.on_event("ticket.drawn")
def handled(event: DomainEvent, env: Env) -> None:
    with open(os.environ[HANDLED], "a", encoding="utf-8") as lines:
        lines.write(f"{event.payload['ticket']}\n")
