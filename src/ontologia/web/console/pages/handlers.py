"""Handlers: what waits for each, and who runs it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup
from starlette.responses import Response
from starlette.routing import Route

from ontologia.errors import NotFoundError
from ontologia.runtime.views.handlers import handlers
from ontologia.runtime.views.past import overview_at
from ontologia.web.console.charts import sparkline
from ontologia.web.console.figures import charts_for, sampler_of
from ontologia.web.console.rendering import PageRequest, page

if TYPE_CHECKING:
    from ontologia.web.console.app import Console

_SECONDS = 0.6  # that the past is looked at, so that the page has time for the rest


def routes(console: Console) -> list[Route]:
    """`/handlers`, all of them, or one: `?handler=`."""
    return [console.page("/handlers", _list, name="handlers")]


def _list(request: PageRequest) -> Response:
    name = request.query("handler")
    if request.moment is not None:
        return shown_then(
            request, request.moment, title=name or "Handlers", active="handlers", handler=name
        )
    rows = handlers(request.session)
    if name is None:
        done = _done(request, [each.name for each in rows])
        return page(request, "handlers.html", title="Handlers", rows=rows, done=done)
    one = next((each for each in rows if each.name == name), None)
    if one is None:
        raise _unknown(request, name)
    return page(request, "handler.html", title=name, row=one, charts=charts_for(request, name))


def shown_then(
    request: PageRequest,
    moment: int | datetime,
    *,
    title: str,
    active: str,
    handler: str | None = None,
) -> Response:
    """All handlers as they were at a commit or an instant, or one of them."""
    then = overview_at(request.session, moment, seconds=_SECONDS)
    rows = [each for each in then.found.handlers if handler in (None, each.name)]
    if handler is not None and not rows:
        raise _unknown(request, handler)
    return page(
        request,
        "overview_then.html",
        title=title,
        active=active,
        handler=handler,
        past=True,
        then=then,
        rows=rows,
    )


class _Done(NamedTuple):
    """How much was done in the last hour, since a sampler began."""

    began: datetime
    rows: dict[str, tuple[int, Markup]]
    """By handler: how much in all, and how it went."""


def _done(request: PageRequest, names: list[str]) -> _Done | None:
    sampler = sampler_of(request)
    if sampler is None:
        return None
    rows: dict[str, tuple[int, Markup]] = {}
    for name in names:
        if sampler.counts(name):
            done = [each.done for each in sampler.series(name).minutes]
            rows[name] = sum(done), sparkline(f"{max(done)} in the busiest minute", done, "good")
    return _Done(sampler.began, rows)


def _unknown(request: PageRequest, name: str) -> NotFoundError:
    return NotFoundError(
        f"there is no handler {name} in namespace {request.namespace!r}",
        hint="It may have been forgotten, or have another name.",
    )
