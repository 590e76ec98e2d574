"""Disturbing a handler once: at one of its boundaries its process dies, or an error is raised.

A boundary is a place where an attempt meets its store: a commit, an emit, the acknowledgement. What
lies between two of them is the handler's own, and is repeated as a whole when it is tried again.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from ontologia.errors import DatabaseError
from ontologia.runtime.context import HandlerContext
from ontologia.runtime.handlers import Handler
from ontologia.runtime.session import Session, core_of

ACK = "acknowledgement"


class Crash(BaseException):
    """The process is dead from here on; no handler that catches `Exception` sees it."""


class InjectedError(DatabaseError):
    """The database said no, because a test wanted it to."""


class Fault(NamedTuple):
    """What happens, and at which of the boundaries that a run passes, counted from 0."""

    what: Literal["crash", "error"]
    when: Literal["before", "after"]
    boundary: int


class Boundaries:
    """The boundaries that one run passes, and what is to happen at one of them."""

    def __init__(self, fault: Fault | None) -> None:
        self._fault = fault
        self._dead: Session | None = None
        self.passed: list[str] = []
        """Their names, in order."""

    def killed(self, session: Session) -> bool:
        """Whether this session's process is dead."""
        return self._dead is session

    def guard(self, handler: Handler) -> Handler:
        """The handler, with a boundary at everything it does to its store."""

        def attempt(context: HandlerContext[Any]) -> Any:
            session = context.session
            # Below `commit`, which remembers that it failed, whatever the handler makes of it.
            self._guard(context, "_write", "ctx.commit", session)
            self._guard(context, "emit", "ctx.emit", session)
            return handler.function(context)

        return handler._replace(function=attempt)

    def guard_session(self, session: Session) -> None:
        """The same for what a handler does past its context."""
        self._guard(session, "defer", "session.defer", session)
        self._guard(session, "cancel_deferred", "session.cancel_deferred", session)

    def _guard(self, owner: object, method: str, name: str, session: Session) -> None:
        act = getattr(owner, method)

        def guarded(*values: Any, **options: Any) -> Any:
            with self.at(name, session):
                return act(*values, **options)

        setattr(owner, method, guarded)

    @contextmanager
    def at(self, name: str, session: Session) -> Generator[None]:
        """A boundary around what is done in the block."""
        number = len(self.passed)
        self.passed.append(name)
        self._strike(number, "before", session)
        yield
        self._strike(number, "after", session)

    def _strike(self, number: int, when: str, session: Session) -> None:
        if self._fault is None or (number, when) != (self._fault.boundary, self._fault.when):
            return
        if self._fault.what == "error":
            raise InjectedError(f"an error for the test, {when} {named(self.passed, number)}")
        # The connection goes, as it does with a process: nothing more of the attempt is written,
        # neither by the handler on its way out nor by those who called it.
        self._dead = session
        core_of(session).store.close()
        raise Crash


def named(passed: list[str], number: int) -> str:
    """How a boundary is called: "the 2nd ctx.commit"."""
    name = passed[number]
    if name == ACK:
        return f"the {name}"
    count = passed[: number + 1].count(name)
    ending = "th" if count % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(count % 10)
    return f"the {count}{ending or 'th'} {name}"


def faults(passed: list[str]) -> list[Fault]:
    """Everything that can happen at these boundaries, one at a time.

    An acknowledgement that fails is the loop's to repeat; the handler has returned by then.
    """
    return [
        Fault(what, when, number)
        for number, name in enumerate(passed)
        for what in ("crash", "error")
        for when in ("before", "after")
        if what == "crash" or name != ACK
    ]
