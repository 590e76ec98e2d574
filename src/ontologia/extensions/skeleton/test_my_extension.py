"""The extension at work, on a database of its own: pytest runs it."""

import asyncio
from pathlib import Path

from ontologia.extensions import Channels, EventBus, Host


class User:
    """A channel that remembers what was sent."""

    def __init__(self):
        self.texts = asyncio.Queue()

    async def send(self, text, channel_id=None):
        await self.texts.put(text)


async def ask(database, name):
    user, channels, bus = User(), Channels(), EventBus(database)
    channels.add("user", user)
    async with Host(Path(__file__).parent, bus, channels=channels, environment={}):
        await bus.publish("my_extension.asked", "test", {"name": name})
        answer = await asyncio.wait_for(user.texts.get(), 30)
    await bus.close()
    return answer


def test_whoever_asks_is_greeted(tmp_path):
    assert asyncio.run(ask(tmp_path / "test.db", "Ada")) == "Hello, Ada!"
