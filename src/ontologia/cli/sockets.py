"""The actors of `ontologia serve --socket`: a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ontologia.actors import ActorLoop, UnixSocketAdapter
    from ontologia.commands import Env


class Sockets:
    """Serves a store on a Unix socket, from `start` to `stop`."""

    def __init__(self, env: Env, path: str, ended: Callable[[], object] = lambda: None) -> None:
        self._env, self._path, self._ended = env, path, ended
        self._ready = threading.Event()
        self._stopping = False
        self._failure: BaseException | None = None
        self._host: asyncio.AbstractEventLoop | None = None
        self._loop: ActorLoop | None = None
        self._adapter: UnixSocketAdapter | None = None
        self._thread = threading.Thread(target=self._run, name="sockets", daemon=True)

    def start(self) -> None:
        """Listen; raises what keeps it from that."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Take no more messages. Any thread, or a signal, may call this."""
        self._stopping = True
        host, loop = self._host, self._loop
        if host is not None and loop is not None and not host.is_closed():
            host.call_soon_threadsafe(loop.stop)

    def join(self) -> None:
        """Wait for the end; raises what it ended with."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    @property
    def served(self) -> int:
        """How many clients there were."""
        return 0 if self._adapter is None else self._adapter.served

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised by start or join
            self._failure = error
        finally:
            self._ready.set()
            self._ended()

    async def _serve(self) -> None:
        from ontologia.actors import ActorLoop, UnixSocketAdapter
        from ontologia.actors.bridge import bridged

        self._adapter = UnixSocketAdapter(self._path)
        loop = ActorLoop(bridged(self._env), adapters=[self._adapter])
        running = asyncio.create_task(loop.run())
        ready = asyncio.create_task(loop.ready())
        await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        self._host, self._loop = asyncio.get_running_loop(), loop
        if not running.done():
            self._ready.set()
        if self._stopping:
            loop.stop()
        await running
