"""An actor in a process of its own: it may block, and it may crash.

`ProcessActor` is a Worker in the loop's process; `run_child` runs the actor in the other one. They
speak lines of JSON over a socket pair. The mailbox stays with the loop, and the process gets one
message at a time: a crash costs the message being handled, which is answered with an error, and none
that waits behind it. A process that ended is started again, after a backoff that grows until one
handles a message. It exits when the loop's process is gone.

The process is a new interpreter that imports `spawn` and `inbound` by name; only JSON crosses. A
message is sent as it is. The process sends `{"ready"}`, `{"failed"}`, `{"message"}`, `{"done"}` and
`{"fault"}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import random
import runpy
import select
import signal
import socket
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any

import orjson

from ontologia.actors.actor import Actor, ErrorEvent, MessageEvent, Worker
from ontologia.actors.capability import Schema, branches, decode
from ontologia.actors.message import OUTCOMES, REQUESTS, Message, describe_exception, encode
from ontologia.delivery.retry import Backoff
from ontologia.errors import InvalidValueError

BACKOFF = Backoff(base_ms=50, cap_ms=30_000, jitter_ms=0)
_LINE_LIMIT = 64 * 1024 * 1024  # bytes; one program needs no narrow limit against itself
_GRACE = 2.0  # seconds for the process to exit before it is killed
_ORPHAN_GRACE = 5.0  # seconds for the actor to end after the loop's process is gone
_MAIN = "__mp_main__"
_CODE = (
    "import json, sys; job = json.loads(sys.argv[1]); sys.path[:] = job['path']; "
    "from ontologia.actors.process import run_child; run_child(job)"
)
_importing = False
"""Whether this is a child process that still imports its actor: it must not start others."""


# -- in the loop's process --------------------------------------------------------------------------


class ProcessActor(Worker):
    """Represents an actor that runs in another process."""

    on_done: Callable[[Message], object] | None = None

    def __init__(
        self,
        name: str,
        spawn: Callable[[], object],
        inbound: Any,
        *,
        backoff: Backoff = BACKOFF,
    ) -> None:
        self._name, self._backoff = name, backoff
        self._job = _job(spawn, inbound)
        self._mailbox: deque[Message] = deque()
        self._current: Message | None = None
        self._answered = False
        self._failures = 0
        self._stopping = False
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The current process; None while there is none."""
        return None if self._writer is None or self._process is None else self._process.pid

    @property
    def pending(self) -> int:
        """Number of messages in the mailbox, including the one being handled."""
        return len(self._mailbox) + (self._current is not None)

    async def start(self) -> None:
        """Start the process; raises if its actor cannot be made."""
        try:
            await self._launch()
        except BaseException:
            await self.stop()
            raise
        self._supervisor = asyncio.create_task(self._supervise(), name=f"process of {self._name}")

    def post_message(self, message: Message) -> None:
        """Put a message into the mailbox; outcomes are sent on at once."""
        if self._stopping:
            return
        if message.kind in OUTCOMES:
            self._write(message)  # the handler of the current message may wait for it
            return
        self._mailbox.append(message)
        self._send_next()

    async def stop(self) -> None:
        """Let the process exit; kill it after a grace period."""
        self._stopping = True
        self._mailbox.clear()
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        await self._end()

    # -- the process ------------------------------------------------------------------------------

    async def _launch(self) -> None:
        if _importing:
            raise RuntimeError(
                "a process of an actor must not start others while the program is imported in it; "
                'guard the start of the program by: if __name__ == "__main__":'
            )
        here, there = socket.socketpair()
        try:
            job = orjson.dumps({**self._job, "fd": there.fileno()}).decode()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-c", _CODE, job),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[there.fileno()],
            )
        except BaseException:
            here.close()
            raise
        finally:
            there.close()
        self._reader, self._writer = await asyncio.open_connection(sock=here, limit=_LINE_LIMIT)
        with contextlib.suppress(OSError):
            first = await self._reader.readline()
            frame: dict[str, Any] = orjson.loads(first) if first else {}
            if "ready" in frame:
                return
            if "failed" in frame:
                raise RuntimeError(frame["failed"])
        raise RuntimeError(f"its process ended before it was ready ({await self._end()})")

    async def _supervise(self) -> None:
        while True:
            self._send_next()
            await self._listen()
            self._lost(await self._end())
            await self._relaunch()

    async def _relaunch(self) -> None:
        """Start the process again, with backoff, until one is ready; messages wait meanwhile."""
        while True:
            self._failures += 1
            delay = self._backoff.delay_ms(self._failures, random.randint)
            await asyncio.sleep(delay / 1000)
            try:
                await self._launch()
            except Exception as error:  # noqa: BLE001 - it is tried again
                await self._end()
                self.dispatch(ErrorEvent(f"its process could not be started again: {error}"))
            else:
                return

    async def _listen(self) -> None:
        assert self._reader is not None  # noqa: S101 - launched
        with contextlib.suppress(OSError):
            while line := await self._reader.readline():
                try:
                    self._take(orjson.loads(line))
                except (orjson.JSONDecodeError, InvalidValueError) as error:
                    text = f"its process sent what is no message: {error}"
                    self.dispatch(ErrorEvent(text, cause=self._current, type="messageerror"))

    async def _end(self) -> str:
        """Close the connection and wait for the process; says how it ended."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        process, self._process = self._process, None
        if process is None:
            return "it was not started"
        try:
            code = await asyncio.wait_for(process.wait(), _GRACE)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            code = await process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    # -- messages ---------------------------------------------------------------------------------

    def _send_next(self) -> None:
        if self._current is None and self._mailbox and self._writer is not None:
            self._current, self._answered = self._mailbox.popleft(), False
            self._write(self._current)

    def _write(self, message: Message) -> None:
        if self._writer is not None:
            self._writer.write(encode(message) + b"\n")

    def _take(self, frame: dict[str, Any]) -> None:
        if "message" in frame:
            message = Message.from_data(frame["message"])
            if message.kind in OUTCOMES and self._current is not None:
                self._answered |= message.metadata.causation == self._current.metadata.id
            self.dispatch(MessageEvent(message))
        elif "fault" in frame:
            fault = frame["fault"]
            self.dispatch(ErrorEvent(fault["error"], self._current, traceback=fault["traceback"]))
        elif self._current is not None and frame.get("done") == self._current.metadata.id:
            self._failures = 0
            self._finish()

    def _lost(self, how: str) -> None:
        """The process ended: answer the message that it was handling."""
        message = self._current
        if message is not None and message.kind in REQUESTS and not self._answered:
            text = f"{message.type} failed: the process of its actor ended ({how})"
            self.dispatch(MessageEvent(message.error(500, text)))
        self.dispatch(ErrorEvent(f"its process ended ({how})", cause=message))
        self._finish()

    def _finish(self) -> None:
        message, self._current = self._current, None
        self._send_next()
        if message is not None and self.on_done is not None:
            self.on_done(message)


def _job(spawn: Callable[[], object], inbound: Any) -> dict[str, Any]:
    """The argument of `run_child`, without its `fd`; InvalidValueError if it cannot import these."""
    names = [importable_name(each) for each in (spawn, *branches(inbound))]
    in_main = any(each.startswith("__main__:") for each in names)
    return {
        "path": [each or os.getcwd() for each in sys.path],
        "argv": sys.argv,
        "main": _main_module() if in_main else None,
        "spawn": names[0],
        "inbound": names[1:],
    }


# -- in the actor's process -------------------------------------------------------------------------


def run_child(job: dict[str, Any]) -> None:
    """Run an actor until the connection `fd` ends.

    `path` and `argv` are those of the program; `main` is its script, if anything is defined there;
    `spawn` and `inbound` are names to import.
    """
    # Ctrl-C goes to all processes of a terminal; the program decides, and closes the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=job["fd"])
    connection.set_inheritable(False)
    _exit_with_peer(connection.dup())
    sys.argv[:] = job["argv"]
    with contextlib.suppress(ConnectionError):
        found = _import_job(job)
        if isinstance(found, Exception):
            connection.sendall(_failed(found))
        else:
            asyncio.run(_serve(connection, *found))


def _exit_with_peer(connection: socket.socket) -> None:
    """Exit soon after the loop's process is gone, also while the actor blocks."""
    if not hasattr(select, "poll"):
        return

    def watch() -> None:
        poll = select.poll()
        poll.register(connection, 0)  # no events but the hang-up, which is always reported
        poll.poll()
        time.sleep(_ORPHAN_GRACE)
        os._exit(1)

    threading.Thread(target=watch, name="loop's process", daemon=True).start()


