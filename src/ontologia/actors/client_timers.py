"""The timers of clients, counted, so that no client fills the memory with them.

A timer counts against its client from the moment its `Timer.Set` is routed until it fires or is
cancelled; a timer that its message sets counts in its place. When a client disconnects, its timers
are cancelled, so that connecting again brings no more, and no client takes the room of another.
Timers of the program, of actors and of the store do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ontologia.actors.message import OUTCOMES, Message
from ontologia.actors.observability import TIMER_CANCELLED, TIMER_FIRED, TIMER_SET
from ontologia.actors.pending import Client, Entry

SET_TYPE = "Timer.Set"
MOST_TIMERS = 1_000
"""Maximum timers of a client."""
MOST_TIMER_BYTES = 8 * 1024 * 1024
"""Maximum bytes of the commands that set them, together."""


@dataclass(slots=True, eq=False)
class _Account:
    """Number and bytes of the timers of a client."""

    timers: int = 0
    bytes: int = 0
    ids: set[str] = field(default_factory=set[str])
    """Those that are set."""
    disconnected: bool = False


@dataclass(frozen=True, slots=True)
class _Timer:
    request_id: str
    account: _Account
    size: int


class ClientTimers:
    """Admits the timers of clients, and follows what becomes of them."""

    def __init__(self, cancel: Callable[[str], object]) -> None:
        """`cancel` sends the command that cancels the timer of this id."""
        self._cancel = cancel
        self._accounts: dict[tuple[str, str], _Account] = {}
        """By the ids of adapter and connection."""
        self._asked: dict[str, _Timer] = {}
        """Not set yet, by the id of the command."""
        self._set: dict[str, _Timer] = {}
        """By the id of the timer."""
        self._fired: _Timer | None = None
        """The last one that fired, until its message comes."""

    def admit(self, entry: Entry, size: int) -> str | None:
        """Count the timer of a request that a client made; the reason, if it is refused."""
        if not isinstance(entry.owner, Client):
            return None
        if entry.request_id in self._asked:  # its client gave up waiting, and uses the id again
            return f"The id {entry.request_id} is that of another timer, which is not set yet"
        if entry.abandoned:  # after a disconnect, nothing would ever remove its account
            return "The client does not wait for this timer any more; it was not set"
        key = (entry.owner.adapter.id, entry.owner.connection_id)
        account = self._accounts.setdefault(key, _Account())
        if account.timers >= MOST_TIMERS or account.bytes + size > MOST_TIMER_BYTES:
            return (
                f"A client may have {MOST_TIMERS:,} timers, and {MOST_TIMER_BYTES:,} bytes of them; "
                f"this one was not set"
            )
        self._count(entry.request_id, account, size)
        return None

    def drop(self, request_id: str) -> None:
        """Stop counting a timer that is not set, and will not be."""
        self._release(self._asked.pop(request_id, None))

    def sent(self, message: Message, size: int) -> None:
        """The Timer sent this message."""
        causation = message.metadata.causation or ""
        if message.type == TIMER_SET:
            timer = self._asked.pop(causation, None)
            if timer is None or message.data.get("durable"):
                self._release(timer)
            else:
                self._note_set(message.data["timerId"], timer)
        elif message.type in (TIMER_FIRED, TIMER_CANCELLED):
            timer_id = message.data["timerId"]
            self._fired = self._release(self._set.pop(timer_id, None))
            if self._fired is not None:
                self._fired.account.ids.discard(timer_id)
        elif message.type == SET_TYPE and message.kind in OUTCOMES:
            self.drop(causation)
        elif message.type == SET_TYPE and self._fired and self._fired.request_id == causation:
            self._count(message.metadata.id, self._fired.account, size)
            self._fired = None

    def disconnected(self, adapter_id: str, connection_id: str) -> None:
        """A client is gone: cancel its timers, also those that are still to be set."""
        account = self._accounts.pop((adapter_id, connection_id), None)
        if account is not None:
            account.disconnected = True
            for timer_id in account.ids:
                self._cancel(timer_id)

    def _note_set(self, timer_id: str, timer: _Timer) -> None:
        self._set[timer_id] = timer
        timer.account.ids.add(timer_id)
        if timer.account.disconnected:
            self._cancel(timer_id)

    def _count(self, request_id: str, account: _Account, size: int) -> None:
        self._asked[request_id] = _Timer(request_id, account, size)
        account.timers += 1
        account.bytes += size

    def _release(self, timer: _Timer | None) -> _Timer | None:
        if timer is not None:
            timer.account.timers -= 1
            timer.account.bytes -= timer.size
        return timer
