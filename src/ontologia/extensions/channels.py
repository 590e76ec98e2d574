"""The ways to the user: by name, with one that is taken when none is named; and the terminal."""

from __future__ import annotations

import asyncio
import codecs
import getpass
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ontologia.errors import ExtensionError

if TYPE_CHECKING:
    from ontologia.extensions.bus import EventBus
    from ontologia.extensions.contract import Channel

log = logging.getLogger(__name__)
TERMINAL = "cli_channel"
USER_MESSAGE = "user.message"


class Channels:
    """The channels of a host. The first one that is added is the default.

    A `channel_id` is the name of a channel, or that and a place in it: `chat:room-7` is given to
    the channel `chat`, which knows its rooms.
    """

    def __init__(self) -> None:
        self._channels: dict[str, Channel] = {}
        self.default: str | None = None

    @property
    def names(self) -> list[str]:
        """Those there are."""
        return sorted(self._channels)

    def add(self, name: str, channel: Channel, *, default: bool = False) -> None:
        """Have this channel under this name, in place of one that had it."""
        self._channels[name] = channel
        if default or self.default is None:
            self.default = name

    def remove(self, name: str) -> None:
        """Have it no more; nothing if there is none."""
        self._channels.pop(name, None)
        if self.default == name:
            self.default = None

    async def send(self, text: str, channel_id: str | None = None) -> None:
        """Send a text over the channel that is named, or the default one.

        ExtensionError if there is none.
        """
        name = self.default if channel_id is None else channel_id.partition(":")[0]
        channel = None if name is None else self._channels.get(name)
        if channel is None:
            what = "no default channel" if channel_id is None else f"no channel {channel_id!r:.200}"
            raise ExtensionError(
                f"there is {what}; nothing was sent",
                hint=f"There are {', '.join(self.names) or 'none'}.",
            )
        await channel.send(text, channel_id)


class TerminalChannel:
    """`cli_channel`: what is typed becomes `user.message`, what is sent is printed."""

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        self._write = write or _print
        self._listening = False

    async def send(self, text: str, channel_id: str | None = None) -> None:
        """Print it; a terminal that does not take it holds up nobody but the caller."""
        await asyncio.to_thread(self._write, text)

    def listen(self, bus: EventBus, descriptor: int | None = None) -> None:
        """Publish every line that comes in, by default on stdin, until there are no more.

        A thread of its own waits for them, which nothing can wake: it ends with the process.
        """
        if descriptor is None and sys.stdin is None:
            return  # closed by whoever started the program: 0 may be anything now
        source = descriptor or 0
        if _in_background(source):
            return
        self._listening = True
        arguments = (source, bus, asyncio.get_running_loop())
        threading.Thread(target=self._read, args=arguments, name=TERMINAL, daemon=True).start()

    def close(self) -> None:
        """Publish no further lines."""
        self._listening = False

    def _read(self, descriptor: int, bus: EventBus, loop: asyncio.AbstractEventLoop) -> None:
        user = _user()
        for line in filter(None, map(str.strip, _lines(descriptor))):
            if not self._listening:
                return
            publishing = self._publish(bus, line, user)
            try:
                # One after the other, so that they are published in the order they came.
                asyncio.run_coroutine_threadsafe(publishing, loop).result()
            except RuntimeError:  # the loop has ended
                publishing.close()
                return

    async def _publish(self, bus: EventBus, text: str, user: str) -> None:
        payload = {"text": text, "user_id": user, "channel_id": TERMINAL}
        try:
            await bus.publish(USER_MESSAGE, TERMINAL, payload)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next line may do
            log.error("%s: what was typed was not published: %s", TERMINAL, error)


def _lines(descriptor: int) -> Iterator[str]:
    """Lines as they come. Not through sys.stdin: Python cannot end while a thread waits in there."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    rest = ""
    try:
        while chunk := os.read(descriptor, 65_536):
            *whole, rest = (rest + decode(chunk)).split("\n")
            yield from whole
    except OSError:  # it was closed, or the terminal is gone
        pass
    yield rest + decode(b"", True)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container need not know who runs it
        return "user"


def _in_background(descriptor: int) -> bool:
    """Whether reading would stop the process: it is no job in the foreground of its terminal."""
    try:
        return os.isatty(descriptor) and os.getpgrp() != os.tcgetpgrp(descriptor)
    except (AttributeError, OSError):  # no terminal, or not such a system
        return False
