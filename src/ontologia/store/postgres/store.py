"""The store on PostgreSQL: for now the event store alone, without state."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from ontologia.clock import Clock
from ontologia.store.events.store import SqlEventStore
from ontologia.store.named import statements
from ontologia.store.postgres.claiming import PostgresDialect
from ontologia.store.postgres.database import Database
from ontologia.store.postgres.layout import prepare
from ontologia.store.postgres.place import place_of, qualified

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig

_PACKAGE = "ontologia.store.postgres"
_EVENTS = {
    name: body
    for part in ("events", "claims", "listings", "retention", "sessions", "check")
    for name, body in statements(_PACKAGE, f"{part}.sql").items()
}


class PostgresStore:
    """One schema of a PostgreSQL database; `store.protocol.EventStore` says what `events` promises."""

    def __init__(self, uri: str, config: OntologiaConfig, clock: Clock, random: Random) -> None:
        place = place_of(uri)
        self.uri = uri
        self._database = Database(place, timeout_ms=config.lock_timeout_ms)
        sql = qualified(_EVENTS, place.schema)
        self.events = SqlEventStore(
            self._database,
            sql,
            PostgresDialect(sql),
            config=config,
            clock=clock,
            random=random,
            wake=_nobody,
        )
        try:
            prepare(self._database)
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        self._database.close()


def _nobody() -> None:
    """Nobody waits on this store yet: loops come with state."""
