"""The console of a large store: how long pages take on the server, and what it costs when idle.

A million retained events, 100,000 objects and 100,000 commits. The console is a process of its own,
and pages are asked for over HTTP on loopback, one after the other. Everything lies in a temporary
folder; TMPDIR chooses the disk.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import orjson

from bench import shop
from bench.bare import sqlite_state as bare
from bench.goals.figures import Amount, Figure
from bench.measure import BenchError, progress, quantile
from bench.orders import OrderPaid, announce, finish, open_orders, unlimited
from bench.processes import ROOT, environment
from bench.workload import NAMESPACE, NOTHING, TYPE, fields
from ontologia import Session
from ontologia.runtime.operator import Operator
from ontologia.runtime.views.dead_letters import dead_letters

EVENTS = 999_000
"""Finished ones, in bulk; with the others there are a million."""
_DEAD, _WAITING, _PAID = 300, 500, 200
_COMMITS = 100_000
_ROUNDS = 40
_SLOW_ROUNDS = 5
_IDLE = 30.0  # seconds
_PATIENCE = 60.0  # seconds; only a hang takes that long
_PAGE, _SEARCH = 100, 1_000  # milliseconds
_MOST_MB, _MOST_CPU = 60, 1
_MORE_COMMITS = (
    "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?) "
    "INSERT INTO commits(created_at, metadata_json) SELECT commits.created_at, "
    "commits.metadata_json FROM numbers, commits WHERE commits.id = 1"
)


def figures() -> Iterator[Figure]:
    """p95 of each page, and memory and CPU of an idle console."""
    with tempfile.TemporaryDirectory(prefix="ontologia-bench-") as name:
        path = Path(name) / "large.db"
        with progress(f"building {EVENTS:,} finished events, {shop.CUSTOMERS:,} objects"):
            build(path)
        with open_orders(path) as session:
            dead = dead_letters(session, limit=1).rows[0].event_id
            middle = _commit_between(session)
        with _console(path) as browser:
            for title, url, goal in _asked(dead, middle):
                yield browser.measured(title, url, goal)
            yield from browser.idle()


def build(path: Path) -> None:
    """Make the store: what is done, then what is dead, then what waits."""
    with shop.open_shop(path) as session:
        shop.add_customers(session, 1)
    config = unlimited().model_copy(update={"event_max_attempts": 1})
    with open_orders(path, config) as session:
        session.event_store.consumers.register(NAMESPACE, NOTHING, [TYPE])
        finish(path, EVENTS, NOTHING)
        announce(session, _DEAD)
        _fail(session)
        Operator(session, "ada", reason="bench").pause(NOTHING)
        with bare.connected(path) as connection:
            connection.execute(_MORE_COMMITS, (_COMMITS,))
        announce(session, _WAITING)
        session.commit(event=[OrderPaid(**fields(number)) for number in range(_PAID)])


def _fail(session: Session) -> None:
    """Make a dead letter of everything that waits."""
    events = session.event_store
    for each in events.claim(NAMESPACE, NOTHING, session.session_id, [TYPE], _DEAD, 30_000):
        assert events.start(NOTHING, str(each.id), lease_ms=30_000)
        events.release(NOTHING, str(each.id), error="ValueError: it cannot be booked")


def _commit_between(session: Session) -> int:
    """A commit from after what is done."""
    return session.head - _COMMITS


def _asked(event_id: str, commit: int) -> Iterator[tuple[str, str, int]]:
    """Each page with its goal, in milliseconds. A search ends with its deadline."""
    filters = {
        "type": ("type:order.paid", _PAGE),
        "handler": (f"handler:{NOTHING}", _PAGE),
        "state": ("state:dead", _PAGE),
        "payload": (f"type:{TYPE} payload.order_id:order-1", _SEARCH),
        "since": ("since:2h", _PAGE),
        "state, none": ("state:claimed", _SEARCH),
        "payload, none": (f"type:{TYPE} payload.order_id:none", _SEARCH),
    }
    event = urlencode({"id": event_id})
    yield "overview", "/", _PAGE
    yield "events", "/events", _PAGE
    for name, (text, goal) in filters.items():
        yield f"events by {name}", f"/events?{urlencode({'filter': text})}", goal
    yield "event", f"/event?{event}", _PAGE
    for name in ("dead-letters", "handlers", "sessions", "audit"):
        yield name.replace("-", " "), f"/{name}", _PAGE
    yield "handler", f"/handlers?{urlencode({'handler': NOTHING})}", _PAGE
    yield "overview of the past", f"/?as_of={commit}", _PAGE
    yield "events of the past", f"/events?as_of={commit}", _PAGE
    yield "event of the past", f"/event?{event}&as_of={commit}", _PAGE


class _Browser:
    """One connection to a console, signed in."""

    def __init__(self, pid: int, url: str) -> None:
        self._pid = pid
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.netloc, timeout=_PATIENCE)
        code = parse_qs(parts.query)["code"][0]
        origin = {
            "Origin": f"http://{parts.netloc}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        body = urlencode({"code": code, "name": "bench"})
        self._connection.request("POST", "/login", body, origin)
        answer = self._connection.getresponse()
        answer.read()
        self._cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]

    def get(self, url: str) -> None:
        """Ask for a page; BenchError if it is not shown."""
        self._connection.request("GET", url, headers={"Cookie": self._cookie})
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise BenchError(f"{url} was answered {answer.status}:\n{body.decode()[-2_000:]}")

    def measured(self, title: str, url: str, goal: int) -> Amount:
        """How long a page takes, p95, and what CPU it costs, which a busy machine does not change."""
        times: list[float] = []
        self.get(url)
        before = _cpu(self._pid)
        for _ in range(_SLOW_ROUNDS if goal > _PAGE else _ROUNDS):
            started = time.perf_counter()
            self.get(url)
            times.append((time.perf_counter() - started) * 1e3)
        cpu = (_cpu(self._pid) - before) / len(times) * 1e3
        detail = f"CPU {cpu:.0f} ms"
        return Amount(f"console: {title}, p95", quantile(times, 0.95), "ms", goal, detail)

    def idle(self) -> Iterator[Amount]:
        """What the process costs while no page is open; its sampler runs."""
        before = _cpu(self._pid)
        time.sleep(_IDLE)
        used = _cpu(self._pid) - before
        yield Amount("console: CPU when idle", 100 * used / _IDLE, "%", _MOST_CPU)
        yield Amount("console: memory when idle", _resident(self._pid), "MB", _MOST_MB)

    def close(self) -> None:
        self._connection.close()


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    """Megabytes of memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024**2


@contextmanager
def _console(path: Path) -> Generator[_Browser]:
    """A browser at a console that runs until the end of the block."""
    command = [sys.executable, "-m", "ontologia", "console", "--json", "--port", "0"]
    with subprocess.Popen(
        [*command, "--datastore-uri", f"sqlite:///{path}"],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None  # it is a pipe
        try:
            line = process.stdout.readline()
            if not line:
                raise BenchError(f"the console ended early, with code {process.wait()}")
            browser = _Browser(process.pid, orjson.loads(line)["login"])
            try:
                yield browser
            finally:
                browser.close()
        finally:
            process.terminate()
