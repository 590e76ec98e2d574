"""One writer per opened store: requests that wait at the same time share a transaction.

A thread that has something to write submits a request. The first one that waits leads: it begins a
transaction, lets every request that waits by then write into it, and commits once. So threads that
commit at the same time share one sync, and one that is alone writes as if nobody else could.

Threads that shared a transaction are woken together, and most of them soon have something to write
again. So the first of them that is back waits for the others, as long as the last transaction took.

Requests are isolated from each other's failures. One that raises before it has written anything
fails alone. After that, the transaction is rolled back and each of its requests is written again,
alone: a savepoint would cost every request something, and on a server a round trip. If COMMIT
fails, all have failed.

Code of the program (validators, upgraders) may wait for a lock that a thread has which waits for
its commit. So a request that runs any is written by its own thread, and shares a transaction with
requests of that thread alone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ontologia.clock import Clock
from ontologia.errors import ConnectionLostError, DatabaseError, LockContentionError
from ontologia.store.lease import STEP
from ontologia.store.turn import Turn

if TYPE_CHECKING:
    from ontologia.store.protocol import Transaction

_MOST = 500  # weight of one transaction: whoever waits for it should not wait for long
_GATHER = 0.002  # seconds for which threads that committed together are waited for
_LOST = 1.0  # seconds after which a thread that waits looks whether its leader was interrupted


_Outcome: TypeAlias = 'Exception | Literal["alone", "together"] | None'


class Apart(Exception):
    """A request was refused after it had written; nothing of the transaction is left."""


class HeldUp(Exception):
    """Another owner holds the lease on long writes; nothing was written."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


class Request:
    """Something to write, together with others or alone."""

    durable = True
    """Whether it is on disk when `submit` returns (hard), or only written (soft)."""
    state = False
    """Whether it writes state, under the lock of commits where there is one."""
    weight = 1
    """About how many rows it writes."""
    announces = False
    """Whether it has stored events, so that waiting loops are to be woken."""
    context: Context | None = None
    """What it is written in; without one, the context of the thread that submits it."""

    def look_ahead(self, tx: Transaction) -> None:
        """Ask for what `write` needs to know, so that a server answers all requests at once."""

    def runs_code(self) -> bool:
        """Whether `write` calls functions of the program, which may wait for anything."""
        return False

    def write(self, tx: Transaction) -> None:
        """Write. It may be called again, in another transaction; what it raises, `submit` raises."""
        raise NotImplementedError


class Posted(Request):
    """A request that no thread waits for: it goes with the next transaction, whatever that writes."""

    def wants(self, durable: bool) -> bool:
        """Whether it would go with a transaction that is durable, or not; else it waits on."""
        raise NotImplementedError

    def take(self) -> bool:
        """A transaction is about to begin; whether there is anything to write in it."""
        raise NotImplementedError

    def ended(self, error: BaseException | None) -> None:
        """The transaction has ended; with an error, nothing of this is written."""
        raise NotImplementedError


class _Ticket:
    """A request that waits, or is being written."""

    __slots__ = (
        *("alone", "batch", "context", "error", "leads", "request", "runs_code"),
        *("thread", "wake"),
    )

    def __init__(self, request: Request, *, alone: bool) -> None:
        self.request = request
        self.alone = alone
        self.runs_code = request.runs_code()
        self.thread = threading.get_ident()
        self.context: Context = request.context or copy_context()
        """A request runs in the context of the thread that submitted it, whichever thread writes."""
        self.batch: _Batch | None = None
        self.error: BaseException | None = None
        self.leads = False
        """Whether its thread is to write all that waits."""
        self.wake = threading.Lock()
        self.wake.acquire()

    @property
    def ended(self) -> bool:
        return self.batch is not None and self.batch.ended


