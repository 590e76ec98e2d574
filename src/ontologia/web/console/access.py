"""Who may see the console, and who may change something: logins, roles, and what a request must have.

A login is a cookie of a random id; name, role and expiry stay on the server. The token of the server
opens the login page, and so does the code of a login URL, once.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import ipaddress
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from ontologia.clock import Clock
from ontologia.errors import ConfigError, InvalidValueError, OntologiaError
from ontologia.store.events import checks
from ontologia.web.console.rendering import visible
from ontologia.web.guard import checked_token

Role: TypeAlias = Literal["viewer", "operator"]
ROLES: tuple[Role, ...] = ("viewer", "operator")
VIA = "console"
LOGIN_LASTS = timedelta(hours=12)
CODE_LASTS = timedelta(minutes=15)
_MOST_LOGINS = 1_000
_MOST_CODES = 100
_LONGEST_NAME = 100
_COOKIE = "ontologia_console"
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::([0-9]*))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class User:
    """Who sent a request. Viewers see everything that is not redacted, and change nothing."""

    name: str
    role: Role = "viewer"

    def __post_init__(self) -> None:
        checks.name("the name of a user", self.name, checks.LONGEST_KEY)
        if self.role not in ROLES:
            raise InvalidValueError(
                f"{self.role!r:.100} is no role", hint=f"It is one of {', '.join(ROLES)}."
            )


Identify: TypeAlias = Callable[[Any], "User | Awaitable[User | None] | None"]


@dataclass(frozen=True, slots=True)
class Login:
    """Who is signed in, and the token that the forms of their pages carry."""

    user: User
    form_token: str
    cookie: str | None = None
    """The cookie that the login rests on; None if the application around says who it is."""


class RefusedError(Exception):
    """A request that is not carried out: the status of its answer, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(slots=True)
class _Kept:
    user: User
    until: datetime


