"""What `store.doctor` asks of PostgreSQL alone: dead rows, long transactions, settings, the clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ontologia.store.findings import Check, Finding, Severity
from ontologia.store.postgres.clock import ServerClock
from ontologia.store.postgres.notation import statements
from ontologia.store.postgres.place import qualified

OWN = (
    Check(
        "bloat",
        Severity.warning,
        "more dead rows than live ones",
        "VACUUM (ANALYZE) the table; if that does not help, look for long transactions.",
    ),
    Check(
        "long_transactions",
        Severity.warning,
        "a transaction is open for more than a minute",
        "Find out who has it; SELECT pg_terminate_backend(pid) ends it.",
    ),
    Check(
        "unsafe_settings",
        Severity.warning,
        "the server keeps less than it confirms: a crash of its machine can lose commits, or "
        "damage the database",
        "Set it to on in the server's configuration; fsync needs a restart.",
    ),
    Check(
        "soft_commits",
        Severity.info,
        "synchronous_commit is off for this role, database or server",
        "Ontologia sets it to on for its commits and events; other programs may rely on it.",
    ),
)


def sql_of(store: Any) -> Mapping[str, str]:
    """The statements of `doctor.sql`, for the schema of this store."""
    return qualified(statements("doctor.sql"), store.database.schema)


def surroundings(store: Any) -> Iterator[Finding]:
    """What is wrong around the tables."""
    clock = store.clock
    limit = store.config.event_claim_lease_ms / 10_000
    if isinstance(clock, ServerClock) and abs(clock.skew) > limit:
        way = "behind" if clock.skew > 0 else "ahead of"
        yield Finding(
            Severity.warning,
            "clock_skew",
            f"this machine's clock is {abs(clock.skew):.1f} s {way} the server's",
            store.uri,
            1,
            "Synchronise both (NTP). Sessions go by the server's clock.",
        )
