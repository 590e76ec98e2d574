"""From the body of a request to a command, without trusting it.

The loop reads a body, and does nothing else with it: decoding a large one takes longer than others
can wait. Threads decode: large bodies one at a time, a small one in the thread that carries out its
command.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from starlette.requests import Request

from ontologia import codec
from ontologia.commands import Command
from ontologia.errors import InvalidValueError
from ontologia.web.problems import INVALID, MALFORMED, MEDIA, SLOW, TOO_LARGE, UNAVAILABLE, Problem

MOST_VALUES = 100_000
"""JSON values of one body. `[]` takes 2 bytes in a body, and 60 to 200 as an object of Python."""
_MEMBERS = ("payload", "model_key", "model_id")
_KEY = "idempotency-key"
_SMALL = 65_536  # bytes of each body that are not counted: any connection may hold as many
# Text, or what is empty, or what a value follows. Text that does not end goes to the end of the
# body: trying again at each quote in it would take hours.
_PARTS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|\[\s*+\]|\{\s*+\}|([\[{,])', re.DOTALL)


class Bodies:
    """Bodies that are in memory at the same time: those that are being read, or carried out."""

    def __init__(self, limit: int, seconds: float, most_bytes: int) -> None:
        self._limit = limit
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._bytes = 0

    async def read(self, request: Request) -> bytes:
        """The whole body. Neither its length nor its end is the client's to promise.

        It counts until `forget` is called; a Problem is raised with nothing counted.
        """
        promised = request.headers.get("content-length", "0")
        if promised.isdecimal() and int(promised) > self._limit:
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(self._seconds):
                async for chunk in request.stream():
                    self._grow(body, chunk)
        except BaseException as error:
            self.forget(body)
            if isinstance(error, TimeoutError):
                raise Problem(
                    SLOW,
                    f"the body did not arrive within {self._seconds:g} seconds; nothing was done",
                ) from error
            raise
        return bytes(body)

    def forget(self, body: bytes | bytearray) -> None:
        """Count a body no more."""
        self._bytes -= _counted(len(body))

    def _grow(self, body: bytearray, chunk: bytes) -> None:
        length = len(body) + len(chunk)
        if length > self._limit:
            raise self._too_large()
        more = _counted(length) - _counted(len(body))
        if more and self._bytes + more > self._most_bytes:
            raise Problem(
                UNAVAILABLE,
                f"the requests that are here already have {self._most_bytes:,} bytes; "
                "nothing was done",
            )
        self._bytes += more
        body += chunk

    def _too_large(self) -> Problem:
        return Problem(TOO_LARGE, f"a body has at most {self._limit:,} bytes; nothing was done")


def _counted(length: int) -> int:
    return max(0, length - _SMALL)


def is_large(body: bytes) -> bool:
    """Whether decoding it may take longer than others can wait."""
    return len(body) > _SMALL


def idempotency_key(request: Request) -> str | None:
    """The key under which a request is carried out once."""
    given = request.headers.getlist(_KEY)
    if len(given) > 1:
        raise Problem(INVALID, "there is more than one Idempotency-Key")
    return given[0] if given else None


def check_media_type(request: Request) -> None:
    """Raise a Problem unless the body is said to be JSON."""
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


def command_of(name: str, body: bytes) -> Command:
    """The command that a body asks for; a Problem if it cannot be understood."""
    _check_number_of_values(body)
    return _command(name, _decoded(body))


def _check_number_of_values(body: bytes) -> None:
    """Count the values of a body before they take memory."""
    separators = 0
    if len(body) >= 2 * MOST_VALUES:
        separators = body.count(b",") + body.count(b"[") + body.count(b"{")
    if separators < MOST_VALUES:  # also those that are in texts
        return
    values = 1
    for part in _PARTS.finditer(body):
        values += part.lastindex or 0
        if values > MOST_VALUES:
            raise Problem(
                INVALID, f"a body has at most {MOST_VALUES:,} JSON values; nothing was done"
            )


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
