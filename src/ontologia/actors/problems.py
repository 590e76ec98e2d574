"""Errors of the store as answers: a code as in HTTP, a sentence, and a hint.

An answer says nothing about an error that nobody raised on purpose: it has an id, and the log has
the rest under the same id.
"""

from __future__ import annotations

import logging

from ontologia.actors.message import Message
from ontologia.actors.parts import new_id
from ontologia.commands.problems import plain, status_of, told
from ontologia.errors import CommandHandlerNotFound, SessionClosedError

log = logging.getLogger("ontologia.actors")


def problem(message: Message, error: Exception) -> Message:
    """The answer to a command or query that ended with this error."""
    code = code_of(error)
    if code == 500:
        name = new_id()
        log.error("%s: %s failed: %s", name, message.type, type(error).__name__, exc_info=error)
        return message.error(code, f"{message.type} failed; the log has the error, as {name}")
    hint = getattr(error, "hint", None)
    said = plain(told(error))
    if hint is None:
        return message.error(code, said)
    return message.error(code, said, hint=plain(hint))


def code_of(error: Exception) -> int:
    """The code of HTTP that says whose turn it is to do something about an error."""
    if isinstance(error, CommandHandlerNotFound):
        return 404  # of the command that was asked for: nothing else checks its name
    return 503 if isinstance(error, SessionClosedError) else status_of(error)
