"""Health: what is wrong with the store, found by a job; repair, and cleanup of old events."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ontologia.runtime.session import core_of
from ontologia.store.doctor import examine, steps
from ontologia.store.findings import Finding, Severity
from ontologia.web.console.jobs import CLEANUP, EXAMINE, REPAIR, Job
from ontologia.web.console.rendering import PageRequest, page

if TYPE_CHECKING:
    from ontologia.web.console.app import Console

_GRAVITY = {each: at for at, each in enumerate(Severity)}


def routes(console: Console) -> list[Route]:
    """`/health`, and `/health/examine`, which a console that only reads lacks."""
    found = [console.page("/health", _show, name="health")]
    if not console.read_only:
        found.append(console.action("/health/examine", _examine, name="examine"))
    return found


def _show(request: PageRequest) -> Response:
    jobs = request.console.jobs
    examined = jobs.last(EXAMINE, None)
    findings: list[Finding] = [] if examined is None else list(examined.found)
    findings.sort(key=lambda each: _GRAVITY[each.severity])
    counts = Counter(each.severity.value for each in findings)
    return page(
        request,
        "health.html",
        title="Health",
        running=jobs.running,
        examined=examined,
        findings=findings,
        counts={each.value: counts[each.value] for each in Severity},
        repaired=jobs.last(REPAIR, None),
        cleaned=jobs.last(CLEANUP, request.namespace),
    )


def _examine(request: PageRequest) -> Response:
    core = core_of(request.console.session)

    def work(job: Job) -> None:
        for finding in examine(core.store, core.clock, core.config, job.tell):
            job.found.append(finding)

    request.console.jobs.start(
        EXAMINE, "examine the store", work, by=request.user.name, steps=steps(core.store)
    )
    return RedirectResponse(request.link("health", as_of=None), 303)
