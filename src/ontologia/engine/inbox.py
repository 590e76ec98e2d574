"""The inbox: claimed events, waiting to be run, taken by a thread, and running."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from ontologia.clock import Clock, to_text
from ontologia.delivery.lifecycle import lease_is_valid
from ontologia.engine.consumer import Consumer
from ontologia.store.rows import Claim

LARGEST_BATCH = 50
_LOOK = 0.05
_BATCH_TIME = 0.02  # seconds: a batch that takes longer is made smaller
_CLAIM_TIME = 0.05  # seconds: what takes longer is left to other sessions, or for later


class Inbox:
    """Claimed events by consumer, in the order of the consumers. Thread-safe.

    First attempts are started in batches, as many as 20 ms allow; an event that was tried before is
    started alone, so that one which kills its process counts against itself only. One that was
    there when a process died is the only one that runs.
    """

    def __init__(self, consumers: Sequence[Consumer], clock: Clock, workers: int = 1) -> None:
        self._clock = clock
        self._workers = workers
        self._last: dict[str, int] = {}
        """Consumers that are served after the others, in this order, until they are taken from."""
        self._consumers = {each.name: each for each in consumers}
        self._waiting: dict[str, deque[Claim]] = {each.name: deque() for each in consumers}
        self._size = dict.fromkeys(self._waiting, 1)
        self._seconds = dict.fromkeys(self._waiting, 0.0)  # that one event took, of late
        self._added = dict.fromkeys(self._waiting, 0.0)  # when the last claims came
        self._idle: dict[int, Claim] = {}
        self._running: dict[int, Claim] = {}
        self._taken: dict[int, Claim] = {}
        self._closed = False
        self._held_back = False  # whether threads wait for what must be the only one that runs
        self._awaited = False
        self._changed = threading.Condition()

    def add(self, consumer: Consumer, claims: Sequence[Claim]) -> None:
        """Put claims behind those that wait for their consumer; not once it is closed."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the inbox is closed")
            self._waiting[consumer.name].extend(claims)
            self._added[consumer.name] = self._clock.monotonic()
            for claim in claims:
                self._idle[id(claim)] = claim
            self._changed.notify_all()

    def serve_last(self, consumer: Consumer) -> None:
        """Serve the others first, once: a call of this consumer did not return in time."""
        with self._changed:
            behind = max(self._last.values(), default=0) + 1
            self._last = {**self._last, consumer.name: behind}

    def comes_last(self, consumer: Consumer) -> bool:
        """Whether the others are to be served before this consumer."""
        return consumer.name in self._last

    def in_turn(self, consumers: Sequence[Consumer]) -> Sequence[Consumer]:
        """These consumers in the order in which they are served."""
        last = self._last
        return sorted(consumers, key=lambda each: last.get(each.name, 0)) if last else consumers

    def take(
        self,
        most: int | None = None,
        *,
        consumer: Consumer | None = None,
        block: bool = False,
    ) -> tuple[Consumer, list[Claim]] | None:
        """The next batch of the first consumer that has one; None if there is none, or if closed.

        At most `most` events; without it, as many as are run within 20 ms. Of this `consumer` if
        one is given.
        """
        with self._changed:
            while not self._closed:
                every = [*self._consumers.values()] if consumer is None else [consumer]
                for each in self.in_turn(every):
                    queue = self._waiting[each.name]
                    if queue:
                        if self._must_wait(queue[0]):
                            self._held_back = True
                            break
                        if each.name in self._last:
                            kept = self._last.items()
                            self._last = {name: at for name, at in kept if name != each.name}
                        return each, self._batch(each.name, queue, most)
                if not block:
                    return None
                self._changed.wait()
            return None

    def _must_wait(self, first: Claim) -> bool:
        """Whether it, or one that is taken, must be the only one."""
        if not self._taken or not (first.crashed or any(c.crashed for c in self._taken.values())):
            return False
        # One whose lease is over is another session's to run, and holds nothing up.
        now = to_text(self._clock.now())
        return any(lease_is_valid(each.lease_until, now) for each in self._taken.values())

    def _batch(self, name: str, queue: deque[Claim], most: int | None) -> list[Claim]:
        # With several workers a batch must not keep what another worker could be running.
        in_order = self._consumers[name].in_order
        size = most or min(self._size[name], max(1, len(queue) // self._workers))
        size = size if in_order is None else in_order.most
        batch = [queue.popleft()]
        # What came started with its claim is one batch; the others are started as one.
        while queue and len(batch) < size and queue[0].started is batch[0].started:
            if batch[0].attempts or queue[0].attempts or batch[0].crashed or queue[0].crashed:
                break
            if queue[0].token != batch[0].token:
                break  # of two claim calls: what was put back, and what came meanwhile
            batch.append(queue.popleft())
        # Their leases began with their claim: if the workers were busy for long, they are started anew.
        late = self._clock.monotonic() - self._added[name] > _CLAIM_TIME
        for claim in batch:
            claim.started = claim.started and not late
            self._taken[id(claim)] = claim
        return batch

    def begin(self, claim: Claim) -> bool:
        """It is about to run: its lease is its own, unless it is `renewed`.

        False once the inbox is closed: then the claim is released, and must not be run.
        """
        with self._changed:
            if self._closed:
                return False
            self._idle.pop(id(claim), None)
            self._running[id(claim)] = claim
            return True

    def end(self, claim: Claim) -> None:
        """The consumer has returned, or the claim is not to be run."""
        with self._changed:
            self._idle.pop(id(claim), None)
            self._running.pop(id(claim), None)
            self._taken.pop(id(claim), None)
            if self._held_back or self._awaited:
                self._held_back = False
                self._changed.notify_all()

    def put_back(self, consumer: Consumer, claims: Sequence[Claim]) -> None:
        """These were taken and could not be run: they are next again.

        They are started anew, because the database may have been away for any time.
        """
        with self._changed:
            left = [claim for claim in claims if id(claim) in self._idle]
            for claim in left:
                claim.started = False
                self._taken.pop(id(claim), None)
            self._waiting[consumer.name].extendleft(reversed(left))
            self._changed.notify_all()

    # -- how many at a time -----------------------------------------------------------------------

    def lacks(self, consumer: Consumer) -> bool:
        """Whether nothing waits for this consumer."""
        return not self._waiting[consumer.name]

    def start_size(self, consumer: Consumer) -> int:
        """How many first attempts of this consumer may be started with their claim.

        Several workers run them at once only if each has soon run its share; else none is started
        that might not be run.
        """
        if consumer.in_order is not None:
            return consumer.in_order.most
        size = self._size[consumer.name]
        if self._workers == 1:
            return size
        return min(LARGEST_BATCH, size * self._workers) if size > 1 else 0

    def claim_size(self, consumer: Consumer, most: int) -> int:
        """How many events to claim for this consumer: not more than keep it busy for 50 ms.

        The rest would wait here while other sessions have nothing to do.
        """
        if consumer.in_order is not None:
            return consumer.in_order.most  # no other session could have them
        most = min(most, consumer.batch or most)
        seconds, longest = self._seconds[consumer.name], _within_lease(consumer, _CLAIM_TIME)
        if seconds * most > longest * self._workers:
            most = min(most, max(1, int(longest / seconds)) * self._workers)
        if self.start_size(consumer) == LARGEST_BATCH:
            most = min(most, LARGEST_BATCH)  # so fast that all of it is started with the claim
        return most

    def pace(self, consumer: Consumer, batch: Sequence[Claim], seconds: float) -> None:
        """Make the next batch of a consumer larger or smaller, by how long this one took."""
        if consumer.in_order is not None:
            return
        self._seconds[consumer.name] = seconds / len(batch)
        longest = _within_lease(consumer, _BATCH_TIME)
        if len(batch) < self._size[consumer.name] and seconds < longest:
            return  # too small a batch says nothing about larger ones
        if seconds > longest:
            size = int(len(batch) * longest / seconds)
        else:
            size = len(batch) * 2 if seconds * 2 <= longest else len(batch)
        # Where one attempt is all there is, nothing must be counted that did not run.
        alone = consumer.policy.max_crashes == 1 or consumer.batch is not None
        self._size[consumer.name] = 1 if alone else max(1, min(LARGEST_BATCH, size))

    # -- seen from outside ------------------------------------------------------------------------

    def renewable(self) -> list[Claim]:
        """Claims whose leases are renewed: what does not run yet, and what asks for it."""
        with self._changed:
            kept = [each for each in self._running.values() if each.renewed]
            return [*self._idle.values(), *kept]

    def running(self) -> list[Claim]:
        """What consumers are running with."""
        with self._changed:
            return list(self._running.values())

    def empty(self) -> bool:
        """Whether nothing waits and nothing runs."""
        with self._changed:
            return not self._idle and not self._running

    def withdraw(self) -> list[Claim]:
        """Hold no longer what nothing has taken."""
        with self._changed:
            waiting = [claim for queue in self._waiting.values() for claim in queue]
            for claim in waiting:
                del self._idle[id(claim)]
            for queue in self._waiting.values():
                queue.clear()
            return waiting

    def close(self) -> list[Claim]:
        """Give out nothing more; what was not running."""
        with self._changed:
            self._closed = True
            for queue in self._waiting.values():
                queue.clear()
            idle = list(self._idle.values())
            self._idle.clear()
            self._changed.notify_all()
            return idle

    def wait_empty(self, stopped: Callable[[], bool]) -> None:
        """Wait until nothing waits and nothing runs, or until stopped."""
        with self._changed:
            self._awaited = True
            while (self._idle or self._running) and not stopped():
                self._changed.wait(_LOOK)

    def wait_quiet(self, seconds: float, hurry: Callable[[], bool]) -> bool:
        """Wait until nothing runs, at most this long, or until in a hurry; whether nothing does."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._awaited = True
            while self._running:
                left = deadline - time.monotonic()
                if left <= 0 or hurry():
                    return False
                self._changed.wait(min(left, _LOOK))
            return True


def _within_lease(consumer: Consumer, seconds: float) -> float:
    """At most a third of the consumer's lease: after that it has to be renewed."""
    return min(seconds, consumer.lease_ms / 3000)
