"""What changed, told to open pages: server-sent events, from one follower for each namespace.

A message says what kind of thing changed, and pages are fetched again. The first one comes at once,
then at most two a second. A follower runs while somebody listens.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ontologia import codec
from ontologia.errors import InvalidValueError, OntologiaError
from ontologia.runtime.following import follow
from ontologia.store.events import checks

if TYPE_CHECKING:
    from ontologia.web.console.app import Console

log = logging.getLogger(__name__)
AWAY, BACK = "away", "back"
_REST = 0.5  # seconds between two messages
_BEAT = 15.0  # seconds after which a stream that has nothing to say shows that it is there
_LIFE = 60.0  # seconds; a server that is not ours waits for streams when it ends
_AGAIN = 1.0  # seconds until a database that is away is asked again
_MOST = 1_000  # streams
_MOST_FOLLOWERS = 16  # namespaces; each follower is a thread that reads
_PATIENCE = 5.0  # seconds that a follower may need to end


class _Listener:
    """One stream. Belongs to a loop; others tell it through that loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.woken = asyncio.Event()
        self.changed: set[str] = set()

    def tell(self, changed: set[str]) -> None:
        self.changed |= changed
        self.woken.set()


class _Follower:
    """Looks at one namespace, in a thread, for all who listen."""

    def __init__(self, console: Console, namespace: str) -> None:
        self._session = console.session_of(namespace)
        self._listeners: set[_Listener] = set()
        self._stopped = threading.Event()
        self.began = threading.Event()
        """Whatever happens from here on is told, or the database is away."""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="console-live", daemon=True)
        self._thread.start()

    def add(self, listener: _Listener) -> None:
        with self._lock:
            self._listeners.add(listener)

    def remove(self, listener: _Listener) -> bool:
        """Whether nobody listens any more."""
        with self._lock:
            self._listeners.discard(listener)
            return not self._listeners

    def stop(self) -> None:
        self._stopped.set()
        self.began.set()  # nobody need wait for it any more

    def join(self) -> None:
        self._thread.join(_PATIENCE)

    def _run(self) -> None:
        away = False
        while not self._stopped.is_set():
            try:
                head = self._session.head
                if away:
                    away = False
                    self._publish({BACK})
                for news in follow(self._session, self._stopped.is_set):
                    self.began.set()
                    before, head = head, self._session.head
                    changed = {"events"} if news else set[str]()
                    if head != before:
                        changed.add("commits")
                    if changed:
                        self._publish(changed)
            except OntologiaError as error:
                if not away and not self._stopped.is_set():
                    log.warning("live updates wait for the database: %s", error.args[0])
                    self._publish({AWAY})
                away = True
                self.began.set()
                self._stopped.wait(_AGAIN)

    def _publish(self, changed: set[str]) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for each in listeners:
            with suppress(RuntimeError):  # its loop is closed
                each.loop.call_soon_threadsafe(each.tell, changed)


class Streams:
    """The open streams of a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._followers: dict[str, _Follower] = {}
        self._ending: WeakSet[_Follower] = WeakSet()
        self._listeners: set[_Listener] = set()
        self._lock = threading.Lock()
        self._closed = False

    def stream(self, request: Request) -> Response:
        """What changes in a namespace from here on."""
        namespace = request.query_params.get("namespace") or self._console.session.namespace
        try:
            checks.name("namespace", namespace)
        except InvalidValueError:
            return Response(status_code=400)
        with self._lock:
            full = namespace not in self._followers and len(self._followers) >= _MOST_FOLLOWERS
            full = full or self._closed or len(self._listeners) >= _MOST
        if full:
            return Response(status_code=503, headers={"Retry-After": "5"})
        return StreamingResponse(
            self._messages(namespace),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},
        )

    def tell(self, what: str) -> None:
        """Say to all who listen, in any namespace, that something changed. For any thread."""
        with self._lock:
            listeners = list(self._listeners)
        for each in listeners:
            with suppress(RuntimeError):  # its loop is closed
                each.loop.call_soon_threadsafe(each.tell, {what})

    def end(self) -> None:
        """End all streams. Idempotent; for any thread; waits for nothing."""
        with self._lock:
            self._closed = True
            for each in self._followers.values():
                each.stop()
            listeners = list(self._listeners)
        for listener in listeners:
            with suppress(RuntimeError):  # its loop is closed
                listener.loop.call_soon_threadsafe(listener.woken.set)

    def close(self) -> None:
        """The same, and wait for those who look at the store. Idempotent."""
        self.end()
        with self._lock:
            followers = [*self._followers.values(), *self._ending]
        for each in followers:
            each.join()

    async def _messages(self, namespace: str) -> AsyncGenerator[str]:
        listener = _Listener()
        loop = listener.loop
        try:
            entered = await asyncio.to_thread(self._enter, namespace, listener)
            yield "retry: 1000\n\n" if entered else "retry: 5000\n\n"
            if not entered:
                return
            end = loop.time() + _LIFE
            while not self._closed and loop.time() < end:
                try:
                    async with asyncio.timeout(_BEAT):
                        await listener.woken.wait()
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                changed = sorted(listener.changed)
                listener.woken.clear()
                listener.changed.clear()
                if changed:
                    yield f"data: {codec.encode(changed)}\n\n"
                    await asyncio.sleep(_REST)
        finally:
            self._leave(namespace, listener)

    def _enter(self, namespace: str, listener: _Listener) -> bool:
        """Whether it is told from now on."""
        with self._lock:
            follower = self._followers.get(namespace)
            full = follower is None and len(self._followers) >= _MOST_FOLLOWERS
            if self._closed or full:  # requests that came together
                return False
            self._listeners.add(listener)
            if follower is None:
                follower = self._followers[namespace] = _Follower(self._console, namespace)
            follower.add(listener)
        follower.began.wait(_PATIENCE)
        return True

    def _leave(self, namespace: str, listener: _Listener) -> None:
        with self._lock:
            self._listeners.discard(listener)
            follower = self._followers.get(namespace)
            if follower is not None and follower.remove(listener):
                del self._followers[namespace]
                follower.stop()
                self._ending.add(follower)  # for `close`, which the session's may follow
