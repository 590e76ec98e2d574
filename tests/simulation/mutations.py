"""Bugs to plant in the engine, one at a time: what is replaced by what, in which file.

Each is one that a hurried change could bring in, and that no ordinary test need notice.
"""

from __future__ import annotations

from typing import NamedTuple


class Edit(NamedTuple):
    """One replacement; the text must be there exactly once."""

    file: str
    old: str
    new: str


CLAIMS_SQL = "store/sqlite/sql/claims.sql"
ACK = "UPDATE event_claims SET ack_at = :now, due_at = NULL\n"
FENCED = (
    " WHERE handler_id = :handler_id AND event_id IN (SELECT value FROM json_each(:ids))\n"
    "   AND lease_token = :token AND ack_at IS NULL AND dead_lettered_at IS NULL"
    " AND lease_until > :now\n"
)

MUTATIONS: dict[str, list[Edit]] = {
    "emits are written after the ack, in a transaction of their own": [
        Edit(
            "store/events/leases.py",
            "self._events.announce(tx, [each for item in kept for each in item.announcements])",
            "self._late = [each for item in kept for each in item.announcements]",
        ),
        Edit(
            "runtime/acks.py",
            "            settled = transaction(done)\n",
            "            settled = transaction(done)\n"
            "            late = self._claims.__dict__.pop('_late', ())\n"
            "            if late:\n"
            "                with self._claims._database.write(durable=False) as tx:\n"
            "                    self._claims._events.announce(tx, late)\n",
        ),
    ],
    "an ack does not look at the token of the lease": [
        Edit(CLAIMS_SQL, ACK + FENCED, ACK + FENCED.replace("lease_token = :token AND ", "")),
    ],
    "an ack is taken from a session whose lease is over": [
        Edit(CLAIMS_SQL, ACK + FENCED, ACK + FENCED.replace(" AND lease_until > :now", "")),
    ],
    "a lease is taken for valid at the very instant of its end": [
        Edit(CLAIMS_SQL, ACK + FENCED, ACK + FENCED.replace("lease_until >", "lease_until >=")),
    ],
    "a commit of a handler is not fenced": [
        Edit(
            "runtime/commits.py",
            "if claim is not None and not tx.holds(claim):",
            "if claim is not None and not tx.holds(claim) and False:",
        ),
    ],
    "what was read may have changed when it is written back": [
        Edit(
            "runtime/intents.py",
            "                if read != now:\n",
            "                if read != now and creates:\n",
        ),
    ],
    "a consumer is subscribed after what is retained was made ready for it": [
        Edit(
            "store/events/consumers.py",
            '        if not tx.run(self._sql["add_subscription"], place):\n'
            "            return None\n",
            "",
        ),
        Edit(
            "store/events/consumers.py",
            "            number = sum(added.values()) + self._arriving(tx, consumer, added)\n",
            "            number = sum(added.values()) + self._arriving(tx, consumer, added)\n"
            "        with self._database.write() as tx:\n"
            "            for event_type in sorted(types):\n"
            "                place = {'namespace': namespace, 'type': event_type}\n"
            "                tx.run(self._sql['add_subscription'],"
            " {**place, 'consumer_id': consumer.id})\n",
        ),
    ],
    "an attempt that was never started is counted": [
        Edit(
            "store/events/claims.py",
            "if read_commit is None or not lease_ran_out(lease_until, available_at):",
            "if not lease_ran_out(lease_until, available_at):",
        ),
    ],
    "an attempt that crashed is not counted": [
        Edit(
            "store/events/claims.py",
            'counted = {"attempts": verdict.attempts, "error": LEASE_EXPIRED}',
            'counted = {"attempts": attempts, "error": LEASE_EXPIRED}',
        ),
    ],
    "a dedup_key is forgotten": [
        Edit("store/events/log.py", "if row.dedup_key is None:", "if row.dedup_key != '':"),
    ],
    "what is deleted stays in the current state": [
        Edit(
            "store/sqlite/transaction.py", "            if deleted:\n", "            if not rows:\n"
        ),
    ],
    "a failure is tried again at once": [
        Edit(
            "delivery/retry.py",
            "return min(grown, self.cap_ms) + (draw(0, self.jitter_ms) if self.jitter_ms else 0)",
            "return 0",
        ),
    ],
    "of several deferred events that are due the last is announced again": [
        Edit(
            "store/sqlite/sql/events.sql",
            "UPDATE deferred_events SET status = 'fired', fired_at = :now\n"
            " WHERE id IN (SELECT value FROM json_each(:ids));",
            "UPDATE deferred_events SET status = 'fired', fired_at = :now\n"
            " WHERE id = (SELECT MIN(value) FROM json_each(:ids));",
        ),
    ],
    "a tick fires in every session": [
        Edit(
            "store/sqlite/sql/events.sql",
            "INSERT INTO schedule_fires(namespace, schedule_key, tick, event_id)\n"
            "VALUES (:namespace, :schedule_key, :tick, :event_id) ON CONFLICT DO NOTHING;",
            "INSERT OR REPLACE INTO schedule_fires(namespace, schedule_key, tick, event_id)\n"
            "VALUES (:namespace, :schedule_key, :tick, :event_id);",
        ),
    ],
    "the priority of an event is forgotten": [
        Edit(CLAIMS_SQL, " ORDER BY r.priority DESC, r.created_at,", " ORDER BY r.created_at,"),
    ],
    "an event is collected before the retention time": [
        Edit(
            "store/events/retention.py",
            "        before = to_text(now - retention)\n",
            "        before = to_text(now)\n",
        ),
    ],
    "a deferred event goes on with the count of its chain": [
        Edit(
            "delivery/lineage.py",
            "    return lineage._replace(chain_depth=0)\n",
            "    return lineage\n",
        ),
    ],
    "an event is collected that somebody has not finished": [
        Edit(
            "store/sqlite/sql/retention.sql",
            "   AND (k.ack_at IS NOT NULL OR k.dead_lettered_at IS NOT NULL)))\n",
            ") )\n",
        ),
    ],
}
