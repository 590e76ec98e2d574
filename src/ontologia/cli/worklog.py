"""What a worker shows: a log with the ids of events and handlers, and on a terminal a status line."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ontologia.cli.call import core_of
from ontologia.cli.output import harmless

if TYPE_CHECKING:
    from rich.console import Console

    from ontologia.runtime.observed import Attempt
    from ontologia.runtime.session import Session

log = logging.getLogger(__name__)
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s%(event)s"
_INTERVAL = 1.0  # seconds between two looks at what waits
STOPPING = "stopping when running handlers have ended; Ctrl+C does not wait for them"


class Progress(Protocol):
    """What a status line tells of."""

    @property
    def done(self) -> int:
        """Attempts that ended well."""
        ...

    @property
    def failed(self) -> int:
        """Attempts that did not."""
        ...


class Counters:
    """How many attempts of this process ended well, and how many did not."""

    def __init__(self) -> None:
        self.done = 0
        self.failed = 0
        self._lock = threading.Lock()

    def tell(self, attempt: Attempt) -> None:
        """Count an attempt; one that ended well is logged, of the others the run tells itself."""
        with self._lock:
            if attempt.error is None:
                self.done += 1
            else:
                self.failed += 1
        if attempt.error is None:
            context = attempt.context
            log.info(
                "event %s (%s): %s done at attempt %d in %.0f ms",
                *(context.event.id, attempt.handler.event_type, attempt.handler.id),
                *(context.attempt, attempt.seconds * 1000),
            )


class _WithEvent(logging.Filter):
    """Lines that a handler logs say which event and handler they are about."""

    def filter(self, record: logging.LogRecord) -> bool:
        from ontologia.queues.current import delivered
        from ontologia.runtime.context import attempt_of
        from ontologia.runtime.unit import active

        context, delivery = active.get(), delivered.get()
        record.event = ""
        if record.name.startswith("ontologia."):
            return True
        if context is not None:
            record.event = (
                f" [event={context.event.id} handler={attempt_of(context).claim.handler_id}]"
            )
        elif delivery is not None:
            record.event = f" [event={delivery.event.event_id}]"
        return True


class _OneLine(logging.Formatter):
    """A line for each record, and the lines of its traceback indented below it.

    Messages have text of clients, which must neither begin a line of its own nor speak to a terminal.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).expandtabs().replace("\n", "\\n")

    def format(self, record: logging.LogRecord) -> str:
        return "\n  ".join(map(harmless, super().format(record).split("\n")))


class _OnConsole(logging.Handler):
    """Lines above a status line."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        from rich.text import Text

        style = "red" if record.levelno >= logging.WARNING else ""
        self._console.print(Text(self.format(record), style=style), soft_wrap=True)


@contextmanager
def shown(
    session: Session, progress: Progress, stopping: Callable[[], bool] | None = None
) -> Generator[None]:
    """Log to stderr until the end, and on a terminal have a status line.

    `stopping` says whether the end has begun; otherwise the session does.
    """
    with logged() as console:
        if console.is_terminal:
            told = stopping or (lambda: core_of(session).stopping)
            with _status(console, session, progress, told):
                yield
        else:
            yield


@contextmanager
def logged() -> Generator[Console]:
    """Log to stderr until the end; what was set up before is set up again."""
    from rich.console import Console

    console = Console(stderr=True)
    handler: logging.Handler = (
        _OnConsole(console) if console.is_terminal else logging.StreamHandler()
    )
    handler.setFormatter(_OneLine(_FORMAT))
    handler.addFilter(_WithEvent())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield console
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


@contextmanager
def _status(
    console: Console, session: Session, progress: Progress, stopping: Callable[[], bool]
) -> Generator[None]:
    ended = threading.Event()
    with console.status("starting") as status:
        thread = threading.Thread(
            target=_keep,
            args=(status, session, progress, stopping, ended),
            name="status",
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _keep(
    status: Any,
    session: Session,
    progress: Progress,
    stopping: Callable[[], bool],
    ended: threading.Event,
) -> None:
    from ontologia.errors import OntologiaError

    while True:
        try:
            listed = session.event_store.list_consumers(session.namespace)
            waiting = f"{sum(each['ready'] + each['backoff'] for each in listed):,}"
        except OntologiaError:  # a server that went away: the run says so itself
            waiting = "?"
        told = f"{progress.done:,} done, {progress.failed:,} failed attempts, {waiting} waiting; "
        status.update(told + (STOPPING if stopping() else "Ctrl+C stops"))
        if ended.wait(_INTERVAL):
            return
