"""What is wrong with a store, and making again what is derived.

`examine` asks one question after the other, each a snapshot of its own, and changes nothing. It
reads the whole history and every retained event: minutes on a large store, during which others
may work. `repair` is one transaction in which nobody else writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from shlex import quote
from typing import TYPE_CHECKING, Any

from ontologia.clock import Clock, to_text
from ontologia.delivery.dead_letter import EventDeadLetter
from ontologia.store.events.check import RULES
from ontologia.store.findings import Check, Finding, Severity
from ontologia.store.open import is_postgres
from ontologia.store.protocol import Store

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig


REPAIR = "ontologia doctor --repair"
"""In the remedy of what a repair mends."""
_RESTORE = "Nothing can make it again: restore a backup, or export what is there."
CHECKS = (
    Check("damage", Severity.error, "the database is damaged", _RESTORE),
    Check("orphans", Severity.error, "history without its commit", _RESTORE),
    Check("commit_gaps", Severity.error, "numbers of commits are missing", _RESTORE),
    Check(
        "duplicates",
        Severity.warning,
        "a key was written twice in one commit",
        "The last one counts. Files of other programs may have it; nothing needs to be done.",
    ),
    Check("entity_latest", Severity.error, "current entities are not what history says", REPAIR),
    Check("relation_latest", Severity.error, "current relations are not what history says", REPAIR),
    Check("unknown_versions", Severity.error, "history of a schema version that is not there", _RESTORE),
    Check("version_gaps", Severity.warning, "schema versions are missing", _RESTORE),
    Check(
        "registry",
        Severity.error,
        "the registered schema is not the newest version",
        "Run ontologia migrate with the classes of the program.",
    ),
    Check(
        "old_versions",
        Severity.warning,
        "current objects of an older schema version",
        "Run ontologia migrate with the classes of the program.",
    ),
    Check(
        "stalled_migration",
        Severity.warning,
        "a migration was broken off, and no session continues it",
        "Run ontologia migrate --apply with the program that began it, which goes on from there. Before "
        "its switch, ontologia migrate --abort takes it back.",
    ),
    Check("running_migration", Severity.info, "a migration is being made", "Wait for it."),
    Check("expired_locks", Severity.info, "a lock whose time is over", f"The next writer takes it; {REPAIR} drops it."),
    Check(
        "dead_sessions",
        Severity.info,
        "sessions that neither ended nor said anything lately",
        f"They died, or do not run handlers. {REPAIR} drops those of long ago.",
    ),
    Check("without_consumer", Severity.error, "deliveries to a consumer that is not there", REPAIR),
    Check("without_event", Severity.error, "records of an event that is not there", REPAIR),
    Check(
        "unconsumed",
        Severity.warning,
        "events of a type that no consumer subscribes to; they are collected after the retention time",
        "If the class was renamed, give it the old type: class NewName(Event, name=...). Otherwise run a "
        "handler for them, or delete the old ones: "
        "ontologia events cleanup --namespace {} --type {} --before 30d",
    ),
    Check(
        "unclaimed_types",
        Severity.warning,
        "events wait for a consumer whose running program has no handler for their type",
        "If the class was renamed, give it the old type: class NewName(Event, name=...). Otherwise "
        "delete them: ontologia events cleanup --namespace {} --type {} --before 0s",
    ),
    Check(
        "dead_letters",
        Severity.warning,
        "dead letters: events that a handler could not process",
        "ontologia events dead-letters --namespace {} says why; events retry gives them back, "
        "events dismiss takes them off the list.",
    ),
    Check(
        "overdue",
        Severity.warning,
        "a handler began events and did not end before their lease; no worker has claimed them again",
        "Run more workers, or look where the handler hangs. timeout= and lease= of @on_event say how "
        "long it may take.",
    ),
    Check(
        "abandoned_threads",
        Severity.warning,
        "threads of a worker are stuck in handlers past their timeouts",
        "The worker goes on without them, and ends with exit code 7 once they are more than "
        "max_abandoned_threads. Its log says where they hang.",
    ),
    Check(
        "unseen_consumers",
        Severity.warning,
        "a consumer that nobody runs any more; its events are waiting",
        "Run its handler, or: ontologia events forget NAME",
    ),
)  # fmt: skip
MENDING = (
    *("locks", "sessions", "subscriptions", "attempts", "restored", "dedup", "claims", "letters"),
    *(
        "endings",
        "counts",
        "starts",
        "finished",
        "due",
        "incoming",
        "ready_gone",
        "waiting",
        "ready",
    ),
)
"""The order matters: a claim is put right before anything is compared with it."""


def steps(store: Store) -> int:
    """How often `examine` tells its `progress`."""
    return len(CHECKS) + len(_backend(store).OWN) + len(RULES) + 1


def examine(
    store: Store,
    clock: Clock,
    config: OntologiaConfig,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Finding]:
    """Everything that is wrong, as it is found; `progress` is told what is looked at."""
    opened: Any = store
    backend: Any = _backend(store)
    database: Any = opened.database
    sql = backend.sql_of(store)
    facts = _facts(clock, config)
    for check in (*CHECKS, *backend.OWN):
        progress(check.what)
        for where, count, *names in database.all(sql[check.name], facts):
            remedy = check.remedy.format(*map(quote, names))
            yield Finding(check.severity, check.name, check.what, where, int(count), remedy)
    yield from _broken_rules(opened.event_sql, database, progress)
    progress("the database itself")
    yield from backend.surroundings(store)


def repair(
    store: Store, clock: Clock, config: OntologiaConfig, metadata: Mapping[str, Any]
) -> tuple[dict[str, int], int | None]:
    """Make again what is derived, in one transaction; what was mended, and the commit that says so.

    The current state comes from the history; what waits for whom comes from events, claims and
    subscriptions. Locks that expired and sessions silent for as long as events are kept are
    dropped. Where nothing is to be mended nothing is written. LockContentionError if others
    write for longer than `lock_timeout_ms`.
    """
    backend: Any = _backend(store)
    sql = backend.sql_of(store)
    facts = _facts(clock, config)
    mended: dict[str, int] = {}
    with store.write() as transaction:
        tx = transaction.tx
        tx.lock_dispatch(wait=True)
        tx.run(sql["begin_repair"])
        wrong = {
            name: sum(int(row[1]) for row in tx.all(sql[name]))
            for name in ("entity_latest", "relation_latest")
        }
        if any(wrong.values()):
            tx.run(sql["rebuild_latest"])
        mended |= wrong
        for step in MENDING:
            mended[step] = tx.run(sql[f"mend_{step}"], facts)
        mended = {name: count for name, count in mended.items() if count}
        if not mended:
            return {}, None
        commit = transaction.write_commit([], metadata={**metadata, "mended": mended}, versions={})
    store.events.wake()
    return mended, commit


def _backend(store: Store) -> Any:
    if is_postgres(store.uri):
        from ontologia.store.postgres import doctor as postgres

        return postgres
    from ontologia.store.sqlite import doctor as sqlite

    return sqlite


def _facts(clock: Clock, config: OntologiaConfig) -> dict[str, str]:
    """What the statements may ask for: times, and the type that needs no consumer."""
    now = clock.now()
    return {
        "now": to_text(now),
        "silent_since": to_text(now - timedelta(milliseconds=config.session_ttl_ms)),
        "long_ago": to_text(now - timedelta(milliseconds=config.event_retention_ms)),
        "collected": EventDeadLetter.__event_type__,
    }


def _broken_rules(
    sql: Mapping[str, str], database: Any, progress: Callable[[str], None]
) -> Iterator[Finding]:
    """What `event_store.check()` finds, counted: one finding a rule, with the first row."""
    for name, rule in RULES.items():
        progress(rule)
        question = sql[name].rstrip().removesuffix(";")
        [(count,)] = database.all(f"SELECT COUNT(*) FROM ({question}) AS broken")
        if count:
            first = database.all(f"SELECT * FROM ({question}) AS broken LIMIT 1")
            where = ", ".join(str(value) for row in first for value in row)
            yield Finding(
                Severity.error, name, f"broken: {rule}", f"first {where}", int(count), REPAIR
            )
