"""Errors as answers: whose turn it is to do something about one, and what it says.

Whoever answers for commands to the outside (HTTP, the sockets of actors) says the same of the same
error. What nobody raised on purpose is 500, and its words are for the log alone.
"""

from __future__ import annotations

from pydantic import ValidationError

from ontologia.commands.bus import vetoed_by
from ontologia.errors import (
    AnswerError,
    BatchSizeExceededError,
    ConnectionLostError,
    HeadMismatchError,
    IdempotencyKeyReused,
    InvalidValueError,
    LockContentionError,
    NotFoundError,
    ObjectExistsError,
    OntologiaError,
    QueryError,
    StandbyError,
    StateConflictError,
    UniqueViolationError,
)

_LONGEST = 2_000  # characters of a sentence or a hint
_INVALID = (InvalidValueError, IdempotencyKeyReused, QueryError, BatchSizeExceededError)


def status_of(error: Exception) -> int:
    """The status of HTTP that says whose turn it is."""
    # What the database did not do, or does not have, means the same in a hook as elsewhere.
    if isinstance(error, LockContentionError | ConnectionLostError | StandbyError):
        return 503
    if isinstance(
        error, StateConflictError | ObjectExistsError | HeadMismatchError | UniqueViolationError
    ):
        return 409
    if isinstance(error, PermissionError) and error.errno is not None:
        return 500  # a file that this process may not read, not a client's rights
    if isinstance(error, NotFoundError):
        return 404
    if is_veto(error):
        return 409
    if isinstance(error, PermissionError):
        return 403
    return 422 if _is_about_a_value(error) else 500


def is_veto(error: Exception) -> bool:
    """Whether a hook refused on purpose; a hook that fell over did not."""
    meant = isinstance(error, ValueError | PermissionError | OntologiaError)
    return meant and vetoed_by(error) is not None


def _is_about_a_value(error: Exception) -> bool:
    if isinstance(error, AnswerError):
        return False  # the handler's, not the client's
    if isinstance(error, OntologiaError):
        return isinstance(error, _INVALID)
    return isinstance(error, ValueError)


def told(error: Exception) -> str:
    """What an error says, in one sentence and without its hint."""
    if isinstance(error, ValidationError):
        found = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        return f"{error.title}: {'; '.join(found)}"
    said = str(error.args[0]) if isinstance(error, OntologiaError) and error.args else str(error)
    return said or type(error).__name__


def plain(text: str) -> str:
    """Text that JSON can carry, and that is not longer than somebody reads."""
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return short.encode("utf-8", "replace").decode().replace("\0", "\\0")
