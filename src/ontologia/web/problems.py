"""Problem JSON (RFC 9457): what went wrong, and whose turn it is to do something about it.

An answer says nothing about an error that nobody raised on purpose: it has an id, and the log has
the rest under the same id.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.responses import Response

from ontologia import codec
from ontologia.clock import SYSTEM_CLOCK
from ontologia.commands.problems import plain, status_of, told
from ontologia.errors import (
    HeadMismatchError,
    LockContentionError,
    ObjectExistsError,
    StandbyError,
    StateConflictError,
    UniqueViolationError,
)
from ontologia.ids import Ids

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"
_AGAIN_AFTER = "1"  # seconds
_ids = Ids(SYSTEM_CLOCK)


class Kind(NamedTuple):
    """A kind of problem: clients tell them apart by `type`."""

    name: str
    status: int
    title: str

    @property
    def type(self) -> str:
        """A URI that names the kind."""
        return f"urn:ontologia:problem:{self.name}"


MALFORMED = Kind("malformed", 400, "The request cannot be read")
UNAUTHORIZED = Kind("unauthorized", 401, "A token is needed")
FORBIDDEN = Kind("forbidden", 403, "This is not allowed")
NOT_FOUND = Kind("not-found", 404, "What was named is not there")
METHOD = Kind("method-not-allowed", 405, "This path has no such method")
SLOW = Kind("too-slow", 408, "The request took too long to arrive")
VETO = Kind("veto", 409, "A hook refused the command")
CONFLICT = Kind("conflict", 409, "Somebody else was faster")
TOO_LARGE = Kind("too-large", 413, "The request is too large")
MEDIA = Kind("unsupported-media-type", 415, "The request is not JSON")
INVALID = Kind("invalid", 422, "The request does not fit the command")
INTERNAL = Kind("internal", 500, "Something went wrong here")
UNAVAILABLE = Kind("unavailable", 503, "Not at this moment")

KINDS = (
    MALFORMED,
    UNAUTHORIZED,
    FORBIDDEN,
    NOT_FOUND,
    METHOD,
    SLOW,
    VETO,
    CONFLICT,
    TOO_LARGE,
    MEDIA,
    INVALID,
    INTERNAL,
    UNAVAILABLE,
)
_BY_STATUS = {kind.status: kind for kind in KINDS}


class Problem(Exception):
    """An answer other than the one that was hoped for."""

    def __init__(
        self,
        kind: Kind,
        detail: str,
        *,
        hint: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = plain(detail)
        self.hint = None if hint is None else plain(hint)
        self.headers = dict(headers or {})
        if kind is UNAVAILABLE:
            self.headers.setdefault("Retry-After", _AGAIN_AFTER)
        self.instance = f"urn:uuid:{_ids.new()}"

    def as_dict(self) -> dict[str, Any]:
        """The members of the answer."""
        members = {
            "type": self.kind.type,
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
            "instance": self.instance,
        }
        return members if self.hint is None else members | {"hint": self.hint}

    def content(self) -> bytes:
        """The answer's body."""
        return codec.encode(self.as_dict()).encode()

    def response(self) -> Response:
        """The answer."""
        return Response(self.content(), self.kind.status, self.headers, MEDIA_TYPE)


def problem_of(error: Exception) -> Problem:
    """What to answer to an error that came out of a command; the log has what the answer lacks."""
    kind = _kind_of(error)
    if kind is INTERNAL:
        return unexpected(error)
    if kind is UNAVAILABLE:
        return _unavailable(error)
    return Problem(kind, told(error), hint=getattr(error, "hint", None))


def _unavailable(error: Exception) -> Problem:
    """What a client may know of a database: not where it is, nor who else uses it."""
    if isinstance(error, LockContentionError):
        problem = Problem(UNAVAILABLE, "the database is busy; nothing was done")
    elif isinstance(error, StandbyError):
        problem = Problem(UNAVAILABLE, "the database takes no writes now; nothing was done")
    else:
        problem = Problem(
            UNAVAILABLE,
            "the database cannot be reached; what was asked for may have been done",
            hint="Ask again under the same Idempotency-Key: what was done is not done again.",
        )
    log.warning("%s: %s", problem.instance, error)
    return problem


def unexpected(error: Exception) -> Problem:
    """An error that is nobody's word to a client."""
    problem = Problem(INTERNAL, "the log has the error, under the id that is the instance of this")
    log.error("%s: %s", problem.instance, type(error).__name__, exc_info=error)
    return problem


def of_status(status: int, detail: str, headers: dict[str, str] | None = None) -> Problem:
    """A problem that the framework found."""
    kind = _BY_STATUS.get(status) or Kind("http", status, HTTPStatus(status).phrase)
    return Problem(kind, detail, headers=headers)


def _kind_of(error: Exception) -> Kind:
    status = status_of(error)
    if status == CONFLICT.status:
        conflict = StateConflictError | ObjectExistsError | HeadMismatchError | UniqueViolationError
        return CONFLICT if isinstance(error, conflict) else VETO
    return _BY_STATUS[status]
