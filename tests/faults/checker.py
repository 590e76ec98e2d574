"""What must hold in a store after whatever has happened to it, as one list of what does not.

It reads the tables of a database that real processes have left behind, and knows the world of
`workers`: who consumes what, and what comes of it. A sound store, in which everything that a
caller was told of is there, gives `[]`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import apsw

from ontologia import OntologiaConfig, Session
from ontologia.clock import SYSTEM_CLOCK
from ontologia.runtime.session import core_of
from ontologia.store.doctor import examine
from ontologia.store.findings import Severity
from tests import servers
from tests.faults.workers import CONSUMERS

UNFINISHED = """
SELECT (SELECT COUNT(*) FROM incoming) + (SELECT COUNT(*) FROM ready)
     + (SELECT COUNT(*) FROM event_claims WHERE due_at IS NOT NULL)
"""
_COMMITTED = "SELECT entity_key FROM entity_latest WHERE entity_type = 'Order'"
_ANNOUNCED = """
SELECT payload FROM events WHERE type = 'faults.placed'
UNION ALL SELECT payload FROM deferred_events
 WHERE topic = 'faults.placed' AND status = 'scheduled'
"""
# A follow-up is stored with the acknowledgement of its cause: as many as were acknowledged.
_FOLLOWED = """
SELECT e.id, k.ack_at IS NOT NULL,
       (SELECT COUNT(*) FROM events f WHERE f.causation_id = e.id AND f.type = 'faults.shipped')
  FROM events e LEFT JOIN event_claims k ON k.event_id = e.id AND k.handler_id = 'receipt'
 WHERE e.type = 'faults.placed'
"""
_MISCOUNTED = """
SELECT k.event_id, k.handler_id, k.attempts FROM event_claims k
 WHERE k.attempts <> (SELECT COUNT(*) FROM attempts a
                       WHERE a.event_id = k.event_id AND a.handler_id = k.handler_id)
"""
_VERSIONS = """
SELECT entity_type, entity_key, COUNT(*) FROM entity_history
 WHERE entity_type IN ('Order', 'Receipt', 'Parcel') GROUP BY 1, 2
"""


def ask(path: Path | str, sql: str) -> list[tuple[Any, ...]]:
    """Ask a store's tables themselves; a file through the copy of SQLite that the store has."""
    if str(path).startswith("postgresql://"):
        return servers.ask(str(path), sql)
    database = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    database.set_busy_timeout(10_000)
    try:
        return database.execute(sql).fetchall()
    finally:
        database.close()


def problems(
    path: Path | str, *, committed: Collection[str] = (), announced: Collection[str] = ()
) -> list[str]:
    """What is wrong at any time, also in the middle of work.

    `committed` are the orders, `announced` the numbers of events, of calls that have returned.
    """
    return [
        *unsound(path),
        *_lost(path, committed, announced),
        *_not_followed(path),
        *_overtaken(path),
        *(f"attempts are miscounted: {row}" for row in ask(path, _MISCOUNTED)),
        *(f"written twice: {row}" for row in ask(path, _VERSIONS) if row[2] != 1),
    ]


def problems_at_the_end(
    path: Path | str, *, committed: Collection[str] = (), announced: Collection[str] = ()
) -> list[str]:
    """The same, and what was not done, or not once, when there is nothing left to do."""
    return [
        *problems(path, committed=committed, announced=announced),
        *(f"{left} unfinished" for (left,) in ask(path, UNFINISHED) if left),
        *(f"buried: {row}" for row in ask(path, "SELECT event_id, last_error FROM dead_letters")),
        *_not_acked(path),
        *_without_result(path),
    ]


def unsound(path: Path | str) -> Iterator[str]:
    """The rules of delivery, history and what is derived from it, and the file itself."""
    with Session(str(path)) as session:
        # Long-dead sessions and the like are not what is looked for: an error breaks a promise.
        for found in examine(core_of(session).store, SYSTEM_CLOCK, OntologiaConfig()):
            if found.severity is Severity.error:
                yield f"{found.what}: {found.where} ({found.count})"
    if isinstance(path, Path):
        for pragma, wanted in (("integrity_check", [("ok",)]), ("foreign_key_check", [])):
            answer = ask(path, f"PRAGMA {pragma}")
            if answer != wanted:
                yield f"{pragma}: {answer}"


def _lost(
    path: Path | str, committed: Collection[str], announced: Collection[str]
) -> Iterator[str]:
    stored = {key for (key,) in ask(path, _COMMITTED)}
    yield from (f"order {each} was committed, and is lost" for each in set(committed) - stored)
    numbers = Counter(json.loads(payload)["number"] for (payload,) in ask(path, _ANNOUNCED))
    yield from (
        f"event {each} was announced, and is lost" for each in announced if not numbers[each]
    )
    yield from (f"event {each} is there {n} times" for each, n in numbers.items() if n > 1)


def _not_followed(path: Path | str) -> Iterator[str]:
    for event_id, acked, follow_ups in ask(path, _FOLLOWED):
        if int(acked or 0) != follow_ups:
            yield f"{event_id}: acknowledged {bool(acked)}, with {follow_ups} follow-ups"


def _overtaken(path: Path | str) -> Iterator[str]:
    """Commits of an attempt after a later attempt has written: by somebody without a lease."""
    newest: dict[tuple[str, str], int] = {}
    for commit, metadata in ask(path, "SELECT id, metadata_json FROM commits ORDER BY id"):
        made_by = json.loads(metadata)
        if "attempt" in made_by:
            pair, attempt = (made_by["event_id"], made_by["handler_id"]), made_by["attempt"]
            if attempt < newest.setdefault(pair, attempt):
                yield f"commit {commit} of attempt {attempt} at {pair}, after {newest[pair]}"
            newest[pair] = attempt


def _not_acked(path: Path | str) -> Iterator[str]:
    """Pairs of event and consumer that are not acknowledged: those of one are at most one row."""
    for event_type, consumers in CONSUMERS.items():
        rows = ask(
            path,
            f"""SELECT e.id, k.handler_id FROM events e LEFT JOIN event_claims k
                ON k.event_id = e.id AND k.ack_at IS NOT NULL WHERE e.type = '{event_type}'""",
        )
        acked: dict[str, list[str]] = {}
        for event_id, handler_id in rows:
            acked.setdefault(event_id, []).append(str(handler_id))
        for event_id, names in acked.items():
            if not set(consumers) <= set(names):
                yield f"{event_type} {event_id} is acknowledged by {names}, not by {consumers}"


def _without_result(path: Path | str) -> Iterator[str]:
    """One receipt and one parcel for each event, and none that nobody asked for."""
    placed = sorted(
        json.loads(payload)["number"]
        for (payload,) in ask(path, "SELECT payload FROM events WHERE type = 'faults.placed'")
    )
    versions = ask(path, _VERSIONS)
    for kind in ("Receipt", "Parcel"):
        keys = sorted(key for entity_type, key, _ in versions if entity_type == kind)
        if keys != placed:
            yield f"{kind}: {len(keys)} for {len(placed)} events, {set(keys) ^ set(placed)}"
