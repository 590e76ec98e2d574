"""What clients may say.

The domain `Sys` is the loop's own: actors trust its signals, and its one command ends requests. A
client may give up on its own requests, and says nothing else of that domain: not by itself, and not
through a timer, which would say it later in its own name.
"""

from __future__ import annotations

from typing import Any, cast

from ontologia.actors.message import OUTCOMES, TIMEOUT_TYPE, Message
from ontologia.errors import InvalidValueError

_SET = "Timer.Set"


def check_client_may_say(message: Message) -> None:
    """InvalidValueError if this is not for clients to say."""
    if message.kind in OUTCOMES:
        raise InvalidValueError(
            f"clients send commands, queries and events; a {message.kind} is for actors to give"
        )
    if (message.kind, message.type) == ("command", TIMEOUT_TYPE):
        return  # the loop looks whose request it is
    found = system_type_in(message.type, message.data)
    if found is not None:
        by = "" if found == message.type else ", also by a timer"
        raise InvalidValueError(f"{found} is for the loop to say; clients may not{by}")


def system_type_in(type: str, data: object) -> str | None:
    """The type of the domain `Sys` that this message has or leads to; None if there is none.

    A timer's message may set another timer, and so on.
    """
    while not type.startswith("Sys."):
        template = _member(data, "message") if type == _SET else None
        inner = _member(template, "type")
        if not isinstance(inner, str):
            return None
        type, data = inner, _member(template, "data")
    return type


def _member(value: object, name: str) -> Any:
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
