"""The actors of `ontologia serve --socket`: a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ontologia.actors import ActorLoop, Capability, UnixSocketAdapter
    from ontologia.commands import Env


class Sockets:
    """Serves a store on a Unix socket, from `start` to `stop`."""

    def __init__(
        self,
        env: Env,
        path: str,
        capabilities: Sequence[Capability] = (),
        *,
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        self._env, self._path, self._ended = env, path, ended
        self._capabilities = capabilities
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
        loop = ActorLoop(bridged(self._env, self._capabilities), adapters=[self._adapter])
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


def load_capabilities(targets: Sequence[str]) -> list[Capability]:
    """The capabilities of these names, `module:name`; the working directory is looked at first."""
    return [each for target in targets for each in _named(target)]


def _named(target: str) -> list[Capability]:
    import importlib

    from ontologia.actors import Capability
    from ontologia.cli.models import load_models
    from ontologia.errors import NotFoundError

    module, _, name = target.partition(":")
    if not module or not name:
        raise NotFoundError(
            f"{target} is not the name of a capability",
            hint="Write the module and the name in it: --capabilities myapp.actors:memory.",
        )
    load_models(module)  # says what keeps it from being imported
    found: Any = getattr(importlib.import_module(module), name, None)
    several: list[Any] = [found] if isinstance(found, Capability) else []
    if isinstance(found, list | tuple):
        several = list(cast("Sequence[Any]", found))
    if not several or not all(isinstance(each, Capability) for each in several):
        raise NotFoundError(
            f"{target} is not a Capability, nor a list of some; got {found!r}",
            hint=f"Write {name} = Capability(...) in {module}.",
        )
    return several