def _import_job(job: dict[str, Any]) -> tuple[Any, Any] | Exception:
    """`spawn` and `inbound` of the job, or what importing them raised."""
    global _importing
    _importing = True
    try:
        if job["main"] is not None:
            _run_main(job["main"])
        return _import_name(job["spawn"]), reduce(or_, map(_import_name, job["inbound"]))
    except Exception as error:  # noqa: BLE001 - the user's modules may raise anything
        return error
    except SystemExit as error:
        return RuntimeError(f"the program ended while it was imported ({error})")
    finally:
        _importing = False


async def _serve(connection: socket.socket, spawn: Any, inbound: Any) -> None:
    reader, writer = await asyncio.open_connection(sock=connection, limit=_LINE_LIMIT)

    def send(frame: dict[str, Any]) -> None:
        writer.write(orjson.dumps(frame) + b"\n")

    def on_message(event: MessageEvent) -> None:
        writer.write(b'{"message":' + encode(event.content) + b"}\n")

    def on_error(event: ErrorEvent) -> None:
        send({"fault": {"error": event.error, "traceback": event.traceback}})

    def on_done(message: Message) -> None:
        send({"done": message.metadata.id})

    try:
        actor = spawn()
        if not isinstance(actor, Actor):
            raise TypeError(f"an actor in a process must derive from Actor, got {actor!r}")
        actor.add_event_listener("message", on_message)
        actor.add_event_listener("error", on_error)
        actor.on_done = on_done
        await actor.start()
    except Exception as error:  # noqa: BLE001 - an actor may raise anything
        writer.write(_failed(error))
        await writer.drain()
        return
    send({"ready": True})
    decoders = Schema(inbound, open_allowed=False).decoders
    while line := await reader.readline():
        head = decode(line)
        actor.post_message(decoders.get((head.kind, head.type), decode)(line))
    await actor.stop()


