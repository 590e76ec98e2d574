"""Handing messages to actors, and knowing when they are done with those of a client.

A client that sends more than the actors get done must be slowed down, and by itself: so what it
sent counts until the last of those who got it has handled it, also when nobody waits for an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ontologia.actors.message import Message
from ontologia.actors.observability import Signals
from ontologia.actors.worker import post_to


class Receipt:
    """Of one message of a client: how many have it at hand, and whom to tell when none has."""

    __slots__ = ("_handled", "_left")

    def __init__(self, handled: Callable[[], object]) -> None:
        self._left, self._handled = 1, handled  # one is the loop, until it has routed it

    def more(self) -> None:
        """One more has it."""
        self._left += 1

    def less(self) -> None:
        """One is done with it."""
        self._left -= 1
        if not self._left:
            self._handled()


class Posts:
    """The ways to all actors."""

    def __init__(self, signals: Signals, wake: Callable[[], object]) -> None:
        self._signals, self._wake = signals, wake
        self._ways: dict[str, Callable[[Message], object]] = {}
        self._telling: set[str] = set()
        """Those who tell when they are done with a message; of others nobody knows."""
        self._at_hand: dict[int, Receipt] = {}

    def add(self, capability_id: str, actor: Any) -> None:
        """A way to an actor; AttributeError or TypeError if it takes no messages."""
        self._ways[capability_id] = post_to(actor)
        if hasattr(actor, "on_done"):
            actor.on_done = self._done
            self._telling.add(capability_id)

    def post(self, capability_id: str, message: Message, receipt: Receipt | None = None) -> bool:
        """Put a message into a mailbox; False if that failed, which is signalled."""
        if receipt is not None and capability_id in self._telling:
            receipt.more()
            self._at_hand[id(message)] = receipt
        try:
            self._ways[capability_id](message)
        except Exception as error:  # noqa: BLE001 - any object may be an actor
            self._done(message)
            self._signals.fault(capability_id, message, f"it does not take messages: {error!r}")
            return False
        return True

    def _done(self, message: Message) -> None:
        if self._at_hand:
            receipt = self._at_hand.pop(id(message), None)
            if receipt is not None:
                receipt.less()
        self._wake()  # it may have been the last thing to be alive for
