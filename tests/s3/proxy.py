"""A way to an S3 service that can fail as services do: busy, broken, slow, silent, or out of date.

It passes requests on as they came, so their signatures hold, and counts them.
"""

from __future__ import annotations

import http.client
import http.server
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import urlsplit

_BUSY = {
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    503: "SlowDown",
    500: "InternalError",
}


@dataclass(frozen=True)
class Seen:
    """A request that came by."""

    method: str
    path: str

    @property
    def kind(self) -> str:
        """GET, PUT, DELETE, or LIST."""
        if "list-type=" in self.path:
            return "LIST"
        return "DELETE" if "delete" in self.path.partition("?")[2] else self.method


@dataclass
class Fault:
    """What happens to the requests of a kind whose path holds a text."""

    kind: str
    holds: str = ""
    status: int | None = None
    """The answer in place of the service's; None for its own."""
    done: bool = False
    """Whether the service gets the request all the same."""
    silent: bool = False
    """Whether the connection ends without an answer."""
    stale: bool = False
    """Whether a listing is answered as it was when this was first asked for, and not as it is."""
    first: Callable[[], object] = lambda: None
    """What happens before the request is passed on."""
    times: int = 1
    met: int = field(default=0, init=False)

    def meets(self, seen: Seen) -> bool:
        return self.times > 0 and seen.kind == self.kind and self.holds in seen.path


class Proxy:
    """Listens on a port of its own for the service at an endpoint."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self._given = environment
        self._service = urlsplit(environment["AWS_ENDPOINT_URL"]).netloc
        self._listings: dict[str, tuple[int, list[tuple[str, str]], bytes]] = {}
        self._lock = threading.Lock()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead a client here."""
        endpoint = f"http://127.0.0.1:{self._server.server_port}"
        return {**self._given, "AWS_ENDPOINT_URL": endpoint}

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def kinds(self) -> list[str]:
        """The kinds of the requests that came by, in their order."""
        return [each.kind for each in self.seen]

    def fail(self, kind: str, holds: str = "", **how: Any) -> Fault:
        """Let requests fail from now on: the next one, or as many as `times` says."""
        fault = Fault(kind, holds, **how)
        self.faults.append(fault)
        return fault

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # an answer in one packet: two wait for each other
            disable_nagle_algorithm = True

            def _pass(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                seen = Seen(self.command, self.path)
                fault = proxy.note(seen)
                if fault is not None:
                    fault.first()
                if fault is None or fault.done or not (fault.status or fault.silent):
                    answer = proxy.ask(seen, dict(self.headers.items()), body, fault)
                if fault is not None and fault.silent:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                if fault is not None and fault.status:
                    said = f"<Error><Code>{_BUSY.get(fault.status, 'Odd')}</Code></Error>"
                    answer = fault.status, [], said.encode()
                status, headers, content = answer
                self.send_response_only(status, HTTPStatus(status).phrase)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def note(self, seen: Seen) -> Fault | None:
        """Count a request; what is to happen to it."""
        with self._lock:
            self.seen.append(seen)
            fault = next((each for each in self.faults if each.meets(seen)), None)
            if fault is not None:
                fault.times -= 1
                fault.met += 1
            return fault

    def ask(
        self, seen: Seen, headers: dict[str, str], body: bytes, fault: Fault | None
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Have the service answer a request."""
        if fault is not None and fault.stale and seen.path in self._listings:
            return self._listings[seen.path]
        connection = http.client.HTTPConnection(self._service, timeout=30)
        try:
            connection.request(seen.method, seen.path, body, headers)
            found = connection.getresponse()
            content = found.read()
            kept = [
                (name, value)
                for name, value in found.getheaders()
                if name.lower() not in ("content-length", "connection", "transfer-encoding")
            ]
            answer = found.status, kept, content
        finally:
            connection.close()
        if seen.kind == "LIST":
            self._listings.setdefault(seen.path, answer)
        return answer
