"""Actors: commands and queries go to one actor each, events to all subscribers, answers back.

memory = Capability("memory", "Remembers things", inbound=MemorySet | MemoryGet,
                    outbound=MemoryChanged, subscribes=[], spawn=MemoryActor)
asyncio.run(ActorLoop([memory], adapters=[...]).run())
"""

from __future__ import annotations

from ontologia.actors.actor import Actor, ErrorEvent, MessageEvent, Worker
from ontologia.actors.adapter import Adapter, Ingress
from ontologia.actors.capability import Capability
from ontologia.actors.loop import ActorLoop
from ontologia.actors.message import ErrorData, Message, Metadata
from ontologia.actors.sockets import TcpAdapter, UnixSocketAdapter
from ontologia.actors.stdio import StdioAdapter
from ontologia.actors.timer import TimerActor, TimerCancel, TimerSet

__all__ = [
    "Actor",
    "ActorLoop",
    "Adapter",
    "Capability",
    "ErrorData",
    "ErrorEvent",
    "Ingress",
    "Message",
    "MessageEvent",
    "Metadata",
    "StdioAdapter",
    "TcpAdapter",
    "TimerActor",
    "TimerCancel",
    "TimerSet",
    "UnixSocketAdapter",
    "Worker",
]
