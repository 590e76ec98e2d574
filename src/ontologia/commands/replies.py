"""Commands that are carried out once, however often they are asked for under the same key."""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from ontologia import codec
from ontologia.commands.command import Command, given_of
from ontologia.commands.work import work_of
from ontologia.errors import (
    AnswerError,
    IdempotencyKeyReused,
    InvalidValueError,
    ObjectExistsError,
    StateConflictError,
)
from ontologia.runtime.commits import AlreadyAnswered
from ontologia.store.events import checks
from ontologia.store.replies import fits
from ontologia.store.rows import KeptReply

if TYPE_CHECKING:
    from ontologia.commands.env import Env
    from ontologia.store.replies import Reply

_LONGEST_KEY = 255
replayed: ContextVar[bool] = ContextVar("ontologia_replayed", default=False)
"""Whether the last answer under a key, in this context, was one that had been given before."""


def dispatch_once(env: Env, cmd: Command, key: str) -> Any:
    """Carry out a command, or find the answer that it was given before, as JSON.

    The answer is stored in the transaction of what the command does, so there is never one
    without the other. A command that fails has no answer, and may be asked for again.
    """
    work = work_of(env)
    if work.unit() is not None:
        raise InvalidValueError("an idempotency_key is for a whole unit of work, not within one")
    if not isinstance(key, str) or not 0 < len(key) <= _LONGEST_KEY:
        raise checks.error_for(key, str)(
            f"an idempotency key is text of 1 to {_LONGEST_KEY} characters"
        )
    place, older = _places(env.tenant_id or "", key)
    request = _digest(cmd)
    replayed.set(False)
    with work.turns.taken(place, env.session.config.lock_timeout_ms):
        if (known := _find(env, place)) is not None:
            return _answer(known, request, key)
        if older is not None and _find(env, older) is not None:
            raise IdempotencyKeyReused(key)  # by the same request or by another tenant's
        try:
            return _carry_out(env, cmd, place, request)
        except (AlreadyAnswered, StateConflictError, ObjectExistsError):
            # Another process may have been faster; whatever was done here is taken back.
            if (known := _find(env, place)) is None:
                raise
            return _answer(known, request, key)


def _places(tenant_id: str, key: str) -> tuple[str, str | None]:
    """Where the answer to a tenant's key is stored, and where an older version may have stored it.

    `acme:eu:1` was the key `eu:1` of the tenant `acme` and the key `1` of `acme:eu`: whose answer
    is there cannot be known. A digest has no colon, so it is the place of no older answer.
    """
    place = f"{tenant_id}:{key}"
    if not tenant_id or place.count(":") == 1:
        return place, None
    digest = hashlib.sha256(codec.encode([tenant_id, key], where="key").encode()).hexdigest()
    return digest, place if fits(place) else None


def _carry_out(env: Env, cmd: Command, place: str, request: str) -> Any:
    with work_of(env).working(cmd) as unit:
        text = encoded_answer(cmd, env.commands.dispatch(cmd, env))
        unit.reply = KeptReply(env.session.namespace, place, request, text)
    return codec.decode_stored(text)


def _find(env: Env, place: str) -> Reply | None:
    return work_of(env).core.store.replies.find(env.session.namespace, place)


def _answer(known: Reply, request: str, key: str) -> Any:
    if known.request_hash != request:
        raise IdempotencyKeyReused(key)
    replayed.set(True)
    return codec.decode_stored(known.reply)


def _digest(cmd: Command) -> str:
    asked = [cmd.name, as_json(given_of(cmd)), cmd.model_key, cmd.model_id]
    return hashlib.sha256(codec.encode(asked, where=cmd.name).encode()).hexdigest()


def encoded_answer(cmd: Command, value: Any) -> str:
    """What a handler returned, as JSON text; AnswerError if there is none."""
    try:
        return codec.encode(as_json(value), where=cmd.name)
    except InvalidValueError as error:
        raise AnswerError(f"{cmd.name} returned something else: {error.args[0]}") from error


def as_json(value: Any) -> Any:
    """What a handler returned, as JSON: dates, decimals, models and such become text and dicts."""
    try:
        return to_jsonable_python(value, inf_nan_mode="strings")
    except (ValueError, TypeError) as error:
        raise InvalidValueError(f"this cannot be given as JSON: {error}") from error
