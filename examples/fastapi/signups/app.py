"""The application: `uvicorn signups.app:app`.

One session serves all requests, each in a unit of its own. It is opened when the application starts and
closed when it ends; a thread beside it handles events. Endpoints are plain `def`, which FastAPI runs in
threads: a commit waits for the disk, and must not keep the event loop waiting with it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from ontologia import OntologiaConfig, Session
from ontologia.errors import ConnectionLostError, InvalidValueError, LockContentionError, QueryError

from .handlers import welcome
from .models import User, UserSignedUp, Welcome


class Store:
    """The session of all requests, and the thread that handles its events."""

    def __init__(self) -> None:
        # ONTOLOGIA_DATASTORE_URI, or ontologia.toml, may name another database. After a crash, what
        # was being handled is free again when the lease is over.
        config = OntologiaConfig(event_claim_lease_ms=5_000)
        uri = config.datastore_uri or "signups.db"
        self.session = Session(uri, entity_types=[User, Welcome], config=config)
        self._worker = threading.Thread(target=self.session.run, args=([welcome],))
        self._worker.start()

    @property
    def works(self) -> bool:
        return self._worker.is_alive()

    def close(self) -> None:
        """Let the handler that is running come to its end; what is left is for the next start."""
        self.session.stop()
        self._worker.join()
        self.session.close()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    app.state.store = await asyncio.to_thread(Store)
    try:
        yield
    finally:
        await asyncio.to_thread(app.state.store.close)


def opened(request: Request) -> Store:
    store: Store = request.app.state.store
    return store


app = FastAPI(title="Signups", lifespan=lifespan)
Opened = Annotated[Store, Depends(opened)]


@app.exception_handler(InvalidValueError)
@app.exception_handler(QueryError)
def refuse(request: Request, error: Exception) -> JSONResponse:
    """What cannot be stored or asked for: a key with a zero byte, a commit below zero."""
    return JSONResponse({"detail": str(error)}, 422)


@app.exception_handler(LockContentionError)
@app.exception_handler(ConnectionLostError)
def put_off(request: Request, error: Exception) -> JSONResponse:
    """The database is busy or away. Nothing was written, and the client may ask again."""
    return JSONResponse({"detail": str(error)}, 503, headers={"Retry-After": "1"})


class Profile(BaseModel):
    """What a client says about a user."""

    email: str


@app.put("/users/{user_id}")
def save(user_id: str, profile: Profile, store: Opened) -> dict[str, Any]:
    """Store a user. A client that got no answer may ask again: the same twice is nothing new."""
    with store.session.unit() as unit:  # what other requests queue is not in its commit
        unit.ensure(User(id=user_id, email=profile.email))
        # By the key, a user is announced once, however often the address changes.
        commit = unit.commit(event=UserSignedUp(user_id=user_id), dedup_key=user_id)
    return {"id": user_id, "commit": commit}


@app.get("/users/{user_id}")
def show(user_id: str, store: Opened, as_of: int | None = None) -> dict[str, Any]:
    """A user, now or right after a commit of the past."""
    users = store.session.query().entities(User).where(User.id == user_id)
    mails = store.session.query().entities(Welcome).where(Welcome.user_id == user_id)
    if as_of is not None:
        users, mails = users.as_of(as_of), mails.as_of(as_of)
    user = users.first()
    if user is None:
        raise HTTPException(404, f"there is no user {user_id}")
    return {"id": user.id, "email": user.email, "welcomed": mails.first() is not None}


@app.get("/health")
def health(store: Opened) -> dict[str, Any]:
    """For whoever watches: events that wait, and whether somebody is there to handle them."""
    consumers = store.session.event_store.list_consumers(store.session.namespace)
    waiting = sum(each["ready"] + each["backoff"] for each in consumers)
    return {"head": store.session.head, "worker": store.works, "waiting": waiting}
