"""An agent that asks a chat endpoint with the API of OpenAI.

The answer is streamed, so that `timeout` limits silence, not the length of the answer. The requests
are made with the standard library, in a thread each.
"""

from __future__ import annotations

import asyncio
import http.client
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ontologia import codec
from ontologia.clock import SYSTEM_CLOCK
from ontologia.errors import AgentError, ConfigError, InvalidValueError
from ontologia.extensions.channels import USER_MESSAGE
from ontologia.extensions.contract import Event
from ontologia.extensions.manifest import one_line

ENDPOINT = "https://api.openai.com/v1"
_SILENCE = 60.0  # seconds
_LARGEST = 8_000_000  # bytes of an answer
_LARGEST_REFUSAL = 10_000  # bytes of an error response
_LONGEST = 300  # characters of an error message
_NO_ANSWER = "; there is no answer"
_MALFORMED = (InvalidValueError, LookupError, TypeError, AttributeError)
_HINTS = {
    400: "Is it a model that the endpoint has?",
    401: "Set OPENAI_API_KEY, or the extension's setting api_key, to a key that is valid.",
    403: "Has the key the right to ask this model?",
    404: "Check the model's name, and OPENAI_BASE_URL: it is what comes before /chat/completions.",
    429: "It is asked too often, or the quota is used up. max_attempts in the manifest tries again.",
}


