"""Commands that have an answer to whatever they are told, for whoever asks at random."""

from __future__ import annotations

from typing import Any

from ontologia import Field
from ontologia.commands import Command, DomainModel, api


@api.model("quay.note")
class QuayNote(DomainModel):
    text: Field[str]
    pages: Field[int] = 1

    @api.on_command("quay.echo")
    def echo(self, cmd: Command) -> Any:
        """Say it again."""
        return {"payload": cmd.payload, "model_key": cmd.model_key, "model_id": cmd.model_id}

    @api.on_command("quay.note")
    def note(self, cmd: Command) -> Any:
        """Write a note.

        It has a `text`, and may have a number of `pages`.
        """
        [note] = self.env.models["quay.note"].create({"text": "nothing", **cmd.payload})
        self.env.emit("quay.noted", cmd.payload)
        return note.read()[0]

    @api.on_command("quay.tear")
    def tear(self, cmd: Command) -> Any:
        """Tear up a note."""
        if cmd.record is None:
            raise ValueError("which note?")
        return cmd.record.unlink()

    @api.hook("pre.quay.tear")
    def keep(self, cmd: Command) -> None:
        if cmd.payload:
            raise PermissionError("notes are torn up without a word")

    @api.on_command("quay {of} stones/&?")
    def strange(self, cmd: Command) -> None:
        pass
