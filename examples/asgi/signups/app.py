"""The application: `uvicorn signups.app:app`, or any other ASGI server.

No framework: what an application of whatever kind has to do is all here. It opens a session when
the server starts (the `lifespan` of ASGI), and closes it when the server stops. The event loop never
waits for the database: questions and commits are made in threads.

Events are handled elsewhere, by as many processes as are needed:

    ontologia run signups.handlers --datastore-uri signups.db
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ontologia import OntologiaConfig, Session

from .models import User, UserSignedUp, Welcome

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Answer = tuple[int, dict[str, Any]]
_MOST = 10_000  # bytes of a body


class Application:
    """Users over HTTP: `PUT /users/ID` with an address, and `GET /users/ID`."""

    def __init__(self) -> None:
        self._session: Session | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            status, body = await self._answer(scope, receive)
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    # -- from the start to the end ----------------------------------------------------------------

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # lifespan.startup
        try:
            self._session = await asyncio.to_thread(self._open)
        except Exception as error:  # noqa: BLE001 - the server is told, says it, and ends
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()  # lifespan.shutdown: all requests have been answered
        await asyncio.to_thread(self._session.close)
        await send({"type": "lifespan.shutdown.complete"})

    def _open(self) -> Session:
        uri = OntologiaConfig().datastore_uri or "signups.db"  # ONTOLOGIA_DATASTORE_URI
        return Session(uri, entity_types=[User, Welcome])

    # -- requests ---------------------------------------------------------------------------------

    async def _answer(self, scope: Message, receive: Receive) -> Answer:
        method, path = scope["method"], scope["path"]
        collection, _, user_id = path.strip("/").partition("/")
        if collection != "users" or not user_id or method not in ("GET", "PUT"):
            return 404, {"error": f"there is no {method} {path}"}
        if method == "GET":
            return await asyncio.to_thread(self._show, user_id)
        try:
            body = json.loads(await _body(receive))
            user = User(id=user_id, email=body["email"])
            return await asyncio.to_thread(self._save, user)
        except (ValueError, LookupError, TypeError) as error:  # errors of values are ValueErrors
            return 400, {"error": str(error)}

    def _save(self, user: User) -> Answer:
        session = self._opened()
        with session.unit() as unit:  # what other requests queue is not in its commit
            unit.ensure(user)
            # By the key, a user is announced once, however often the address changes.
            commit = unit.commit(event=UserSignedUp(user_id=user.id), dedup_key=user.id)
        return 200, {"id": user.id, "commit": commit}

    def _show(self, user_id: str) -> Answer:
        session = self._opened()
        user = session.query().entities(User).where(User.id == user_id).first()
        if user is None:
            return 404, {"error": f"there is no user {user_id}"}
        mail = session.query().entities(Welcome).where(Welcome.user_id == user_id).first()
        return 200, {"id": user.id, "email": user.email, "welcomed": mail is not None}

    def _opened(self) -> Session:
        if self._session is None:
            raise RuntimeError("this server does not do the lifespan protocol")
        return self._session


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more and len(body) <= _MOST:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if len(body) > _MOST:
        raise ValueError(f"a body has {_MOST:,} bytes at most")
    return body


app = Application()
