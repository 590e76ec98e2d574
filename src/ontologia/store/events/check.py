"""The invariants of the event store, as questions to the database.

Each statement of `check.sql` finds the rows that break one rule; a sound store finds none.
"""

from __future__ import annotations

from collections.abc import Mapping

from ontologia.store.database import Database

RULES = {
    "one_place": "an event is in exactly one place for each subscribed consumer",
    "due_while_leased": "due_at is lease_until while leased and available_at in backoff",
    "nothing_due_when_finished": "a finished claim waits for nothing",
    "one_ending": "a claim is acked or buried, not both",
    "claims_have_events": "claims, ready and incoming name events that exist",
    "dead_letters_are_claims": "what is buried has not more than one dead letter",
    "attempts_are_counted": "no claim has fewer attempts than are on record",
    "started_claims": "a claim that was started knows at which commit, and when",
}


def broken_rules(database: Database, sql: Mapping[str, str]) -> list[str]:
    """What is wrong, one line a row; [] for a sound store. Reads all retained events."""
    found: list[str] = []
    with database.read() as tx:
        for name, rule in RULES.items():
            rows = tx.all(sql[name])
            found += [f"{rule}: {', '.join(map(str, row))}" for row in rows]
    return found
