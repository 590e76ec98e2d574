"""A server under load: 32 connections, each with one request after the other, and nothing lost.

`ontologia serve --with-worker` is a process of its own; so is whoever asks. Every answer is kept, and
at the end each acknowledged command must have its record, and its event a handler that ran once.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.goals.figures import Amount, Figure
from bench.goals.http_app import HANDLED
from bench.measure import progress, quantile, same
from bench.processes import ROOT
from ontologia import Session
from ontologia.commands import Env

REQUESTS = 10_000
CONNECTIONS = 32
_TOKEN = "bench"  # noqa: S105
_PATIENCE = 120.0  # seconds; only a hang takes that long
_URL = re.compile(r"serving 1 command at http://127\.0\.0\.1:(\d+)")


class Answer(NamedTuple):
    """What became of one request."""

    status: int
    ticket: str
    seconds: float


class Load(NamedTuple):
    """What became of them all."""

    answers: list[Answer]
    seconds: float
    stored: list[str]
    handled: list[str]

    def lost(self) -> list[str]:
        """What was acknowledged, and is not there once and handled once; or is too much."""
        wanted = Counter(each.ticket for each in self.answers if each.status == 200)
        stored, handled = Counter(self.stored), Counter(self.handled)
        known = wanted | stored | handled
        return [each for each in known if not wanted[each] == stored[each] == handled[each] == 1]


def figures() -> Iterator[Figure]:
    """How many commands a second, and how long the slowest take."""
    with tempfile.TemporaryDirectory() as folder:
        uri = f"sqlite:///{folder}/load.db"
        with progress(f"{REQUESTS:,} commands over HTTP, {CONNECTIONS} connections"):
            load = put_under_load(uri, Path(folder), REQUESTS)
    same("commands that were refused", 0, sum(each.status != 200 for each in load.answers))
    same("commands that were lost or doubled", [], load.lost())
    waits = [each.seconds for each in load.answers]
    rate = REQUESTS / load.seconds
    yield Amount("commands over HTTP, 32 connections, worker beside", rate, "/s")
    for share in (0.5, 0.99):
        yield Amount(
            f"... wait for the answer, p{share * 100:.0f}", quantile(waits, share) * 1e3, "ms"
        )


def put_under_load(uri: str, folder: Path, requests: int) -> Load:
    """Serve on this store, ask as often as this, and see what is there when all is handled."""
    Session(uri).close()
    lines = folder / "handled"
    lines.touch()
    with _server(uri, folder, lines) as port:
        started = time.perf_counter()
        answers = asyncio.run(_ask(port, requests))
        seconds = time.perf_counter() - started
        wanted = sum(each.status == 200 for each in answers)
        deadline = time.monotonic() + _PATIENCE
        while len(lines.read_text().split()) < wanted and time.monotonic() < deadline:
            time.sleep(0.05)
    with Env(uri, modules=["bench.goals.http_app"]) as env:
        stored = [each.id for each in env.models["bench.ticket"].search([])]
    return Load(answers, seconds, stored, lines.read_text().split())


@contextmanager
def _server(uri: str, folder: Path, lines: Path) -> Generator[int]:
    """The port of a server that runs until the end of the block, and stops well."""
    command = [sys.executable, "-m", "ontologia", "serve", "bench.goals.http_app", "--with-worker"]
    settings = {**os.environ, "ONTOLOGIA_TOKEN": _TOKEN, HANDLED: str(lines)}
    told = folder / "log"
    with told.open("wb") as log:
        server = subprocess.Popen(
            [*command, "--port", "0", "--datastore-uri", uri],
            cwd=ROOT,
            env=settings,
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + _PATIENCE
        while not (found := _URL.search(told.read_text())):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start:\n{told.read_text()}")
            time.sleep(0.02)
        yield int(found[1])
    finally:
        server.terminate()
        try:
            code = server.wait(_PATIENCE)
        finally:
            server.kill()
    if code != 0:
        raise SystemExit(f"the server ended with {code}:\n{told.read_text()[-2_000:]}")


async def _ask(port: int, requests: int) -> list[Answer]:
    numbers = iter(range(requests))
    found = await asyncio.gather(*(_connection(port, numbers) for _ in range(CONNECTIONS)))
    return [answer for each in found for answer in each]


async def _connection(port: int, numbers: Iterator[int]) -> list[Answer]:
    """One connection: a request, its answer, and the next one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers: list[Answer] = []
    for number in numbers:
        body = b'{"payload":{"number":%d}}' % number
        started = time.perf_counter()
        writer.write(
            b"POST /commands/ticket.draw HTTP/1.1\r\nHost: bench\r\n"
            b"Authorization: Bearer %s\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (_TOKEN.encode(), len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        content = await reader.readexactly(int(length[1]) if length else 0)
        status = int(head.split()[1])
        ticket = json.loads(content).get("id", "")
        answers.append(Answer(status, ticket, time.perf_counter() - started))
    writer.close()
    await writer.wait_closed()
    return answers
