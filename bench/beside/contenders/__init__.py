"""Who takes part: ours, bare, and what a user might pick instead.

A contender is a class in a file of its own. It says how it is configured, what it promises and
which scenarios it cannot take part in; the rules are in `contender`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from bench.beside.contenders.contender import Queue

if TYPE_CHECKING:
    from bench.beside.contenders.state import State

_QUEUES = {
    "ontologia": "ours:Ours",
    "bare": "bare:Bare",
    "huey": "huey:Huey",
    "litequeue": "litequeue:LiteQueue",
    "persist-queue": "persistqueue:PersistQueue",
    "dbos": "dbos:Dbos",
    "ontologia-postgres": "ours:OursOnPostgres",
    "bare-postgres": "bare_postgres:BareOnPostgres",
    "procrastinate": "procrastinate:Procrastinate",
    "pgqueuer": "pgqueuer:PgQueuer",
    "dbos-postgres": "dbos:DbosOnPostgres",
}
_FOR_GOALS = {"bare-postgres-synced": "bare_postgres:SyncedBareOnPostgres"}
"""Those that take part in the goals alone."""
_STATES = {
    "ontologia-state": "state:Ours",
    "bare-state": "state:Bare",
    "sqlalchemy-history": "sqlalchemy_history:SqlAlchemyHistory",
}


def queue(key: str) -> Queue:
    """The contender with events of this key."""
    made: Queue = _made((_QUEUES | _FOR_GOALS)[key])
    return made


def state_of(key: str) -> State:
    """The contender with state of this key."""
    made: State = _made(_STATES[key])
    return made


def field_of(name: Literal["queue", "state"]) -> dict[str, Queue | State]:
    """The contenders of a kind, by key."""
    return {key: queue(key) for key in _QUEUES} if name == "queue" else {
        key: state_of(key) for key in _STATES
    }  # fmt: skip


def everyone() -> list[Queue | State]:
    return [*field_of("queue").values(), *field_of("state").values()]


def _made(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"{__name__}.{module}"), name)()
