"""What takes longer than a page may: done in a thread, one thing at a time, with its progress.

A job is begun by a POST. What came of it is kept until the next one of its kind, or the end of the
console, which ends a job that runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ontologia.errors import OntologiaError
from ontologia.runtime.session import core_of
from ontologia.store.database import reading_within

if TYPE_CHECKING:
    from ontologia.store.database import ReadDeadline
    from ontologia.web.console.app import Console

log = logging.getLogger(__name__)
EXAMINE, REPAIR, CLEANUP, PREFLIGHT = "doctor", "repair", "cleanup", "preflight"
"""Kinds of jobs."""
JOBS = "jobs"
"""What listeners are told that a job has come further."""
_LONGEST = 86_400.0  # seconds
_PATIENCE = 2.0  # seconds that a job may need to end


class StoppedError(Exception):
    """The console ends, and the job with it."""


@dataclass(frozen=True)
class Done:
    """What came of a job that changes something."""

    counts: dict[str, int]
    commit: int | None
    """The commit that records it; None if nothing was to be done."""


@dataclass
class Job:
    """One thing that is done; changed by its thread alone, but for `stop`."""

    kind: str
    title: str
    """`doctor`, `Delete events older than 30d`: what is done, for people."""
    namespace: str | None
    """None for a job that concerns the whole store."""
    by: str
    started_at: datetime
    steps: int | None
    """How many there will be, if that is known."""
    step: int = 0
    doing: str = ""
    found: list[Any] = field(default_factory=list[Any])
    """What it has found so far."""
    result: Any = None
    error: str | None = None
    hint: str | None = None
    ended_at: datetime | None = None
    on_progress: Callable[[], None] = lambda: None
    _stopped: threading.Event = field(default_factory=threading.Event, repr=False)
    _deadline: ReadDeadline | None = field(default=None, repr=False)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.ended_at is None

    def tell(self, doing: str) -> None:
        """The next step; StoppedError if the job is to end."""
        self.step += 1
        self.doing = doing
        self.on_progress()
        if self._stopped.is_set():
            raise StoppedError

    def stop(self) -> None:
        """Have it end: a read of SQLite at once, anything else at its next step."""
        self._stopped.set()
        if self._deadline is not None:
            self._deadline.end()

    @property
    def stopped(self) -> bool:
        """Whether it was told to end."""
        return self._stopped.is_set()

    def limit(self, deadline: ReadDeadline) -> None:
        """Let `stop` end what is read."""
        self._deadline = deadline
        if self.stopped:
            deadline.end()


class Jobs:
    """The jobs of one console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str | None], Job] = {}
        self._job: Job | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def running(self) -> Job | None:
        """The job that runs."""
        job = self._job
        return job if job is not None and job.running else None

    def last(self, kind: str, namespace: str | None) -> Job | None:
        """The last job of a kind that was begun."""
        return self._last.get((kind, namespace))

    def start(
        self,
        kind: str,
        title: str,
        work: Callable[[Job], Any],
        *,
        by: str,
        namespace: str | None = None,
        steps: int | None = None,
    ) -> Job:
        """Begin `work`, whose result is kept; OntologiaError if another job runs."""
        clock = core_of(self._console.session).clock
        with self._lock:
            running = self.running
            if self._closed:
                raise OntologiaError("the console is ending; nothing was begun")
            if running is not None:
                raise OntologiaError(
                    f"{running.by} began another job a moment ago, which is not done: "
                    f"{running.title}; nothing was begun",
                    hint="Wait for its end: a console does one at a time.",
                )
            job = Job(kind, title, namespace, by, clock.now(), steps)
            job.on_progress = lambda: self._console.live.tell(JOBS)
            thread = threading.Thread(
                target=self._run, args=(job, work), name="console-job", daemon=True
            )
            self._job, self._last[kind, namespace], self._thread = job, job, thread
            thread.start()
        return job

    def close(self) -> None:
        """End the job that runs, and begin no more. Idempotent; for any thread."""
        with self._lock:
            self._closed = True
            job, thread = self._job, self._thread
        if job is not None:
            job.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE)

    def _run(self, job: Job, work: Callable[[Job], Any]) -> None:
        clock = core_of(self._console.session).clock
        try:
            with reading_within(_LONGEST) as deadline:
                job.limit(deadline)
                job.result = work(job)
        except BaseException as error:  # noqa: BLE001 - shown, and logged
            self._fail(job, error)
        finally:
            job.ended_at = clock.now()
            self._console.live.tell(JOBS)

    def _fail(self, job: Job, error: BaseException) -> None:
        notes = getattr(error, "__notes__", [])
        if job.stopped:
            job.error = "The console ended before this was done."
            log.info("job ended with the console: %s", job.title)
        elif isinstance(error, OntologiaError):
            job.error, job.hint = str(error.args[0]), error.hint
        else:
            job.error = f"{type(error).__name__}; the log of the console says more."
            log.error("job failed: %s", job.title, exc_info=error)
        job.error = "; ".join([job.error, *notes])
