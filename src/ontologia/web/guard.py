"""What stands before every route: the token, errors of our own, bodies that nobody reads."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ontologia.errors import ConfigError
from ontologia.web.problems import UNAUTHORIZED, Problem, unexpected

OPEN_PATH = "/health"
_SCHEME = b"bearer "
_SMALL = 65_536  # bytes of a body that nobody wants, which are read all the same
_PATIENCE = 1.0  # seconds to read them in


class Guard:
    """Lets in who has the token. Without a token to ask for, it lets in everybody."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application around another."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = _bearer(scope["headers"])
        known = self._token is None or (
            given is not None and secrets.compare_digest(given, self._token)
        )
        scope.setdefault("state", {})["known"] = known
        exchange = _Exchange(scope, receive, send)
        app = self._app if known or _is_open(scope) else _refusal(given)
        try:
            await app(scope, exchange.receive, exchange.send)
        except Exception as error:
            if exchange.answered:
                raise
            await unexpected(error).response()(scope, exchange.receive, exchange.send)


class _Exchange:
    """Whether the body of a request was read to its end, and whether it was answered.

    Who is refused early may still be sending. A small body is read and thrown away: a client whose
    connection is closed under its hands may never see the answer. A large one may never end: then
    the connection is closed.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.answered = False
        self._receive, self._send = receive, send
        self._is_old_http = scope["http_version"].startswith("1")
        given = dict(scope["headers"])
        length: bytes = given.get(b"content-length", b"0")
        self._unread = length != b"0" or b"transfer-encoding" in given
        # Who asks first whether to send a body at all, need not.
        self._worth_reading = len(length) <= len(str(_SMALL)) and b"expect" not in given

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):
            self._unread = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.answered = True
            if self._unread and self._worth_reading:
                await self._throw_away()
            if self._unread and self._is_old_http:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await self._send(message)

    async def _throw_away(self) -> None:
        left = _SMALL
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                while self._unread and left > 0:
                    left -= len((await self.receive()).get("body", b""))


def checked_token(token: str) -> str:
    """A token that a header can carry; ConfigError if it is none."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            "a token is made of letters, digits and signs, without spaces",
            hint="python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one.",
        )
    return token


def _is_open(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["method"] in ("GET", "HEAD") and (
        path.removeprefix(scope.get("root_path", "")) == OPEN_PATH
    )


def _bearer(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The token that came with a request, if it is the only one."""
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) != 1 or not given[0].lower().startswith(_SCHEME):
        return None
    return given[0][len(_SCHEME) :].strip()


def _refusal(given: bytes | None) -> ASGIApp:
    wrong = given is not None
    challenge = 'Bearer realm="ontologia"' + (', error="invalid_token"' if wrong else "")
    problem = Problem(
        UNAUTHORIZED,
        "the token is not the one of this server" if wrong else "there is no bearer token",
        hint="Send the server's token: Authorization: Bearer TOKEN.",
        headers={"WWW-Authenticate": challenge},
    )
    return problem.response()
