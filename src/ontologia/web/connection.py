"""One connection: uvicorn's, which waits for ever for the head of a request, with an end to it.

Requests that are not HTTP are answered here as well: no application sees them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ontologia.web.problems import MALFORMED, MEDIA_TYPE, SLOW, Problem

HEAD_TIMEOUT = 15.0  # seconds from the beginning of a request, or of the connection


class Connection(H11Protocol):
    """A client has some seconds for the head of a request, however it divides it."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        """Go on, or end, to wait."""
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer to what is no HTTP."""
        self._refuse(Problem(MALFORMED, msg))

    def _look(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_TIMEOUT, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self.transport.is_closing() and self.conn.their_state is h11.IDLE:
            self._refuse(Problem(SLOW, f"no request came within {HEAD_TIMEOUT:g} seconds"))

    def _refuse(self, problem: Problem) -> None:
        """Answer in place of the application, and close."""
        body = problem.content()
        headers: list[tuple[str, str]] = [
            ("content-type", MEDIA_TYPE),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        events: list[Any] = [
            h11.Response(status_code=problem.kind.status, headers=headers, reason=b""),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        with suppress(h11.LocalProtocolError):  # an answer is on its way already
            self.transport.write(b"".join(self.conn.send(each) or b"" for each in events))
        self.transport.close()
