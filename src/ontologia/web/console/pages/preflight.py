"""Before deploy: what the console's program would meet in the store, found by a job."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ontologia.runtime.preflight import SAMPLE, Effect, Preflight, preflight
from ontologia.runtime.views.reading import ReadingSession
from ontologia.web.console.jobs import PREFLIGHT, Job
from ontologia.web.console.rendering import PageRequest, page

if TYPE_CHECKING:
    from ontologia.web.console.app import Console

_GRAVITY = {each: at for at, each in enumerate(Effect)}


def routes(console: Console) -> list[Route]:
    """`/preflight`, and `/preflight/compare`, which a console that only reads lacks."""
    found = [console.page("/preflight", _show, name="preflight")]
    if not console.read_only and console.models.name:
        found.append(console.action("/preflight/compare", _compare, name="compare"))
    return found


def _show(request: PageRequest) -> Response:
    jobs = request.console.jobs
    compared = jobs.last(PREFLIGHT, request.namespace)
    found: Preflight | None = None if compared is None else compared.result
    findings = [] if found is None else list(found.findings())
    findings.sort(key=lambda each: _GRAVITY[each[1].effect])
    counts = Counter(each.effect.value for _, each in findings)
    name = request.console.models.name or "MODULE"
    namespace = request.namespace
    words = ["ontologia", "preflight", name]
    if namespace != "default":
        words += ["--namespace", namespace]
    return page(
        request,
        "preflight.html",
        title="Before deploy",
        running=jobs.running,
        compared=compared,
        found=found,
        findings=findings,
        counts={each.value: counts[each.value] for each in Effect},
        command=shlex.join(words),
        sample=SAMPLE,
    )


def _compare(request: PageRequest) -> Response:
    console, namespace = request.console, request.namespace
    sample = None if request.value("all") else SAMPLE

    def work(job: Job) -> Preflight:
        session = ReadingSession.with_types(
            console.session, namespace, console.models.entity_types, console.models.relation_types
        )
        return preflight(session, console.models, sample=sample, progress=job.tell)

    console.jobs.start(
        PREFLIGHT,
        f"compare {console.models.name} with the store",
        work,
        by=request.user.name,
        namespace=namespace,
    )
    return RedirectResponse(request.link("preflight", as_of=None), 303)