class _Batch:
    """The requests of one transaction, and what came of them."""

    __slots__ = (
        *("again", "durable", "ended", "error", "hard", "posted", "runs_code", "thread"),
        *("tickets", "tx", "weight"),
    )

    def __init__(self) -> None:
        """Of the calling thread, which writes it."""
        self.tickets: list[_Ticket] = []
        self.thread = threading.get_ident()
        """Whose requests these are; 0 once another thread has one among them."""
        self.runs_code = False
        """Whether one of them calls functions of the program."""
        self.posted: list[tuple[Posted, list[BaseException]]] = []
        self.weight = 0
        self.hard = 0
        """How many of them are durable."""
        self.durable = False
        self.tx: Transaction | None = None
        self.error: BaseException | None = None
        self.again: Literal["alone", "together"] | None = None
        """How its requests are to be submitted again: nothing of them is written."""
        self.ended = False

    @property
    def is_shared(self) -> bool:
        """Whether a request that fails must not take another one along."""
        return len(self.tickets) + len(self.posted) > 1

    def has_room(self, ticket: _Ticket) -> bool:
        """Whether this request may be part of the same transaction."""
        if (ticket.runs_code or self.runs_code) and ticket.thread != self.thread:
            return False
        if not self.tickets:
            return True
        if ticket.alone or self.tickets[0].alone:
            return False
        fits = self.weight + ticket.request.weight <= _MOST
        # What is durable cannot be decided any more once the transaction has begun.
        return fits and (self.tx is None or self.durable or not ticket.request.durable)

    def add(self, ticket: _Ticket) -> None:
        ticket.batch = self
        self.tickets.append(ticket)
        if ticket.thread != self.thread:
            self.thread = 0
        self.runs_code = self.runs_code or ticket.runs_code
        self.weight += ticket.request.weight
        if ticket.request.durable:
            self.durable = True
            self.hard += 1

    def submit_again(self, how: Literal["alone", "together"]) -> None:
        """Nothing of it is written, through no fault of most."""
        self.again = how
        for each in self.tickets:
            each.error = None

    def interrupted(self) -> None:
        """The thread that wrote it may have been interrupted: what came of it, as far as is known."""
        committed = False if self.tx is None else self.tx.committed
        if committed is None:
            self.error = ConnectionLostError(
                "a transaction was interrupted while it was being committed, and the server was not "
                "asked whether it was"
            )
        elif not committed:
            self.submit_again(self.again or "together")

    def end(self) -> None:
        """What came of it is settled; its threads may go on.

        Only what is known to be committed has succeeded: an interrupt can come before the first
        step of `_write_batch`.
        """
        if self.ended:
            return
        if self.error is None and self.again is None:
            self.interrupted()
        nothing = self.error or (Apart() if self.again is not None else None)
        for request, failed in self.posted:
            request.ended(failed[0] if failed else nothing)
        self.ended = True


