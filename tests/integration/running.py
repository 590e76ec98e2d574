"""Sessions that run in a thread of their own, for tests."""

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
