"""What chat endpoints answer: the text in it, and what a refusal means."""

from __future__ import annotations

import urllib.error
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any

from ontologia import codec
from ontologia.clock import SYSTEM_CLOCK
from ontologia.errors import AgentError, InvalidValueError
from ontologia.extensions.problems import one_line

_HINTS = {
    400: "Is it a model that the endpoint has?",
    401: "Set OPENAI_API_KEY, or the extension's setting api_key, to a key that is valid.",
    403: "Has the key the right to ask this model?",
    404: "Check the model's name, and OPENAI_BASE_URL: it is what comes before /chat/completions.",
    429: "It is asked too often, or the quota is used up. max_attempts in the manifest tries again.",
}
NO_ANSWER = (InvalidValueError, LookupError, TypeError, AttributeError)
"""What is raised by looking for an answer where none is."""
_SERVER = 500
_LONGEST = 300
_READ = 10_000


def piece_of(answer: Any, part: str) -> tuple[str, bool]:
    """The text in an answer, and whether it is the last; `part` is `message`, in a stream `delta`.

    AgentError if it tells of an error; one of NO_ANSWER if it is something else.
    """
    if isinstance(answer, dict) and answer.get("error"):
        raise AgentError(_message(answer["error"]))
    if not answer["choices"]:  # the last one of a stream has only figures
        return "", False
    first = answer["choices"][0]
    text = first[part].get("content")
    if text is not None and not isinstance(text, str):
        raise TypeError(text)
    return text or "", bool(first.get("finish_reason"))


def refusal(
    error: urllib.error.HTTPError, endpoint: str, hidden: Callable[[str], str]
) -> AgentError:
    """What an answer with a code that is no success means."""
    body = error.read(_READ)
    try:
        said = _message(codec.decode(body)["error"])
    except NO_ANSWER:
        said = body.decode("utf-8", "replace")
    said = hidden(one_line(said))[:_LONGEST]
    hint = _HINTS.get(error.code)
    if error.code >= _SERVER:
        hint = "That is on its side; max_attempts in the manifest tries again."
    if 300 <= error.code < 400:
        said = f"it wants to be asked at {error.headers.get('Location', 'another place')}"
        hint = "Set OPENAI_BASE_URL to that; it is not followed, since the key would go along."
    after = _seconds(error.headers.get("Retry-After"))
    wait = "" if after is None else f" (again in {after:g} s)"
    return AgentError(
        f"{endpoint} answered {error.code}{wait}: {said or error.reason}",
        hint=hint,
        status=error.code,
        retry_after=after,
    )


def _message(error: Any) -> str:
    found = error.get("message") if isinstance(error, dict) else error
    return str(found)


def _seconds(header: str | None) -> float | None:
    """How long to wait, which may be said as a time; None if it is not said, or not understood."""
    if header is None:
        return None
    try:
        if header.strip().isdigit():
            return float(header)
        wait = parsedate_to_datetime(header) - SYSTEM_CLOCK.now()
        return max(0.0, wait.total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None
