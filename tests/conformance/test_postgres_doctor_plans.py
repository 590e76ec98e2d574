"""On PostgreSQL, too, what `doctor` reads grows with what is stored, and not with its square."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from psycopg import pq

from ontologia import Session
from ontologia.store.postgres import database
from tests.conformance.test_postgres_plans import parts
from tests.plans.test_doctor_plans import looked, mended

_REMOVED = ("Rows Removed by Filter", "Rows Removed by Join Filter")
_READS = ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")


class Work:
    """Rows that all statements of `doctor` have read, step by step, as the server counted them."""

    def __init__(self) -> None:
        self.rows = 0.0
        self._plain = database.plain

    def plain(self, connection: Any, sql: str, bindings: Any) -> Any:
        text = "\n".join(line for line in sql.splitlines() if not line.startswith("--")).strip()
        if text.startswith(_READS):
            self._measure(connection, text, bindings)
        return self._plain(connection, sql, bindings)

    def _measure(self, connection: Any, sql: str, bindings: Any) -> None:
        """Run it, and take it back."""
        within = connection.pgconn.transaction_status == pq.TransactionStatus.INTRANS
        if within:
            self._plain(connection, "SAVEPOINT measured", ())
        explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}"
        [(found,)] = self._plain(connection, explained, bindings)
        if within:
            self._plain(connection, "ROLLBACK TO measured", ())
        for step in parts(found[0]["Plan"]):
            removed = sum(step.get(name, 0) for name in _REMOVED)
            self.rows += (step["Actual Rows"] + removed) * step["Actual Loops"]

    def of(self, action: Callable[[], object]) -> float:
        self.rows = 0.0
        action()
        return self.rows


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    work = Work()
    monkeypatch.setattr(database, "plain", work.plain)
    return work


@pytest.fixture
def bury(direct: Callable[..., Any]) -> Callable[..., None]:
    """So many more dead letters; broken ones have a second letter, and were acknowledged as well."""

    def more(prefix: str, many: int, *, broken: bool = False) -> None:
        ids = f"SELECT '{prefix}' || n AS id FROM generate_series(1, {many}) n"
        acked = "'2026'" if broken else "NULL"
        direct(
            f"INSERT INTO events(id, namespace, type, payload, created_at, root_event_id) "
            f"SELECT id, 'default', 'lost', '{{}}', '2026', id FROM ({ids}) t"
        )
        direct(
            f"INSERT INTO event_claims(event_id, handler_id, session_id, claimed_at, lease_until, "
            f"available_at, consumer_id, dead_lettered_at, ack_at) SELECT id, 'ship', 's1', '2026', "
            f"'2026', '2026', 1, '2026', {acked} FROM ({ids}) t"
        )
        for _ in range(2 if broken else 1):
            direct(
                f"INSERT INTO dead_letters(event_id, handler_id, namespace, failed_at, attempts, "
                f"last_error, event_type, event_payload, root_event_id, chain_depth) SELECT id, "
                f"'ship', 'default', '2026', 1, 'x', 'lost', '{{}}', '', 0 FROM ({ids}) t"
            )

    return more


def test_dead_letters_are_read_once_each(
    session: Session, work: Work, bury: Callable[..., None]
) -> None:
    bury("a", 300)
    few = work.of(lambda: looked(session))
    bury("b", 900)

    assert few >= 300
    assert work.of(lambda: looked(session)) < 6 * few


def test_dead_letters_are_mended_by_as_little_work(
    session: Session, work: Work, bury: Callable[..., None]
) -> None:
    bury("a", 300, broken=True)
    few = work.of(lambda: mended(session))
    bury("b", 1_200, broken=True)
    found: dict[str, int] = {}

    many = work.of(lambda: found.update(mended(session)))

    assert (found["letters"], found["endings"]) == (1_200, 1_200)
    assert few >= 300
    assert many < 6 * few
