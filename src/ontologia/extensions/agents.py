"""The handlers that a manifest can name: what they do with an event."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ontologia.delivery.retry import Retry
from ontologia.errors import AgentError, ExtensionError
from ontologia.extensions.problems import got

if TYPE_CHECKING:
    from ontologia.extensions.channels import Channels
    from ontologia.extensions.contract import AgentProvider, Event, Handler

log = logging.getLogger(__name__)


def notify_user(channels: Channels) -> Handler:
    """A handler that sends the `text` of an event to the user."""

    async def notify(event: Event) -> None:
        await channels.send(_text(event), _channel_id(event))

    return notify


def invoke_agent(find: Callable[[], AgentProvider], channels: Channels) -> Handler:
    """A handler that sends an agent's answer to the user; an empty one is not sent.

    `find` is called for each event: handlers are wired before there are agents. If an endpoint says
    when to ask again, that is when the next attempt is made, if `max_attempts` allows one.
    """

    async def invoke(event: Event) -> None:
        channel_id = _channel_id(event)
        try:
            answer: Any = await find().run(event)
        except AgentError as error:
            if error.retry_after is None:
                raise
            raise Retry(error.args[0], after=error.retry_after) from error
        if not isinstance(answer, str):
            raise ExtensionError(
                f"the agent's answer to {event.topic} is no text, got {got(answer)}; nothing was sent"
            )
        if answer.strip():
            await channels.send(answer, channel_id)
        else:
            log.debug("event %s (%s): the agent has nothing to say", event.id, event.topic)

    return invoke


def agent_of(
    instance: Any,
    section: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
    environment: Mapping[str, str],
) -> AgentProvider | None:
    """The agent of an extension: its own `async def run(event)`, else the one its section names.

    None if it has neither; ConfigError if the section is not enough for one.
    """
    if inspect.iscoroutinefunction(getattr(instance, "run", None)):
        provider: AgentProvider = instance
        return provider
    if section is None:
        return None
    from ontologia.extensions.openai import OpenAIChatAgent

    return OpenAIChatAgent.from_section(section, settings, environment)


def _text(event: Event) -> str:
    text = event.payload.get("text")
    if not isinstance(text, str) or not text:
        found = f"got {got(text)}" if "text" in event.payload else "there is none"
        raise ExtensionError(
            f"{event.topic} has nothing to send: payload.text must be text, {found}",
            hint='Publish it with {"text": "…"} in its payload.',
        )
    return text


def _channel_id(event: Event) -> str | None:
    found = event.payload.get("channel_id")
    if found is not None and not isinstance(found, str):
        raise ExtensionError(
            f"payload.channel_id of {event.topic} must be the name of a channel, got {got(found)}"
        )
    return found
