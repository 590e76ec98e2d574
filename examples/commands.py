"""Commands, models, hooks and a worker, in one file: `python examples/commands.py`.

A shipment is confirmed by a command. A hook refuses to do it twice. What the command announces is
in the queue exactly when its changes are in the store; a worker handles it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ontologia import Field
from ontologia.commands import Command, DomainEvent, DomainModel, Env, api
from ontologia.queues import EventWorker


@api.model("logistics.shipment")
class Shipment(DomainModel):
    """Goods on their way to somebody."""

    reference: Field[str]
    status: Field[str] = Field(default="draft", index=True)

    @api.on_command("shipment.confirm")
    def confirm(self, cmd: Command) -> dict[str, Any]:
        """Say that it will go."""
        cmd.record.write({"status": "confirmed"})
        self.env.emit("shipment.confirmed", {"shipment_id": cmd.model_id})
        record: dict[str, Any] = cmd.record.read()[0]
        return record

    @api.hook("pre.shipment.confirm")
    def only_once(self, cmd: Command) -> None:
        """Refuse what was done before."""
        if cmd.record.read()[0]["status"] == "confirmed":
            raise ValueError("already confirmed")

    @api.on_event("logistics.shipment.field_changed", track_fields=["status"])
    def status_changed(self, event: DomainEvent, env: Env) -> None:
        """Hear of every change of the status, whoever made it."""
        change = event.payload
        print(f"  worker: status {change['old_value']} -> {change['new_value']}")


@api.on_event("shipment.confirmed")
def notify(event: DomainEvent, env: Env) -> None:
    """React to the fact, later and elsewhere."""
    [shipment] = env.models["logistics.shipment"].browse(event.payload["shipment_id"]).read()
    print(f"  worker: {shipment['reference']} is on its way")


def main() -> None:
    """Make a shipment, confirm it, try again, let a worker handle what was announced."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Env(Path(folder) / "logistics.db", modules=[__name__]) as env,
    ):
        [shipment] = env.models["logistics.shipment"].create({"reference": "S-1"})
        confirm = Command("shipment.confirm", {}, "logistics.shipment", shipment.id)
        print("confirmed:", env.dispatch(confirm)["status"])
        try:
            env.dispatch(confirm)
        except ValueError as error:
            print("refused:", error)

        EventWorker(env).run_until_empty()  # in production: run_forever, in a process of its own

        why = env.session.why(Shipment, shipment.id, "status")
        print(f"why: {why.value!r} was set by commit {why.commit_id}, {why.metadata['command']}")
        drafts = env.models["logistics.shipment"].count([("status", "=", "draft")])
        print("drafts left:", drafts)


if __name__ == "__main__":
    main()
