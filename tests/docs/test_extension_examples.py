"""The extensions among the examples do what their manifests say, with the commands that stand there."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import pytest

from ontologia import Session
from ontologia.extensions import Channels, EventBus, Host
from tests.integration.commands import invoke

FOLDER = Path(__file__).parents[2] / "examples" / "extensions"
NAMES = sorted(each.name for each in FOLDER.iterdir() if each.is_dir())


class User:
    def __init__(self):
        self.texts = asyncio.Queue()

    async def send(self, text, channel_id=None):
        await self.texts.put(text)


def command(name):
    """The line in the manifest that sets it off."""
    text = (FOLDER / name / "manifest.yaml").read_text()
    return shlex.split(re.search(r"^#   ontologia (emit .*)$", text, re.MULTILINE)[1])


@pytest.fixture
def told(uri, tmp_path):
    """What the user is told by an extension, and what became of the events."""

    async def story(arguments, number):
        user, channels, bus = User(), Channels(), EventBus(uri)
        channels.add("user", user)
        variables = {"ONTOLOGIA_EXT_CHECKIN_PAUSE": "0.05"}
        async with Host(FOLDER, bus, channels=channels, environment=variables) as host:
            assert host.running == NAMES
            await asyncio.to_thread(emit, arguments)
            texts = [await asyncio.wait_for(user.texts.get(), 30) for _ in range(number)]
        entries = await bus.journal.list()
        waiting = await bus.journal.deferred(status="scheduled")
        await bus.close()
        assert user.texts.empty()
        assert waiting == []
        return texts, [(each["topic"], each["status"]) for each in entries]

    def emit(arguments):
        done = invoke(*arguments, "--datastore-uri", uri)
        assert done.exit_code == 0, done.stderr

    def run(arguments, number=1):
        Session(uri).close()
        return asyncio.run(story(arguments, number))

    return run


@pytest.mark.req("BUS-063")
def test_an_urgent_alert_reaches_the_user(told):
    texts, entries = told(command("alerts"))

    assert texts == ["The cellar is under water"]
    assert entries == [("alert.urgent", "done")]


@pytest.mark.req("BUS-061", "BUS-064")
def test_a_reminder_comes_when_it_is_due(told):
    name, topic, payload = command("reminders")

    texts, entries = told([name, topic, payload.replace("5}", "0.05}")])

    assert texts == ["Reminder: Drink water"]
    assert entries == [("reminder.asked", "done"), ("reminder.due", "done")]


@pytest.mark.req("BUS-062", "BUS-065", "BUS-066")
def test_a_check_in_asks_three_times(told):
    texts, entries = told(command("checkin"), 3)

    assert texts == [f"Check-in {step} of 3: How is it going?" for step in (1, 2, 3)]
    assert entries == [("checkin.started", "done")] * 3


@pytest.mark.req("BUS-034", "BUS-062")
def test_a_task_is_given_to_the_agent(told):
    texts, entries = told(command("tasks"))

    assert texts == ["In short: Sales went up."]
    assert entries == [("task.received", "done")]
