"""Processes that migrate in the background, and those that write meanwhile, for tests that kill them."""

from __future__ import annotations

from typing import Any

from ontologia import Entity, Field, OntologiaConfig, Session
from ontologia.errors import SchemaOutdatedError
from ontologia.runtime.session import core_of
from ontologia.store import staging
from tests.faults.workers import listen, note, say

LEASE_MS = 200


class Meter(Entity):
    id: Field[str]
    reading: Field[int]


class Counter(Entity, name="Meter"):
    id: Field[str]
    count: Field[int]


def counted(fields: dict[str, Any]) -> dict[str, Any]:
    return {"id": fields["id"], "count": 10 * fields["reading"]}


def fill(uri: str, objects: int) -> None:
    with Session(uri) as session:
        for first in range(0, objects, 10_000):
            numbers = range(first, min(objects, first + 10_000))
            session.ensure([Meter(id=f"{number:07}", reading=number) for number in numbers])
            session.commit()


def open_new(uri: str) -> Session:
    config = OntologiaConfig(migration_at_once=0, lock_lease_ms=LEASE_MS)
    return Session(uri, entity_types=[Counter], upgraders={("Meter", 1): counted}, config=config)


def migrate(uri: str) -> None:
    """Migrate, and tell each step."""
    with open_new(uri) as session:
        session.migrate(dry_run=False, force=True, progress=lambda now: say("at", now.step))


def migrate_until_statement(uri: str, number: int) -> None:
    """Stop before this statement of the connection that writes, counted from the migration on."""
    staging.PAGE = 3
    with open_new(uri) as session:
        left = number

        def look(_cursor: Any, _sql: str, _bindings: Any) -> bool:
            nonlocal left
            left -= 1
            if left == 0:
                say("inside")
                listen()
            return True

        core_of(session).store.database.writer.exec_trace = look
        session.migrate(dry_run=False, force=True)
        say("done", left)


def write(uri: str, name: str) -> None:
    """Commit as a program of the old version does, until that ends; each commit is noted when it returned."""
    with Session(uri, entity_types=[Meter]) as session:
        say("running")
        number = 0
        while True:
            number += 1
            session.ensure(Meter(id=f"{name}-{number % 50}", reading=number))
            try:
                session.commit()
            except SchemaOutdatedError:
                session.discard()
                break
            note("wrote", str(number))
