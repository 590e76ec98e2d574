"""The timeouts of clients' requests: a message of the Timer's, for those that take a while.

A timer costs four messages, to set and to cancel it, and most requests are answered at once. So one
is set when a request is still open a moment after it came; what is left of its time by then is what
the timer is set to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from ontologia.actors.lanes import Lane
from ontologia.actors.message import TIMEOUT_TYPE, Message, made
from ontologia.actors.pending import Entry, Owner, Program

MOMENT = 0.05
"""Seconds. A request with less time than that has its timer at once."""


class Timeouts:
    """Has timers set and cancelled, by commands of the loop's own."""

    def __init__(self, send: Callable[[Message, Owner, Lane], object]) -> None:
        self._send = send
        self._untimed: list[tuple[Entry, float]] = []
        """Requests that have no timer yet, each with the time at which it is due."""

    def begin(self, entry: Entry, seconds: float) -> None:
        """End this request after so many seconds, unless it has an outcome by then."""
        if seconds <= MOMENT:
            self._set(entry, seconds)
            return
        host = asyncio.get_running_loop()
        self._untimed.append((entry, host.time() + seconds))
        if len(self._untimed) == 1:
            host.call_later(MOMENT, self._look)

    def end(self, entry: Entry) -> None:
        """The request is over."""
        timer_id, entry.timeout_timer_id = entry.timeout_timer_id, None
        if timer_id is not None:
            self._order("Timer.Cancel", {"timerId": timer_id}, entry, None)

    def _look(self) -> None:
        untimed, self._untimed = self._untimed, []
        now = asyncio.get_running_loop().time()
        for entry, due in untimed:
            if not entry.over:
                self._set(entry, max(0.0, due - now))

    def _set(self, entry: Entry, seconds: float) -> None:
        # Its id may be that of another request by the time it fires; its number is not.
        data = {"requestId": entry.request_id, "number": entry.number}
        template = {"kind": "command", "type": TIMEOUT_TYPE, "data": data}
        order = {"delayMs": seconds * 1000, "message": template}
        self._order("Timer.Set", order, entry, partial(self._is_set, entry))

    def _is_set(self, entry: Entry, outcome: Message) -> None:
        if outcome.kind == "reply":
            entry.timeout_timer_id = outcome.data["timerId"]
            if entry.over:
                self.end(entry)

    def _order(
        self, type: str, data: Any, entry: Entry, then: Callable[[Message], object] | None
    ) -> None:
        command = made(
            "command", type, data, causation=entry.request_id, correlation=entry.correlation
        )
        self._send(command, Program(then), "system")
