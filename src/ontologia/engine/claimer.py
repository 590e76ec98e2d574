"""What to claim for the consumers of a session, and when: the one place where claims are made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ontologia.clock import SystemClock
from ontologia.engine.consumer import Consumer, Host
from ontologia.engine.outage import Outage
from ontologia.errors import ConnectionLostError
from ontologia.store.events.claims import Peek
from ontologia.store.protocol import Waiting
from ontologia.store.rows import Claim, ConsumerRow

_SEEN_FOR = 0.02  # seconds: then something more urgent may have been emitted
_RECENT = 60.0  # seconds: after a longer rest the connection may be dead, which a look survives
_SLICE = 0.001  # seconds between two looks at a manual clock


class Claimer:
    """Looks for events and claims them. For one thread at a time, but for `wake`.

    A look (one read, no lock) says which consumers have something to claim. It holds for all of
    them until a claim has dispatched new events.
    """

    def __init__(self, host: Host, outage: Outage, register: Callable[[], None]) -> None:
        """`register` registers the consumers anew, after the store has forgotten them."""
        self._session_id = host.session_id
        self._claims = host.store.events.claims
        self._clock = host.clock
        self._outage = outage
        self._register = register
        self._open_watch = host.store.watch
        self._watch: Waiting | None = None
        self._peek: Peek | None = None
        self._looked = 0.0
        self._more = False
        """Whether the last claim was full, and nothing was to be dispatched before it."""
        self._woken = False
        self.rows: dict[str, ConsumerRow] = {}
        """The registered consumers, by name."""

    def begin(self) -> None:
        """A round of claims begins: what was seen counts no more, unless there was more of it."""
        self._watched().settle()
        if not self._more or self._clock.monotonic() - self._looked > _SEEN_FOR:
            self.forget()
        self._more = False

    def forget(self) -> None:
        """Something has changed: look again."""
        self._peek = None

    def look(self) -> Peek:
        """What there is to do, as of the last look."""
        if self._peek is None:
            self._looked = self._clock.monotonic()
            self._peek = self._look()
            self._outage.over()
            if self._peek.gone:  # an operator has forgotten a consumer
                self._register()
                self._peek = self._look()
        return self._peek

    def _look(self) -> Peek:
        ids = [row.id for row in self.rows.values()]
        woken, self._woken = self._woken, False
        if woken:  # for new events, which are dispatched by the message that looks
            with suppress(ConnectionLostError):  # it may have died while nothing was sent
                return self._claims.dispatch(ids)
        return self._claims.peek(ids)

    def claim(self, consumer: Consumer, limit: int, start: int) -> list[Claim]:
        """Up to `limit` events for a consumer, the first `start` of them started; [] if there are none.

        A full batch implies that there are more.
        """
        # Woken, a lone consumer claims at once where that costs as much as a look.
        alone = len(self.rows) == 1 and consumer.in_order is None
        guess = self._woken and self._peek is None and alone
        self._woken = self._woken and not guess
        peek = Peek.guess(self.rows[consumer.name].id) if guess else self.look()
        row = self.rows[consumer.name]  # a look may have registered it anew
        if row.id not in peek.claimable:
            return []
        try:
            claims = self._claims.claim(
                row,
                consumer.types,
                session_id=self._session_id,
                limit=limit,
                lease_ms=consumer.lease_ms,
                policy=consumer.policy,
                peek=peek,
                start=start,
                in_order=consumer.in_order is not None,
            )
            self._outage.over(wrote=True)
        except ConnectionLostError:
            if not guess:
                raise
            claims = []  # it may have died while nothing was sent: a look finds out
        if guess and not claims:
            return self.claim(consumer, limit, start)
        self._more = len(claims) == limit and not peek.fresh
        if peek.fresh:
            self.forget()  # the claim dispatched what is new: look again for the next consumer
        return claims

    # -- waiting ----------------------------------------------------------------------------------

    def due_in(self, longest: float) -> float:
        """Seconds until something comes due, at most `longest`."""
        return self.look().wait(self._clock.now(), longest)

    def wait(self, seconds: float, stopped: Callable[[], bool]) -> bool:
        """Wait until woken, stopped, or for this long by the session's clock; whether woken."""
        deadline = self._clock.monotonic() + seconds
        # A manual clock is looked at again and again: it may be moved.
        moves = isinstance(self._clock, SystemClock)
        watch = self._watched()
        while not stopped() and (left := deadline - self._clock.monotonic()) > 0:
            if watch.wait(left if moves else _SLICE):
                recent = self._clock.monotonic() < self._looked + _RECENT
                self._woken = watch.told and recent
                return True
        return False

    def _watched(self) -> Waiting:
        if self._watch is None:
            self._watch = self._open_watch()
        return self._watch

    def wake(self) -> None:
        """End the wait. Any thread may, and a signal handler."""
        if self._watch is not None:
            self._watch.wake()

    def close(self) -> None:
        """Wait no more."""
        if self._watch is not None:
            self._watch.close()
