"""Channels to the user: by name, with a default; the terminal; and the handlers that send over them."""

from __future__ import annotations

import asyncio
import codecs
import getpass
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ontologia.delivery.retry import Retry
from ontologia.errors import AgentError, ExtensionError
from ontologia.extensions.bus import EventBus
from ontologia.extensions.contract import AgentProvider, Channel, Event, Handler
from ontologia.extensions.manifest import shown

log = logging.getLogger(__name__)
TERMINAL = "cli_channel"
USER_MESSAGE = "user.message"


class Channels:
    """The channels of a host. The first one that is added is the default.

    A `channel_id` is the name of a channel, or that and an address within it: `chat:room-7` is given
    to the channel `chat`, which knows its rooms.
    """

    def __init__(self) -> None:
        self._channels: dict[str, Channel] = {}
        self.default: str | None = None

    @property
    def names(self) -> list[str]:
        """The names of all channels, sorted."""
        return sorted(self._channels)

    def add(self, name: str, channel: Channel, *, default: bool = False) -> None:
        """Add a channel; replaces one of the same name."""
        self._channels[name] = channel
        if default or self.default is None:
            self.default = name

    def remove(self, name: str) -> None:
        """Remove a channel. Idempotent."""
        self._channels.pop(name, None)
        if self.default == name:
            self.default = None

    async def send(self, text: str, channel_id: str | None = None) -> None:
        """Send a text over the named channel, or the default one.

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


# -- the terminal -----------------------------------------------------------------------------------


class TerminalChannel:
    """`cli_channel`: publishes each typed line as `user.message`, and prints what is sent."""

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        self._write = write or _print
        self._listening = False

    async def send(self, text: str, channel_id: str | None = None) -> None:
        """Print it in a thread: a terminal that blocks holds up only the caller."""
        await asyncio.to_thread(self._write, text)

    def listen(self, bus: EventBus, descriptor: int | None = None) -> None:
        """Publish every line that comes in, by default on stdin, until there are no more.

        A daemon thread reads them. Nothing can interrupt its read: it ends with the process.
        """
        if descriptor is None and sys.stdin is None:
            return  # closed by the parent process: descriptor 0 may be any file now
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
                # One after the other, so that they are published in order.
                asyncio.run_coroutine_threadsafe(publishing, loop).result()
            except RuntimeError:  # the loop has ended
                publishing.close()
                return

    async def _publish(self, bus: EventBus, text: str, user: str) -> None:
        payload = {"text": text, "user_id": user, "channel_id": TERMINAL}
        try:
            await bus.publish(USER_MESSAGE, TERMINAL, payload)
        except Exception as error:  # noqa: BLE001 - the next line may succeed
            log.error("%s: what was typed was not published: %s", TERMINAL, error)


def _lines(descriptor: int) -> Iterator[str]:
    """Lines as they come. Not from sys.stdin: Python cannot exit while a thread reads it."""
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
    except (OSError, KeyError):  # a container may have no entry for its user
        return "user"


def _in_background(descriptor: int) -> bool:
    """Whether reading would stop the process: it is a background job of its terminal."""
    try:
        return os.isatty(descriptor) and os.getpgrp() != os.tcgetpgrp(descriptor)
    except (AttributeError, OSError):  # no terminal, or no POSIX
        return False


# -- the handlers that a manifest can name ----------------------------------------------------------


def notify_user(channels: Channels) -> Handler:
    """A handler that sends the `text` of an event to the user."""

    async def notify(event: Event) -> None:
        await channels.send(_text(event), _channel_id(event))

    return notify


def invoke_agent(find: Callable[[], AgentProvider], channels: Channels) -> Handler:
    """A handler that sends an agent's answer to the user; an empty one is not sent.

    `find` is called for each event: handlers are subscribed before agents exist. If an endpoint says
    when to ask again, the next attempt is made then, if `max_attempts` allows one.
    """

    async def invoke(event: Event) -> None:
        channel_id = _channel_id(event)
        try:
            answer: Any = await find().run(event)
        except AgentError as error:
            if error.retry_after is None:
                raise
            raise Retry(error.args[0], after=error.retry_after) from error
        if not isinstance(answer, str):
            raise ExtensionError(
                f"the agent's answer to {event.topic} is no text, got {shown(answer)}; nothing was "
                f"sent"
            )
        if answer.strip():
            await channels.send(answer, channel_id)
        else:
            log.debug("event %s (%s): the agent has nothing to say", event.id, event.topic)

    return invoke


def _text(event: Event) -> str:
    text = event.payload.get("text")
    if not isinstance(text, str) or not text:
        found = f"got {shown(text)}" if "text" in event.payload else "there is none"
        raise ExtensionError(
            f"{event.topic} has nothing to send: payload.text must be text, {found}",
            hint='Publish it with {"text": "…"} in its payload.',
        )
    return text


def _channel_id(event: Event) -> str | None:
    found = event.payload.get("channel_id")
    if found is not None and not isinstance(found, str):
        raise ExtensionError(
            f"payload.channel_id of {event.topic} must be the name of a channel, got {shown(found)}"
        )
    return found
