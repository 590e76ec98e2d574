"""A server as a process that may open so many files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

import httpx

from ontologia import Session
from ontologia_conformance.tiers import samples
from tests.integration.processes import ROOT
from tests.integration.running import PATIENCE, until
from tests.integration.web_world import AUTHORIZED, TOKEN


class Limited:
    """`ontologia serve` as a process that may open so many files."""

    def __init__(self, uri: str, folder: Path, descriptors: int) -> None:
        self.log = folder / "log"
        Session(uri).close()
        serve = f'ulimit -n {descriptors}; exec "$@" serve tests.abuse.world --port 0'
        with self.log.open("w") as log:
            self.popen = subprocess.Popen(
                ["sh", "-c", serve, "sh", sys.executable, "-m", "ontologia"],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env=os.environ | {"ONTOLOGIA_TOKEN": TOKEN, "ONTOLOGIA_DATASTORE_URI": uri},
            )
        self._watchdog = threading.Timer(PATIENCE + samples(PATIENCE), self.popen.kill)
        self._watchdog.start()

    def __enter__(self) -> Self:
        until(lambda: self.popen.poll() is not None or "serving 3 commands" in self.lines())
        self.url = re.search(r"http://\S+", self.lines())[0]
        host, port = self.url.removeprefix("http://").split(":")
        self.address = host, int(port)
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.cancel()
        self.popen.kill()
        self.popen.wait(PATIENCE)

    def lines(self) -> str:
        return self.log.read_text()

    def post(self, name: str) -> httpx.Response:
        """A request by a connection of its own."""
        body = {"payload": {}}
        url = f"{self.url}/commands/{name}"
        return httpx.post(url, json=body, headers=AUTHORIZED, timeout=PATIENCE)

    def stop(self) -> int:
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(PATIENCE)
