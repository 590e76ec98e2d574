"""Errors of the store as answers: a code as in HTTP, a sentence, and a hint.

An answer says nothing about an error that nobody raised on purpose: it has an id, and the log has
the rest under the same id.
"""

from __future__ import annotations

import logging

from pydantic import ValidationError

from ontologia.actors.message import Message, explain, new_id
from ontologia.commands.bus import vetoed_by
from ontologia.errors import (
    AnswerError,
    BatchSizeExceededError,
    CommandHandlerNotFound,
    ConnectionLostError,
    HeadMismatchError,
    IdempotencyKeyReused,
    InvalidValueError,
    LockContentionError,
    NotFoundError,
    OntologiaError,
    QueryError,
    SessionClosedError,
    StateConflictError,
)

log = logging.getLogger("ontologia.actors")
_LONGEST = 2_000  # characters of a message or a hint
_INVALID = (InvalidValueError, IdempotencyKeyReused, QueryError, BatchSizeExceededError)


def problem(message: Message, error: Exception) -> Message:
    """The answer to a command or query that ended with this error."""
    code = code_of(error)
    if code == 500:
        name = new_id()
        log.error("%s: %s failed: %s", name, message.type, type(error).__name__, exc_info=error)
        return message.error(code, f"{message.type} failed; the log has the error, as {name}")
    hint = getattr(error, "hint", None)
    told = _plain(_told(error))
    if hint is None:
        return message.error(code, told)
    return message.error(code, told, hint=_plain(hint))


def code_of(error: Exception) -> int:
    """The code of HTTP that says whose turn it is to do something about an error."""
    # What the database did not do, or does not have, means the same in a hook as elsewhere.
    if isinstance(error, LockContentionError | ConnectionLostError | SessionClosedError):
        return 503
    if isinstance(error, StateConflictError | HeadMismatchError):
        return 409
    if isinstance(error, PermissionError) and error.errno is not None:
        return 500  # a file that this process may not read, not a client's rights
    if isinstance(error, NotFoundError | CommandHandlerNotFound):
        return 404
    if vetoed_by(error) and isinstance(error, ValueError | PermissionError | OntologiaError):
        return 409
    if isinstance(error, PermissionError):
        return 403
    return 422 if _is_about_a_value(error) else 500


def _is_about_a_value(error: Exception) -> bool:
    if isinstance(error, AnswerError):
        return False  # the handler's, not the client's
    if isinstance(error, OntologiaError):
        return isinstance(error, _INVALID)
    return isinstance(error, ValueError)


def _told(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return f"{error.title}: {explain(error)}"
    told = str(error.args[0]) if isinstance(error, OntologiaError) and error.args else str(error)
    return told or type(error).__name__


def _plain(text: str) -> str:
    """Text that JSON can carry, and that is not longer than somebody reads."""
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return short.encode("utf-8", "replace").decode().replace("\0", "\\0")
