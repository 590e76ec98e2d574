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


CLAIMS_SQL = "store/sql/claims.sql"
ACK = "UPDATE event_claims SET ack_at = :now, due_at = NULL\n"
FENCED = (
    " WHERE handler_id = :handler_id AND event_id IN @texts(:ids)\n"
    "   AND lease_token = :token AND ack_at IS NULL AND dead_lettered_at IS NULL"
    " AND lease_until > :now\n"
)

MUTATIONS: dict[str, list[Edit]] = {
    "emits are written after the ack, in a transaction of their own": [
        Edit(
            "store/events/leases.py",
            "self._leases.events.announce(tx, announced)",
            "self._leases._late = announced",
        ),
        Edit(
            "engine/acks.py",
            "        lost, announced = settled\n",
            "        lost, announced = settled\n"
            "        late = self._events.claims.__dict__.pop('_late', ())\n"
            "        if late:\n"
            "            with self._events.transaction(durable=False) as tx:\n"
            "                self._events.log.announce(tx, late)\n",
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
            "store/sqlite/transaction.py",
            "            if kind in deleted:\n",
            "            if not written:\n",
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
            "store/sql/events.sql",
            "UPDATE deferred_events SET status = 'fired', fired_at = :now\n"
            " WHERE id IN @numbers(:ids);",
            "UPDATE deferred_events SET status = 'fired', fired_at = :now\n"
            " WHERE id = (SELECT MIN(value) FROM json_each(:ids));",
        ),
    ],
    "a tick fires in every session": [
        Edit(
            "store/sql/events.sql",
            "INSERT INTO schedule_fires(namespace, schedule_key, tick, event_id)\n"
            "VALUES (:namespace, :schedule_key, :tick, :event_id) ON CONFLICT DO NOTHING;",
            "INSERT OR REPLACE INTO schedule_fires(namespace, schedule_key, tick, event_id)\n"
            "VALUES (:namespace, :schedule_key, :tick, :event_id);",
        ),
    ],
    "the priority of an event is forgotten": [
        Edit(
            "store/sqlite/sql/claims.sql",
            " ORDER BY r.priority DESC, r.created_at,",
            " ORDER BY r.created_at,",
        ),
    ],
    "an event is collected before the retention time": [
        Edit(
            "store/events/retention.py",
            "self.portions(namespace, to_text(now - retention), retention)",
            "self.portions(namespace, to_text(now), retention)",
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


WRITER = "store/writer.py"

WRITER_MUTATIONS: dict[str, list[Edit]] = {
    "a request that fails takes its neighbour along": [
        Edit(
            WRITER,
            "                each.error = error\n",
            "                for other in tickets:\n                    other.error = error\n",
        ),
    ],
    "what a request wrote before it failed stays": [
        Edit(
            "store/sqlite/database.py",
            "return self.written != before or isinstance(error, apsw.Error)",
            "return isinstance(error, apsw.Error)",
        ),
    ],
    "an interrupt between COMMIT and the answers writes all again": [
        Edit(WRITER, "        elif not committed:\n", "        else:\n"),
    ],
    "an interrupt of the thread that writes is taken for a success": [
        Edit(
            WRITER,
            "        elif not committed:\n"
            '            self.submit_again(self.again or "together")\n',
            "",
        ),
    ],
    "nobody follows a leader that is gone": [
        Edit(
            WRITER,
            "            ticket.leads = True  # the thread that was to lead may have been interrupted\n",
            "            pass\n",
        ),
    ],
    "a hard request is written by a soft transaction": [
        Edit(
            WRITER,
            "        return fits and (self.tx is None or self.durable or not ticket.request.durable)\n",
            "        return fits\n",
        ),
    ],
    "a transaction that is taken apart is taken for written": [
        Edit(
            WRITER,
            '        except Apart:\n            batch.submit_again("alone")\n',
            "        except Apart:\n            pass\n",
        ),
    ],
    "requests that waited too long are written all the same": [
        Edit(WRITER, "                self._waiting.remove(ticket)\n", "                pass\n"),
        Edit(
            WRITER,
            "            self._waiting.remove(ticket)\n            return True\n",
            "            return True\n",
        ),
    ],
    "a request that is being written is told that it waited too long": [
        Edit(
            WRITER,
            "            if ticket not in self._waiting:\n                return False\n",
            "            if ticket not in self._waiting:\n                return True\n",
        ),
    ],
    "a type that was rolled back is taken for registered": [
        Edit(
            "migration/versions.py",
            "        if not tx.has_registered:\n",
            "        if tx is not None:\n",
        ),
    ],
    "code of the program is run by the thread that leads": [
        Edit(
            WRITER,
            "        if (ticket.runs_code or self.runs_code) and ticket.thread != self.thread:\n"
            "            return False\n",
            "",
        ),
    ],
    "a thread that was taken along before it led keeps others from leading": [
        Edit(
            WRITER,
            "        if ticket.leads:  # another thread has taken it along before it could\n"
            "            with self._lock:\n                self._led = False\n",
            "        if ticket.leads:\n",
        ),
    ],
    "a commit that failed is taken for a success": [
        Edit(WRITER, "                batch.error = error\n", "                pass\n"),
    ],
}
"""Bugs of the writer, which `tests/integration/test_writer.py` finds."""
