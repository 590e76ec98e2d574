"""How busy a namespace is: what waits, for how long, and what came, went and failed lately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Any, NamedTuple

from ontologia.clock import Clock, to_text
from ontologia.errors import InvalidValueError
from ontologia.store.database import Database, Tx
from ontologia.store.events.claims import ALL_TYPES
from ontologia.store.events.following import Follower

Pair = tuple[str, str | None]
"""(event type, consumer); None for events that nobody is subscribed to."""


UNLIMITED = 2**63 - 1


class Load(NamedTuple):
    """A consumer and what waits for it. A number that reached `most` may be more."""

    name: str
    types: tuple[str, ...]
    last_seen_at: str
    paused_at: str | None
    waiting: int
    """What can be claimed now."""
    oldest_waiting: str | None
    claimed: int
    overdue: int
    """Of those that can be claimed: begun, and not ended before their lease did."""
    backoff: int
    failing: int
    """Of claimed, in backoff and to be claimed again: those with a failed attempt."""
    more_waiting: bool
    """Whether counting what waits ended at `most`."""
    more_claims: bool
    """The same of claimed, overdue, backoff and failing."""


class Unfinished(NamedTuple):
    """An event that a consumer has not finished, or that is not dispatched to anybody yet."""

    id: str
    type: str
    created_at: str


class Numbered(NamedTuple):
    """An event with its number in the log."""

    seq: int
    namespace: str
    id: str
    type: str
    created_at: str


class Activity:
    """Figures and news of a namespace. Reads only."""

    def __init__(self, database: Database, sql: Mapping[str, str], clock: Clock) -> None:
        self._database = database
        self._sql = sql
        self._clock = clock

    def follow(self, namespace: str) -> Follower:
        """News from here on: see there."""
        return Follower(self._database, self._sql, self._clock, namespace)

    def stats(self, namespace: str, window: timedelta) -> list[dict[str, Any]]:
        """One dict for each type and consumer, by type and name, from one snapshot.

        `type handler paused waiting oldest_waiting unsubscribed claimed overdue backoff conflicts
        failures dead_letters came_per_minute done_per_minute`. `waiting` can be claimed now,
        `oldest_waiting` says since when the oldest of it is there; `overdue` of them were begun, and
        did not end before their lease did. `unsubscribed` are the retained
        events of a type that no consumer subscribes to; where the namespace has no consumers yet,
        they wait. Failures, dead letters and rates are those within `window`; `conflicts` and
        `done_per_minute` are of the events that came within it.

        Costs what waits or is claimed, the retained events of types that nobody is subscribed to,
        the events that came within the window, and the failed attempts of all retained events;
        finished events from before cost nothing.
        """
        if window <= timedelta(0):
            raise InvalidValueError(f"a window is longer than nothing, got {window}")
        now = self._clock.now()
        try:
            since = to_text(now - window)
        except OverflowError as error:
            raise InvalidValueError(f"no event is {window} old") from error
        with self._database.read() as tx:
            counted = _Counted(window.total_seconds() / 60)
            self._count_waiting(tx, counted, {"namespace": namespace}, to_text(now))
            self._count_unconsumed(tx, counted, {"namespace": namespace})
            self._count_recent(tx, counted, {"namespace": namespace, "since": since})
        return counted.rows()

    def waiting(self, namespace: str) -> list[dict[str, Any]]:
        """The same for consumers alone, without what is past: costs what waits or is claimed."""
        with self._database.read() as tx:
            counted = _Counted(1)
            now = to_text(self._clock.now())
            self._count_waiting(tx, counted, {"namespace": namespace}, now)
        return counted.rows()

    def types_of(self, namespace: str, name: str) -> list[str]:
        """What a consumer subscribes to; [] if there is none of that name."""
        rows = self._database.all(self._sql["pairs"], {"namespace": namespace})
        return sorted(row[0] for row in rows if row[1] == name)

    def subscriptions(self, namespace: str) -> list[tuple[str, str]]:
        """Each type of event with a consumer that is subscribed to it; `*` is every type."""
        rows = self._database.all(self._sql["pairs"], {"namespace": namespace})
        return [(row[0], row[1]) for row in rows]

    def last_number(self) -> int:
        """The number of the last event of any namespace; 0 if there is none."""
        number: int = self._database.all(self._sql["last_number"])[0][0]
        return number

    def numbered_after(self, number: int, most: int) -> list[Numbered]:
        """The next events of all namespaces after a number, in the order of their numbers.

        On a server a number that is left out may still come: it was given to a transaction that has
        not ended.
        """
        rows = self._database.all(self._sql["events_after"], {"after": number, "most": most})
        return [Numbered(*row) for row in rows]

    def unfinished(self, namespace: str, until: datetime, most: int) -> list[Unfinished]:
        """Events from up to then that are ready, claimed or not dispatched now.

        `most` of each kind and consumer; those that are ready in the order of claims. Costs that, of
        those that are ready for each priority.
        """
        then = to_text(until)
        with self._database.read() as tx:
            asked = [tx.ask(self._sql["undispatched"], {"most": most})]
            consumers = [
                (consumer_id, tx.ask(self._sql["ready_priorities"], {"consumer_id": consumer_id}))
                for (consumer_id,) in tx.all(self._sql["consumers_in"], {"namespace": namespace})
            ]
            ready: list[list[Sequence[Any]]] = []
            for consumer_id, priorities in consumers:
                of_consumer = {"consumer_id": consumer_id, "most": most}
                asked.append(tx.ask(self._sql["unfinished_claims"], of_consumer))
                place = {**of_consumer, "until": then, "namespace": namespace}
                ready.append(
                    [
                        tx.ask(self._sql["ready_then"], {**place, "priority": priority})
                        for (priority,) in sorted(priorities, reverse=True)
                    ]
                )
            asked += [list(islice(chain.from_iterable(each), most)) for each in ready]
            found = {
                row[0]: Unfinished(*row[:3])
                for rows in asked
                for row in rows
                if row[3] == namespace and row[2] <= then
            }
            return list(found.values())

    def dead_until(self, namespace: str, until: datetime, most: int) -> list[tuple[str, str]]:
        """Event and consumer of the dead letters on record from up to then, the newest first."""
        place = {"namespace": namespace, "until": to_text(until), "most": most}
        return [(row[0], row[1]) for row in self._database.all(self._sql["dead_until"], place)]

    def loads(self, namespace: str, most: int = UNLIMITED) -> list[Load]:
        """Every consumer with what waits for it, by name, from one snapshot.

        Counts up to `most` of each kind, and costs that: ready, claimed, not yet dispatched. Three
        statements and two for each consumer, which PostgreSQL is sent together.
        """
        place = {"namespace": namespace}
        bounds = {"most": most, "now": to_text(self._clock.now())}
        with self._database.read() as tx:
            consumers = tx.all(self._sql["named_consumers"], place)
            types: dict[int, list[str]] = {}
            for consumer_id, event_type in tx.all(self._sql["subscriptions_in"], place):
                types.setdefault(consumer_id, []).append(event_type)
            rows = tx.ask(self._sql["load_arriving"], {**place, "most": most})
            number = tx.ask(self._sql["count_arriving"], {"most": most})
            asked = [
                (
                    tx.ask(self._sql["load_ready"], {"consumer_id": row[0], "most": most}),
                    tx.ask(self._sql["load_claims"], {"consumer_id": row[0], **bounds}),
                )
                for row in consumers
            ]
            arriving = {row[0]: (row[1], row[2]) for row in rows}
            cut = number[0][0] >= most
            return [
                _load(
                    row, types.get(row[0], []), ready[0], claims[0], arriving.get(row[0]), most, cut
                )
                for row, (ready, claims) in zip(consumers, asked, strict=True)
            ]

    def _count_waiting(self, tx: Tx, counted: _Counted, place: dict[str, str], now: str) -> None:
        for event_type, name, paused_at in tx.all(self._sql["pairs"], place):
            counted.of(event_type, name)["paused"] = paused_at is not None
        for statement in ("waiting", "arriving"):
            for event_type, name, count, oldest in tx.all(self._sql[statement], place):
                counted.add_waiting(event_type, name, count, oldest)
        for event_type, name, leased, backoff, due, overdue, oldest in tx.all(
            self._sql["open_claims"], {**place, "now": now}
        ):
            counted.of(event_type, name)["claimed"] += leased
            counted.of(event_type, name)["backoff"] += backoff
            counted.of(event_type, name)["overdue"] += overdue
            counted.add_waiting(event_type, name, due, oldest)

    def _count_unconsumed(self, tx: Tx, counted: _Counted, place: dict[str, str]) -> None:
        """Events of types that no consumer subscribes to; without any consumer they wait."""
        subscribed = {row[0] for row in tx.all(self._sql["pairs"], place)}
        if ALL_TYPES in subscribed:
            return
        for (event_type,) in tx.all(self._sql["event_types"], place):
            if event_type not in subscribed:
                asked = {**place, "type": event_type}
                for count, oldest in tx.all(self._sql["events_of_type"], asked):
                    if subscribed:
                        counted.of(event_type, None)["unsubscribed"] += count
                    else:
                        counted.add_waiting(event_type, None, count, oldest)

    def _count_recent(self, tx: Tx, counted: _Counted, span: dict[str, str]) -> None:
        for column, statement in (("failures", "failures_since"), ("dead_letters", "deaths_since")):
            for event_type, name, count in tx.all(self._sql[statement], span):
                counted.of(event_type, name)[column] += count
        place = {"namespace": span["namespace"]}
        for (event_type,) in tx.all(self._sql["event_types"], place):
            of_type = {**span, "type": event_type}
            priorities = tx.all(self._sql["priorities"], {**place, "type": event_type})
            for (priority,) in priorities:
                asked = {**of_type, "priority": priority}
                for name, count, conflicts in tx.all(self._sql["came_since"], asked):
                    counted.add_recent(event_type, name, count, conflicts)


def _load(
    consumer: Any,
    types: list[str],
    ready: Any,
    claims: Any,
    arriving: tuple[int, str] | None,
    most: int,
    cut: bool,
) -> Load:
    _, name, last_seen_at, paused_at = consumer
    counted, leased, backoff, due, overdue, failing, oldest_due = claims
    new, oldest_new = arriving or (0, None)
    return Load(
        name,
        tuple(types),
        last_seen_at,
        paused_at,
        ready[0] + due + new,
        min(filter(None, (ready[1], oldest_due, oldest_new)), default=None),
        leased,
        overdue,
        backoff,
        failing,
        cut or ready[0] >= most or counted >= most,
        counted >= most,
    )


class _Counted:
    """Figures by type and consumer."""

    def __init__(self, minutes: float) -> None:
        self._minutes = minutes
        self._rows: dict[Pair, dict[str, Any]] = {}
        self._came: dict[str, int] = {}

    def of(self, event_type: str, name: str | None) -> dict[str, Any]:
        """The figures of a pair; it is listed from here on."""
        return self._rows.setdefault(
            (event_type, name),
            {"type": event_type, "handler": name, "paused": False, "waiting": 0}
            | {"oldest_waiting": None, "unsubscribed": 0, "claimed": 0, "overdue": 0, "backoff": 0}
            | {"conflicts": 0, "failures": 0, "dead_letters": 0}
            | {"came_per_minute": 0.0, "done_per_minute": 0.0},
        )

    def add_waiting(
        self, event_type: str, name: str | None, count: int, oldest: str | None
    ) -> None:
        """So many more can be claimed."""
        row = self.of(event_type, name)
        row["waiting"] += count
        known: str | None = row["oldest_waiting"]
        row["oldest_waiting"] = min(filter(None, (known, oldest)), default=None)

    def add_recent(self, event_type: str, name: str | None, count: int, conflicts: int) -> None:
        """So many more came or, with a name, are done, after so many conflicts."""
        if name is None:
            self._came[event_type] = self._came.get(event_type, 0) + count
        else:
            row = self.of(event_type, name)
            row["done_per_minute"] = round(row["done_per_minute"] + count / self._minutes, 2)
            row["conflicts"] += conflicts

    def rows(self) -> list[dict[str, Any]]:
        """Every pair; a type that came and that nobody knows has a row without a consumer."""
        named = {event_type for event_type, _ in self._rows}
        for event_type, count in self._came.items():
            if count and event_type not in named:
                self.of(event_type, None)
        for (event_type, _), row in self._rows.items():
            row["came_per_minute"] = round(self._came.get(event_type, 0) / self._minutes, 2)
        return [self._rows[pair] for pair in sorted(self._rows, key=lambda p: (p[0], p[1] or ""))]
