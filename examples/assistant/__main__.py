"""`python -m assistant` talks to the assistant, stops it, and starts it again.

To talk to it yourself, in the folder that has `assistant` in it:

    ontologia extensions run assistant/extensions --models assistant.models
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from ontologia import Session
from ontologia.extensions import Channels, EventBus, Host

from .models import Reminder

EXTENSIONS = Path(__file__).parent / "extensions"


class Chat:
    """The way to the user: prints what is said, and lets the demo wait for it."""

    def __init__(self) -> None:
        self._said: asyncio.Queue[str] = asyncio.Queue()

    async def send(self, text: str, channel_id: str | None = None) -> None:
        """Called by the host for whatever is to be said."""
        print(f"  assistant: {text}")
        self._said.put_nowait(text)

    async def answer(self) -> str:
        return await asyncio.wait_for(self._said.get(), 60)


@asynccontextmanager
async def assistant(uri: str, chat: Chat) -> AsyncGenerator[EventBus]:
    """The assistant at work; at the end it stops cleanly, and what is planned stays planned."""
    channels = Channels()
    channels.add("chat", chat)
    with Session(uri, entity_types=[Reminder]) as session:
        bus = EventBus(session)
        try:
            async with Host(EXTENSIONS, bus, channels=channels):
                yield bus
        finally:
            await bus.close()


async def say(bus: EventBus, text: str) -> None:
    print(f"  you: {text}")
    await bus.publish("user.message", "demo", {"text": text})


async def demo(uri: str) -> None:
    chat = Chat()
    print("You talk to the assistant:")
    async with assistant(uri, chat) as bus:
        for text in (
            "Remind me in 5 seconds to drink tea.",
            "Remind me in 3 hours to call Ada.",
            "What is planned?",
            "Forget everything!",
        ):
            await say(bus, text)
            await chat.answer()

    print("It is stopped for five seconds. The tea is due meanwhile.")
    await asyncio.sleep(5)

    print("It is started again:")
    async with assistant(uri, chat) as bus:
        await chat.answer()
        await say(bus, "What is planned?")
        await chat.answer()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m assistant", description="A talk, and a pause.")
    parser.add_argument("--datastore-uri", default="assistant.db", help="a file or postgresql://")
    asyncio.run(demo(parser.parse_args().datastore_uri))


if __name__ == "__main__":
    main()
