"""A payment service, as others have one: it is slow to answer, and it has books of its own.

Two things about it are true of real ones. It may book a payment and lose the answer on the way. And
it knows a key for each payment, here the order's id: asked again, it books nothing and gives the
same receipt. So whoever calls it may simply call again.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

_LUCKLESS = ("0", "5")  # the answer about orders that end in these is lost once


class CardDeclined(Exception):
    """This card pays nothing, however often it is tried."""


class Payments:
    """The service with its books, a file."""

    def __init__(self, books: Path) -> None:
        self._books = books
        self._lock = threading.Lock()

    def charge(self, order_id: str, cents: int, card: str) -> str:
        """Take the money; the receipt. TimeoutError if the answer got lost."""
        with self._lock:
            if order_id in self.booked():
                return f"receipt-{order_id}"
            if card == "expired":
                raise CardDeclined(f"{order_id}: the card has expired")
            self._book(order_id, cents)
        if order_id.endswith(_LUCKLESS):
            raise TimeoutError(f"{order_id}: no answer from the payment service")
        return f"receipt-{order_id}"

    def refund(self, order_id: str) -> None:
        """Give back what was taken for an order, if anything was."""
        with self._lock:
            if cents := self.booked().get(order_id, 0):
                self._book(order_id, -cents)

    def booked(self) -> dict[str, int]:
        """What was taken for each order, less what was given back."""
        sums: dict[str, int] = {}
        lines = self._books.read_text().splitlines() if self._books.exists() else []
        for line in lines:
            entry = json.loads(line)
            sums[entry["order"]] = sums.get(entry["order"], 0) + entry["cents"]
        return sums

    def _book(self, order_id: str, cents: int) -> None:
        with self._books.open("a") as books:
            books.write(json.dumps({"order": order_id, "cents": cents}) + "\n")
