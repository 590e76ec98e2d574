"""Later: deferred events, and schedules with their last ticks and the next ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from ontologia.errors import InvalidValueError
from ontologia.runtime.views.later import deferred_events, schedules
from ontologia.web.console.rendering import PageRequest, page

if TYPE_CHECKING:
    from ontologia.web.console.app import Console

_LONGEST_NUMBER = 19  # digits, of 64 bits


def routes(console: Console) -> list[Route]:
    """`/later`."""
    return [console.page("/later", _show, name="later")]


def _show(request: PageRequest) -> Response:
    kind, number = request.query("type"), request.query("number")
    return page(
        request,
        "later.html",
        title="Later",
        type=kind,
        deferred=deferred_events(
            request.session,
            type=kind,
            after=request.query("after"),
            first=None if number is None else _number(number),
        ),
        schedules=schedules(request.session),
        number=number,
    )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < _LONGEST_NUMBER):
        raise InvalidValueError(f"{text[:100]!r} is not the number of a deferred event")
    return int(text)
