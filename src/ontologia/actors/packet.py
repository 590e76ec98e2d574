"""What waits in a lane."""

from __future__ import annotations

from ontologia.actors.message import Message, Sealed
from ontologia.actors.pending import Entry, Owner
from ontologia.actors.posts import Receipt
from ontologia.actors.schema import Decoder


class Packet:
    """A message in a lane: its bytes, and what routing needs to know of it."""

    __slots__ = ("body", "checker", "entry", "kind", "receipt", "source", "type")

    def __init__(
        self,
        message: Message | Sealed,
        body: bytes,
        source: Owner,
        entry: Entry | None = None,
        checker: Decoder | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        self.kind, self.type, self.body = message.kind, message.type, body
        self.source, self.entry, self.checker, self.receipt = source, entry, checker, receipt