def _failed(error: Exception) -> bytes:
    return orjson.dumps({"failed": describe_exception(error)}) + b"\n"


# -- names that both processes can import -----------------------------------------------------------

# `module:qualname`. The module of what the script itself defines is `__main__`; the child runs that
# script again under the name `__mp_main__`, as `multiprocessing` does, so that code guarded by
# `if __name__ == "__main__":` does not run there.


def importable_name(thing: Any) -> str:
    """The name of a class or function; InvalidValueError if it cannot be imported by that name."""
    module, qualname = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        raise InvalidValueError(f"{thing!r} is not a class or function of a module")
    name = f"{module}:{qualname}"
    try:
        found = _attribute(sys.modules[module], qualname)
    except (KeyError, AttributeError):
        found = None
    if found is not thing:
        raise InvalidValueError(f"{name} is not at the top of a module, where it could be imported")
    if module == "__main__" and not any(_main_module().values()):
        raise InvalidValueError(f"{name} is in no file; write it in a module")
    return name


def _main_module() -> dict[str, str | None]:
    """How to run this program's script again: the name of its module, or the path of its file."""
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    path = getattr(main, "__file__", None)
    if name or not isinstance(path, str) or not os.path.exists(path):
        return {"name": name, "path": None}
    return {"name": None, "path": os.path.abspath(path)}


def _run_main(main: dict[str, str | None]) -> None:
    """Run the program's script in this process, as the module `__main__`."""
    if main["name"]:
        found = runpy.run_module(main["name"], run_name=_MAIN, alter_sys=True)
    else:
        found = runpy.run_path(main["path"] or "", run_name=_MAIN)
    module = types.ModuleType(_MAIN)
    module.__dict__.update(found)
    sys.modules["__main__"] = sys.modules[_MAIN] = module


def _import_name(name: str) -> Any:
    module, _, qualname = name.partition(":")
    return _attribute(importlib.import_module(module), qualname)


def _attribute(module: types.ModuleType, qualname: str) -> Any:
    found: Any = module
    for each in qualname.split("."):
        found = getattr(found, each)
    return found
