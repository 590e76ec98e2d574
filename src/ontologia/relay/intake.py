"""`Intake`: brings the events of another system into the log, each once."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from ontologia import codec
from ontologia.clock import SYSTEM_CLOCK, to_text
from ontologia.delivery.lineage import Lineage, check_depth
from ontologia.delivery.retry import describe_error
from ontologia.engine.outage import PASSING, Outage
from ontologia.engine.signals import stopping_on_signals
from ontologia.errors import (
    IntegrityError,
    LockContentionError,
    OntologiaError,
)
from ontologia.queues.cloudevents import Message
from ontologia.relay.endpoints import Arrival, Portion, Progress, Source, open_source, problem_of
from ontologia.relay.relay import intake_mark, origin_of
from ontologia.runtime.session import core_of
from ontologia.store.events.intakes import IntakeMoved, Move
from ontologia.store.rows import EventRow

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

log = logging.getLogger(__name__)
REFUSED = "intake.refused"
"""The type of the events that tell of messages that were not stored."""
_BATCH = 500
_WAIT = 0.5  # seconds for messages: a stop is noticed after that
_SHOWN = 1_000  # characters of a message that was refused


class Intake:
    """Stores the events that a source has in a session's namespace, each once.

    `source` is a URI, `kafka://broker:9092/topic` or `s3://bucket/prefix`. Events keep their id,
    time, lineage, tenant and priority; a message whose event is there already is left out. How far
    the source was read is stored in the transaction of the events, so a process that dies
    neither skips nor doubles one. Several intakes of one source may run; each message is stored by
    one of them.

    A message that is no CloudEvent with a JSON object, that is deeper in its chain than
    max_event_chain_depth, or that has the id of another event, is skipped: the log has an event
    `intake.refused` then, with the reason, the place and the beginning of the message.
    """

    def __init__(self, session: Session, source: str | Source) -> None:
        self._session = session
        self._core = core = core_of(session)
        self._source = open_source(source, session) if isinstance(source, str) else source
        self._own_source = isinstance(source, str)
        self._events = core.store.events
        self._progress = Progress(self._events.intakes, core.namespace, self._source.uri)
        self._mark = intake_mark(self._source.uri)
        self._origin = origin_of(core)
        self._positions: dict[str, int] = {}
        self._outage = Outage(f"source {self._source.uri}")
        self._stop = threading.Event()
        self._running = threading.Lock()
        self._last_error: str | None = None
        self._last_at: str | None = None
        self.stored = 0
        """Events that this intake has stored."""
        self.known = 0
        """Messages whose events were there already."""
        self.refused = 0
        """Messages that were skipped."""

    @property
    def session(self) -> Session:
        """The session in whose namespace it stores."""
        return self._session

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stop.is_set()

    @property
    def done(self) -> int:
        """Messages that were stored, or were there already."""
        return self.stored + self.known

    @property
    def failed(self) -> int:
        """Messages that were skipped."""
        return self.refused

    def stop(self) -> None:
        """Store what was read, and read nothing more. Any thread may, and a signal.

        An intake that was stopped runs no more.
        """
        self._stop.set()

    def run(self) -> None:
        """Store events until stopped: by `stop()` or, in the main thread, SIGINT or SIGTERM.

        A source or database that is away is waited for; before anything was read it is an error.
        Raises as `Source.open` says.
        """
        self._run(until_empty=False)

    def run_until_empty(self) -> None:
        """Store all that the source has now. Signals, `stop()` and errors as in `run`."""
        self._run(until_empty=True)

    def lag(self) -> int:
        """The number of messages that were not read. Asks the source."""
        return self._source.lag(self._progress)

    def health_snapshot(self) -> dict[str, Any]:
        """What became of messages so far: `running source stored known refused lag last_error
        last_message_at`. `lag` is None while the source cannot be reached.
        """
        try:
            lag = self.lag()
        except OntologiaError:
            lag = None
        return {
            "running": self._running.locked(),
            "source": self._source.uri,
            "stored": self.stored,
            "known": self.known,
            "refused": self.refused,
            "lag": lag,
            "last_error": self._last_error,
            "last_message_at": self._last_at,
        }

    # -- the run ----------------------------------------------------------------------------------

    def _run(self, *, until_empty: bool) -> None:
        if not self._running.acquire(blocking=False):
            raise RuntimeError("this intake is running already; make another one")
        try:
            self._open()
            log.info(
                "messages of %s are stored in namespace %r", self._source.uri, self._core.namespace
            )
            with stopping_on_signals(self._stop.set, lambda: True):
                while not self._stop.is_set():
                    if self._step(0 if until_empty else _WAIT) and until_empty:
                        return
        finally:
            if self._own_source:
                self._source.close()
            self._running.release()

    def _open(self) -> None:
        self._positions = self._progress.positions()
        self._source.open(self._progress)

    def _step(self, seconds: float) -> bool:
        """Read and store once; whether nothing was left."""
        try:
            portion = self._source.read(_BATCH, seconds, self._stop.is_set)
            self._outage.over(wrote=True)
            if portion is None:
                return self._source.at_end
            self._store(portion)
        except (IntakeMoved, IntegrityError) as error:
            log.debug("another intake of %s has stored messages: %r", self._source.uri, error)
            self._open_again()
        except LockContentionError as error:
            log.warning("the database is busy, and is tried again: %s", error.args[0])
            self._open_again()
        except PASSING as error:
            self._last_error = describe_error(error)
            self._outage.wait(error, self._stop.is_set)
            self._open_again()
        return False

    def _open_again(self) -> None:
        """Go on after what is stored, whatever was read."""
        while not self._stop.is_set():
            try:
                self._open()
                return
            except PASSING as error:
                self._outage.wait(error, self._stop.is_set)

    def _store(self, portion: Portion) -> None:
        rows: list[EventRow] = []
        refusals: list[EventRow] = []
        arrivals: list[Arrival] = []
        home = 0
        stamps = self._events.log.stamps(len(portion.arrivals))
        for arrival, stamp in zip(portion.arrivals, stamps, strict=True):
            message = arrival.message
            problem = arrival.problem
            if message is not None:
                if message.source == self._origin:
                    home += 1  # its own, come back: it was here, if it is not any more
                    continue
                try:
                    rows.append(self._row(message, stamp))
                    arrivals.append(arrival)
                except Exception as error:  # noqa: BLE001 - whatever it is, the intake goes on
                    problem = problem_of(error)
            if problem is not None:
                refusals.append(self._refusal(arrival, problem))
        moves = {
            part: Move(self._positions.get(part), position, behind)
            for part, (position, behind) in portion.positions.items()
        }
        outcome = self._progress.intakes.store(
            self._core.namespace,
            self._source.uri,
            *(moves, rows, refusals, portion.names),
            lambda index, why: self._refusal(arrivals[index], why),
        )
        self._positions |= {part: move.position for part, move in moves.items()}
        self.stored += outcome.stored
        self.known += outcome.known + home
        self.refused += outcome.refused
        if portion.arrivals:
            self._last_at = to_text(SYSTEM_CLOCK.now())

    def _row(self, message: Message, stamp: str) -> EventRow:
        """A message as it is stored; InvalidValueError or EventLoopLimitError if it cannot be."""
        lineage = Lineage(message.root, message.chain_depth)
        check_depth(message.type, lineage, self._core.config.max_event_chain_depth)
        return EventRow(
            message.id,
            self._core.namespace,
            message.type,
            self._events.log.checked_size(message.type, message.payload),
            stamp,
            message.priority,
            message.root,
            message.chain_depth,
            self._mark,
            message.correlation_id,
            message.causation_id,
            message.tenant_id,
            occurred_at=to_text(message.time),
        )

    def _refusal(self, arrival: Arrival, why: str) -> EventRow:
        """The event that tells of a message that is skipped."""
        log.warning("%s, %s is skipped: %s", self._source.uri, arrival.place, why)
        self._last_error = f"{arrival.place}: {why}"
        # Replaced are bytes that are no text, and characters that no database keeps.
        text = (
            arrival.content[: 4 * _SHOWN]
            .decode(errors="replace")
            .replace("\0", "\N{REPLACEMENT CHARACTER}")
        )
        payload = {
            "source": self._source.uri,
            "place": arrival.place,
            "reason": why[:_SHOWN],
            "content": text[:_SHOWN],
        }
        return self._events.log.untyped_row(
            REFUSED,
            codec.encode(payload, where=REFUSED),
            self._core.namespace,
            source=self._mark,
        )
