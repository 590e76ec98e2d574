"""What stands before every route: the head, the token, errors of our own, bodies that nobody reads."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ontologia.errors import ConfigError
from ontologia.web.problems import FORBIDDEN, MALFORMED, UNAUTHORIZED, Problem, unexpected

OPEN_PATH = "/health"
_SCHEME = b"bearer "
_LONGEST_HEAD = 65_536  # bytes
_SMALL = 65_536  # bytes of a body that nobody wants, which are read all the same
_PATIENCE = 1.0  # seconds to read them in
# No URL is parsed for these: `urlsplit` sees localhost in `evil.example@localhost`.
_HOST = re.compile(rb"(?:\[([0-9a-f:.]+)\]|([a-z0-9.-]+))(?::[0-9]*)?", re.IGNORECASE)
_ORIGIN = re.compile(rb"https?://" + _HOST.pattern, re.IGNORECASE)


class Guard:
    """Lets in who has the token. Without a token to ask for, it lets in everybody.

    With `only_local` it lets in programs of this machine, and no page of another site in a browser
    on it: such a page can give this machine a name of its own, but not hide that name.
    """

    def __init__(self, app: ASGIApp, token: str | None, only_local: bool) -> None:
        self._app = app
        self._token = None if token is None else token.encode()
        self._only_local = only_local

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
        fault = _fault_of_head(scope) or (self._only_local and _foreign(scope["headers"]))
        if fault:
            app: ASGIApp = fault.response()
        else:
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


def _fault_of_head(scope: Scope) -> Problem | None:
    """What is wrong with a head that the server has taken for one."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    length = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    names: set[bytes] = set()
    for name, value in headers:
        length += len(name) + len(value) + 4  # the colon, a space and the end of the line
        names.add(name)
    if length > _LONGEST_HEAD:
        detail = f"a head has at most {_LONGEST_HEAD:,} bytes"
    elif b"content-length" in names and b"transfer-encoding" in names:
        # Whatever stands in front may go by the other one, and see another request begin in the body.
        detail = "there is a Content-Length, and a Transfer-Encoding"
    elif b"transfer-encoding" in names and scope["http_version"] < "1.1":
        detail = "there is a Transfer-Encoding, which HTTP/1.0 does not have"
    else:
        return None
    return Problem(MALFORMED, detail, headers={"Connection": "close"})


def _foreign(headers: Iterable[tuple[bytes, bytes]]) -> Problem | None:
    """What is wrong with a request that is to come from a program of this machine."""
    hosts = [_HOST.fullmatch(value) for name, value in headers if name == b"host"]
    origins = [_ORIGIN.fullmatch(value) for name, value in headers if name == b"origin"]
    if len(hosts) == 1 and all(map(_is_local, hosts + origins)):
        return None
    return Problem(
        FORBIDDEN,
        "without a token, Host and Origin are names of this machine",
        hint="Ask 127.0.0.1 or localhost, or have the server ask for a token.",
    )


def _is_local(given: re.Match[bytes] | None) -> bool:
    if given is None:
        return False
    host = (given[1] or given[2]).decode().lower()
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False


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
