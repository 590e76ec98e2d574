"""Extensions: plug-ins that speak through events.

bus = EventBus("assistant.db")
async with Host("extensions", bus):
    await bus.publish("reminder.due", "me", {"text": "Drink water"})
"""

from __future__ import annotations

from ontologia.extensions.bus import EventBus
from ontologia.extensions.channels import Channels, TerminalChannel
from ontologia.extensions.context import ExtensionContext
from ontologia.extensions.contract import AgentProvider, Channel, Event, Extension, Handler
from ontologia.extensions.host import Host
from ontologia.extensions.journal import EventJournal
from ontologia.extensions.manifest import Manifest, read_manifest
from ontologia.extensions.openai import OpenAIChatAgent

__all__ = [
    "AgentProvider",
    "Channel",
    "Channels",
    "Event",
    "EventBus",
    "EventJournal",
    "Extension",
    "ExtensionContext",
    "Handler",
    "Host",
    "Manifest",
    "OpenAIChatAgent",
    "TerminalChannel",
    "read_manifest",
]
