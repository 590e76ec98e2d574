"""Commands that are carried out once, however often they are asked for under the same key."""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from ontologia import codec
from ontologia.commands.command import Command
from ontologia.errors import (
    AnswerError,
    IdempotencyKeyReused,
    InvalidValueError,
    ObjectExistsError,
    StateConflictError,
)
from ontologia.store.database import Tx
from ontologia.store.events import checks

if TYPE_CHECKING:
    from ontologia.commands.env import Env
    from ontologia.store.replies import Reply

_LONGEST_KEY = 255
replayed: ContextVar[bool] = ContextVar("ontologia_replayed", default=False)
"""Whether the last answer under a key, in this context, was one that had been given before."""


class _Answered(Exception):
    """Somebody else has carried out the same request while this one was on its way."""


def dispatch_once(env: Env, cmd: Command, key: str) -> Any:
    """Carry out a command, or find the answer that it was given before, as JSON.

    The answer is stored in the transaction of what the command does, so there is never one
    without the other. A command that fails has no answer, and may be asked for again.
    """
    if env._unit() is not None:
        raise InvalidValueError("an idempotency_key is for a whole unit of work, not within one")
    if not isinstance(key, str) or not 0 < len(key) <= _LONGEST_KEY:
        raise checks.error_for(key, str)(
            f"an idempotency key is text of 1 to {_LONGEST_KEY} characters"
        )
    place = f"{env.tenant_id or ''}:{key}"
    request = _digest(cmd)
    replayed.set(False)
    with env._turns.taken(place, env.session.config.lock_timeout_ms):
        if (known := _find(env, place)) is not None:
            return _answer(known, request, key)
        try:
            return _carry_out(env, cmd, place, request)
        except (_Answered, StateConflictError, ObjectExistsError):
            # Another process may have been faster; whatever was done here is taken back.
            if (known := _find(env, place)) is None:
                raise
            return _answer(known, request, key)


def _carry_out(env: Env, cmd: Command, place: str, request: str) -> Any:
    with env._working(cmd) as unit:
        text = encoded_answer(cmd, env.commands.dispatch(cmd, env))

        def keep(tx: Tx) -> None:
            if not env.session._store.replies.add(tx, env.session.namespace, place, request, text):
                raise _Answered

        unit.also = keep
    return codec.decode(text)


def _find(env: Env, place: str) -> Reply | None:
    return env.session._store.replies.find(env.session.namespace, place)


def _answer(known: Reply, request: str, key: str) -> Any:
    if known.request_hash != request:
        raise IdempotencyKeyReused(key)
    replayed.set(True)
    return codec.decode(known.reply)


def _digest(cmd: Command) -> str:
    asked = [cmd.name, as_json(cmd._given), cmd.model_key, cmd.model_id]
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
