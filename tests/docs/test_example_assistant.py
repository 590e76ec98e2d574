"""The assistant among the examples: what it says, what it remembers, and that nothing is lost."""

from __future__ import annotations

import asyncio

import pytest

from ontologia.extensions import EventBus
from tests.docs.applications import Application, assert_told, objects
from tests.integration.commands import invoke

CHAT = ["-m", "ontologia", "extensions", "run", "assistant/extensions"]


@pytest.fixture
def app(tmp_path):
    return Application("assistant", tmp_path)


def reminders(uri):
    return sorted((each["text"], each["told"]) for each in objects(uri, "Reminder").values())


def journal(uri):
    async def entries():
        bus = EventBus(uri)
        found = await bus.journal.list()
        await bus.close()
        return [(each["topic"], each["status"]) for each in found]

    return asyncio.run(entries())


@pytest.mark.thorough
@pytest.mark.req("BUS-064")
def test_a_reminder_outlives_the_assistant_that_was_stopped(app, uri):
    lines = app.run("-m", "assistant", "--datastore-uri", uri)

    assert_told("assistant", lines)
    again = lines.index("It is started again:")
    assert lines[again + 1] == "assistant: It is time to drink tea!"

    assert reminders(uri) == [("call Ada", False), ("drink tea", True)]
    assert {status for _, status in journal(uri)} == {"done"}
    [key] = [key for key, each in objects(uri, "Reminder").items() if each["told"]]
    why = invoke("why", "Reminder", key, "--datastore-uri", uri).stdout
    assert "handler bus:default, extension reminders, attempt 1" in why


@pytest.mark.thorough
@pytest.mark.req("BUS-064")
def test_a_reminder_outlives_the_assistant_that_was_killed_and_is_told_once(app, uri):
    chat = [*CHAT, "--models", "assistant.models", "--datastore-uri", uri]
    app.killed_at("I will remind you", *chat, stdin="remind me in 1 second to drink tea\n")
    assert reminders(uri) == [("drink tea", False)]

    app.killed_at("It is time to drink tea!", *chat)
    app.killed_at("Nothing.", *chat, stdin="what is planned?\n")

    assert reminders(uri) == [("drink tea", True)]
    topics = [topic for topic, _ in journal(uri)]
    assert sorted(topics) == ["assistant.said"] * 3 + ["reminder.due"] + ["user.message"] * 2


def test_the_assistant_passes_its_own_tests(app):
    app.passes_its_own_tests("assistant/test_assistant.py")
