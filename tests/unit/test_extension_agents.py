"""What the handlers of a manifest do with an event."""

from __future__ import annotations

import asyncio

import pytest

from ontologia import Retry
from ontologia.errors import AgentError, ExtensionError
from ontologia.extensions.channels import Channels, invoke_agent
from ontologia.extensions.contract import Event

EVENT = Event(1, "task.received", "me", {"text": "work"}, 1.0)


class Raising:
    def __init__(self, error):
        self.error = error

    async def run(self, event):
        raise self.error


class Silent:
    async def send(self, text, channel_id=None): ...


def asked(agent, channels=None):
    return asyncio.run(invoke_agent(lambda: agent, channels or Channels())(EVENT))


def test_an_endpoint_that_says_when_to_ask_again_is_asked_then():
    with pytest.raises(Retry, match="too many") as caught:
        asked(Raising(AgentError("too many", retry_after=7.5)))

    assert caught.value.after_ms == 7500


def test_one_that_does_not_say_fails_as_it_is():
    with pytest.raises(AgentError, match="no answer"):
        asked(Raising(AgentError("no answer", status=500)))


def test_the_first_channel_is_the_default_until_another_is_made_it():
    channels = Channels()
    for name in ("one", "two"):
        channels.add(name, Silent())
    first = channels.default
    channels.add("three", Silent(), default=True)

    assert (first, channels.default, channels.names) == ("one", "three", ["one", "three", "two"])


def test_without_a_channel_nothing_is_sent_and_that_is_an_error():
    channels = Channels()
    channels.add("one", Silent())
    channels.remove("one")
    channels.remove("one")

    with pytest.raises(ExtensionError, match="there is no default channel; nothing was sent"):
        asyncio.run(channels.send("hello"))
