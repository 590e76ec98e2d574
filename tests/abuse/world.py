"""A deck over HTTP: its commands answer with as much as they are asked for, and take all files."""

from __future__ import annotations

import os
from typing import Any

from ontologia import Field
from ontologia.commands import Command, DomainModel, api

_hoard: list[int] = []


@api.model("abuse.deck")
class AbusedDeck(DomainModel):
    name: Field[str] = ""

    @api.on_command("deck.cargo")
    def cargo(self, cmd: Command) -> Any:
        return "x" * int(cmd.payload.get("bytes", 0))

    @api.on_command("deck.hoard")
    def hoard(self, cmd: Command) -> int:
        """Open files until this process may open no more."""
        try:
            while True:
                _hoard.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return len(_hoard)

    @api.on_command("deck.release")
    def release(self, cmd: Command) -> None:
        while _hoard:
            os.close(_hoard.pop())
