"""What a run has claimed: waiting to be run, and running."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ontologia.runtime.handlers import Delivery, Handler
from ontologia.store.rows import Claim

LARGEST_GROUP = 50
_LOOK = 0.05
_GROUP_TIME = 0.02  # seconds: a group that takes longer is made smaller
_CLAIM_TIME = 0.05  # seconds: what takes longer is left to others, or for later


class Feed:
    """Claimed events by handler, the most urgent handler first.

    First attempts are started in groups, as many as twenty milliseconds allow; an event that was
    tried before is started alone, so that one which kills its process buries only itself.
    """

    def __init__(
        self, handlers: Sequence[Handler], workers: int, deliveries: Mapping[str, Delivery]
    ) -> None:
        self._workers = workers
        self._deliveries = deliveries
        self._waiting: dict[str, deque[Claim]] = {handler.id: deque() for handler in handlers}
        self._handlers = {handler.id: handler for handler in handlers}
        self._size = dict.fromkeys(self._waiting, 1)
        self._seconds = dict.fromkeys(self._waiting, 0.0)  # that one event took, of late
        self._idle: dict[int, Claim] = {}
        self._running: dict[int, Claim] = {}
        self._out = 0  # groups that workers have
        self._alone = False  # whether one of them must be the only one
        self._closed = False
        self._awaited = False
        self._changed = threading.Condition()

    def add(self, handler: Handler, claims: Sequence[Claim]) -> None:
        """Put claims in the queue of their handler."""
        with self._changed:
            self._waiting[handler.id].extend(claims)
            for claim in claims:
                self._idle[id(claim)] = claim
            self._changed.notify_all()

    def take(self, *, block: bool = False) -> tuple[Handler, list[Claim]] | None:
        """The next group of the highest handler that has one; None if there is none, or closed."""
        with self._changed:
            while not self._closed:
                found = self._next()
                if found is not None:
                    return found
                if not block:
                    return None
                self._changed.wait()
            return None

    def _next(self) -> tuple[Handler, list[Claim]] | None:
        for handler_id, queue in self._waiting.items():
            if self._alone:
                return None
            if queue:
                # Whoever was there when a process died may have killed it: it runs alone, so
                # that it cannot take others with it again.
                if queue[0].crashed and self._out:
                    return None
                self._alone = queue[0].crashed
                self._out += 1
                return self._handlers[handler_id], self._group(handler_id, queue)
        return None

    def finish(self) -> None:
        """A worker is done with its group."""
        with self._changed:
            self._out -= 1
            self._alone = False
            self._changed.notify_all()

    def _group(self, handler_id: str, queue: deque[Claim]) -> list[Claim]:
        # With several workers a group must not keep what another worker could be running.
        size = min(self._size[handler_id], max(1, len(queue) // self._workers))
        group = [queue.popleft()]
        # What came started with its claim is one group; the others are started as one.
        while queue and len(group) < size and queue[0].started is group[0].started:
            if group[0].attempts or queue[0].attempts:
                break
            if queue[0].token != group[0].token:
                break  # of two claim calls: what was put back, and what came meanwhile
            group.append(queue.popleft())
        return group

    def group_size(self, handler: Handler) -> int:
        """How many first attempts this handler may have started at once."""
        return self._size[handler.id] if self._workers == 1 else 0

    def claim_size(self, handler: Handler, most: int) -> int:
        """How many events to claim for this handler: not more than keeps it busy for a while.

        The rest would wait here while other sessions have nothing to do.
        """
        seconds, most_seconds = self._seconds[handler.id], self._within_lease(handler, _CLAIM_TIME)
        if seconds * most <= most_seconds * self._workers:
            return most
        return min(most, max(1, int(most_seconds / seconds)) * self._workers)

    def _within_lease(self, handler: Handler, seconds: float) -> float:
        """At most a third of the handler's lease: after that it has to be renewed."""
        return min(seconds, self._deliveries[handler.id].lease_ms / 3000)

    def lacks(self, handler: Handler) -> bool:
        """Whether nothing waits for this handler."""
        return not self._waiting[handler.id]

    def begin(self, claim: Claim) -> bool:
        """A handler is called with this one: its lease is its own, unless `renew_until` is set.

        False once the feed is closed: then the claim is handed back, and must not be run.
        """
        with self._changed:
            if self._closed:
                return False
            self._idle.pop(id(claim), None)
            self._running[id(claim)] = claim
            return True

    def put_back(self, handler: Handler, claims: Sequence[Claim]) -> None:
        """These were taken and could not be run: they are next again.

        They are started anew, whatever they were: nobody knows how long the database was away.
        """
        with self._changed:
            left = [claim for claim in claims if id(claim) in self._idle]
            for claim in left:
                claim.started = False
            self._waiting[handler.id].extendleft(reversed(left))

    def end(self, claim: Claim) -> None:
        """The handler has returned, or the claim is not to be run."""
        with self._changed:
            self._idle.pop(id(claim), None)
            self._running.pop(id(claim), None)
            if self._awaited:
                self._changed.notify_all()

    def pace(self, handler: Handler, group: Sequence[Claim], seconds: float) -> None:
        """Make the next group of a handler larger or smaller, by how long this one took."""
        self._seconds[handler.id] = seconds / len(group)
        longest = self._within_lease(handler, _GROUP_TIME)
        if len(group) < self._size[handler.id] and seconds < longest:
            return  # too small a group says nothing about larger ones
        if seconds > longest:
            size = int(len(group) * longest / seconds)
        else:
            size = len(group) * 2 if seconds * 2 <= longest else len(group)
        # Where one attempt is all there is, nothing must be counted that did not run.
        once = self._deliveries[handler.id].policy.max_crashes == 1
        self._size[handler.id] = 1 if once else max(1, min(LARGEST_GROUP, size))

    # -- seen from outside ------------------------------------------------------------------------

    def idle(self) -> list[Claim]:
        """Claims whose leases are renewed: what does not run yet, and what runs with `renew=True`."""
        with self._changed:
            kept = [each for each in self._running.values() if each.renew_until is not None]
            return [*self._idle.values(), *kept]

    def running(self) -> list[Claim]:
        """What handlers are running with."""
        with self._changed:
            return list(self._running.values())

    def empty(self) -> bool:
        """Whether nothing waits and nothing runs."""
        with self._changed:
            return not self._idle and not self._running

    def close(self) -> list[Claim]:
        """Give out nothing more; what was waiting."""
        with self._changed:
            self._closed = True
            for queue in self._waiting.values():
                queue.clear()
            waiting = list(self._idle.values())
            self._idle.clear()
            self._changed.notify_all()
            return waiting

    def wait_empty(self, stopped: Callable[[], bool]) -> None:
        """Wait until nothing waits and nothing runs, or until the run is stopped."""
        with self._changed:
            self._awaited = True
            while (self._idle or self._running) and not stopped():
                self._changed.wait(_LOOK)

    def wait_quiet(self, seconds: float, hurry: Callable[[], bool]) -> bool:
        """Wait until nothing runs, at most this long, or until in a hurry; whether that came."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._awaited = True
            while self._running:
                left = deadline - time.monotonic()
                if left <= 0 or hurry():
                    return False
                self._changed.wait(min(left, _LOOK))
            return True
