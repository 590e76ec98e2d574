"""What intakes have read: events of other systems, stored together with how far that was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ontologia import codec
from ontologia.clock import Clock, to_text
from ontologia.errors import InvalidValueError
from ontologia.store.database import Database
from ontologia.store.events.log import EventLog
from ontologia.store.rows import EventRow
from ontologia.store.writer import Request

if TYPE_CHECKING:
    from ontologia.store.protocol import Transaction

_NEW = -1
_MOST_NAMES = 1_000


class IntakeMoved(Exception):
    """Another intake of the same source has stored something meanwhile; nothing was stored here."""


class Move(NamedTuple):
    """How far a part of a source is read."""

    before: int | None
    """The position that it begins at; None for a part of which nothing was read."""
    position: int
    """The next position to read."""
    behind: int
    """How many messages of the part are left."""


class Outcome(NamedTuple):
    """What came of storing messages."""

    stored: int
    known: int
    """Messages whose events were there already."""
    refused: int


class Intakes:
    """The intakes of one store, by namespace and source."""

    def __init__(
        self,
        database: Database,
        sql: Mapping[str, str],
        log: EventLog,
        clock: Clock,
        submit: Callable[[Request], None],
    ) -> None:
        self._database = database
        self._sql = sql
        self._log = log
        self._clock = clock
        self._submit = submit

    def positions(self, namespace: str, source: str) -> dict[str, int]:
        """The next position to read of each part of a source; {} if nothing was read."""
        place = {"namespace": namespace, "source": source}
        return {row[0]: row[1] for row in self._database.all(self._sql["intake_positions"], place)}

    def listed(self, namespace: str) -> list[dict[str, Any]]:
        """One dict for each part of each source: `source part position behind updated_at`.

        `behind` is how many messages were left when the intake last stored some.
        """
        rows = self._database.all(self._sql["list_intakes"], {"namespace": namespace})
        names = ("source", "part", "position", "behind", "updated_at")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def known(self, namespace: str, source: str, names: Sequence[str]) -> set[str]:
        """Those of these names that were read."""
        asked = {"namespace": namespace, "source": source, "names": codec.encode_checked([*names])}
        return {row[0] for row in self._database.all(self._sql["known_names"], asked)}

    def prune(
        self, namespace: str, source: str, after: str, until: str, kept: Sequence[str]
    ) -> int:
        """Forget the names after one and up to another that the source does not have any more.

        Returns how many. A soft transaction for every 1,000.
        """
        place = {"namespace": namespace, "source": source}
        there, forgotten = set(kept), 0
        while after < until:
            span = place | {"after": after, "until": until, "most": _MOST_NAMES}
            found = [row[0] for row in self._database.all(self._sql["names_between"], span)]
            gone = [name for name in found if name not in there]
            if gone:
                with self._database.write(durable=False) as tx:
                    tx.run(self._sql["forget_names"], place | {"names": codec.encode_checked(gone)})
            forgotten += len(gone)
            if len(found) < _MOST_NAMES:
                break
            after = found[-1]
        return forgotten

    def store(
        self,
        namespace: str,
        source: str,
        moves: Mapping[str, Move],
        rows: Sequence[EventRow],
        refusals: Sequence[EventRow],
        names: Sequence[str],
        refuse: Callable[[int, str], EventRow],
    ) -> Outcome:
        """Store events that are not there yet, and how far the source is read: one transaction.

        `refusals` are stored besides; `refuse` makes one, given the reason, of the row at an index
        whose id another event has: one of another namespace, type or payload. IntakeMoved if another intake has moved one of the parts; nothing is
        stored then. IntegrityError if one of the events is being stored elsewhere: do it again.
        """
        storing = _Storing(
            self._sql,
            self._log,
            to_text(self._clock.now()),
            {"namespace": namespace, "source": source},
            *(moves, rows, refusals, names, refuse),
        )
        self._submit(storing)
        return storing.outcome


class _Storing(Request):
    """Messages that are being stored."""

    announces = True

    def __init__(
        self,
        sql: Mapping[str, str],
        log: EventLog,
        now: str,
        place: dict[str, str],
        moves: Mapping[str, Move],
        rows: Sequence[EventRow],
        refusals: Sequence[EventRow],
        names: Sequence[str],
        refuse: Callable[[int, str], EventRow],
    ) -> None:
        self._sql = sql
        self._log = log
        self._now = now
        self._place = place
        self._moves = moves
        self._rows = rows
        self._refusals = refusals
        self._names = names
        self._refuse = refuse
        self.weight = len(rows) + len(refusals) + len(names)
        self.outcome = Outcome(0, 0, 0)

    def write(self, tx: Transaction) -> None:
        for part, (before, position, behind) in self._moves.items():
            move = {
                "part": part,
                "position": position,
                "behind": behind,
                "now": self._now,
                "before": _NEW if before is None else before,
            }
            # It also locks the part: no other intake stores messages of it until this has ended.
            if not tx.tx.run(self._sql["move_intake"], self._place | move):
                raise IntakeMoved
        ids = codec.encode_checked([row.id for row in self._rows])
        known = {
            event_id: _Known(*event)
            for event_id, *event in tx.tx.all(self._sql["events_of_ids"], {"ids": ids})
        }
        new: list[EventRow] = []
        refusals = [*self._refusals]
        for index, row in enumerate(self._rows):
            if (event := known.get(row.id)) is None:
                known[row.id] = _Known(row.namespace, row.type, row.payload)
                new.append(row)
            elif (why := event.differs_from(row)) is not None:
                refusals.append(self._refuse(index, why))
        self._log.add(tx.tx, [*new, *refusals])
        if self._names:
            place = (self._place["namespace"], self._place["source"])
            tx.tx.many(self._sql["note_name"], [(*place, name) for name in self._names])
        refused = len(refusals)
        same = len(self._rows) - len(new) - (refused - len(self._refusals))
        self.outcome = Outcome(len(new), same, refused)


class _Known(NamedTuple):
    """An event that the store has under the id of a message."""

    namespace: str
    type: str
    payload: str | bytes

    def differs_from(self, row: EventRow) -> str | None:
        """Why the message is no copy of it; None if it is one."""
        if self.namespace != row.namespace:
            return f"namespace {self.namespace!r} of this store has an event with this id"
        if self.type != row.type:
            return f"the store has an event of type {self.type} with this id"
        if _canonical(self.payload) != _canonical(row.payload):
            return f"the store has an event of type {self.type} with this id and another payload"
        return None


def _canonical(payload: str | bytes) -> str | bytes:
    """The payload as the codec writes it, if it can be read."""
    try:
        return codec.encode(codec.decode(payload))
    except InvalidValueError:
        return payload
