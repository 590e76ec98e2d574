"""The charts of a page, from the samplers that run while the console does."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from ontologia.web.console.charts import Chart, charts_of
from ontologia.web.console.sampler import MINUTES, Sampler, running_sampler

if TYPE_CHECKING:
    from ontologia.runtime.session import Session
    from ontologia.web.console.rendering import PageRequest

SPANS = ((60, "1 h"), (360, "6 h"), (MINUTES, "24 h"))
"""The lengths of time that charts show, in minutes."""
_MOST = 16  # namespaces


class Samplers:
    """The samplers of a console: one for each namespace, since its first page. Thread-safe.

    Of more than 16 namespaces the one that was not looked at for longest ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, tuple[Sampler, ExitStack]] = {}
        self._closed = False

    def of(self, session: Session) -> Sampler:
        """The sampler of a session's namespace. After `close` one that does not run."""
        ending = ExitStack()
        with ending, self._lock:
            if self._closed:
                return Sampler(session)
            found = self._running.pop(session.namespace, None)
            if found is None:
                stack = ExitStack()
                found = stack.enter_context(running_sampler(session)), stack
            self._running[session.namespace] = found
            if len(self._running) > _MOST:
                ending.push(self._running.pop(next(iter(self._running)))[1])
            return found[0]

    def close(self) -> None:
        """End them. Idempotent."""
        with self._lock:
            self._closed = True
            running, self._running = self._running, {}
        for _, stack in running.values():
            stack.close()


class Charts(NamedTuple):
    """Charts over the minutes that a page was asked for."""

    charts: tuple[Chart, ...]
    minutes: int
    spans: tuple[tuple[int, str], ...] = SPANS


def sampler_of(request: PageRequest) -> Sampler | None:
    """The sampler of the namespace that is looked at; None if the store has no such namespace."""
    if request.namespace not in request.console.namespaces():
        return None  # anything may stand in a URL
    return request.console.samplers.of(request.session)


def charts_for(request: PageRequest, handler: str | None = None) -> Charts | None:
    """The charts of a handler, or of all, over `?minutes=`; None if it has no figures."""
    sampler = sampler_of(request)
    if sampler is None or not sampler.counts(handler):
        return None
    asked = request.query("minutes")
    minutes = next((each for each, _ in SPANS if str(each) == asked), SPANS[0][0])
    return Charts(charts_of(sampler.series(handler, minutes=minutes)), minutes)
