"""PostgreSQL's errors in our words, in one place."""

from __future__ import annotations

import re

import psycopg
from psycopg import errors
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from ontologia.errors import (
    ConnectionLostError,
    DatabaseError,
    DiskFullError,
    IntegrityError,
    InvalidValueError,
    LockContentionError,
    OntologiaError,
    ReadOnlyError,
    ReadTimeoutError,
    SessionClosedError,
    StandbyError,
)
from ontologia.store.database import read_deadline

# lock_timeout or a cancel, two that waited for each other, two that collided
_CONTENTION = (
    errors.LockNotAvailable,
    errors.QueryCanceled,
    errors.DeadlockDetected,
    errors.SerializationFailure,
)
_CHECK = "call_bool_check_hook"  # of the server: where BEGIN READ WRITE fails on a standby
_DENIED = re.compile(r"permission denied for (schema|table|sequence|database) (\S+)")
_GRANTS = {
    "schema": "GRANT USAGE ON SCHEMA {name} TO its role; the tables need a GRANT of their own.",
    "table": "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO its role.",
    "sequence": "GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO its role.",
    "database": "GRANT CREATE ON DATABASE {name} TO its role, or have the owner open it once: "
    "whoever finds the tables needs no right to make them.",
}


def translated(
    error: psycopg.Error,
    shown: str,
    *,
    waited_ms: float = 0,
    limit_ms: float = 0,
    schema: str = "ontologia",
) -> OntologiaError:
    """The error to raise `from` this one; `shown` is the database without its password.

    What the server says may be in any language, so as little as can be is read from it. `limit_ms`
    is how long a statement may take; 0 is no limit.
    """
    said = _first_line(error)
    match error:
        case psycopg.IntegrityError():
            return IntegrityError(f"{shown}: {said}; nothing was written")
        case errors.QueryCanceled() if (deadline := read_deadline()) and deadline.passed:
            return ReadTimeoutError(shown, deadline.seconds)
        case errors.QueryCanceled() if 0 < limit_ms <= waited_ms or "statement timeout" in said:
            return DatabaseError(
                f"{shown}: a statement took longer than statement_timeout_ms allows ({said}); "
                f"nothing was written",
                hint="Raise OntologiaConfig(statement_timeout_ms=...), or ask for less; 0 is no limit.",
            )
        case _ if isinstance(error, _CONTENTION):
            others = f"other transactions on {shown} ({said})"
            return LockContentionError(others, waited_ms, what="a statement")
        case PoolClosed():
            return SessionClosedError(f"the store {shown} was closed")
        case PoolTimeout() | TooManyRequests():
            return lost(shown, said)
        case errors.ReadOnlySqlTransaction():
            return _standby(shown, said)
        case errors.FeatureNotSupported() if error.diag.source_function == _CHECK:
            return _standby(shown, said)
        case errors.InsufficientPrivilege():
            return _denied(shown, said, schema)
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
            return lost(shown, said)
        case _:
            return DatabaseError(f"{shown}: {said}; the transaction was taken back")


def lost(shown: str, said: object, *, hint: str | None = None) -> ConnectionLostError:
    """The server was there, and is not any more."""
    return ConnectionLostError(
        f"the connection to {shown} was lost: {said}; what was not committed was taken back",
        hint=hint or "Do it again: connections are made anew as soon as the server is there.",
    )


def _standby(shown: str, said: str) -> StandbyError:
    return StandbyError(
        f"{shown} is read-only: {said}; nothing was written",
        hint="Connect to the primary; a standby answers reads only. With several hosts in the URI, "
        "target_session_attrs=read-write finds it.",
    )


def _denied(shown: str, said: str, schema: str) -> DatabaseError:
    found = _DENIED.search(said)
    # In another language than English it is not known what was denied.
    hint = _GRANTS["table"].format(schema=schema) + (
        " Tables and indexes are made by their owner: open a session with these types as the owner."
    )
    if found is not None:
        hint = _GRANTS[found[1]].format(name=found[2], schema=schema)
    # A role that may only read can still have a session: to read.
    rows = found is None or found[1] in ("table", "sequence")
    kind = ReadOnlyError if rows else DatabaseError
    return kind(f"{shown}: {said}; nothing was written", hint=hint)


def _connection_lost(error: psycopg.Error) -> bool:
    state = error.sqlstate
    return state is None or state.startswith(("08", "57P"))


def _first_line(error: psycopg.Error) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
