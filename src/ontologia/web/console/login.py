"""The pages on which people sign in and out."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from ontologia.web.console.access import RefusedError
from ontologia.web.console.rendering import theme_of

if TYPE_CHECKING:
    from ontologia.web.console.app import Console


def routes(console: Console) -> list[Route]:
    """Signing in, if that is done here, and signing out."""
    if not console.access.has_login_page:
        return []
    pages = _Pages(console)
    return [
        Route("/login", pages.show, methods=["GET"], name="login"),
        Route("/login", pages.sign_in, methods=["POST"], name="login"),
        Route("/logout", pages.sign_out, methods=["POST"], name="logout"),
    ]


def login_url(console: Console, request: Request) -> str:
    """Where to sign in, and to come back to this page."""
    root = request.scope.get("root_path", "")
    path = request.url.path.removeprefix(root)
    wanted = f"{path}?{request.url.query}" if request.url.query else path
    query = "" if wanted == "/" else f"?{urlencode({'next': wanted})}"
    return f"{root}{console.path_of('login')}{query}"


class _Pages:
    def __init__(self, console: Console) -> None:
        self._console = console

    async def show(self, request: Request) -> Response:
        code = request.query_params.get("code", "")
        wrong = None
        if code and not self._console.access.knows_code(code):
            code, wrong = "", "This login URL was used already, or is too old."
        return self._page(request, code, request.query_params.get("next", ""), wrong)

    async def sign_in(self, request: Request) -> Response:
        access = self._console.access
        try:
            access.check_same_origin(request)
            form = await self._console.form(request)
        except (RefusedError, ClientDisconnect) as error:
            return self._console.error_page(request, error)
        given = {name: values[0] for name, values in form.items()}
        code, wanted = given.get("code", ""), given.get("next", "")
        try:
            cookie = access.sign_in(given.get("name", ""), token=given.get("token"), code=code)
        except RefusedError as refused:
            left = code if code and access.knows_code(code) else ""
            return self._page(request, left, wanted, f"{refused}.", refused.status)
        answer = RedirectResponse(_local(request, wanted), 303)
        access.set_cookie(request, answer, cookie)
        return answer

    async def sign_out(self, request: Request) -> Response:
        access = self._console.access
        try:
            access.check_same_origin(request)
            login = await access.login_of(request)
            if login is not None:
                form = await self._console.form(request)
                access.check_form(login, (form.get("form_token") or [""])[0])
                access.sign_out(login)
        except (RefusedError, ClientDisconnect) as error:
            return self._console.error_page(request, error)
        answer = RedirectResponse(_local(request, "/login"), 303)
        access.set_cookie(request, answer, None)
        return answer

    def _page(
        self, request: Request, code: str, wanted: str, wrong: str | None, status: int = 200
    ) -> Response:
        text = self._console.rendering.render(
            "login.html",
            title="Sign in",
            code=code,
            next=wanted,
            wrong=wrong,
            action=f"{request.scope.get('root_path', '')}/login",
            label=self._console.label,
            static=self._console.static_url(request),
            theme=theme_of(request),
        )
        return HTMLResponse(text, status)


def _local(request: Request, wanted: str) -> str:
    """A page of this console; the first one for anything that could lead elsewhere."""
    fits = wanted.startswith("/") and wanted.isascii() and wanted.isprintable()
    if not fits or wanted.startswith("//") or "\\" in wanted:
        wanted = "/"
    return f"{request.scope.get('root_path', '')}{wanted}"
