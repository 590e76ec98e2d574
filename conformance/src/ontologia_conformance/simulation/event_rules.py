"""What may happen to events: announced for a reason, once, and handed out to everybody.

The reasons are what callers and handlers said they wanted, and what the store itself announces:
a deferred event whose time came, the tick of a schedule, a burial.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from ontologia import codec
from ontologia.clock import from_text, to_text
from ontologia.delivery.dead_letter import EventDeadLetter
from ontologia.runtime.commits import WriteRequest
from ontologia.store.rows import TOMBSTONE, Announcement
from ontologia_conformance.simulation.claim_rules import FENCE, ClaimRules
from ontologia_conformance.simulation.history import (
    UNIT,
    Committed,
    Refused,
    Row,
    Transaction,
    Tried,
)
from ontologia_conformance.simulation.model import Model, ObjectPlace
from ontologia_conformance.simulation.violation import demand

REASON = "an event is stored for a reason, and once for each"
FOLLOWS = "what a handler emitted is there if it was acked, and only then"
ONCE = "one event of a type has a dedup_key"
HANDED = "an event is in exactly one place for each subscribed consumer"
KEPT = "an event that a consumer has not finished, or that is not old enough, is not collected"
TICKED = "a tick of a schedule fires once, whoever runs it"
ORDER = "a consumer is given the most urgent event first, then the oldest"
FIRED = "a deferred event is announced once, when its time has come"
UNCHANGED = "what was read is unchanged when it is written back"
COUNTED = "an event deferred by a second or more begins a new count of depth"
_A_SECOND = 1.001  # the emitter's clock was read twice


class EventRules:
    """The rules, with what was tried and not seen yet."""

    def __init__(
        self, model: Model, claims: ClaimRules, settings: dict[str, Any], *, clock_is_right: bool
    ) -> None:
        self._model = model
        self._claims = claims
        self._seen_within = timedelta(
            milliseconds=max(settings["event_retention_ms"], settings["session_ttl_ms"])
        )
        self._retention = timedelta(milliseconds=settings["event_retention_ms"])
        self._clock_is_right = clock_is_right
        self._tried: dict[str, Tried] = {}
        """What each thread is about to write."""
        self._stored_once: set[str] = set()
        """The ids of all events that were ever stored."""
        self._ticks: set[tuple[str, str]] = set()

    def tried(self, entry: Tried) -> None:
        """A thread is about to write something."""
        self._tried[entry.thread] = entry

    def refused(self, entry: Refused) -> None:
        """A caller was told that nothing is written: from now on nothing of it may be."""
        del self._tried[entry.thread]

    def told(self, entry: Committed) -> None:
        """A caller was told that it is written."""
        del self._tried[entry.thread]
        # Another thread has written it, and an operator may have deleted it before this one knew.
        for stored in entry.written.stored:
            there = stored.id in self._stored_once
            demand(there, "what was emitted was stored", stored.id, entry.step)

    def before(self, tx: Transaction) -> None:
        """Held against what was there before the transaction."""
        self._unchanged(tx)
        self._follow_ups(tx)
        self._reasons(tx)
        self._collected(tx)

    def after(self, tx: Transaction) -> None:
        """Held against what is there after it."""
        self._stored_once |= _stored(tx)
        self._handed(tx)
        self._order(tx)
        self._keys(tx)

    def _unchanged(self, tx: Transaction) -> None:
        """No commit overwrites a version that its unit of work has not seen.

        One transaction may have the commits of several units; the next sees what the last wrote.
        """
        units, versions = self._units(tx), ChainMap({}, self._model.versions)
        written = list(_versions(tx))
        for number, unit in self._commits(tx, units):
            for (kind, type_name), intents in unit.queue.items() if unit else ():
                for key, intent in intents.items():
                    now = versions.get((kind, type_name, *key), 0)
                    gone = not now and intent.fields is None and intent.patch is None
                    demand(
                        intent.read in (None, now) or gone,
                        UNCHANGED,
                        f"{type_name} {key} was read at {intent.read} and is at {now}",
                        tx.step,
                    )
            for row, place, deleted in written:
                if row["commit_id"] == number:
                    versions[place] = 0 if deleted else number

    def _units(self, tx: Transaction) -> list[WriteRequest]:
        """What the threads of the process are about to write; any of them writes for all."""
        mine = (tx.process, f"{tx.process}.")
        return [
            each.unit
            for thread, each in self._tried.items()
            if thread == mine[0] or thread.startswith(mine[1])
        ]

    def _commits(
        self, tx: Transaction, units: list[WriteRequest]
    ) -> list[tuple[int, WriteRequest | None]]:
        """The commits of a transaction in their order, each with its unit; None if it has none."""
        known = {unit.metadata.get(UNIT): unit for unit in units}
        rows = [change.new for change in tx.of("commits") if change.new]
        return [
            (row["id"], known.get(codec.decode(row["metadata_json"]).get(UNIT, 0)))
            for row in sorted(rows, key=lambda row: row["id"])
        ]

    # -- reasons ----------------------------------------------------------------------------------

    def _follow_ups(self, tx: Transaction) -> None:
        """Everything that an acked handler emitted is in the transaction of the ack."""
        stored = _stored(tx)
        keys = set(self._model.keys) | {
            (change.new["type"], change.new["key"]) for change in tx.of("dedup") if change.new
        }
        for row, _ in self._acked(tx):
            demand(
                row.id in stored or (row.dedup_key and (row.type, row.dedup_key) in keys),
                FOLLOWS,
                f"{row.type} {row.id}, emitted by {row.source}, is not",
                tx.step,
            )

    def _acked(self, tx: Transaction) -> list[Announcement]:
        """What the handlers emitted that this transaction acks."""
        found: list[Announcement] = []
        for change in tx.of("event_claims"):
            old, new = change.old, change.new
            if old and new and old["ack_at"] is None and new["ack_at"] is not None:
                place = (old["event_id"], old["handler_id"], old["lease_token"])
                ended = self._claims.ended.get(place)
                found += ended.emitted if ended is not None else ()
        return found

    def _reasons(self, tx: Transaction) -> None:
        reasons = Counter(row.id for row, _ in self._acked(tx))
        reasons.update(self._wanted(tx))
        for change in tx.of("deferred_events"):
            if change.old and change.new and change.old != change.new:
                reasons.update(self._fired(tx, change.old, change.new))
        for change in tx.of("schedule_fires"):
            if change.new:
                tick = (change.new["schedule_key"], change.new["tick"])
                demand(tick not in self._ticks, TICKED, f"{tick[1]} fired again", tx.step)
                self._ticks.add(tick)
                reasons[change.new["event_id"]] += 1
        for table, row in _inserted(tx):
            wait = row["fire_at"] - row["created_at"] if table == "deferred" else 0.0
            if self._clock_is_right and wait >= _A_SECOND:
                depth = row["chain_depth"]
                demand(depth == 0, COUNTED, f"{row['id_']} has depth {depth}", tx.step)
            if row["id_"] not in reasons and self._by_hand(tx, row):
                reasons[row["id_"]] += 1
            known = reasons[row["id_"]] > 0
            demand(known, REASON, f"{row['type_']} {row['id_']} by {tx.process}", tx.step)
            reasons[row["id_"]] -= 1

    def _wanted(self, tx: Transaction) -> Iterable[str]:
        """What the threads of the process are about to write, if they may."""
        units = self._units(tx)
        committed = [id(unit) for _, unit in self._commits(tx, units)]
        found: list[str] = []
        for unit in units:
            found += self._wanted_of(tx, unit, committed=id(unit) in committed)
        return found

    def _wanted_of(self, tx: Transaction, unit: WriteRequest, *, committed: bool) -> list[str]:
        claim = unit.claim
        wanted = [announcement.row.id for announcement in unit.announcements]
        # A deferred one may come due before its thread knows that another has stored it.
        mine = (_stored(tx) & set(wanted)) - self._stored_once
        if claim is not None and (mine or committed):
            held = self._model.claims.get((claim.event.id, claim.handler_id))
            demand(
                held is not None
                and held["lease_token"] == claim.token
                and held["ack_at"] is None
                and held["dead_lettered_at"] is None
                and held["lease_until"] > tx.now,
                FENCE,
                f"{claim.handler_id} wrote for {claim.event.id} at {tx.now}, and had {held}",
                tx.step,
            )
        return wanted

    def _fired(self, tx: Transaction, old: Row, new: Row) -> Iterable[str]:
        demand(
            old["status"] == "scheduled", FIRED, f"{old['event_id']} was {old['status']}", tx.step
        )
        if new["status"] != "fired":
            return []
        late = old["fire_at"] <= _unix(tx.latest)
        demand(late, FIRED, f"{old['event_id']} was for {old['fire_at']}", tx.step)
        return [old["event_id"]]

    def _by_hand(self, tx: Transaction, row: Row) -> bool:
        """Whether an operator replayed it, somebody outside announced it, or a burial did."""
        if row["type_"] == EventDeadLetter.__event_type__:
            told = codec.decode(row["payload"])
            return any(
                change.new and (change.new["event_id"], change.new["handler_id"])
                == (told["event_id"], told["handler_id"])
                for change in tx.of("dead_letters")
            ) or tx.process.startswith("overseer")  # fmt: skip
        return row["chain_depth"] == 0 and not tx.process.startswith(("worker", "late", "last"))

    # -- places -----------------------------------------------------------------------------------

    def _handed(self, tx: Transaction) -> None:
        """Only what the transaction touched can have changed its place."""
        model = self._model
        touched: set[str] = set()
        for change in tx.changes:
            if change.table in ("ready", "incoming", "event_claims"):
                touched |= {row["event_id"] for row in (change.old, change.new) if row}
            elif change.table == "events" and change.new:
                touched.add(change.new["id"])
            elif change.table == "subscriptions":
                touched |= set(model.events)
        for event_id in sorted(touched & set(model.events)):
            for event_type, consumer_id in sorted(model.subscriptions):
                if event_type in (model.events[event_id]["type"], "*"):
                    places = model.places_of(event_id, consumer_id)
                    name = model.name_of(consumer_id)
                    demand(places == 1, HANDED, f"{event_id} for {name}: {places}", tx.step)

    def _order(self, tx: Transaction) -> None:
        """Nobody was given an event while a more urgent one was ready for the same consumer."""
        taken: dict[int, list[str]] = {}
        later: set[tuple[int, str]] = set()
        """What another request of the transaction made ready, after the claim."""
        for change in tx.changes:
            old, new = change.old, change.new
            if change.table == "ready" and new:
                later.add((new["consumer_id"], new["event_id"]))
            elif change.table == "event_claims" and new and new["lease_token"]:
                if old and old["lease_token"]:
                    continue
                taken.setdefault(new["consumer_id"], []).append(new["event_id"])
                later = {each for each in later if each[0] != new["consumer_id"]}
        for consumer_id, ids in taken.items():
            last = max(_urgency(self._model.events[event_id]) for event_id in ids)
            for other, event_id in self._model.ready - later:
                if other == consumer_id:
                    waits = _urgency(self._model.events[event_id])
                    demand(waits > last, ORDER, f"{event_id} waits for {waits}", tx.step)

    def _keys(self, tx: Transaction) -> None:
        holders: Counter[tuple[str, str]] = Counter()
        if not tx.of("events") and not tx.of("deferred_events"):
            return
        for row in self._model.events.values():
            if row["dedup_key"] is not None:
                holders[row["type"], row["dedup_key"]] += 1
        for row in self._model.deferred.values():
            if row["dedup_key"] is not None and row["status"] == "scheduled":
                holders[row["topic"], row["dedup_key"]] += 1
        for key, count in holders.items():
            demand(count == 1, ONCE, f"{key} is had by {count}", tx.step)

    def _collected(self, tx: Transaction) -> None:
        for change in tx.of("events"):
            if change.old is None or change.new is not None:
                continue
            by_hand = tx.process.startswith("overseer")
            if self._clock_is_right and not by_hand:
                limit = to_text(from_text(tx.latest) - self._retention)
                old = change.old["created_at"] < limit
                demand(old, KEPT, f"{change.old['id']} is younger than the retention", tx.step)
            for event_type, consumer_id in self._model.subscriptions:
                if event_type in (change.old["type"], "*"):
                    self._not_needed(tx, change.old["id"], consumer_id)

    def _not_needed(self, tx: Transaction, event_id: str, consumer_id: int) -> None:
        """A consumer has finished an event, or is gone; whoever deletes by hand only spares leases."""
        name = self._model.name_of(consumer_id)
        claim = self._model.claims.get((event_id, name))
        if claim and (claim["ack_at"] or claim["dead_lettered_at"]):
            return
        by_hand = tx.process.startswith("overseer")
        waits = claim is not None and (claim["due_at"] or "") > tx.latest
        held = claim is not None and claim["lease_token"] is not None and waits
        free = not held if by_hand else not waits and not self._awaited(tx, consumer_id)
        demand(free, KEPT, f"{name} had not finished {event_id}", tx.step)

    def _awaited(self, tx: Transaction, consumer_id: int) -> bool:
        """Whether a consumer was seen so lately that what it has not finished is kept."""
        since = to_text(from_text(tx.latest) - self._seen_within)
        return self._clock_is_right and self._model.consumers[consumer_id]["last_seen_at"] >= since


def _urgency(row: Row) -> tuple[int, str, str]:
    return -row["priority"], row["created_at"], row["id"]


def _versions(tx: Transaction) -> Iterable[tuple[Row, ObjectPlace, bool]]:
    """The versions that a transaction wrote: the row, of what, and whether it is deleted."""
    for change in tx.changes:
        row = change.new
        if row is None or change.table not in ("entity_history", "relation_history"):
            continue
        if change.table == "entity_history":
            place: ObjectPlace = ("entity", row["entity_type"], row["entity_key"])
        else:
            key = (row["left_key"], row["right_key"], row["instance_key"])
            place = ("relation", row["relation_type"], *key)
        yield row, place, row["fields_json"] == TOMBSTONE


def _inserted(tx: Transaction) -> list[tuple[str, Row]]:
    """Events and deferred events that a transaction stored, with one name for what both have."""
    found: list[tuple[str, Row]] = []
    for change in tx.of("events"):
        if change.new and not change.old:
            row = change.new
            found.append(("events", row | {"id_": row["id"], "type_": row["type"]}))
    for change in tx.of("deferred_events"):
        if change.new and not change.old:
            row = change.new
            found.append(("deferred", row | {"id_": row["event_id"], "type_": row["topic"]}))
    return found


def _stored(tx: Transaction) -> set[str]:
    return {row["id_"] for _, row in _inserted(tx)}


def _unix(text: str) -> float:
    return from_text(text).timestamp()
