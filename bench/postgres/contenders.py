"""Who takes part: ours and bare. `ontologia bench` has the queues a user might pick instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from signal import SIG_IGN, SIGTERM, signal
from typing import Protocol

from bench.processes import Worker, begin
from ontologia import Session
from ontologia.bench import bare_postgres as bare
from ontologia.bench.orders import NOTHING, announce, fields, make_orders, open_orders, placed


class Producer(Protocol):
    """Stores events, on a connection that is open already."""

    def each(self, numbers: range) -> None:
        """One transaction for each event."""
        ...

    def together(self, numbers: range) -> None:
        """All of them at once."""
        ...


class Contender(Protocol):
    """A queue with tables of its own in a database of its own."""

    name: str
    stored: str
    """Asks how many events were stored and are not finished."""
    left: str
    """Asks whether any event is not finished; often, so it should not read past dead rows."""
    finished: str
    """Asks how many events were handled."""

    def make(self, uri: str) -> None:
        """The tables."""
        ...

    def ready(self, uri: str) -> None:
        """What may be done before a drain is measured."""
        ...

    def producing(self, uri: str) -> AbstractContextManager[Producer]: ...

    def worker(self, uri: str) -> Worker:
        """A process that handles events until it is stopped, and says `handled` then."""
        ...


def fill(contender: Contender, uri: str, count: int) -> None:
    """A database with events that wait."""
    contender.make(uri)
    with contender.producing(uri) as producer:
        producer.together(range(count))
    contender.ready(uri)


class Ours:
    name = "ours"
    stored = "SELECT COUNT(*) FROM ontologia.incoming"
    left = (
        "SELECT (SELECT MAX(seq) FROM ontologia.incoming) IS NOT NULL "
        "OR EXISTS (SELECT 1 FROM ontologia.ready) "
        "OR EXISTS (SELECT 1 FROM ontologia.event_claims WHERE due_at IS NOT NULL)"
    )
    finished = "SELECT COUNT(*) FROM ontologia.event_claims WHERE ack_at IS NOT NULL"

    def make(self, uri: str) -> None:
        make_orders(uri)

    def ready(self, uri: str) -> None:
        """Handing out is part of what is measured."""

    @contextmanager
    def producing(self, uri: str) -> Iterator[Producer]:
        with open_orders(uri) as session:
            yield _Sessions(session)

    def worker(self, uri: str) -> Worker:
        return Worker("drain", uri)


class _Sessions:
    def __init__(self, session: Session) -> None:
        self._session = session

    def each(self, numbers: range) -> None:
        for number in numbers:
            self._session.commit(event=placed(number))

    def together(self, numbers: range) -> None:
        announce(self._session, len(numbers))


class Bare:
    """On the same tables. An acknowledgement is on the disk when the next batch comes."""

    name = "bare"
    stored, left, finished = Ours.stored, Ours.left, Ours.finished

    def make(self, uri: str) -> None:
        make_orders(uri)

    def ready(self, uri: str) -> None:
        with bare.connected(uri) as connection:
            bare.hand_out(bare.open_queue(connection, NOTHING))

    @contextmanager
    def producing(self, uri: str) -> Iterator[Producer]:
        with bare.connected(uri) as connection:
            yield _Statements(connection)

    def worker(self, uri: str) -> Worker:
        return Worker(self.name, uri, "bench.postgres.worker")

    def drain(self, uri: str) -> int:
        signal(SIGTERM, SIG_IGN)  # it ends by itself, with the last event
        with bare.connected(uri) as connection:
            queue = bare.open_queue(connection, NOTHING)
            begin()
            return bare.drain(queue)


class _Statements:
    def __init__(self, connection: bare.Connection) -> None:
        self._connection = connection

    def each(self, numbers: range) -> None:
        for number in numbers:
            bare.announce(self._connection, fields(number))

    def together(self, numbers: range) -> None:
        bare.announce_all(self._connection, map(fields, numbers))
