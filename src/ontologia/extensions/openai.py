"""An agent that asks a chat endpoint of the kind that OpenAI has, and many others speak.

The answer is read as it is written (`stream`), so that `timeout` is about silence, not about the
length of the answer. The standard library does the asking, in a thread for each question.
"""

from __future__ import annotations

import asyncio
import http.client
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from email.message import Message
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ontologia import codec
from ontologia.errors import AgentError, ConfigError
from ontologia.extensions.answers import NO_ANSWER, piece_of, refusal
from ontologia.extensions.channels import USER_MESSAGE
from ontologia.extensions.contract import Event

ENDPOINT = "https://api.openai.com/v1"
_SILENCE = 60.0  # seconds
_LARGEST = 8_000_000  # bytes of an answer


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
        url = _parts(endpoint)
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
        OPENAI_API_KEY; a URL that neither names is OPENAI_BASE_URL. ConfigError if they do not do.
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
        """The whole answer; AgentError if there is none, or not all of it."""
        return "".join([piece async for piece in self.stream(event)])

    async def stream(self, event: Event) -> AsyncIterator[str]:
        """The answer, piece by piece, as it comes; AgentError as soon as it does not."""
        loop, pieces, unwanted = asyncio.get_running_loop(), asyncio.Queue[Any](), threading.Event()

        def tell(item: object) -> None:
            if unwanted.is_set():
                raise _Unwanted
            loop.call_soon_threadsafe(pieces.put_nowait, item)

        request = self._request(event)
        threading.Thread(
            target=self._pull, args=(request, tell), name="chat agent", daemon=True
        ).start()
        try:
            while (item := await pieces.get()) is not None:
                if isinstance(item, AgentError):
                    raise item
                yield item
        finally:
            unwanted.set()

    def _request(self, event: Event) -> urllib.request.Request:
        if self._key is None and self.endpoint == ENDPOINT:
            raise AgentError(
                f"{self.endpoint} needs a key, and there is none; nothing was asked",
                hint="Set OPENAI_API_KEY, or OPENAI_BASE_URL to an endpoint that needs none.",
            )
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        messages = [*system, {"role": "user", "content": _question(event)}]
        body = {"model": self.model, "messages": messages, "stream": True}
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        return urllib.request.Request(  # noqa: S310 - http or https, as checked above
            f"{self.endpoint}/chat/completions", codec.encode(body).encode(), headers, method="POST"
        )

    def _pull(self, request: urllib.request.Request, tell: Callable[[object], None]) -> None:
        """In a thread: ask, and tell of every piece, of an error, and of the end."""
        try:
            try:
                for piece in self._pieces(request):
                    tell(piece)
                tell(None)
            except AgentError as error:
                tell(error)
            except TimeoutError:
                tell(AgentError(f"{self._said} was silent for {self.timeout:g} s{_NO_ANSWER}"))
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", None) or error
                if isinstance(reason, TimeoutError):
                    reason = f"it was silent for {self.timeout:g} s"
                tell(AgentError(f"{self._said} cannot be reached: {reason}{_NO_ANSWER}"))
            except Exception as error:  # noqa: BLE001 - nobody else would hear of it
                said = self._hidden(f"{type(error).__name__}: {error}")
                tell(AgentError(f"{self._said}: {said}{_NO_ANSWER}"))
        except (_Unwanted, RuntimeError):  # nobody waits any more, or the loop has ended
            return

    def _pieces(self, request: urllib.request.Request) -> Iterator[str]:
        try:
            response = _OPENER.open(request, timeout=self.timeout)
        except urllib.error.HTTPError as error:
            with error:
                raise refusal(error, self._said, self._hidden) from None
        with response:
            if "text/event-stream" in response.headers.get("Content-Type", ""):
                yield from self._events(response)
            else:  # an endpoint that does not stream
                yield self._piece(response.read(_LARGEST), "message")[0]

    def _events(self, response: Any) -> Iterator[str]:
        """Server-sent events; an answer is whole when the endpoint says so."""
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
            raise self._cut() from error
        if not ended:
            raise self._cut()

    def _piece(self, data: bytes, part: str) -> tuple[str, bool]:
        try:
            return piece_of(codec.decode(data), part)
        except NO_ANSWER as error:
            said = self._hidden(data[:200].decode("utf-8", "replace"))
            raise AgentError(
                f"{self._said} sent what is no answer: {said!r}",
                hint=f"Is {self.endpoint} what comes before /chat/completions?",
            ) from error
        except AgentError as error:
            raise AgentError(f"{self._said}: {self._hidden(error.args[0])}{_NO_ANSWER}") from None

    def _cut(self) -> AgentError:
        return AgentError(f"{self._said} broke off before its answer was whole; it was not used")

    @property
    def _said(self) -> str:
        return f"the agent's endpoint {self.endpoint}"

    def _hidden(self, text: str) -> str:
        """What an endpoint said, without the key, which some repeat."""
        return text.replace(self._key, "…") if self._key else text


def _parts(endpoint: str) -> SplitResult | None:
    try:
        parts = urlsplit(endpoint)
        _ = parts.port  # which is looked at only when it is asked for
    except ValueError:
        return None
    return parts


class _Unwanted(Exception):
    """Nobody waits for the answer any more."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Following one would give the key to wherever it leads."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)
_NO_ANSWER = "; there is no answer"


def _question(event: Event) -> str:
    """What somebody typed, as it is; any other event with its topic and all of its payload."""
    text = event.payload.get("text")
    if event.topic == USER_MESSAGE and isinstance(text, str):
        return text
    return f"Event {event.topic} from {event.source}:\n{codec.encode(event.payload)}"
