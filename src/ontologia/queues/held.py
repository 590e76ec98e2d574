"""What a queue has claimed: waiting to be handed out, and in flight."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

from ontologia.delivery.lifecycle import lease_is_valid
from ontologia.errors import UnknownReceiptError
from ontologia.runtime.feed import LARGEST_GROUP
from ontologia.store.rows import Claim

_GROUP_TIME = 0.01  # seconds: what takes longer is not started ahead


class Held:
    """Claims in the order in which they were made. Any thread may use it.

    First attempts are handed out together; an event that was tried before comes alone, so that
    one which kills its process takes no other with it. One that was there when a process died is
    also the only one in flight.
    """

    def __init__(self, *, keeps_running: bool = False) -> None:
        self._keeps_running = keeps_running
        self._waiting: deque[Claim] = deque()
        self._flight: dict[str, tuple[int, Claim]] = {}
        self._batches = count()
        self._lock = threading.Lock()

    def add(self, claims: Sequence[Claim]) -> None:
        """These were claimed; they are handed out after those that were before."""
        with self._lock:
            self._waiting.extend(claims)

    def waiting(self) -> int:
        """How many were handed to nobody."""
        return len(self._waiting)

    def group(self, most: int, now: str) -> list[Claim]:
        """Those to be handed out next, together; none if one in flight must be the only one.

        They keep waiting until `hand_out` or `drop`.
        """
        with self._lock:
            if not self._waiting:
                return []
            first = self._waiting[0]
            for _, other in self._flight.values():
                # One whose lease is over is another's to handle, and holds nobody up.
                if (first.crashed or other.crashed) and lease_is_valid(other.lease_until, now):
                    return []
            if first.attempts:
                return [first]
            group: list[Claim] = []
            for claim in self._waiting:
                of_a_kind = claim.token == first.token and claim.started is first.started
                if claim.attempts or not of_a_kind or len(group) == most:
                    break
                group.append(claim)
            return group

    def hand_out(self, group: Sequence[Claim]) -> list[str | None]:
        """These are in flight from here on; their receipts, None for one given back meanwhile."""
        with self._lock:
            batch = next(self._batches)
            receipts: list[str | None] = []
            for claim in group:
                receipt = None
                if self._waiting and self._waiting[0] is claim:
                    self._waiting.popleft()
                    receipt = f"{claim.event.id}:{claim.token}"
                    self._flight[receipt] = (batch, claim)
                receipts.append(receipt)
            return receipts

    def drop(self, claim: Claim) -> None:
        """This one is not to be handed out."""
        with self._lock, suppress(ValueError):
            self._waiting.remove(claim)

    def get(self, receipt: str) -> Claim:
        """The claim of a delivery in flight; UnknownReceiptError if there is none."""
        found = self._flight.get(receipt)
        if found is None:
            raise UnknownReceiptError(receipt)
        return found[1]

    def end(self, receipt: str) -> Claim:
        """The same, and it is in flight no more."""
        found = self._flight.pop(receipt, None)
        if found is None:
            raise UnknownReceiptError(receipt)
        return found[1]

    def idle(self) -> list[Claim]:
        """What is not being handled: it keeps its lease, however long its turn takes to come.

        Of each batch the oldest that has not ended is being handled; its lease is its own, unless
        what runs is kept as well.
        """
        with self._lock:
            idle = list(self._waiting)
            running: set[int] = set()
            for batch, claim in self._flight.values():
                if batch in running or self._keeps_running:
                    idle.append(claim)
                running.add(batch)
            return idle

    def give_back(self, *, flying: bool = False) -> list[Claim]:
        """Hold these no more: what waits and, if wanted, what is in flight."""
        with self._lock:
            given = list(self._waiting)
            self._waiting.clear()
            if flying:
                given += [claim for _, claim in self._flight.values()]
                self._flight.clear()
            return given


class Pace:
    """How many first attempts are claimed and started at once.

    As many as somebody asks for; and more, if they are done within ten milliseconds. Whoever
    takes one at a time gets one at a time: nothing is counted that did not run.
    """

    def __init__(self) -> None:
        self._size = 1
        self._claimed = 0
        self._since = 0.0

    def wanted(self, most: int, now: float) -> int:
        """How many to claim for somebody who asks for `most`, and has dealt with the last ones."""
        self._judge(now - self._since)
        return 1 if most == 1 else max(most, self._size)

    def claimed(self, count: int, now: float) -> None:
        """So many were, at this moment."""
        self._claimed, self._since = count, now

    def _judge(self, seconds: float) -> None:
        if not self._claimed or (self._claimed < self._size and seconds < _GROUP_TIME):
            return  # too small a group says nothing about larger ones
        if seconds > _GROUP_TIME:
            self._size = max(1, int(self._claimed * _GROUP_TIME / seconds))
        elif seconds * 2 <= _GROUP_TIME:
            self._size = min(LARGEST_GROUP, self._claimed * 2)
