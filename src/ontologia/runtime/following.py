"""Following a namespace: waiting for what happens to its events, without asking all the time."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING

from ontologia.runtime.session import core_of
from ontologia.store.events.following import News

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

_INTERVAL = 0.5  # seconds until the next look when nobody wakes: a server tells of new events only
_REST = 0.05  # seconds between two looks at a store that is busy


def follow(session: Session, stop: Callable[[], bool] = lambda: False) -> Generator[list[News]]:
    """What happens to the events of a session's namespace from here on, look by look, until `stop`.

    A look follows whenever the store was written to, at most 20 times a second, and every half
    second otherwise; one that finds nothing gives an empty list. Leaves nothing in the store.
    """
    with closing(core_of(session).store.watch()) as watch:
        follower = session.event_store.activity.follow(session.namespace)
        while not stop():
            watch.settle()
            yield follower.look()
            if watch.wait(_INTERVAL):
                core_of(session).clock.sleep(_REST)