class OpenAIChatAgent:
    """Answers events by asking a model. Keys are neither logged nor part of any error."""

    def __init__(
        self,
        model: str,
        *,
        instructions: str = "",
        endpoint: str = ENDPOINT,
        key: str | None = None,
        timeout: float = _SILENCE,
    ) -> None:
        """`endpoint` is what comes before `/chat/completions`. `timeout` is in seconds."""
        url = _split(endpoint)
        if url is not None and "@" in url.netloc:
            raise ConfigError("an agent's endpoint has no user and password in it; give a key")
        if url is None or url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(f"an agent's endpoint is a URL, https://host/v1, got {endpoint!r}")
        if key is not None and not (key.strip().isascii() and key.strip().isprintable()):
            raise ConfigError("an agent's key has letters that no key has")
        if not timeout > 0:
            raise ConfigError(f"an agent's timeout must be more than 0 seconds, got {timeout!r}")
        self.model, self.instructions, self.timeout = model, instructions, timeout
        self.endpoint = endpoint.rstrip("/")
        self._key = key.strip() if key else None

    @classmethod
    def from_section(
        cls,
        section: Mapping[str, Any],
        settings: Mapping[str, Any],
        environment: Mapping[str, str],
    ) -> OpenAIChatAgent:
        """The agent of a manifest.

        `model`, `base_url` and `timeout` are the extension's settings of these names, else those
        of the section; `instructions` are the section's. The key is the setting `api_key`, else
        OPENAI_API_KEY; a URL that neither names is OPENAI_BASE_URL. ConfigError if one is missing
        or invalid.
        """
        names = ("model", "base_url", "timeout")
        chosen = {**section, **{name: settings[name] for name in names if settings.get(name)}}
        if "api_key" in section:
            raise ConfigError(
                "api_key: a manifest is passed on, and a key should not be",
                hint="remove it and set OPENAI_API_KEY",
            )
        for name in ("model", "instructions", "base_url"):
            if not isinstance(chosen.get(name, ""), str):
                raise ConfigError(f"{name} must be text", hint="write it in quotes")
        timeout = chosen.get("timeout", _SILENCE)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float):
            raise ConfigError("timeout must be a number of seconds", hint="write 60")
        if not chosen.get("model"):
            raise ConfigError("model is missing", hint="name the model that is asked")
        return cls(
            chosen["model"],
            instructions=section.get("instructions", ""),
            endpoint=chosen.get("base_url") or environment.get("OPENAI_BASE_URL") or ENDPOINT,
            key=settings.get("api_key") or environment.get("OPENAI_API_KEY") or None,
            timeout=timeout,
        )

    def __repr__(self) -> str:
        return f"<OpenAIChatAgent {self.model} at {self.endpoint}>"

    async def run(self, event: Event) -> str:
        """The whole answer; AgentError if it fails or is incomplete."""
        return "".join([piece async for piece in self.stream(event)])

    async def stream(self, event: Event) -> AsyncIterator[str]:
        """The answer, piece by piece; AgentError as soon as it fails."""
        loop, pieces, closed = asyncio.get_running_loop(), asyncio.Queue[Any](), threading.Event()

        def put(item: object) -> None:
            if closed.is_set():
                raise _Closed
            loop.call_soon_threadsafe(pieces.put_nowait, item)

        request = self._request(event)
        threading.Thread(
            target=self._pull, args=(request, put), name="chat agent", daemon=True
        ).start()
        try:
            while (item := await pieces.get()) is not None:
                if isinstance(item, AgentError):
                    raise item
                yield item
        finally:
            closed.set()

    def _request(self, event: Event) -> urllib.request.Request:
        if self._key is None and self.endpoint == ENDPOINT:
            raise AgentError(
                f"{self.endpoint} needs a key, and there is none; nothing was asked",
                hint="Set OPENAI_API_KEY, or OPENAI_BASE_URL to an endpoint that needs none.",
            )
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        messages = [*system, {"role": "user", "content": _prompt(event)}]
        body = {"model": self.model, "messages": messages, "stream": True}
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        return urllib.request.Request(  # noqa: S310 - http or https, as checked above
            f"{self.endpoint}/chat/completions", codec.encode(body).encode(), headers, method="POST"
        )

    # -- in a thread ------------------------------------------------------------------------------

    def _pull(self, request: urllib.request.Request, put: Callable[[object], None]) -> None:
        """Put every piece, and then an error or None."""
        try:
            try:
                for piece in self._pieces(request):
                    put(piece)
                put(None)
            except AgentError as error:
                put(error)
            except TimeoutError:
                put(AgentError(f"{self._name} was silent for {self.timeout:g} s{_NO_ANSWER}"))
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", None) or error
                if isinstance(reason, TimeoutError):
                    reason = f"it was silent for {self.timeout:g} s"
                put(AgentError(f"{self._name} cannot be reached: {reason}{_NO_ANSWER}"))
            except Exception as error:  # noqa: BLE001 - `stream` has to raise it
                text = self._without_key(f"{type(error).__name__}: {error}")
                put(AgentError(f"{self._name}: {text}{_NO_ANSWER}"))
        except (_Closed, RuntimeError):  # the stream was closed, or the loop has ended
            return

    def _pieces(self, request: urllib.request.Request) -> Iterator[str]:
        try:
            response = _OPENER.open(request, timeout=self.timeout)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error) from None
        with response:
            if "text/event-stream" in response.headers.get("Content-Type", ""):
                yield from self._server_sent_events(response)
            else:  # an endpoint that does not stream
                yield self._piece(response.read(_LARGEST), "message")[0]

    def _server_sent_events(self, response: Any) -> Iterator[str]:
        """The pieces of a stream; AgentError if it ends before the endpoint says that it is whole."""
        read, ended = 0, False
        try:
            while (line := response.readline(_LARGEST)) and read < _LARGEST:
                read += len(line)
                name, _, data = line.strip().partition(b":")
                if name != b"data":
                    continue
                if data.strip() == b"[DONE]":
                    return
                text, last = self._piece(data, "delta")
                ended = ended or last
                yield text
        except (http.client.HTTPException, ConnectionError) as error:
            raise self._incomplete() from error
        if not ended:
            raise self._incomplete()

    def _piece(self, data: bytes, part: str) -> tuple[str, bool]:
        """The text in a response, and whether it is the last; `part` is `message`, or `delta`."""
        try:
            answer = codec.decode(data)
            if isinstance(answer, dict) and answer.get("error"):
                text = self._without_key(_error_message(answer["error"]))
                raise AgentError(f"{self._name}: {text}{_NO_ANSWER}")
            if not answer["choices"]:  # the last event of a stream may hold only token counts
                return "", False
            first = answer["choices"][0]
            text = first[part].get("content")
            if text is not None and not isinstance(text, str):
                raise TypeError(text)
            return text or "", bool(first.get("finish_reason"))
        except _MALFORMED as error:
            start = self._without_key(data[:200].decode("utf-8", "replace"))
            raise AgentError(
                f"{self._name} sent what is no answer: {start!r}",
                hint=f"Is {self.endpoint} what comes before /chat/completions?",
            ) from error

    def _refusal(self, error: urllib.error.HTTPError) -> AgentError:
        """The error of a response without a success code."""
        body = error.read(_LARGEST_REFUSAL)
        try:
            text = _error_message(codec.decode(body)["error"])
        except _MALFORMED:
            text = body.decode("utf-8", "replace")
        text = self._without_key(one_line(text))[:_LONGEST]
        hint = _HINTS.get(error.code)
        if error.code >= 500:
            hint = "That is on its side; max_attempts in the manifest tries again."
        if 300 <= error.code < 400:
            text = f"it wants to be asked at {error.headers.get('Location', 'another place')}"
            hint = "Set OPENAI_BASE_URL to that; it is not followed, since the key would go along."
        after = _retry_after(error.headers.get("Retry-After"))
        wait = "" if after is None else f" (again in {after:g} s)"
        return AgentError(
            f"{self._name} answered {error.code}{wait}: {text or error.reason}",
            hint=hint,
            status=error.code,
            retry_after=after,
        )

    def _incomplete(self) -> AgentError:
        return AgentError(f"{self._name} broke off before its answer was whole; it was not used")

    @property
    def _name(self) -> str:
        return f"the agent's endpoint {self.endpoint}"

    def _without_key(self, text: str) -> str:
        """Text of an endpoint without the key, which some repeat."""
        return text.replace(self._key, "…") if self._key else text


class _Closed(Exception):
    """The stream was closed before its end."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Following a redirect would send the key to another host."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def _split(endpoint: str) -> SplitResult | None:
    try:
        parts = urlsplit(endpoint)
        _ = parts.port  # parsed lazily
    except ValueError:
        return None
    return parts


def _prompt(event: Event) -> str:
    """The text that a user typed; of any other event its topic and its whole payload."""
    text = event.payload.get("text")
    if event.topic == USER_MESSAGE and isinstance(text, str):
        return text
    return f"Event {event.topic} from {event.source}:\n{codec.encode(event.payload)}"


def _error_message(error: Any) -> str:
    found = error.get("message") if isinstance(error, dict) else error
    return str(found)


def _retry_after(header: str | None) -> float | None:
    """Seconds to wait, from a number or a date; None if there is none, or it is malformed."""
    if header is None:
        return None
    try:
        if header.strip().isdigit():
            return float(header)
        wait = parsedate_to_datetime(header) - SYSTEM_CLOCK.now()
        return max(0.0, wait.total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None
