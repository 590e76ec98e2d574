"""PostgreSQL's errors in our words, in one place."""

from __future__ import annotations

import psycopg
from psycopg import errors
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from ontologia.errors import (
    DatabaseError,
    DiskFullError,
    IntegrityError,
    InvalidValueError,
    LockContentionError,
    OntologiaError,
    ReadOnlyError,
    SessionClosedError,
    StoreOpenError,
)

# lock_timeout, statement_timeout or a cancel, two that waited for each other, two that collided
_CONTENTION = (
    errors.LockNotAvailable,
    errors.QueryCanceled,
    errors.DeadlockDetected,
    errors.SerializationFailure,
)


def translated(error: psycopg.Error, shown: str, *, waited_ms: float = 0) -> OntologiaError:
    """The error to raise `from` this one; `shown` is the database without its password."""
    said = _first_line(error)
    match error:
        case psycopg.IntegrityError():
            return IntegrityError(f"{shown}: {said}; nothing was written")
        case _ if isinstance(error, _CONTENTION):
            return LockContentionError(f"other transactions on {shown} ({said})", waited_ms)
        case PoolClosed():
            return SessionClosedError(f"the store {shown} was closed")
        case PoolTimeout() | TooManyRequests():
            return unreachable(shown, said)
        case errors.ReadOnlySqlTransaction():
            return ReadOnlyError(
                f"{shown} is read-only: {said}; nothing was written",
                hint="Connect to the primary; a standby answers reads only.",
            )
        case errors.ProgramLimitExceeded():
            return InvalidValueError(
                f"{shown}: a key, or an indexed value, is longer than an index can hold ({said}); "
                f"nothing was written",
                hint="PostgreSQL's indexes take entries of about 2,700 bytes. Use a shorter key.",
            )
        case errors.DiskFull():
            return DiskFullError(
                f"no room left for {shown} ({said}); nothing was written, and what was queued is "
                f"still queued",
                hint="Free some space and commit again.",
            )
        case psycopg.OperationalError() if _connection_lost(error):
            return DatabaseError(
                f"the connection to {shown} was lost: {said}; the transaction was taken back, "
                f"unless it was just being committed"
            )
        case _:
            return DatabaseError(f"{shown}: {said}; the transaction was taken back")


def unreachable(shown: str, said: object) -> StoreOpenError:
    """No connection can be had."""
    return StoreOpenError(
        f"no connection to {shown}: {said}",
        hint="Check host, port, user, password and database, and that the server runs.",
    )


def _connection_lost(error: psycopg.Error) -> bool:
    state = error.sqlstate
    return state is None or state.startswith(("08", "57P"))


def _first_line(error: psycopg.Error) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
