"""Consumers: who processes events of which types, under one name, and whether they do."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from ontologia import codec
from ontologia.clock import Clock, to_text
from ontologia.errors import ConsumerBusyError
from ontologia.store.database import Database, Tx
from ontologia.store.events import checks
from ontologia.store.events.claims import ALL_TYPES, Claims
from ontologia.store.rows import ConsumerRow

log = logging.getLogger(__name__)
Start: TypeAlias = Literal["retained", "now"]
_TWICE_MOST = 5_000
_NOT_ADOPTED = "it was not adopted"


class Consumers:
    """The life of consumers, over one database."""

    def __init__(
        self,
        database: Database,
        sql: Mapping[str, str],
        claims: Claims,
        clock: Clock,
        session_ttl_ms: int,
    ) -> None:
        self._database = database
        self._sql = sql
        self._claims = claims
        self._clock = clock
        self._ttl = timedelta(milliseconds=session_ttl_ms)
        self._known: dict[tuple[str, str], tuple[ConsumerRow, frozenset[str]]] = {}

    def register(
        self,
        namespace: str,
        name: str,
        types: Iterable[str],
        *,
        session_id: str = "",
        start: Start = "retained",
        afresh: bool = False,
        formerly: Sequence[str] = (),
    ) -> ConsumerRow:
        """Make sure that a consumer is subscribed to these types; types are only ever added.

        What is retained of a type that is added becomes ready for it, or is taken for done if it
        starts now; one line of the log says how many events that are. What this process has
        registered before costs nothing; `afresh` looks whether it is still so.

        What the consumer had under a name that it had `formerly` is adopted: claims, attempts, dead
        letters, what waits, subscriptions, a pause. The consumer of that name is removed. Idempotent.
        ConsumerBusyError while a live session runs it; nothing is written then.
        """
        wanted = frozenset(types)
        known = self._known.get((namespace, name))
        if known is not None and wanted <= known[1] and not afresh:
            return known[0]
        checks.name("a consumer's name", name, checks.LONGEST_KEY)
        consumer = self._find(namespace, name, wanted, formerly) or self._add(
            namespace, name, wanted, session_id, start, formerly
        )
        self._known[namespace, name] = (consumer, wanted | (known[1] if known else frozenset()))
        return consumer

    def _find(
        self, namespace: str, name: str, types: frozenset[str], formerly: Sequence[str]
    ) -> ConsumerRow | None:
        """The consumer, if the store knows it with all these types: nothing is to be written."""
        place = {"namespace": namespace, "name": name}
        with self._database.read() as tx:
            adoptable = [self._idle(tx, namespace, old, _NOT_ADOPTED) for old in formerly]
            found = tx.one(self._sql["get_consumer"], place)
            if found is None or any(adoptable):
                return None
            subscribed = {"namespace": namespace, "consumer_id": found[0]}
            known = {row[0] for row in tx.all(self._sql["subscribed_types"], subscribed)}
        if others := sorted(known - types):
            log.warning(
                "%s is subscribed to %s, too, from earlier; what waits there stays, and is kept. "
                "If that is over, forget the consumer while nobody runs it",
                *(name, ", ".join(others)),
            )
        return ConsumerRow(found[0], namespace, name) if types <= known else None

    def _add(
        self,
        namespace: str,
        name: str,
        types: frozenset[str],
        session_id: str,
        start: Start,
        formerly: Sequence[str],
    ) -> ConsumerRow:
        place = {"namespace": namespace, "name": name}
        with self._database.write() as tx:
            tx.lock_dispatch(wait=True)
            tx.run(self._sql["add_consumer"], {**place, "now": to_text(self._clock.now())})
            consumer = ConsumerRow(tx.one(self._sql["get_consumer"], place)[0], namespace, name)
            for old in formerly:
                self._adopt(tx, consumer, old)
            retained = {
                event_type: self._subscribe(tx, consumer, event_type, session_id, start)
                for event_type in sorted(types)
            }
            added = {each: count for each, count in retained.items() if count is not None}
            number = sum(added.values()) + self._arriving(tx, consumer, added)
        if added:
            log.info(
                "consumer %s is new to %s in namespace %r: %s %d retained event%s",
                *(name, ", ".join(added), namespace, "it skips" if start == "now" else "it gets"),
                *(number, "" if number == 1 else "s"),
            )
        return consumer

    def _arriving(self, tx: Tx, consumer: ConsumerRow, types: Iterable[str]) -> int:
        """How many events of these types are not dispatched yet, which it will get, too."""
        counted = [ALL_TYPES] if ALL_TYPES in types else types
        return sum(
            tx.one(
                self._sql["count_incoming"], {"namespace": consumer.namespace, "type": event_type}
            )[0]
            for event_type in counted
        )

    def _subscribe(
        self, tx: Tx, consumer: ConsumerRow, event_type: str, session_id: str, start: Start
    ) -> int | None:
        """How many retained events became ready, or are skipped; None if it was subscribed before."""
        place = {
            "namespace": consumer.namespace,
            "type": event_type,
            "consumer_id": consumer.id,
        }
        if start == "now":
            # What is still in `incoming` was announced before, too.
            self._claims.dispatch_all(tx)
        if not tx.run(self._sql["add_subscription"], place):
            return None
        name = {"name": consumer.name}
        if start == "now":
            now = {"now": to_text(self._clock.now()), "session_id": session_id}
            return tx.run(self._sql["skip_retained"], place | name | now)
        backfill = "backfill_all" if event_type == ALL_TYPES else "backfill"
        return tx.run(self._sql[backfill], place | name)

    def _adopt(self, tx: Tx, consumer: ConsumerRow, old: str) -> None:
        """Move all that a consumer had under its old name, whether it was forgotten or not.

        Where it has a claim of an event under both names, the finished one is kept, else the new one.
        """
        old_id = self._idle(tx, consumer.namespace, old, _NOT_ADOPTED)
        names = {"namespace": consumer.namespace, "name": consumer.name, "old": old}
        place = {**names, "consumer_id": consumer.id, "old_id": old_id}
        after = ""
        while rows := tx.all(
            self._sql["claimed_twice"], {**names, "after": after, "most": _TWICE_MOST}
        ):
            after = rows[-1][0]
            of_new = [row[0] for row in rows if row[1] and not row[2]]
            of_old = [row[0] for row in rows if not row[1] or row[2]]
            self._drop(tx, consumer.name, of_new)
            self._drop(tx, old, of_old)
        tx.run(self._sql["drop_ready_of_old"], place)
        tx.run(self._sql["drop_ready_of_new"], place)
        waiting = tx.run(self._sql["adopt_ready"], place)
        claims = tx.run(self._sql["adopt_claims"], place)
        for step in ("attempts", "letters", "pause", "subscriptions"):
            tx.run(self._sql[f"adopt_{step}"], place)
        if old_id is not None:
            # What was released between the two moves above is ready under the old name.
            tx.run(self._sql["adopt_ready"], place)
            for step in ("subscriptions", "consumer"):
                tx.run(
                    self._sql[f"forget_{step}"],
                    {"namespace": consumer.namespace, "consumer_id": old_id},
                )
            self._known.pop((consumer.namespace, old), None)
        if old_id is not None or claims:
            log.info(
                "%s adopted what %s had: %d claims, %d events that wait",
                *(consumer.name, old, claims, waiting),
            )

    def _drop(self, tx: Tx, name: str, events: Sequence[str]) -> None:
        """Remove the claims that a consumer has of these events, with what is on record of them."""
        if events:
            place = {"handler_id": name, "ids": codec.encode_checked(list(events))}
            for what in ("claims", "attempts", "letters"):
                tx.run(self._sql[f"drop_{what}"], place)

    def seen(self, tx: Tx, ids: Iterable[int]) -> None:
        """Write down that these consumers are being run."""
        now = to_text(self._clock.now())
        tx.run(self._sql["see_consumers"], {"now": now, "ids": codec.encode_checked(list(ids))})

    def pause(self, namespace: str, name: str, *, paused: bool) -> bool:
        """Stop or resume the deliveries to a consumer; False if there is none of that name."""
        with self._database.write() as tx:
            return self.set_paused(tx, namespace, name, paused=paused)

    def set_paused(self, tx: Tx, namespace: str, name: str, *, paused: bool) -> bool:
        """The same within a transaction."""
        at = to_text(self._clock.now()) if paused else None
        place = {"namespace": namespace, "name": name, "paused_at": at}
        return tx.run(self._sql["pause_consumer"], place) == 1

    def is_paused(self, tx: Tx, namespace: str, name: str) -> bool | None:
        """Whether a consumer is paused; None if there is none of that name."""
        found = tx.one(self._sql["get_consumer"], {"namespace": namespace, "name": name})
        return None if found is None else found[1] is not None

    def others(self, namespace: str, names: Iterable[str]) -> set[str]:
        """The consumers of a namespace that have subscriptions, but these."""
        rows = self._database.all(self._sql["pairs"], {"namespace": namespace})
        return {row[1] for row in rows} - set(names)

    def list(self, namespace: str) -> list[dict[str, Any]]:
        """Every consumer of a namespace with what waits for it."""
        now = to_text(self._clock.now())
        rows = self._database.all(self._sql["list_consumers"], {"namespace": namespace, "now": now})
        names = ("name", "last_seen_at", "paused_at", "ready", "claimed", "backoff")
        return [
            {**dict(zip(names, row, strict=False)), "types": codec.decode_stored(row[6])}
            for row in rows
        ]

    def forget(self, namespace: str, name: str) -> bool:
        """Remove a consumer and what waits for it; False if there is none of that name.

        ConsumerBusyError while a live session runs it. What it finished stays on record.
        """
        with self._database.write() as tx:
            return self.remove(tx, namespace, name)

    def remove(self, tx: Tx, namespace: str, name: str) -> bool:
        """The same within a transaction."""
        tx.lock_dispatch(wait=True)
        number = self._idle(tx, namespace, name, "it was not forgotten")
        if number is None:
            return False
        for step in ("ready", "attempts", "waiting", "subscriptions", "consumer"):
            tx.run(self._sql[f"forget_{step}"], {"namespace": namespace, "consumer_id": number})
        self._known.pop((namespace, name), None)
        return True

    def _idle(self, tx: Tx, namespace: str, name: str, left: str) -> int | None:
        """The number of a consumer that no live session runs; None if there is none of that name.

        ConsumerBusyError if one does; `left` says what was not done.
        """
        place = {"namespace": namespace, "name": name}
        found = tx.one(self._sql["get_consumer"], place)
        if found is None:
            return None
        now = self._clock.now()
        times = {"since": to_text(now - self._ttl), "now": to_text(now)}
        holders = tx.all(self._sql["holders"], {**place, **times, "consumer_id": found[0]})
        if holders:
            raise ConsumerBusyError(name, namespace, [row[0] for row in holders], left)
        number: int = found[0]
        return number
