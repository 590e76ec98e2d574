"""Many processes on one file, and two sessions in one process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from ontologia import Entity, Event, Field, Session, on_event
from ontologia_conformance.tiers import SCALE
from tests.faults import workers
from tests.faults.children import (
    PATIENCE,
    Child,
    ask,
    assert_all_done_once,
    assert_runs_are_accounted_for,
    assert_sound,
    noted,
    show_figures,
    wait_until_finished,
)

PROCESSES = 8


@pytest.mark.thorough
@pytest.mark.sampled
@pytest.mark.req("NEW-061", "ONT-172", "ONT-200")
def test_eight_processes_write_and_claim_on_one_file(path, tmp_path):
    """For 4 seconds; for a minute, the full size, with ONTOLOGIA_TEST_SAMPLES=15."""
    began = time.monotonic()
    Session(str(path)).close()

    with ExitStack() as stack:
        children = [
            stack.enter_context(
                Child(tmp_path, workers.produce_and_work, str(path), f"p{n}", 4 * SCALE)
            )
            for n in range(PROCESSES)
        ]
        produced = [child.hear("produced")[0] for child in children]
        wait_until_finished(path, *children)
        for child in children:
            child.stop()

    assert all(produced)
    notes = noted(tmp_path)
    committed = {about for what, about in notes if what == "committed"}
    placed = ask(path, "SELECT payload ->> 'number' FROM events WHERE type = 'faults.placed'")
    assert sorted(committed) == sorted(number for (number,) in placed)
    assert len(committed) == sum(produced)
    assert_all_done_once(path)
    # No lease ran out, so nobody had a reason to run anything twice.
    repeats = assert_runs_are_accounted_for(path, tmp_path)
    assert repeats == 0
    assert ask(path, "SELECT * FROM attempts") == []
    troubles = [log.read_text() for log in tmp_path.glob("*.log")]
    assert [text for text in troubles if "busy" in text or "could not" in text] == []
    runs = sum(notes.values()) - len(committed)
    show_figures(
        began=began, processes=PROCESSES, events=len(placed) * 2, runs=runs, repeats=repeats
    )


class Job(Event):
    __event_type__ = "faults.job"
    number: Field[int]


class Result(Entity):
    id: Field[str] = Field(primary_key=True)
    namespace: Field[str]


@pytest.mark.req("ONT-013")
@pytest.mark.parametrize("threads", [1, 3])
def test_two_sessions_of_two_namespaces_run_side_by_side_in_threads(path, threads):
    # Example 6 of the document: built in one thread, run in others, on one file.
    count = 150
    seen: dict[str, Counter[int]] = {"orders": Counter(), "payments": Counter()}
    lock = threading.Lock()

    def session_with_handler(namespace: str):
        session = Session(f"sqlite:///{path}", namespace=namespace)

        @on_event(Job, name="same name in both")
        def handle(ctx) -> None:
            number = ctx.event.number
            with lock:
                seen[namespace][number] += 1
                last = len(seen[namespace]) == 2 * count
            ctx.ensure(Result(id=f"{namespace}-{number}", namespace=namespace))
            ctx.commit()
            if number < count:
                ctx.emit(Job(number=number + count))
            if last:
                session.stop()

        return session, [handle]

    async def main() -> None:
        sessions = [session_with_handler(namespace) for namespace in seen]
        runs = [
            asyncio.to_thread(session.run, handlers=handlers, workers=threads)
            for session, handlers in sessions
        ]
        producers = [asyncio.to_thread(announce, session, count) for session, _ in sessions]
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*runs, *producers)
        finally:
            for session, _ in sessions:
                session.stop()
        for session, _ in sessions:
            session.close()

    def announce(session: Session, count: int) -> None:
        for number in range(count):
            session.commit(event=Job(number=number))

    asyncio.run(main())

    every = Counter(range(2 * count))
    assert seen == {"orders": every, "payments": every}
    with Session(str(path)) as session:
        results = session.query().entities(Result).collect()
        assert len(results) == 4 * count
        assert all(result.id.startswith(result.namespace) for result in results)
        listed = {row["namespace"]: row for row in session.event_store.list_namespaces()}
        assert all(listed[each]["pending"] == 0 for each in seen)
    per_namespace = "SELECT namespace, COUNT(*) FROM events GROUP BY 1 ORDER BY 1"
    assert ask(path, per_namespace) == [("orders", 2 * count), ("payments", 2 * count)]
    assert_sound(path)
