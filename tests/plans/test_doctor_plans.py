"""What `doctor` costs grows with what is stored, and not with its square. No clock is involved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ontologia import Session
from ontologia.runtime.session import core_of
from ontologia.store.doctor import examine, repair
from tests.plans.test_query_plans import Watch

_EVENT = """
INSERT INTO events(id, namespace, type, payload, created_at, root_event_id)
VALUES (?1, 'default', 'lost', '{}', '2026', ?1)"""
_CLAIM = """
INSERT INTO event_claims(event_id, handler_id, session_id, claimed_at, lease_until, available_at,
                         consumer_id, dead_lettered_at)
VALUES (?1, 'ship', 's1', '2026', '2026', '2026', 1, '2026')"""
_LETTER = """
INSERT INTO dead_letters(event_id, handler_id, namespace, failed_at, attempts, last_error,
                         event_type, event_payload, root_event_id, chain_depth)
VALUES (?1, 'ship', 'default', '2026', 1, 'x', 'lost', '{}', '', 0)"""


@pytest.fixture
def session(watch: Watch, tmp_path: Any) -> Iterator[Session]:
    with Session(str(tmp_path / "doctor.db")) as session:
        yield session


def bury(session: Session, prefix: str, many: int) -> None:
    """So many more dead letters."""
    ids = [(f"{prefix}{number}",) for number in range(many)]
    database: Any = core_of(session).store.database  # type: ignore[attr-defined]
    with database.write() as tx:
        for statement in (_EVENT, _CLAIM, _LETTER):
            tx.many(statement, ids)


def break_all(session: Session) -> None:
    """Every one has a second letter, and was acknowledged as well."""
    database: Any = core_of(session).store.database  # type: ignore[attr-defined]
    with database.write() as tx:
        columns = "event_id, handler_id, namespace, failed_at, attempts, last_error, event_type"
        rest = "event_payload, root_event_id, chain_depth"
        tx.run(
            f"INSERT INTO dead_letters({columns}, {rest}) SELECT {columns}, {rest} FROM dead_letters"
        )
        tx.run("UPDATE event_claims SET ack_at = '2026'")


def looked(session: Session) -> set[str]:
    core = core_of(session)
    return {each.check for each in examine(core.store, core.clock, core.config)}


def mended(session: Session) -> dict[str, int]:
    core = core_of(session)
    return repair(core.store, core.clock, core.config, {})[0]


def steps(watch: Watch, action: Any) -> int:
    with watch.at():
        action()
    return int(watch.steps)


def test_dead_letters_are_looked_at_once_each(session: Session, watch: Watch) -> None:
    bury(session, "a", 300)
    few = steps(watch, lambda: looked(session))
    bury(session, "b", 900)

    assert "dead_letters_are_claims" not in looked(session)
    assert steps(watch, lambda: looked(session)) < 6 * few


def test_dead_letters_are_mended_in_as_few_steps(session: Session, watch: Watch) -> None:
    bury(session, "a", 300)
    break_all(session)
    assert looked(session) >= {"dead_letters_are_claims", "one_ending"}
    few = steps(watch, lambda: mended(session))
    bury(session, "b", 900)
    break_all(session)
    found: dict[str, int] = {}

    many = steps(watch, lambda: found.update(mended(session)))

    assert (found["letters"], found["endings"]) == (1_200, 1_200)
    assert not looked(session) & {"dead_letters_are_claims", "one_ending"}
    assert many < 6 * few
