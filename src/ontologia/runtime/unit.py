"""`Unit`: what belongs together, kept apart from whatever else uses the session."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from ontologia.delivery.lineage import Lineage
from ontologia.errors import SessionClosedError
from ontologia.query.builder import QueryBuilder
from ontologia.runtime.commits import UnitOfWork, check_event_options, events_of, identify
from ontologia.runtime.delta import Delta
from ontologia.runtime.intents import Intents
from ontologia.schema.entity import Entity
from ontologia.schema.event import Event
from ontologia.schema.relation import Relation

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

log = logging.getLogger(__name__)


class Unit:
    """A queue of its own on a session: what others queue is not in its commits, nor its in theirs.

    `with session.unit() as unit:` commits what is queued when it is left without an exception, and
    drops it with one. What a commit failed to write, if nothing was done about it, is dropped with
    a warning: its event and its conditions are not known then. It is for one thread; a session has
    as many as are wanted, and making one costs nothing.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._intents = Intents(session._registry)
        self._ended = False

    def __repr__(self) -> str:
        return f"<Unit of {self._session!r}, {len(self._intents)} queued>"

    def ensure(self, obj: Entity | Relation[Any, Any] | Iterable[Any]) -> None:
        """Queue one object or several: the next commit of this unit makes them true."""
        self._check_open()
        self._intents.add(obj)

    def delete(self, obj: Entity | Relation[Any, Any] | Iterable[Any]) -> None:
        """Queue the deletion of one object or several; only their keys matter."""
        self._check_open()
        self._intents.add(obj, delete=True)

    def discard(self) -> int:
        """Drop what is queued; how many objects that was."""
        self._check_open()
        return self._intents.clear()

    def query(self) -> QueryBuilder:
        """Ask for entities or relations, as they are in the store."""
        self._check_open()
        return self._session.query()

    @overload
    def commit(
        self,
        *,
        event: Event | Iterable[Event] | None = None,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        dedup_key: str | None = None,
        dry_run: Literal[False] = False,
        expected_head: int | None = None,
    ) -> int | None: ...
    @overload
    def commit(
        self,
        *,
        event: Event | Iterable[Event] | None = None,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        dedup_key: str | None = None,
        dry_run: Literal[True],
        expected_head: int | None = None,
    ) -> Delta: ...
    def commit(
        self,
        *,
        event: Event | Iterable[Event] | None = None,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        dedup_key: str | None = None,
        dry_run: bool = False,
        expected_head: int | None = None,
    ) -> int | Delta | None:
        """Write what this unit has queued, as `Session.commit` does what the session has."""
        self._check_open()
        check_event_options(event, delay, at, dedup_key)
        if dry_run:
            return self._session._preview(self._intents, expected_head)
        return self._write(event, delay, at, dedup_key, expected_head)

    def _write(
        self,
        event: Event | Iterable[Event] | None,
        delay: float | timedelta | None,
        at: datetime | None,
        dedup_key: str | None,
        expected_head: int | None,
    ) -> int | None:
        session, commits = self._session, self._session._commits
        batch = self._intents.snapshot()
        try:
            events = events_of(event, dedup_key)
            alone = not batch and expected_head is None
            if events and alone and delay is None and at is None and dedup_key is None:
                commits.append(events, session.namespace)
                return None
            announcements = [
                commits.announcement(
                    each, session.namespace, Lineage(), delay=delay, at=at, dedup_key=dedup_key
                )
                for each in events
            ]
            written = commits.write(
                UnitOfWork(batch, session._metadata(), announcements, expected_head=expected_head)
            )
        except BaseException:
            self._intents.refuse(batch)
            raise
        self._intents.settle(batch)
        identify(events, written.stored)
        return written.commit_id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None and len(self._intents):
                self._check_open()
                self._leave()
        finally:
            self._ended = True
            self._intents.clear()

    def _leave(self) -> None:
        """Commit what is queued, but for what a commit failed to write."""
        if dropped := self._intents.drop_refused():
            log.warning(
                "%d objects are dropped that a commit failed to write: commit() them again or "
                "discard() them before the block is left",
                dropped,
            )
        if len(self._intents):
            self._write(None, None, None, None, None)

    def _check_open(self) -> None:
        self._session._check_open()
        if self._ended:
            raise SessionClosedError("the unit has ended", hint="Begin another: session.unit().")
        self._session._check_outside("its own unit is ctx.ensure and ctx.commit")
