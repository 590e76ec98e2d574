"""A producer and two workers on a server that something happens to, and what must come of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.faults import workers
from tests.faults.checker import problems_at_the_end
from tests.faults.children import (
    PATIENCE,
    Child,
    ask,
    assert_runs_are_accounted_for,
    noted,
    show_figures,
    wait_until_finished,
)
from tests.faults.figures import KEPT, tally
from tests.faults.workers import HANDLERS

SHORT_LEASE = {
    "event_claim_lease_ms": 300,
    "event_backoff_base_ms": 5,
    "event_max_attempts": 1_000,  # chance may hit one event again and again
}


@contextmanager
def crew(
    uri: str, folder: Path, *, pause: float = 0.002, ask_at: str | None = None
) -> Iterator[list[Child]]:
    """A producer, and two workers. At the end all is done, and nobody has seen an exception.

    Whether it is can be asked elsewhere: where `uri` leads by then.
    """
    with ExitStack() as stack:
        producer = Child(folder, workers.produce_despite_losses, uri, "o", pause)
        children = [stack.enter_context(producer)]
        for threads in (1, 2):
            worker = Child(folder, workers.work, uri, SHORT_LEASE, HANDLERS, threads, 0.003)
            children.append(stack.enter_context(worker))
        for child in children:
            child.hear("running")
        yield children
        producer.tell()
        producer.hear("ended")
        wait_until_finished(ask_at or uri, *children[1:])
        for worker in children[1:]:
            worker.stop()


def assert_nothing_lost_or_doubled(
    uri: str, folder: Path, trouble: str, tries: int, *, crashed: bool = False, **figures: object
) -> None:
    """A server that crashed has lost the last things that a run wrote down for itself alone."""
    told = {about for what, about in noted(folder) if what == "committed"}
    lost = problems_at_the_end(uri, committed=told, announced=told)
    tally(KEPT, f"PostgreSQL: {trouble}", tries=tries, losses=len(lost))
    assert lost == []
    if not crashed:
        assert_runs_are_accounted_for(uri, folder)
    notes = noted(folder)
    committed = {about for what, about in notes if what == "committed"}
    refused = {about for what, about in notes if what == "refused"}
    stored = {key for (key,) in ask(uri, "SELECT entity_key FROM entity_latest"
                                         " WHERE entity_type = 'Order'")}  # fmt: skip
    assert stored == committed
    assert refused & stored == set()
    show_figures(orders=len(stored), refused=len(refused), **figures)


def wait_for_orders(folder: Path, more: int) -> None:
    """Let the producer get so many more commits through."""

    def committed() -> int:
        return sum(times for (what, _), times in noted(folder).items() if what == "committed")

    wanted, deadline = committed() + more, time.monotonic() + PATIENCE
    while committed() < wanted:
        assert time.monotonic() < deadline, "the producer does not go on"
        time.sleep(0.02)
