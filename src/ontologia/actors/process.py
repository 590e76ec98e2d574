"""An actor in a process of its own: it may block, and it may crash.

The same surface as other actors have, over a socket pair with lines of JSON. The mailbox stays on
this side, and the process is given one message at a time: a crash costs the message at hand, which
is answered with an error, and nothing that waits behind it. A process that ended is started again,
later each time, until one handles a message. It ends by itself when this side is gone.

The process is a new interpreter that imports what `spawn` and `inbound` name; nothing but JSON goes
over. A message goes over as it is. Back come `{"ready"}`, `{"failed"}`, `{"message"}`, `{"done"}` and
`{"fault"}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import orjson

from ontologia.actors import child
from ontologia.actors.imported import main_module, name_of
from ontologia.actors.message import OUTCOMES, REQUESTS, Message, encode
from ontologia.actors.schema import branches
from ontologia.actors.worker import ErrorEvent, MessageEvent, Worker
from ontologia.delivery.retry import Backoff
from ontologia.errors import InvalidValueError

_GRACE = 2.0
_CODE = (
    "import json, sys; job = json.loads(sys.argv[1]); sys.path[:] = job['path']; "
    "from ontologia.actors.child import main; main(job)"
)
BACKOFF = Backoff(base_ms=50, cap_ms=30_000, jitter_ms=0)


class ProcessActor(Worker):
    """Stands in this process for an actor in another."""

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
        self._job = job_of(spawn, inbound)
        self._mailbox: deque[Message] = deque()
        self._in_hand: Message | None = None
        self._answered = False
        self._failures = 0
        self._stopping = False
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process as it is now; None while there is none."""
        return None if self._writer is None or self._process is None else self._process.pid

    @property
    def pending(self) -> int:
        """How many messages are in the mailbox or being handled."""
        return len(self._mailbox) + (self._in_hand is not None)

    async def start(self) -> None:
        """Start the process; raises if its actor cannot be made."""
        try:
            await self._launch()
        except BaseException:
            await self.stop()
            raise
        self._supervisor = asyncio.create_task(self._supervise(), name=f"process of {self._name}")

    def post_message(self, message: Message) -> None:
        """Put a message into the mailbox; outcomes are handed on at once."""
        if self._stopping:
            return
        if message.kind in OUTCOMES:
            self._write(message)  # the actor may be waiting for it, with a message in hand
            return
        self._mailbox.append(message)
        self._hand_over()

    async def stop(self) -> None:
        """Let the process end; one that does not is killed."""
        self._stopping = True
        self._mailbox.clear()
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        await self._end()

    # -- the process ------------------------------------------------------------------------------

    async def _launch(self) -> None:
        if child.beginning:
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
        self._reader, self._writer = await asyncio.open_connection(sock=here, limit=child.LONGEST)
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
            self._hand_over()
            await self._listen()
            self._lost(await self._end())
            await self._launch_again()

    async def _launch_again(self) -> None:
        """Start the process, later each time, until one is ready; messages wait meanwhile."""
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
                    told = f"its process sent what is no message: {error}"
                    self.dispatch(ErrorEvent(told, cause=self._in_hand, type="messageerror"))

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

    def _hand_over(self) -> None:
        if self._in_hand is None and self._mailbox and self._writer is not None:
            self._in_hand, self._answered = self._mailbox.popleft(), False
            self._write(self._in_hand)

    def _write(self, message: Message) -> None:
        if self._writer is not None:
            self._writer.write(encode(message) + b"\n")

    def _take(self, frame: dict[str, Any]) -> None:
        if "message" in frame:
            message = Message.from_data(frame["message"])
            answered = message.metadata.causation
            if message.kind in OUTCOMES and self._in_hand is not None:
                self._answered |= answered == self._in_hand.metadata.id
            self.dispatch(MessageEvent(message))
        elif "fault" in frame:
            told = frame["fault"]
            self.dispatch(ErrorEvent(told["error"], self._in_hand, traceback=told["traceback"]))
        elif self._in_hand is not None and frame.get("done") == self._in_hand.metadata.id:
            self._failures = 0
            self._finish()

    def _lost(self, how: str) -> None:
        """The process is gone: answer for what it had in hand."""
        message, told = self._in_hand, f"its process ended ({how})"
        if message is not None and message.kind in REQUESTS and not self._answered:
            text = f"{message.type} failed: the process of its actor ended ({how})"
            self.dispatch(MessageEvent(message.error(500, text)))
        self.dispatch(ErrorEvent(told, cause=message))
        self._finish()

    def _finish(self) -> None:
        message, self._in_hand = self._in_hand, None
        self._hand_over()
        if message is not None and self.on_done is not None:
            self.on_done(message)


def job_of(spawn: Callable[[], object], inbound: Any) -> dict[str, Any]:
    """What a process is told to do; InvalidValueError if it could not find these there."""
    names = [name_of(each) for each in (spawn, *branches(inbound))]
    in_main = any(each.startswith("__main__:") for each in names)
    return {
        "path": [each or os.getcwd() for each in sys.path],
        "argv": sys.argv,
        "main": main_module() if in_main else None,
        "spawn": names[0],
        "inbound": names[1:],
    }
