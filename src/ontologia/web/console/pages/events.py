"""Events, the newest first, and everything about one."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from ontologia import codec
from ontologia.delivery.lifecycle import EVENT_STATUSES
from ontologia.errors import InvalidValueError, NotFoundError, OntologiaError
from ontologia.runtime.views.events import (
    EventDetail,
    EventFilter,
    EventRow,
    event,
    newest_events,
)
from ontologia.runtime.views.paging import Page
from ontologia.runtime.views.past import Past, event_at, newest_events_at
from ontologia.runtime.views.search import Hit, search
from ontologia.runtime.views.times import ago, in_utc
from ontologia.web.console.actions import letter_token
from ontologia.web.console.pages.search import url_of
from ontologia.web.console.rendering import PageRequest, page

if TYPE_CHECKING:
    from ontologia.web.console.app import Console

_WORD = re.compile(r'\s*(?:(?P<key>[\w.-]+):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s"]+))')
_PAYLOAD = "payload."
_MOST_FIELDS = 20
_SECONDS = 0.6  # that events are looked at, so that the page has time for the rest
_STATES = {"dead": "dead_lettered", "done": "acked", "waiting": "pending"}
"""Short words for states."""
HELP = 'type:order.placed handler:NAME state:dead since:2h payload.order_id:"o 7", or an id'


class Filter(NamedTuple):
    """What was typed into the filter box."""

    which: EventFilter
    id: str | None
    """A word that is no condition: the id of something."""


def routes(console: Console) -> list[Route]:
    """`/events`, `/event?id=` and the payload of one as text."""
    return [
        console.page("/events", _list, name="events"),
        console.page("/event", _show, name="event"),
        console.page("/event/payload", _payload, name="payload"),
    ]


def parse(text: str, now: datetime) -> Filter:
    """Read `type:… handler:… state:… since:… payload.x:…`; InvalidValueError if it cannot be read."""
    given: dict[str, str] = {}
    payload: list[tuple[str, str]] = []
    found: str | None = None
    at = 0
    text = text.strip()
    while at < len(text):
        match = _WORD.match(text, at)
        if match is None or (match.end() < len(text) and not text[match.end()].isspace()):
            raise InvalidValueError(f"{text[at : at + 100]!r} cannot be read", hint=HELP)
        at = match.end()
        key, word = match["key"], match["bare"]
        value = re.sub(r"\\(.)", r"\1", match["quoted"]) if word is None else word
        if key is not None and key.startswith(_PAYLOAD):
            payload.append((key.removeprefix(_PAYLOAD), value))
        elif key in ("type", "handler", "state", "since"):
            given[key] = value
        elif found is None:
            found = f"{key}:{value}" if key is not None else value
        else:
            raise InvalidValueError(f"{match[0].strip()[:100]!r} is one id too many", hint=HELP)
    if len(payload) > _MOST_FIELDS:
        raise InvalidValueError(f"a filter names at most {_MOST_FIELDS} fields of the payload")
    state = given.get("state")
    if state is not None and _STATES.get(state, state) not in EVENT_STATUSES:
        words = ", ".join((*EVENT_STATUSES, *_STATES))
        raise InvalidValueError(
            f"an event has no state {state[:100]!r}", hint=f"It is one of {words}."
        )
    which = EventFilter(
        given.get("type"),
        given.get("handler"),
        None if state is None else _STATES.get(state, state),
        None if "since" not in given else _since(given["since"], now),
        tuple(payload),
    )
    which.check()
    return Filter(which, found)


def _since(text: str, now: datetime) -> datetime:
    try:
        return ago(now, text)
    except InvalidValueError:
        pass
    try:
        return in_utc(text)
    except (ValueError, OverflowError) as error:
        raise InvalidValueError(
            f"since:{text[:100]} is neither a span, 2h, nor a time, 2026-11-16T18:00"
        ) from error


def _list(request: PageRequest) -> Response:
    text = request.query("filter") or ""
    wrong: OntologiaError | None = None
    asked = Filter(EventFilter(), None)
    try:
        asked = parse(text, request.as_of_time or request.now)
        for path, value in asked.which.payload:
            if request.console.rendering.hides(path):
                raise InvalidValueError(f"payload.{path} is hidden here")
            if request.console.rendering.redact and value.startswith(("{", "[")):
                raise InvalidValueError(
                    f"payload.{path} may hold a value that is hidden here, "
                    "and is not compared with a whole object or list",
                    hint="Compare a value in it.",
                )
    except InvalidValueError as error:
        wrong, asked = error, Filter(EventFilter(), None)
    hits: list[Hit] = []
    if asked.id is not None:
        hits = search(request.session, asked.id)
        urls = [url for url in (url_of(request, each) for each in hits) if url is not None]
        if len(urls) == 1 and len(hits) == 1:
            return RedirectResponse(urls[0], 303)
    found: Page[EventRow] | None = None
    then: Past[Page[EventRow]] | None = None
    before = request.query("before")
    if wrong is None and asked.id is None:
        if request.moment is None:
            found = newest_events(request.session, asked.which, before=before, seconds=_SECONDS)
        else:
            then = newest_events_at(
                request.session, asked.which, as_of=request.moment, before=before, seconds=_SECONDS
            )
            found = then.found
    return page(
        request,
        "events.html",
        title="Events",
        status=400 if wrong is not None else 200,
        text=text,
        wrong=wrong,
        help=HELP,
        id=asked.id,
        hits=[(each, url_of(request, each)) for each in hits],
        found=found,
        past=request.moment is not None,
        then=then,
    )


def _found(request: PageRequest) -> EventDetail:
    event_id = request.query("id") or ""
    found = event(request.session, event_id) if event_id else None
    if found is None:
        raise NotFoundError(
            f"there is no event {event_id[:200]!r} in the log, in any namespace",
            hint="It may have been collected: events are retained for event_retention_ms.",
        )
    return found


def _show(request: PageRequest) -> Response:
    found = _found(request)
    if found.namespace != request.namespace:
        home = request.console.session.namespace
        other = None if found.namespace == home else found.namespace
        return RedirectResponse(request.link("event", namespace=other, id=found.event_id), 303)
    then: Past[EventDetail] | None = None
    if request.moment is not None:
        then = event_at(request.session, found.event_id, request.moment)
        if then is None:
            raise NotFoundError(
                f"event {found.event_id} had not come by then: it came at {found.created_at}",
                hint="Choose a later commit, or look at the present.",
            )
        found = then.found
    dead = {
        each.handler: letter_token(each.handler, found.event_id)
        for each in found.claims
        if each.state == "dead_lettered"
    }
    begun = {"acked", "dead_lettered", "claimed"}
    may_cancel = not begun & {each.state for each in found.claims} and found.archived is None
    return page(
        request,
        "event.html",
        title=found.type,
        event=found,
        dead=dead,
        may_cancel=may_cancel,
        past=then is not None,
        then=then,
    )


def _payload(request: PageRequest) -> Response:
    shown = request.console.rendering.redacted(_found(request).payload)
    return PlainTextResponse(codec.encode_checked(shown))