class Writer:
    """Writes the requests of all threads of a store. Thread-safe."""

    def __init__(
        self,
        begin: Callable[[bool, float], AbstractContextManager[Any]],
        wrap: Callable[[Any], Transaction],
        turn: Turn,
        clock: Clock,
        *,
        wake: Callable[[], None],
        check: Callable[[], None],
        joins: bool = False,
        posted: deque[Posted] | None = None,
    ) -> None:
        """`begin(durable, timeout_ms)` begins a transaction for the thread that has the turn.

        `wrap` makes of it what requests write into. `check` raises if the store cannot be used
        here. With `joins`, a request that comes while others are being written still joins their
        transaction. `posted` is shared with another writer of the same store.
        """
        self._begin = begin
        self._wrap = wrap
        self._turn = turn
        self._clock = clock
        self._wake = wake
        self._check = check
        self._joins = joins
        self._posted: deque[Posted] = deque() if posted is None else posted
        self._lock = threading.Lock()
        self._waiting: deque[_Ticket] = deque()
        self._led = False
        """Whether a thread waits for the turn, to write all that waits."""
        self._leader = 0
        """The thread that writes, if it has the turn."""
        self._batch: _Batch | None = None
        """What is being written; left here by a leader that was interrupted."""
        self._crowd = 1
        """How many durable requests shared the last transaction."""
        self._took = 0.0
        """How long that took, in seconds."""

    def submit(self, request: Request, timeout_ms: float) -> None:
        """Have a request written; returns when it is, and raises what kept it from being written.

        LockContentionError if others write, or hold the lease on long writes, for longer than
        `timeout_ms`. One transaction, shared with what waits at the same time.
        """
        self._check_thread()
        started = time.monotonic()
        outcome: _Outcome
        try:
            if self._write_at_once(request, timeout_ms):
                return
            [outcome] = self._write([_Ticket(request, alone=False)], started, timeout_ms)
        except HeldUp as held_up:
            outcome = held_up
        if outcome is not None:
            [error] = self._write_again([request], [outcome], started, timeout_ms)
            if error is not None:
                raise error

    def submit_all(
        self, requests: Sequence[Request], timeout_ms: float
    ) -> Sequence[Exception | None]:
        """Have requests written as if a thread had submitted each; what kept each from being written.

        They share transactions with each other and with what waits at the same time. If the calling
        thread is interrupted, so that this raises, each is written or not, and none will be later.
        """
        if len(requests) == 1:
            try:
                self.submit(requests[0], timeout_ms)
            except Exception as error:  # noqa: BLE001 - raised by the task whose it is
                return [error]
            return [None]
        self._check_thread()
        if not requests:
            return []
        started = time.monotonic()
        outcomes = self._write(
            [_Ticket(each, alone=False) for each in requests], started, timeout_ms
        )
        return self._write_again(requests, outcomes, started, timeout_ms)

    def _check_thread(self) -> None:
        """Raise unless the store can be used here, by a thread that does not write just now."""
        self._check()
        if self._leader == threading.get_ident() and self._turn.is_mine():
            raise RuntimeError("this thread has a write transaction open already")

    def _write_again(
        self,
        requests: Sequence[Request],
        outcomes: Sequence[_Outcome],
        started: float,
        timeout_ms: float,
    ) -> Sequence[Exception | None]:
        """Submit requests again until each is written or refused; what kept each from being written."""
        errors: list[Exception | None] = [None] * len(requests)
        numbers: Iterable[int] = range(len(requests))
        held_up = -1.0
        while True:
            again: list[tuple[int, bool]] = []
            held: list[tuple[int, str]] = []
            for number, outcome in zip(numbers, outcomes, strict=True):
                if isinstance(outcome, HeldUp):
                    held.append((number, outcome.holder))
                elif isinstance(outcome, Exception):
                    errors[number] = outcome
                elif outcome is not None:
                    again.append((number, outcome == "alone"))
            if held:
                held_up = self._clock.monotonic() if held_up < 0 else held_up
                waited = (self._clock.monotonic() - held_up) * 1000
                if waited >= timeout_ms:
                    for number, holder in held:
                        errors[number] = LockContentionError(holder, waited)
                else:
                    again += [(number, False) for number, _ in held]
                    self._clock.sleep(STEP)
                    started = time.monotonic()
            if not again:
                return errors
            numbers = [number for number, _ in again]
            tickets = [_Ticket(requests[number], alone=alone) for number, alone in again]
            outcomes = self._write(tickets, started, timeout_ms)

    def _write_at_once(self, request: Request, timeout_ms: float) -> bool:
        """Write it if there is nothing to share a transaction with; whether that was so.

        It is what a lone thread does all the time, so it has no use for tickets.
        """
        if self._waiting or self._crowd > 1 or self._turn.is_mine():
            return False
        me = threading.get_ident()
        try:
            if not self._turn.take_now():
                return False
            self._end_interrupted()
            if any(each.wants(request.durable) for each in tuple(self._posted)):
                return False
            self._leader = me
            with self._begin(request.durable, timeout_ms) as begun:
                tx = self._wrap(begun)
                request.look_ahead(tx)
                if request.context is None:
                    request.write(tx)
                else:
                    request.context.run(request.write, tx)
        finally:
            if self._leader == me:  # first, since an interrupt can come with any call
                self._leader = 0
            try:  # noqa: SIM105 - an interrupt could come in the call of `suppress`
                self._turn.release()
            except RuntimeError:  # it was not taken
                pass
        if request.announces:
            self._wake()
        return True

    def post(self, request: Posted) -> None:
        """Have a request written by the next transaction. Does not wait."""
        self._posted.append(request)

    def _write(self, tickets: list[_Ticket], started: float, timeout_ms: float) -> list[_Outcome]:
        """Have them written once; how each is to be submitted again, or None if it is written.

        One is waited for after the other. None before it waits for a leader any more, so the thread
        is there to lead when it is this one's turn to.
        """
        outcomes: list[_Outcome] = []
        try:
            with self._lock:
                self._waiting.extend(tickets)
                tickets[0].leads, self._led = not self._led, True
                if len(self._waiting) >= self._crowd:
                    _release(self._waiting[0].wake)
            for ticket in tickets:
                try:
                    outcomes.append(self._write_one(ticket, started, timeout_ms))
                except Exception as error:  # noqa: BLE001 - raised by `submit`
                    outcomes.append(error)
        except BaseException:
            for ticket in tickets[len(outcomes) :]:
                if not ticket.ended:
                    self._withdraw(ticket)
            raise
        return outcomes

    def _write_one(
        self, ticket: _Ticket, started: float, timeout_ms: float
    ) -> Literal["alone", "together"] | None:
        deadline = started + timeout_ms / 1000
        try:
            while (batch := ticket.batch) is None or not batch.ended:
                if ticket.leads:
                    self._lead(ticket, deadline)
                else:
                    self._follow(ticket, deadline, started)
        except BaseException:
            self._withdraw(ticket)
            raise
        if ticket.leads:  # another thread has taken it along before it could
            with self._lock:
                self._led = False
            self._promote()
        # What failed because of a neighbour that is not written either has not failed.
        error = batch.error or ticket.error
        if error is not None:
            raise error
        return batch.again

    def _follow(self, ticket: _Ticket, deadline: float, started: float) -> None:
        """Wait until it is written, or is to lead."""
        wait = _LOST
        if ticket.batch is None:
            now = time.monotonic()
            if now >= deadline and self._gives_up(ticket):
                waited = (now - started) * 1000
                raise LockContentionError("another thread of this process", waited)
            if deadline - now < wait:
                wait = max(0.001, deadline - now)
        if not ticket.wake.acquire(timeout=wait):
            ticket.leads = True  # the thread that was to lead may have been interrupted

    def _gives_up(self, ticket: _Ticket) -> bool:
        """Whether it still waits; then it does not any more. Else it is being written."""
        with self._lock:
            if ticket not in self._waiting:
                return False
            self._waiting.remove(ticket)
            return True

    def _withdraw(self, ticket: _Ticket) -> None:
        """Its thread waits no more. If another one is just writing it, that ends first."""
        with self._lock:
            with suppress(ValueError):
                self._waiting.remove(ticket)
            if ticket.leads:
                self._led = False
        self._promote()
        while ticket.batch is not None and not ticket.ended:
            if self._turn.is_mine():  # it led itself
                return
            with self._turn.taken():
                self._end_interrupted()

    def _promote(self) -> None:
        """Have another thread lead if requests wait and none does."""
        if not self._waiting:
            return
        with self._lock:
            if self._waiting and not self._led:
                following = self._waiting[0]
                following.leads = self._led = True
                _release(following.wake)

    # -- with the turn --------------------------------------------------------------------------

    def _lead(self, ticket: _Ticket, deadline: float) -> None:
        """Write all that waits, once no other thread writes."""
        batch: _Batch = _Batch()
        announces = False
        try:
            self._gather(ticket)
            try:
                self._turn.take(max(0.0, deadline - time.monotonic()) * 1000)
                self._end_interrupted()
                self._batch = batch
                self._take(batch)
                ticket.leads = False  # once; those who wait then are led by the first of them
                if batch.tickets:
                    self._leader = threading.get_ident()
                    began = time.monotonic()
                    try:
                        self._write_batch(batch, ticket, deadline)
                    finally:
                        self._leader = 0
                        self._took = time.monotonic() - began
                        self._crowd = batch.hard
                        batch.end()
                self._batch = None
            finally:
                try:  # noqa: SIM105 - an interrupt could come in the call of `suppress`
                    self._turn.release()
                except RuntimeError:  # it was not taken
                    pass
        except LockContentionError:
            if self._gives_up(ticket):
                raise
            ticket.leads = False  # meanwhile another thread has taken it along
            with self._lock:
                self._led = False
        finally:
            for each in batch.tickets:
                announces = announces or each.request.announces
                if each is not ticket:
                    _release(each.wake)
            self._promote()
        if announces:
            self._wake()

    def _gather(self, ticket: _Ticket) -> None:
        """Wait for the requests of as many threads as shared the last transaction.

        They were woken at the same time. To write for the first that is back would cost a sync,
        for which all others wait. If they do not come, that is as long as the last transaction
        took, once.
        """
        if ticket.request.durable and len(self._waiting) < self._crowd:
            ticket.wake.acquire(timeout=min(self._took, _GATHER))

    def _take(self, batch: _Batch) -> None:
        """Take along what waits, as far as there is room."""
        with self._lock:
            if batch.tx is None:
                self._led = False
            while self._waiting:
                # An interrupt can come in between: a ticket may be in both, never in neither.
                if self._waiting[0].batch is None:
                    if not batch.has_room(self._waiting[0]):
                        break
                    batch.add(self._waiting[0])
                self._waiting.popleft()

    def _write_batch(self, batch: _Batch, own: _Ticket, deadline: float) -> None:
        left = max(0.0, deadline - time.monotonic()) * 1000
        try:
            with self._begin(batch.durable, left) as begun:
                tx = batch.tx = self._wrap(begun)
                self._look_ahead(batch.tickets, tx)
                if self._posted and not batch.tickets[0].alone:
                    self._take_posted(batch)
                    self._write_posted(batch, tx)
                written = 0
                while written < len(batch.tickets):
                    tickets = batch.tickets[written:]
                    self._write_all(tickets, tx, own, isolated=batch.is_shared)
                    written += len(tickets)
                    if self._joins and self._waiting:
                        self._take(batch)
                        self._look_ahead(batch.tickets[written:], tx)
        except Apart:
            batch.submit_again("alone")
        except Exception as error:  # noqa: BLE001 - each thread raises what is its own
            failed = batch.tx
            if failed is None and not isinstance(error, DatabaseError):
                # It could not begin, but others may: they have more time left.
                batch.submit_again("together")
                if own.batch is batch:
                    own.error = error
            elif failed is not None and failed.committed:
                pass
            elif (
                failed is not None
                and batch.is_shared
                and not isinstance(error, ConnectionLostError)
            ):
                batch.submit_again("alone")  # a server may refuse a statement only at the end
            else:
                batch.error = error
        except BaseException:
            batch.interrupted()
            raise

    def _take_posted(self, batch: _Batch) -> None:
        with suppress(IndexError):  # another writer may take them, too
            for _ in range(len(self._posted)):
                request = self._posted.popleft()
                if not request.wants(batch.durable):
                    self._posted.append(request)
                    continue
                batch.posted.append((request, []))
                if not request.take():
                    batch.posted.pop()

    def _look_ahead(self, tickets: list[_Ticket], tx: Transaction) -> None:
        """Ask what the requests need to know, and wait for the lock that all of them need."""
        for ticket in tickets:
            ticket.request.look_ahead(tx)
        tx.begin_requests()

    def _write_posted(self, batch: _Batch, tx: Transaction) -> None:
        for request, failed in batch.posted:
            before = tx.written
            try:
                request.write(tx)
            except Exception as error:
                failed.append(error)
                if tx.has_written(before, error):
                    raise Apart from error

    def _write_all(
        self, tickets: list[_Ticket], tx: Transaction, own: _Ticket, *, isolated: bool
    ) -> None:
        if not isolated:
            [each] = tickets
            _run(each, tx, own)
            return
        for each in tickets:
            before = tx.written
            try:
                _run(each, tx, own)
            except Exception as error:
                if tx.has_written(before, error):
                    raise Apart from error
                each.error = error

    def _end_interrupted(self) -> None:
        """Give definite answers to the requests of a leader that was interrupted."""
        batch = self._batch
        if batch is not None:
            batch.interrupted()
            batch.end()
            self._batch = None
            for each in batch.tickets:
                _release(each.wake)


def _run(ticket: _Ticket, tx: Transaction, own: _Ticket) -> None:
    if ticket is own and ticket.request.context is None:
        ticket.request.write(tx)
    else:
        ticket.context.run(ticket.request.write, tx)


def _release(lock: threading.Lock) -> None:
    try:  # noqa: SIM105 - `suppress` takes as long as waking the thread
        lock.release()
    except RuntimeError:  # it was woken before, and has not noticed yet
        pass
