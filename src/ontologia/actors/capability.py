"""What an actor can do: the messages it takes and gives, and how it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

Isolation = Literal["task", "process"]


@dataclass(frozen=True, slots=True)
class Capability:
    """One capability; the loop makes one actor of it."""

    id: str
    description: str
    _: KW_ONLY
    inbound: Any
    """The messages it takes: a class derived from Message, or a union of such, each with a literal
    `kind` and `type`. Each command and query belongs to one capability."""
    outbound: Any
    """The messages it gives, likewise; `Message` itself stands for any."""
    subscribes: Sequence[str] = ()
    """The types of events it is told of."""
    spawn: Callable[[], object]
    """Makes the actor: an Actor, or any object that is shaped like a Worker."""
    isolation: Isolation = "task"
    """`"process"` gives the actor a process of its own, which may block and crash."""
