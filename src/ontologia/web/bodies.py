"""From the body of a request to a command, without trusting it."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request

from ontologia import codec
from ontologia.commands import Command
from ontologia.errors import InvalidValueError
from ontologia.web.problems import INVALID, MALFORMED, MEDIA, SLOW, TOO_LARGE, Problem

_MEMBERS = ("payload", "model_key", "model_id")
_KEY = "idempotency-key"


async def read_command(request: Request, name: str, *, limit: int, seconds: float) -> Command:
    """The command that a request asks for; a Problem if it cannot be understood."""
    _check_media_type(request)
    body = await _read(request, limit, seconds)
    return _command(name, _decoded(body))


def idempotency_key(request: Request) -> str | None:
    """The key under which a request is carried out once."""
    given = request.headers.getlist(_KEY)
    if len(given) > 1:
        raise Problem(INVALID, "there is more than one Idempotency-Key")
    return given[0] if given else None


def _check_media_type(request: Request) -> None:
    given = request.headers.get("content-type", "")
    kind, _, parameters = given.partition(";")
    charset = parameters.replace(" ", "").replace('"', "").lower()
    if kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise Problem(
            MEDIA,
            f"the body is {given!r:.100}" if given else "the body has no Content-Type",
            hint="Send JSON in UTF-8, with Content-Type: application/json.",
        )
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise Problem(MEDIA, f"the body is encoded as {encoding!r}", hint="Send it as it is.")


async def _read(request: Request, limit: int, seconds: float) -> bytes:
    """The whole body. Neither its length nor its end is the client's to promise."""
    promised = request.headers.get("content-length", "0")
    if promised.isdecimal() and int(promised) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError as error:
        raise Problem(
            SLOW, f"the body did not arrive within {seconds:g} seconds; nothing was done"
        ) from error
    return bytes(body)


def _too_large(limit: int) -> Problem:
    return Problem(TOO_LARGE, f"a body has at most {limit:,} bytes; nothing was done")


def _decoded(body: bytes) -> Any:
    try:
        value = codec.decode(body)
    except InvalidValueError as error:
        raise Problem(MALFORMED, error.args[0]) from error
    try:
        codec.encode(value, where="body")  # every part is checked, the text too
    except InvalidValueError as error:
        raise Problem(INVALID, error.args[0]) from error
    return value


def _command(name: str, body: Any) -> Command:
    if not isinstance(body, dict):
        raise Problem(INVALID, "the body is no JSON object", hint='At the least: {"payload": {}}.')
    for member in body:
        if member not in _MEMBERS:
            raise Problem(INVALID, f"a body has {', '.join(_MEMBERS)}, and no {member!r:.100}")
    if not isinstance(body.get("payload"), dict):
        raise Problem(
            INVALID,
            "payload is a JSON object" if "payload" in body else "there is no payload",
            hint="Without anything to say it is {}.",
        )
    for member in _MEMBERS[1:]:
        value = body.get(member)
        if value is not None and not (isinstance(value, str) and value):
            raise Problem(INVALID, f"{member} is text, or null, got {value!r:.100}")
    return Command(name, body["payload"], body.get("model_key"), body.get("model_id"))
