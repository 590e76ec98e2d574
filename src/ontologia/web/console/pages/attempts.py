"""Attempt: what one attempt of a handler saw, what it wrote, and who wrote in between."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ontologia import codec
from ontologia.errors import InvalidValueError
from ontologia.runtime.views.attempts import Attempt, Written, attempt
from ontologia.web.console.actions import letter_token
from ontologia.web.console.pages.commits import without_hidden
from ontologia.web.console.rendering import PageRequest, page

if TYPE_CHECKING:
    from ontologia.web.console.app import Console

_LONGEST_NUMBER = 9  # digits
_OTHERS = 50  # attempts of the handler that are linked


class Cell(NamedTuple):
    """A field at one moment."""

    there: bool
    value: Any


@dataclass(frozen=True)
class Row:
    """One field at the three moments."""

    name: str
    begin: Cell
    before: Cell
    after: Cell
    raced: bool
    """Another commit changed it between the first two."""
    changed: bool
    """The attempt changed it."""


@dataclass(frozen=True)
class Shown:
    """One object that the attempt wrote."""

    written: Written
    key: str
    changed: list[Row]
    same: list[Row]
    """The fields that were the same at all three moments."""


def routes(console: Console) -> list[Route]:
    """`/attempt?id=&handler=&number=`."""
    return [console.page("/attempt", _show, name="attempt")]


def _show(request: PageRequest) -> Response:
    event_id, handler = request.query("id"), request.query("handler")
    number = _number(request.query("number") or "")
    if event_id is None or handler is None or number is None:
        raise InvalidValueError(
            "the address names no attempt", hint="It needs id, handler and number, a whole number."
        )
    found = attempt(request.session, event_id, handler, number)
    if found.event.namespace != request.namespace:
        home = request.console.session.namespace
        other = None if found.event.namespace == home else found.event.namespace
        asked = {"id": event_id, "handler": handler, "number": number}
        return RedirectResponse(request.link("attempt", namespace=other, **asked), 303)
    others = [each for each in found.event.attempts if each.handler == handler]
    return page(
        request,
        "attempt.html",
        title=f"Attempt {number} of {handler}",
        attempt=found,
        state=_state(found),
        shown=[_shown(request, each) for each in found.written],
        others=_others(found, [each.attempt for each in others]),
        dead=letter_token(handler, event_id)
        if found.claim is not None and found.claim.state == "dead_lettered"
        else None,
    )


def _number(text: str) -> int | None:
    """Attempts from before an operator's retry have numbers from 0 down."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _LONGEST_NUMBER):
        return None
    return int(text)


def _state(found: Attempt) -> str:
    """How it ended, as a badge says it."""
    claim = found.claim
    if found.failed is not None:
        return found.failed.outcome
    if claim is None or found.number != claim.attempts + 1:
        return "not known"
    return {"acked": "succeeded", "unclaimed": "waiting"}.get(claim.state, claim.state)


def _others(found: Attempt, failed: list[int]) -> list[int]:
    """The numbers of the handler's attempts at the event, those nearest to this one."""
    numbers = set(failed)
    claim = found.claim
    if claim is not None and claim.started_at is not None and claim.state != "dead_lettered":
        numbers.add(claim.attempts + 1)
    numbers.add(found.number)
    nearest = sorted(numbers, key=lambda each: abs(each - found.number))[:_OTHERS]
    return sorted(nearest)


def _shown(request: PageRequest, written: Written) -> Shown:
    moments = (written.at_begin, written.before, written.after)
    names = sorted({name for fields in moments for name in fields or {}})
    raced = set(written.raced)
    rows = [_row(name, moments, raced=name in raced) for name in names]
    differing = [row for row in rows if row.raced or row.changed]
    return Shown(
        replace(written, overtaken_by=without_hidden(request, written.overtaken_by)),
        ":".join(part for part in written.key if part),
        differing,
        [row for row in rows if not (row.raced or row.changed)],
    )


def _row(name: str, moments: tuple[dict[str, Any] | None, ...], *, raced: bool) -> Row:
    begin, before, after = (
        Cell(there=name in (fields or {}), value=(fields or {}).get(name)) for fields in moments
    )
    return Row(name, begin, before, after, raced, _differs(before, after))


def _differs(one: Cell, other: Cell) -> bool:
    # As text, since to Python True is 1.
    if one.there != other.there:
        return True
    return one.there and codec.encode(one.value) != codec.encode(other.value)
