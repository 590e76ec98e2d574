"""Handlers that tell what became of each attempt, for those who show it while it happens."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from ontologia.errors import StateConflictError
from ontologia.runtime.context import HandlerContext, attempt_of
from ontologia.runtime.handlers import MARK, Handler


class Attempt(NamedTuple):
    """One call of a handler that came to its end."""

    handler: Handler
    context: HandlerContext[Any]
    error: Exception | None
    """What it raised; None if it returned."""
    seconds: float


def observed(
    handlers: Iterable[Callable[..., Any]], tell: Callable[[Attempt], None]
) -> list[Callable[..., Any]]:
    """The same handlers, under the same names; `tell` is called in the thread that ran one.

    What a handler is interrupted by, as by the second Ctrl+C, is no end of an attempt, and neither
    is a conflict, after which it runs again.
    """
    return [_observed(function, tell) for function in handlers]


def _observed(function: Callable[..., Any], tell: Callable[[Attempt], None]) -> Callable[..., Any]:
    handler: Handler = getattr(function, MARK)

    @functools.wraps(function)
    def call(context: HandlerContext[Any]) -> Any:
        began = time.perf_counter()

        def ended(error: Exception | None) -> None:
            if isinstance(error or attempt_of(context).failure, StateConflictError):
                return
            tell(Attempt(handler, context, error, time.perf_counter() - began))

        async def awaited(result: Awaitable[Any]) -> None:
            try:
                await result
            except Exception as error:
                ended(error)
                raise
            ended(None)

        try:
            result = function(context)
        except Exception as error:
            ended(error)
            raise
        if result is not None and inspect.isawaitable(result):
            return awaited(result)
        ended(None)
        return None

    setattr(call, MARK, handler)
    return call
