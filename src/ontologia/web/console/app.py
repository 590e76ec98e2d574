"""The console as an ASGI application. How a page is added:

1. A module in `pages/` with `routes(console) -> list[Route]`, named in `PAGES` below. It makes its
   routes with `console.page(path, function, name=...)`; a verb of an operator is added to
   `actions.VERBS` instead.
2. `function(request: PageRequest) -> Response` runs in a thread, in which reads end after a second,
   and is called for those who are signed in alone. It calls one of `ontologia.runtime.views` with
   `request.session`, and `page(request, "name.html", title=..., ...)` of `rendering`. An
   OntologiaError that it raises becomes a page with its message and hint.
3. `templates/name.html` extends `base.html`, fills the block `main`, and uses the macros of
   `macros.html`, as `m`. Ids are parameters of the query, since they may be any text:
   `link("event", id=...)`, or the macros `m.event(id)`, `m.handler(name)`, `m.commit(number)`,
   `m.object(kind, type, key)`, which are plain text as long as there is no page of that name.
   Links keep `?namespace=` and `?as_of=`.
4. A page that can show the past looks at `request.as_of` (a commit, or None) and says `past=True`.

The names of routes are those of `rendering.NAVIGATION`, and `event`, `attempt` (id, handler,
number), `graph` (id), `objects` (kind, type), `object` (kind, type, key), `commit` (id), `search` (q).
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from ontologia.clock import SYSTEM_CLOCK
from ontologia.errors import (
    AlreadyStartedError,
    ConfigError,
    ConsumerBusyError,
    DatabaseError,
    InvalidValueError,
    LockContentionError,
    NotFoundError,
    OntologiaError,
    QueryError,
    ReadOnlyError,
    ReadTimeoutError,
)
from ontologia.ids import Ids
from ontologia.runtime.modules import Contents, load_module
from ontologia.runtime.session import Session, core_of
from ontologia.runtime.views.paging import DEADLINE
from ontologia.runtime.views.reading import ReadingSession, check_store
from ontologia.runtime.views.store import namespaces
from ontologia.store.database import reading_within
from ontologia.web.bodies import Bodies
from ontologia.web.console import actions, live, login
from ontologia.web.console.access import Access, Identify, Login, RefusedError
from ontologia.web.console.figures import Samplers
from ontologia.web.console.jobs import Jobs
from ontologia.web.console.pages import (
    attempts,
    audit,
    commits,
    dead_letters,
    events,
    graph,
    handlers,
    health,
    later,
    objects,
    overview,
    preflight,
    search,
    sessions,
)
from ontologia.web.console.rendering import PageRequest, Rendering, static_files, theme_of
from ontologia.web.guard import Guard
from ontologia.web.problems import Problem

log = logging.getLogger(__name__)
PAGES: tuple[ModuleType, ...] = (
    *(overview, events, dead_letters, handlers, sessions, audit),
    *(objects, commits),
    *(attempts, graph, later, search, health, preflight),
)
"""The modules whose `routes` are joined here."""
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types console"
)
_HEADERS = {
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    # With no-referrer browsers send `Origin: null` with the console's own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_THREADS = 8
_MOST_BODY = 1_048_576
_BODY_SECONDS = 30.0
_MOST_BODIES = 16 * _MOST_BODY
_MOST_FIELDS = 1_000
_MOST_PARAMETERS = 100
_KNOWN_FOR = 60.0  # seconds that the list of namespaces is kept
_STATUS: tuple[tuple[type[Exception], int, str], ...] = (
    (ReadTimeoutError, 503, "This takes longer than a page may"),
    (ReadOnlyError, 403, "The store can only be read"),
    (LockContentionError, 503, "The database is busy"),
    (DatabaseError, 503, "The database does not answer"),
    (NotFoundError, 404, "Not found"),
    (ConsumerBusyError, 409, "A session is at it"),
    (AlreadyStartedError, 409, "A session is at it"),
    (InvalidValueError, 400, "That cannot be asked"),
    (QueryError, 400, "That cannot be asked"),
)

PageFunction = Callable[[PageRequest], Response]


class Console:
    """The console of one store: an ASGI application, to be mounted, or served alone."""

    def __init__(
        self,
        session_or_uri: Session | str,
        *,
        token: str | None,
        identify: Identify | None,
        read_only: bool,
        models: str | None,
        redact: Iterable[str],
        label: str | None,
        hosts: Iterable[str] | None,
    ) -> None:
        if isinstance(redact, str):
            raise ConfigError("redact takes several keys", hint=f"redact=[{redact!r}]")
        self.models = Contents("") if models is None else load_module(models)
        """What the module of the program has."""
        self._opened = not isinstance(session_or_uri, Session)
        self.session = self._open(session_or_uri)
        """Of the namespace that is shown first."""
        try:
            self.access = Access(
                token=token, identify=identify, hosts=hosts, clock=core_of(self.session).clock
            )
        except BaseException:
            self.close()
            raise
        self.read_only = read_only or not _may_write(self.session)
        self.label = label
        self.rendering = Rendering(redact)
        self.live = live.Streams(self)
        self.jobs = Jobs(self)
        self.samplers = Samplers()
        self._bodies = Bodies(_MOST_BODY, _BODY_SECONDS, _MOST_BODIES)
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._namespaces: tuple[float, list[str]] = (float("-inf"), [])
        self._static = static_files()
        self._version = hashlib.sha256(
            b"".join(body for _, (body, _) in sorted(self._static.items()))
        ).hexdigest()[:12]
        routes = [route for each in PAGES for route in each.routes(self)]
        if not self.read_only:
            routes += actions.routes(self)
        routes += [
            *login.routes(self),
            Route("/live", self._stream, name="live"),
            Route("/static/{version}/{name}", self._file, name="static"),
        ]
        self._paths: dict[str, str] = {str(route.name): str(route.path) for route in routes}
        starlette = Starlette(
            routes=routes, exception_handlers={HTTPException: self._on_http_exception}
        )
        starlette.router.redirect_slashes = False
        self._app = Guard(starlette, token=None, only_local=False)

    def _open(self, session_or_uri: Session | str) -> Session:
        if isinstance(session_or_uri, Session):
            return session_or_uri
        from ontologia.config import OntologiaConfig

        config = OntologiaConfig()
        check_store(session_or_uri, config)
        return ReadingSession(session_or_uri, config=config)

    def close(self) -> None:
        """End jobs, streams and samplers, and the session if the console opened it. Idempotent."""
        if hasattr(self, "jobs"):
            self.jobs.close()
        if hasattr(self, "live"):
            self.live.close()
            self.samplers.close()
        if self._opened:
            self.session.close()

    # -- for pages ------------------------------------------------------------------------------

    def page(self, path: str, function: PageFunction, *, name: str) -> Route:
        """A route that is read."""

        async def show(request: Request) -> Response:
            return await self._answer(request, function)

        return Route(path, show, methods=["GET"], name=name)

    def action(self, path: str, function: PageFunction, *, name: str) -> Route:
        """A route that changes something: POST, with the form's token, from operators alone."""

        async def change(request: Request) -> Response:
            return await self._answer(request, function, writes=True)

        return Route(path, change, methods=["POST"], name=name)

    def session_of(self, namespace: str) -> Session:
        """A session for views of a namespace; shares the console's connections."""
        return ReadingSession.beside(self.session, namespace)

    def namespaces(self) -> list[str]:
        """The namespaces of the store, as of a minute ago at most, the console's own included."""
        at, found = self._namespaces
        if time.monotonic() - at > _KNOWN_FOR:
            found = sorted({*namespaces(self.session), self.session.namespace})
            self._namespaces = time.monotonic(), found
        return found

    def has_route(self, name: str) -> bool:
        """Whether there is a route of that name."""
        return name in self._paths

    def path_of(self, name: str) -> str:
        """The path of a route, from the root of the console."""
        return self._paths[name]

    def static_url(self, request: Request) -> str:
        """What the names of static files are appended to."""
        return f"{request.scope.get('root_path', '')}/static/{self._version}/"

    def login_path(self) -> str:
        """A path that opens the login page once, within 15 minutes."""
        return f"{self.path_of('login')}?code={self.access.new_code()}"

    # -- requests -------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                given = {name.lower() for name, _ in headers}
                headers += (
                    (name.lower().encode(), value.encode())
                    for name, value in _HEADERS.items()
                    if name.lower().encode() not in given
                )
                message["headers"] = headers
            await send(message)

        request = Request(scope, receive)
        try:
            self.access.check_host(request)
        except RefusedError as refused:
            await self._refusal(request, refused)(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    async def _answer(
        self, request: Request, function: PageFunction, *, writes: bool = False
    ) -> Response:
        try:
            login = await self._login(request)
            given = len(request.query_params.multi_items())
            if given > _MOST_PARAMETERS:  # a page repeats them in its links
                raise InvalidValueError(
                    f"a page takes at most {_MOST_PARAMETERS} parameters, got {given:,}"
                )
            form: dict[str, list[str]] = {}
            if writes:
                self.access.check_same_origin(request)
                if login.user.role != "operator":
                    raise RefusedError(403, f"{login.user.name} is a viewer, and changes nothing")
                form = await self.form(request)
                self.access.check_form(login, (form.get("form_token") or [""])[0])
            call = partial(self._call, function, PageRequest(self, request, login, form), writes)
            return await anyio.to_thread.run_sync(call, limiter=self._threads)
        except Exception as error:  # noqa: BLE001 - shown, or logged
            return self.error_page(request, error)

    async def _login(self, request: Request) -> Login:
        found = await self.access.login_of(request)
        request.scope.setdefault("state", {})["known"] = found is not None
        if found is None:
            raise RefusedError(401, "nobody is signed in")
        return found

    def _call(self, function: PageFunction, request: PageRequest, writes: bool) -> Response:
        if writes:
            return function(request)
        with reading_within(DEADLINE):
            return function(request)

    async def form(self, request: Request) -> dict[str, list[str]]:
        """The fields of a form, which is bounded; RefusedError if it is none."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise RefusedError(415, "this takes the form of a page, and nothing else")
        try:
            body = await self._bodies.read(request)
        except Problem as problem:
            raise RefusedError(problem.kind.status, str(problem)) from problem
        try:
            return parse_qs(
                body.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS
            )
        except ValueError as error:
            raise RefusedError(400, "the form cannot be read; nothing was done") from error
        finally:
            self._bodies.forget(body)

    async def _stream(self, request: Request) -> Response:
        try:
            await self._login(request)
        except RefusedError as refused:
            return Response(status_code=refused.status)
        return self.live.stream(request)

    async def _file(self, request: Request) -> Response:
        found = self._static.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        fresh = request.path_params["version"] == self._version
        kept = "public, max-age=31536000, immutable" if fresh else "no-store"
        return Response(found[0], headers={"Cache-Control": kept}, media_type=found[1])

    # -- what went wrong --------------------------------------------------------------------------

    def error_page(self, request: Request, error: Exception) -> Response:
        """What a browser is shown instead of a page."""
        if isinstance(error, RefusedError):
            return self._refusal(request, error)
        if isinstance(error, OntologiaError) and not isinstance(error, ConfigError):
            status, title = next(
                (each[1:] for each in _STATUS if isinstance(error, each[0])),
                (409, "That was not done"),
            )
            if status == 503:
                log.warning("%s %s: %s", request.method, request.url.path, error.args[0])
            hint = None if isinstance(error, ReadTimeoutError) else error.hint
            return self.problem(request, status, title, str(error.args[0]), hint)
        if isinstance(error, ClientDisconnect):
            return Response(status_code=400)
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return self.problem(
            request, 500, "Something went wrong here", "The log of the console says what.", None
        )

    def _refusal(self, request: Request, refused: RefusedError) -> Response:
        if refused.status == 401 and self.access.has_login_page and request.method == "GET":
            return RedirectResponse(login.login_url(self, request), 303)
        titles = {401: "Sign in first", 403: "This is not allowed", 421: "Unknown Host"}
        title = titles.get(refused.status, "The request cannot be read")
        return self.problem(request, refused.status, title, f"{refused}.", None)

    def problem(
        self, request: Request, status: int, title: str, message: str, hint: str | None
    ) -> Response:
        """A page that needs no database."""
        root = request.scope.get("root_path", "")
        again = status == 503 and request.method == "GET"
        text = self.rendering.render(
            "problem.html",
            title=title,
            message=message,
            hint=hint,
            status=status,
            again=again,
            home=f"{root}/",
            here=f"{request.url.path}?{request.url.query}" if again else None,
            label=self.label,
            static=self.static_url(request),
            theme=theme_of(request),
        )
        return HTMLResponse(text, status, headers={"Retry-After": "2"} if status == 503 else None)

    async def _on_http_exception(self, request: Request, error: Any) -> Response:
        titles = {404: "There is no such page", 405: "This is not done here"}
        return self.problem(
            request, error.status_code, titles.get(error.status_code, "Error"), error.detail, None
        )


def _may_write(session: Session) -> bool:
    """Whether the database takes writes: a reader's role, a file or a standby does not."""
    try:
        core_of(session).store.events.end_session(Ids(SYSTEM_CLOCK).new())  # there is none such
    except ReadOnlyError:
        return False
    except OntologiaError:  # it is away, or busy: a verb will say so
        return True
    return True
