"""The ASGI application: commands, health and a description of both.

A command is carried out in a thread, since it waits for the database; the loop that talks to the
clients never does. A thread is taken once the whole request is there: a slow client has none.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ontologia import AsyncSession, codec
from ontologia.commands import Command, Env
from ontologia.commands.builtin import PREFIX
from ontologia.commands.replies import as_json, encoded_answer, replayed
from ontologia.commands.work import work_of
from ontologia.errors import OntologiaError
from ontologia.web.bodies import (
    Bodies,
    check_media_type,
    command_of,
    idempotency_key,
    is_large,
)
from ontologia.web.guard import OPEN_PATH, Guard, checked_token
from ontologia.web.openapi import description
from ontologia.web.problems import (
    FORBIDDEN,
    NOT_FOUND,
    UNAVAILABLE,
    Problem,
    of_status,
    problem_of,
)

log = logging.getLogger(__name__)
_JSON = "application/json"
_MOST_AT_ONCE = 256  # requests that are being carried out, or wait for a thread
_MOST_BYTES = 64 * 1024 * 1024  # of bodies that are in memory
_LOOK = 5.0  # seconds for the database to answer when somebody asks for the server's health


class Worker(Protocol):
    """What runs beside the server, as far as its health is concerned."""

    def health_snapshot(self) -> dict[str, Any]:
        """Counters."""
        ...


def create_app(
    env: Env,
    *,
    token: str | None,
    max_body_bytes: int = 1_048_576,
    body_timeout: float = 30.0,
    worker: Worker | None = None,
    only_local: bool = False,
) -> Starlette:
    """The commands of `env` as an ASGI application, for uvicorn or any other server.

    `token` is what clients must send as a bearer token, on every route but `GET /health`; None
    lets in everybody. A body may have `max_body_bytes` and take `body_timeout` seconds to arrive.
    The health of a `worker` that runs beside is shown with the server's. `only_local` refuses requests
    whose Host or Origin is another one than this machine, for a server without a token that browsers
    can reach. `env` stays the caller's.
    """
    secret = None if token is None else checked_token(token)
    commands = _Commands(env, max_body_bytes, body_timeout)
    health = _Health(env, worker)

    async def describe(_request: Request) -> Response:
        return _answer(codec.encode(description(env.registry, secured=token is not None)))

    app = Starlette(
        routes=[
            # An instance is an application of its own, without Starlette's layers around a function.
            Route("/commands/{name:path}", commands, methods=["POST"]),
            Route(OPEN_PATH, health.get, methods=["GET"]),
            Route("/openapi.json", describe, methods=["GET"]),
        ],
        middleware=[Middleware(Guard, token=secret, only_local=only_local)],
        exception_handlers={
            Problem: _on_problem,
            HTTPException: _on_http_exception,
            ClientDisconnect: _on_disconnect,
        },
    )
    app.router.redirect_slashes = False
    return app


class Reply(NamedTuple):
    """What a command answered, as JSON."""

    text: str
    replayed: bool = False


class _Commands:
    def __init__(self, env: Env, max_body_bytes: int, body_timeout: float) -> None:
        self._env = env
        self._bodies = Bodies(max_body_bytes, body_timeout, _MOST_BYTES)
        self._session = AsyncSession(env.session)
        self._at_once = 0
        # Several threads that decode large bodies would starve the loop of the interpreter's lock.
        self._decoding = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._post(Request(scope, receive))
        await answer(scope, receive, send)

    async def _post(self, request: Request) -> Response:
        name: str = request.path_params["name"]
        self._check_name(name)
        key = idempotency_key(request)
        check_media_type(request)
        body = await self._bodies.read(request)
        try:
            reply = await self._carried_out(name, body, key)
        finally:
            self._bodies.forget(body)
        return _answer(reply.text, {"Idempotency-Replayed": "true"} if reply.replayed else None)

    def _check_name(self, name: str) -> None:
        if name.startswith(PREFIX):
            raise Problem(
                FORBIDDEN,
                f"{name!r:.200}: built-in commands are not carried out over HTTP",
                hint="Write a command of your own that does what is needed, and no more.",
            )
        if name not in self._env.registry.commands:
            raise Problem(
                NOT_FOUND,
                f"there is no command {name!r:.200}",
                hint="GET /openapi.json has those that there are.",
            )

    async def _carried_out(self, name: str, body: bytes, key: str | None) -> Reply:
        # Counted from here on: a client that does not send its body keeps no other one waiting.
        if self._at_once >= _MOST_AT_ONCE:
            raise Problem(
                UNAVAILABLE, f"{self._at_once} requests are being served already; nothing was done"
            )
        self._at_once += 1
        try:
            if not is_large(body):
                return await self._session.run_sync(
                    _decode_and_carry_out, self._env, name, body, key
                )
            async with self._decoding:  # here, and not in a thread: who waits holds none
                cmd = await self._session.run_sync(command_of, name, body)
            return await self._session.run_sync(_carry_out, self._env, cmd, key)
        except Problem:
            raise
        except Exception as error:
            raise problem_of(error) from error
        finally:
            self._at_once -= 1


def _decode_and_carry_out(env: Env, name: str, body: bytes, key: str | None) -> Reply:
    return _carry_out(env, command_of(name, body), key)


def _carry_out(env: Env, cmd: Command, key: str | None) -> Reply:
    try:
        if key is not None:
            text = codec.encode(env.dispatch(cmd, idempotency_key=key))
            return Reply(text, replayed.get())
        # The answer is a part of the unit of work: a command whose answer nobody can be given is
        # not carried out.
        with work_of(env).working(cmd):
            return Reply(encoded_answer(cmd, env.dispatch(cmd)))
    except Exception:
        raise
    except BaseException as error:  # sys.exit() in a handler is not the end of the server
        raise RuntimeError(f"{cmd.name} raised {type(error).__name__}") from error


class _Health:
    def __init__(self, env: Env, worker: Worker | None) -> None:
        self._env = env
        self._worker = worker
        self._look: asyncio.Task[int] | None = None

    async def get(self, request: Request) -> Response:
        await self._reach_database()
        told: dict[str, Any] = {"status": "ok"}
        if request.state.known:  # the rest is for those who have the token
            queue = self._env.queue
            told["queue"] = None if queue is None else queue.describe()
            told["worker"] = None if self._worker is None else self._worker.health_snapshot()
            if (outbox := self._env.outbox) is not None:
                told["outbox"] = {"lag": await asyncio.to_thread(outbox.lag)}
        return _answer(codec.encode(as_json(told)))

    async def _reach_database(self) -> None:
        # All who ask at once share one look: a database that hangs holds one thread, not one each.
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(asyncio.to_thread(self._ask))
        try:
            await asyncio.wait_for(asyncio.shield(self._look), _LOOK)
        except (OntologiaError, TimeoutError) as error:
            log.warning("the database does not answer: %s", error)
            raise Problem(UNAVAILABLE, "the database does not answer") from error

    def _ask(self) -> int:
        return self._env.session.head


def _answer(text: str, headers: dict[str, str] | None = None) -> Response:
    return Response(text.encode(), headers=headers, media_type=_JSON)


async def _on_problem(_request: Request, problem: Any) -> Response:
    answer: Response = problem.response()
    return answer


async def _on_http_exception(request: Request, error: Any) -> Response:
    told = f"{request.method} {request.url.path}: {error.detail}"
    return of_status(error.status_code, told, dict(error.headers or {})).response()


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    return Response(status_code=400)  # nobody is there to read it
