"""What a store is, what is in it by name, and what carries events in and out of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ontologia.clock import from_text
from ontologia.runtime.session import core_of
from ontologia.store.events.activity import UNLIMITED

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

_RELAY = "relay:"


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """The database, and how far it is."""

    uri: str
    """Without a password."""
    backend: str
    durability: str | None
    """The server's settings on which it rests; None where there is no server."""
    layout: int
    bytes: int
    head: int
    """The number of the last commit; 0 on an empty store."""
    last_commit_at: datetime | None


@dataclass(frozen=True, slots=True)
class RelayRow:
    """A relay of the namespace."""

    uri: str
    lag: int
    """What waits for it, is claimed and in backoff."""


@dataclass(frozen=True, slots=True)
class IntakeRow:
    """An intake of the namespace."""

    uri: str
    lag: int
    """What was left of its source when it last stored something."""
    as_of: datetime


def store_facts(session: Session) -> StoreFacts:
    """What the store is. Two reads, whatever is in it."""
    store = core_of(session).store
    about = store.inventory.about()
    last = session.list_commits(limit=1)
    return StoreFacts(
        store.uri,
        about.backend,
        about.durability,
        about.layout,
        about.bytes,
        last[0]["id"] if last else 0,
        last[0]["created_at"] if last else None,
    )


def namespaces(session: Session, *, most: int = 1_000) -> list[str]:
    """Namespaces with events, consumers, sessions or dead letters, by name.

    Costs a seek for each of the first `most`; nothing in them is looked at.
    """
    return session.event_store.listings.named_namespaces(most)


def relays(session: Session) -> list[RelayRow]:
    """The relays of the namespace, by URI. Costs what waits for consumers."""
    names = {each["name"] for each in session.event_store.list_consumers(session.namespace)}
    if not any(name.startswith(_RELAY) for name in names):
        return []
    return [
        RelayRow(load.name.removeprefix(_RELAY), load.waiting + load.claimed + load.backoff)
        for load in session.event_store.activity.loads(session.namespace, UNLIMITED)
        if load.name.startswith(_RELAY)
    ]


def intakes(session: Session) -> list[IntakeRow]:
    """The intakes of the namespace. Costs the parts of their sources."""
    found: dict[str, IntakeRow] = {}
    for each in session.event_store.intakes.listed(session.namespace):
        at, known = from_text(each["updated_at"]), found.get(each["source"])
        lag = each["behind"] + (0 if known is None else known.lag)
        latest = at if known is None else max(at, known.as_of)
        found[each["source"]] = IntakeRow(each["source"], lag, latest)
    return list(found.values())
