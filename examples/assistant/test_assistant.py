"""Tests of the assistant: `python -m pytest assistant`. Nobody waits: the clock is moved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from ontologia import OntologiaConfig, Session
from ontologia.extensions import Channels, EventBus, Host
from ontologia.testing import ManualClock

from .__main__ import EXTENSIONS, Chat, say
from .models import Reminder

Story = Callable[[EventBus, Chat], Awaitable[None]]


def tell(story: Story, path: Path, clock: ManualClock) -> None:
    """Start the assistant, let a story happen, and stop it."""

    async def told() -> None:
        chat, channels = Chat(), Channels()
        channels.add("chat", chat)
        config = OntologiaConfig(clock=clock)
        with Session(str(path / "test.db"), entity_types=[Reminder], config=config) as session:
            bus = EventBus(session)
            async with Host(EXTENSIONS, bus, channels=channels):
                await story(bus, chat)
            await bus.close()

    asyncio.run(told())


def test_a_reminder_comes_when_it_is_due_and_not_before(tmp_path: Path, clock: ManualClock) -> None:
    async def ask(bus: EventBus, chat: Chat) -> None:
        await say(bus, "remind me in 10 minutes to drink tea")
        assert await chat.answer() == "I will remind you to drink tea."

    async def early(bus: EventBus, chat: Chat) -> None:
        await say(bus, "what is planned?")
        assert await chat.answer() == "You want to drink tea."

    async def due(bus: EventBus, chat: Chat) -> None:
        assert await chat.answer() == "It is time to drink tea!"
        await say(bus, "what is planned?")
        assert await chat.answer() == "Nothing."

    tell(ask, tmp_path, clock)
    clock.advance(seconds=599)
    tell(early, tmp_path, clock)
    clock.advance(seconds=1)
    tell(due, tmp_path, clock)


def test_a_reminder_that_is_due_twice_is_told_once(tmp_path: Path, clock: ManualClock) -> None:
    async def twice(bus: EventBus, chat: Chat) -> None:
        due = {"id": "r1", "text": "drink tea", "due": clock.now().isoformat()}
        await bus.publish("reminder.due", "test", due)
        await bus.publish("reminder.due", "test", due)
        await say(bus, "what is planned?")
        assert await chat.answer() == "It is time to drink tea!"
        assert await chat.answer() == "Nothing."

    tell(twice, tmp_path, clock)


def test_one_that_may_only_read_changes_nothing(tmp_path: Path, clock: ManualClock) -> None:
    async def forget(bus: EventBus, chat: Chat) -> None:
        await say(bus, "remind me in 1 day to call Ada")
        await chat.answer()
        await say(bus, "forget everything")
        assert "agenda may not write Reminder" in await chat.answer()
        assert bus.session.query().entities(Reminder).count() == 1

    tell(forget, tmp_path, clock)
