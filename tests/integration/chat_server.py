"""A chat endpoint on this machine, for tests: it says what it is told to, and remembers questions."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ChatServer:
    """`answer` is called with the request's handler; set it to what the next ones shall do."""

    def __init__(self) -> None:
        self.questions: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.answer: Callable[[BaseHTTPRequestHandler], None] = streamed("Hello", ", ", "Ada")
        self.release = threading.Event()
        """Set at the end, for answers that wait."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.questions.append({"path": self.path, **json.loads(body)})
                server.keys.append(self.headers["Authorization"])
                server.answer(self)

            def do_GET(self) -> None:
                server.keys.append(self.headers["Authorization"])
                server.answer(self)

            def log_message(self, *_: object) -> None:
                """Nothing: stderr is looked at."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def serve(self) -> None:
        self._http.serve_forever(poll_interval=0.01)

    def close(self) -> None:
        self.release.set()
        self._http.shutdown()
        self._http.server_close()


@contextmanager
def chat_server() -> Iterator[ChatServer]:
    server = ChatServer()
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


def piece(text: str | None, finish: str | None = None) -> bytes:
    """One event of a stream."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def streamed(*texts: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """A whole answer, as endpoints stream it: a comment, the role, pieces, the end, figures."""
    role = b'data: {"choices": [{"delta": {"role": "assistant"}, "finish_reason": null}]}\n\n'
    figures = b'data: {"choices": [], "usage": {"total_tokens": 5}}\n\n'
    ends = [piece(None, "stop"), figures, b"data: [DONE]\n\n"]
    return raw(b": hello\n\n", role, *map(piece, texts), *ends)


def raw(*chunks: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    """These bytes as a stream, whose end is the end of the connection."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream; charset=utf-8")
        request.send_header("Connection", "close")
        request.end_headers()
        for chunk in chunks:
            request.wfile.write(chunk)
            request.wfile.flush()

    return answer


def refused(code: int, body: str, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """An answer that is none."""
    return plain(body, code, **headers)


def plain(body: str, code: int = 200, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """A whole answer that is not streamed."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        data = body.encode()
        request.send_response(code)
        headers.setdefault("Content_Type", "application/json")
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    return answer
