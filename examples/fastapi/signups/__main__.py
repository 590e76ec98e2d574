"""`python -m signups`: the application is served, asked, and stopped."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import uvicorn

from .app import app


@contextmanager
def served() -> Generator[str]:
    """The application at a free port of this machine; its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the server did not start")
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True  # what SIGTERM does, too: requests end, then the lifespan does
        thread.join()


def ask(method: str, url: str, body: dict[str, str] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - our own
    with urllib.request.urlopen(request) as response:  # noqa: S310
        return json.load(response)


def main() -> None:
    with served() as address:
        ada = f"{address}/users/ada"
        print("Ada signs up; the answer comes when she, and the event about her, are stored:")
        print(f"  {ask('PUT', ada, {'email': 'ada@example.com'})}")

        print("A handler welcomes her, a moment later:")
        while not ask("GET", ada)["welcomed"]:
            time.sleep(0.05)
        print(f"  {ask('GET', ada)}")

        print("The same again is nothing new, and another address is another commit:")
        print(f"  {ask('PUT', ada, {'email': 'ada@example.com'})}")
        changed = ask("PUT", ada, {"email": "ada@example.org"})
        print(f"  {changed}")

        print("As she was before that:")
        print(f"  {ask('GET', ada + '?as_of=' + str(changed['commit'] - 1))}")
        print(f"  {ask('GET', address + '/health')}")
    print("Stopped.")


if __name__ == "__main__":
    main()
