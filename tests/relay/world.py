"""Events that the tests of relays send, and short ways to look at what came of them."""

from __future__ import annotations

from typing import Any

import pytest

from ontologia import Event, Field, Session
from ontologia.errors import BrokerError, ConnectionLostError
from ontologia.relay import Intake, Relay
from ontologia.runtime.session import core_of
from ontologia.store.rows import EventRow


class BarrelFilled(Event):
    number: Field[int]


class BarrelEmptied(Event):
    number: Field[int]


FILLED, EMPTIED = BarrelFilled.__event_type__, BarrelEmptied.__event_type__


def emit(session: Session, *numbers: int, **given: Any) -> list[str]:
    """Store a BarrelFilled for each number, with what else is given of it; their ids."""
    events = [BarrelFilled(number=number) for number in numbers]
    for event in events:
        vars(event).update(given)
        session.event_store.enqueue(event, session.namespace)
    return [str(event.id) for event in events]


def stored(session: Session, event_type: str | None = None) -> list[EventRow]:
    """The events of a session's namespace, in the order in which they were stored."""
    store = core_of(session).store
    names = ", ".join(EventRow._fields)
    rows = store.database.all(  # type: ignore[attr-defined]
        f"SELECT {names} FROM {_schema(session)}events WHERE namespace = '{session.namespace}' ORDER BY seq"
    )
    found = [EventRow(*row) for row in rows]
    return [row for row in found if event_type in (None, row.type)]


def _schema(session: Session) -> str:
    schema = getattr(core_of(session).store.database, "schema", None)  # type: ignore[attr-defined]
    return f'"{schema}".' if schema else ""


def ids(session: Session, event_type: str | None = FILLED) -> list[str]:
    return [row.id for row in stored(session, event_type)]


def carry(here: Session, place: str, there: Session, **options: Any) -> Intake:
    """Send all that one session's namespace has, and store it in another's."""
    Relay(here, place, **options).run_until_empty()
    intake = Intake(there, place)
    intake.run_until_empty()
    return intake


def send_without_ack(here: Session, place: str) -> None:
    """Send all that a session's namespace has, by a relay that ends before it acks."""
    relay = Relay(here, place)
    send = relay._target.send

    def send_and_end(messages: Any, stopped: Any) -> Any:
        send(messages, stopped)
        raise BrokerError("the relay ends here")

    relay._target.send = send_and_end  # type: ignore[method-assign]
    with pytest.raises(BrokerError, match="ends here"):
        relay.run_until_empty()


class Listing:
    """A target in this process: what it was sent, in order."""

    def __init__(self, uri: str = "listing") -> None:
        self.uri = uri
        self.sent: list[str] = []
        self.away = 0
        """How many times it cannot be reached."""
        self.refuses: set[str] = set()
        self.on_send = lambda messages: None

    def open(self) -> None:
        pass

    def send(self, messages, stopped):
        self.on_send(messages)
        if self.away:
            self.away -= 1
            raise ConnectionLostError("the listing is away")
        self.sent += [each.id for each in messages if each.id not in self.refuses]
        return {at: "no" for at, each in enumerate(messages) if each.id in self.refuses}

    def close(self) -> None:
        pass