class Access:
    """Logins of one console."""

    def __init__(
        self,
        *,
        token: str | None,
        identify: Identify | None,
        hosts: Iterable[str] | None,
        clock: Clock,
    ) -> None:
        if token is None and identify is None:
            raise ConfigError(
                "the console shows every payload to whoever reaches it, and is closed by default",
                hint="Give token=..., or identify=..., which says who sent a request.",
            )
        self._token = None if token is None else checked_token(token).encode()
        self._identify = identify
        self._hosts = None if hosts is None else frozenset(map(_checked_host, hosts))
        self._any_host = hosts is None and token is None
        self._clock = clock
        self._key = secrets.token_bytes(32)
        # Cookies are not told apart by port: two consoles of one machine need two names.
        self.cookie = f"{_COOKIE}_{secrets.token_hex(4)}"
        self._logins: dict[bytes, _Kept] = {}
        self._codes: dict[bytes, datetime] = {}

    # -- who it is ------------------------------------------------------------------------------

    @property
    def has_login_page(self) -> bool:
        """Whether people sign in here, and not in the application around."""
        return self._token is not None

    async def login_of(self, request: Request) -> Login | None:
        """Who sent a request; None for nobody."""
        if self._identify is not None:
            found: Any = self._identify(request.scope)
            user: Any = await found if inspect.isawaitable(found) else found
            if user is not None:
                if not isinstance(user, User):
                    raise ConfigError(f"identify gave {type(user).__name__}, and no User or None")
                return Login(user, self._form_token(f"user {user.name}"))
        given = request.cookies.get(self.cookie)
        kept = None if given is None else self._logins.get(_digest(given))
        if given is None or kept is None:
            return None
        if kept.until <= self._clock.now():
            self._logins.pop(_digest(given), None)
            return None
        return Login(kept.user, self._form_token(f"cookie {given}"), given)

    def _form_token(self, whose: str) -> str:
        return hmac.new(self._key, whose.encode(), hashlib.sha256).hexdigest()

    # -- signing in -----------------------------------------------------------------------------

    def new_code(self) -> str:
        """A code that opens the login page once, within 15 minutes."""
        code = secrets.token_urlsafe(32)
        self._codes[_digest(code)] = self._clock.now() + CODE_LASTS
        while len(self._codes) > _MOST_CODES:
            del self._codes[next(iter(self._codes))]
        return code

    def knows_code(self, code: str) -> bool:
        """Whether it was made here, and neither used nor too old. Does not use it."""
        until = self._codes.get(_digest(code))
        return until is not None and until > self._clock.now()

    def sign_in(self, name: str, *, token: str | None, code: str | None) -> str:
        """A new login by token or code, as the value of its cookie; RefusedError without either."""
        name = name.strip()
        try:
            checks.name("your name", name, _LONGEST_NAME)
        except OntologiaError as error:
            raise RefusedError(400, str(error.args[0])) from error
        if not name.isprintable() or visible(name) != name:
            raise RefusedError(400, "your name has characters that cannot be shown")
        if code:
            known = self.knows_code(code)
            self._codes.pop(_digest(code), None)
            if not known:
                raise RefusedError(403, "this login URL was used already, or is too old")
        elif not self._is_token(token or ""):
            raise RefusedError(403, "this is not the token of this console")
        cookie = secrets.token_urlsafe(32)
        now = self._clock.now()
        for digest in [each for each, kept in self._logins.items() if kept.until <= now]:
            del self._logins[digest]
        while len(self._logins) >= _MOST_LOGINS:
            del self._logins[next(iter(self._logins))]
        self._logins[_digest(cookie)] = _Kept(User(f"{name}@{VIA}", "operator"), now + LOGIN_LASTS)
        return cookie

    def _is_token(self, given: str) -> bool:
        return self._token is not None and secrets.compare_digest(
            given.strip().encode(errors="replace"), self._token
        )

    def sign_out(self, login: Login) -> None:
        """End a login, wherever its cookie may be."""
        if login.cookie is not None:
            self._logins.pop(_digest(login.cookie), None)

    def set_cookie(self, request: Request, response: Response, value: str | None) -> None:
        """Have the browser keep the cookie of a login, or drop it."""
        path = quote(request.scope.get("root_path", "")) or "/"
        proxied = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
        if value is None:
            response.delete_cookie(self.cookie, path=path)
            return
        response.set_cookie(
            self.cookie,
            value,
            max_age=int(LOGIN_LASTS.total_seconds()),
            path=path,
            secure="https" in (request.url.scheme, proxied),
            httponly=True,
            samesite="lax",
        )

    # -- what a request must have -------------------------------------------------------------------

    def check_host(self, request: Request) -> None:
        """RefusedError unless Host is one of the names of this console.

        A page of another site can give this machine a name of its own, but not hide that name.
        """
        if self._any_host:
            return
        given = request.headers.getlist("host")
        match = _HOST.fullmatch(given[0]) if len(given) == 1 else None
        name = "" if match is None else (match[1] or match[2]).lower()
        if not name or not (name in self._hosts if self._hosts is not None else _is_local(name)):
            raise RefusedError(
                421, "the console has another name: it is not served under this Host"
            )

    def check_same_origin(self, request: Request) -> None:
        """RefusedError unless a page of this console sent the request, as the browser says."""
        headers = request.headers
        site, origin = headers.getlist("sec-fetch-site"), headers.getlist("origin")
        if not site and not origin:
            raise RefusedError(403, "the request does not say which page sent it")
        if any(each != "same-origin" for each in site):
            raise RefusedError(403, "a page of another site sent this request")
        host = headers.get("host", "").lower()
        if any(each.lower().partition("://")[2] != host or not host for each in origin):
            raise RefusedError(403, "a page of another site sent this request")

    def check_form(self, login: Login, token: str) -> None:
        """RefusedError unless a form has the token of the login."""
        if not secrets.compare_digest(token.encode(errors="replace"), login.form_token.encode()):
            raise RefusedError(
                403, "the form is from another login; open the page again and repeat it"
            )


def _digest(secret: str) -> bytes:
    """What is kept of a secret, so that looking it up takes the same time for any other."""
    return hashlib.sha256(secret.encode(errors="replace")).digest()


def _checked_host(name: str) -> str:
    match = _HOST.fullmatch(name)
    if match is None or match[3] is not None:
        raise ConfigError(
            f"{name!r:.100} is no name of a host", hint="Name it without scheme, port and path."
        )
    return (match[1] or match[2]).lower()


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False
