"""`run --reload`: a worker process that is started again when the program changes.

Importing a changed module into a running process leaves the old one behind in whatever refers to
it; a new process does not. It ends with this one, also when this one is killed: see `supervised`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ontologia.cli.call import core_of
from ontologia.cli.migrate import NEEDED
from ontologia.cli.supervised import PATIENCE

if TYPE_CHECKING:
    from ontologia.cli.call import Call

_LOOK = 0.5  # seconds between two looks at the files
_SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


class _Worker:
    """The process that does the work, and what it is to be told."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self._arguments = arguments
        self._environment = environment
        self._theirs, self._mine = os.pipe()
        self.stopping = False
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        # Only where a process can be given a pipe; elsewhere it outlives one that is killed.
        given = [self._theirs] if os.name == "posix" else []
        program = ["ontologia.cli.supervised", *map(str, given)] if given else ["ontologia"]
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", *program, *self._arguments],
            env=self._environment,
            pass_fds=given,
            # A group of its own: Ctrl+C reaches it once, through `forward`, and not twice.
            start_new_session=True,
        )

    def forward(self, number: int, _frame: object) -> None:
        """Give a signal to the worker; this process ends when it does."""
        self.stopping = True
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM if number != signal.SIGINT else number)

    def close(self) -> None:
        """End it, if it has not ended, and let go of the pipe."""
        if self.process.poll() is None:
            self.process.kill()
        os.close(self._mine)
        os.close(self._theirs)

    def restart(self) -> None:
        """Let it come to its end, and begin another."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if not self.stopping:
            self.process = self._start()


def supervise(call: Call, target: str, options: dict[str, object]) -> int:
    """Run a worker until a signal ends it; its exit code, 128 and more if that was a signal's.

    `options` are those of `ontologia run`; one that is None is left out.
    """
    folders = _folders(target.partition(":")[0])
    arguments = ["run", target]
    for name, value in options.items():
        arguments += [f"--{name}", str(value)] if value is not None else []
    arguments += ["--namespace", call.namespace] if call.namespace else []
    arguments += [f"--{name}" for name in ("json", "debug") if getattr(call, name)]
    # Not as an argument: those of a process can be seen by everybody, and it may hold a password.
    worker = _Worker(arguments, {**os.environ, "ONTOLOGIA_DATASTORE_URI": call.uri})
    before: dict[Any, Any] = {each: signal.signal(each, worker.forward) for each in _SIGNALS}
    try:
        code = _watch(worker, folders, call)
        return code if code >= 0 else 128 - code
    finally:
        worker.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(worker: _Worker, folders: list[str], call: Call) -> int:
    seen = _stamps(folders)
    schema = None
    told = False
    while True:
        try:
            code = worker.process.wait(_LOOK)
        except subprocess.TimeoutExpired:
            code = None
        if code is not None and (worker.stopping or code == 0):
            return code
        if code is not None and not told:
            told = True
            schema = _schema(call) if code == NEEDED else None
            awaited = "a change, or a migration" if code == NEEDED else "a change"
            typer.echo(f"the worker ended with code {code}; waiting for {awaited}", err=True)
        if code is not None:
            _wait_a_little()
        if code == NEEDED and schema != _schema(call):
            typer.echo("the types of the store changed; starting again", err=True)
            told = False
            worker.restart()
            continue
        now = _stamps(folders)
        if now != seen:
            changed = sorted({path for path, _ in now.items() ^ seen.items()})
            typer.echo(f"{changed[0]} changed; starting again", err=True)
            seen, told = now, False
            worker.restart()


def _schema(call: Call) -> int | None:
    """A number that changes with the types of the store; None if it cannot be had now."""
    from ontologia.errors import OntologiaError

    try:
        with call.reading() as session:
            return core_of(session).store.schema_generation()
    except OntologiaError:
        return None


def _wait_a_little() -> None:
    from ontologia.clock import SYSTEM_CLOCK

    SYSTEM_CLOCK.sleep(_LOOK)


def _folders(module: str) -> list[str]:
    """Where the program's files are: its package, or the folder of a single module."""
    import importlib.util

    from ontologia.errors import NotFoundError

    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    top = module.partition(".")[0]
    spec = importlib.util.find_spec(top) if top else None
    if spec is None or (spec.origin is None and not spec.submodule_search_locations):
        raise NotFoundError(f"there is no module {module}")
    if spec.submodule_search_locations:
        return list(spec.submodule_search_locations)
    return [str(Path(str(spec.origin)).parent)]


def _stamps(folders: list[str]) -> dict[str, tuple[int, int]]:
    stamps: dict[str, tuple[int, int]] = {}
    for path in _files(folders):
        try:
            found = os.stat(path)
        except OSError:  # it is just being replaced
            continue
        stamps[path] = (found.st_mtime_ns, found.st_size)
    return stamps


def _files(folders: list[str]) -> Iterator[str]:
    for folder in folders:
        for place, inner, names in os.walk(folder):
            inner[:] = [
                name
                for name in inner
                if not name.startswith((".", "__pycache__", "node_modules"))
                and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
            ]
            yield from (os.path.join(place, name) for name in names if name.endswith(".py"))
