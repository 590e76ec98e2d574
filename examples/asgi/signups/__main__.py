"""`python -m signups`: the application is served with a worker beside it, asked, and stopped."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import uvicorn

from ontologia import OntologiaConfig

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


@contextmanager
def worked() -> Generator[None]:
    """A worker beside it: another process, as many as there is work for."""
    uri = OntologiaConfig().datastore_uri or "signups.db"
    command = ["ontologia", "run", "signups.handlers", "--datastore-uri", uri]
    with subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.DEVNULL) as worker:  # noqa: S603
        try:
            yield
        finally:
            worker.terminate()  # SIGTERM: the handler that is running comes to its end


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
        if not ask("GET", ada)["welcomed"]:  # as in an empty folder
            print("Nobody has welcomed her, since there is no worker yet; the event waits:")
            print(f"  {ask('GET', ada)}")

        print("A worker is started:")
        with worked():
            while not ask("GET", ada)["welcomed"]:
                time.sleep(0.05)
            print(f"  {ask('GET', ada)}")
    print("Both are stopped.")


if __name__ == "__main__":
    main()
