"""Sessions that run in a thread of their own, and what became of their events, for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ontologia import Session

PATIENCE = 60.0  # seconds; only a hang takes that long


@contextmanager
def running(session: Session, handlers: list[Any], **options: Any) -> Iterator[threading.Thread]:
    """Run a session in a thread; the end of the block stops it, if nothing has before.

    What `run` raises is raised there, too.
    """
    failed: list[BaseException] = []

    def target() -> None:
        try:
            session.run(handlers, **options)
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    try:
        yield thread
    finally:
        session.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


def until(condition: Callable[[], object]) -> None:
    """Wait for what another thread does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def claim_of(session, event_id: str) -> dict:
    """The one claim of an event."""
    [claim] = session.event_store.inspect_event(event_id)["claims"]
    return claim


def statuses(session) -> list[str]:
    """What became of the events, in the order of the listing."""
    return [each["status"] for each in session.event_store.list_events(session.namespace)]


def stored(session, event_type: str) -> list[dict]:
    """Every stored event of a type, with its claims."""
    listed = session.event_store.list_events(session.namespace, limit=1000)
    return [session.event_store.inspect_event(e["id"]) for e in listed if e["type"] == event_type]
