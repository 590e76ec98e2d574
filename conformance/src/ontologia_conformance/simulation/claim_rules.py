"""What may happen to a claim: the life of an event for one handler, step by step.

Every change of a row is held against the row before it and the clock of the session that made it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ontologia.clock import from_text
from ontologia.delivery.lifecycle import lease_ran_out
from ontologia_conformance.simulation.history import Begun, Change, Ended, Row, Transaction
from ontologia_conformance.simulation.violation import Violation, demand

ONE_END = "no (event, consumer) is acked twice, and what is over stays over"
FENCE = "nothing is written under a lease that is over, or another's"
COUNTED = "attempts are counted: those that were started and did not succeed, and no others"
WAITED = "nobody is given an event before its lease or backoff is over"
BURIED = "dead letters come at the limit, or by Discard"
STARTED = "a handler is called only with what was marked as started"
_JITTER = 0.1
_FINAL = ("discarded", "undecodable")
_CRASHED = "lease expired"
_TIMED_OUT = "timed out"
Token = tuple[str, str, str]


class ClaimRules:
    """The rules, with what they remember of earlier changes."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._limit: int = settings["event_max_attempts"]
        self._most_conflicts: int = settings["event_max_conflicts"]
        self._base: int = settings["event_backoff_base_ms"]
        self._cap: int = settings["event_backoff_max_ms"]
        self._started: set[Token] = set()
        self.ended: dict[Token, Ended] = {}
        """What handlers came to, by the token they had."""

    def begun(self, entry: Begun) -> None:
        """A handler was called."""
        place = (entry.event_id, entry.handler_id, entry.token)
        demand(place in self._started, STARTED, f"{place[:2]} was not", entry.step)
        before = self.ended.get(place)
        once = before is None or before.outcome == "conflict"
        demand(once, STARTED, f"{place[:2]} ran twice on one claim", entry.step)

    def finished(self, entry: Ended) -> None:
        """A handler returned or raised."""
        self.ended[entry.event_id, entry.handler_id, entry.token] = entry

    def changed(self, tx: Transaction, change: Change) -> None:
        """One row of `event_claims` was changed."""
        old, new = change.old, change.new
        if old is None:
            assert new is not None
            self._claimed(tx, new)
        elif new is None:
            self._deleted(tx, old)
        elif old != new:
            self._moved(tx, old, new)

    def _claimed(self, tx: Transaction, new: Row) -> None:
        if new["ack_at"] is not None:  # a consumer that starts now takes what is there for done
            return
        demand(new["attempts"] == 0, COUNTED, f"{_place(new)} begins with some", tx.step)
        self._note_start(new)

    def _deleted(self, tx: Transaction, old: Row) -> None:
        gone = {change.old["id"] for change in tx.of("events") if change.old and not change.new}
        forgotten = {change.old["id"] for change in tx.of("consumers") if change.old}
        known = old["event_id"] in gone or old["consumer_id"] in forgotten
        demand(known, ONE_END, f"the claim {_place(old)} was dropped", tx.step)

    def _moved(self, tx: Transaction, old: Row, new: Row) -> None:
        demand(old["ack_at"] is None, ONE_END, f"{_place(old)} was acked before", tx.step)
        if old["dead_lettered_at"] is not None:
            self._revived(tx, old, new)
        elif new["ack_at"] is not None:
            self._acked(tx, old, new)
        elif new["dead_lettered_at"] is not None:
            self._buried(tx, old, new)
        elif new["attempts"] != old["attempts"]:
            self._counted(tx, old, new)
        elif new["lease_token"] is None:
            self._returned(tx, old, new)
        elif new["lease_token"] != old["lease_token"]:
            self._taken(tx, old, new)
        elif not _only_noted(old, new):
            self._own(tx, old, f"{_place(old)} was renewed or started")
            self._note_start(new)
            if new["conflicts"] != old["conflicts"]:
                self._ran_again(tx, old, new)

    def _ran_again(self, tx: Transaction, old: Row, new: Row) -> None:
        ended = self.ended.get((*_place(old), old["lease_token"]))
        right = ended is not None and ended.outcome == "conflict"
        right = right and new["conflicts"] == old["conflicts"] + 1
        demand(right, COUNTED, f"a conflict of {_place(old)}", tx.step)

    def _note_start(self, row: Row) -> None:
        if row["read_commit"] is not None:
            self._started.add((row["event_id"], row["handler_id"], row["lease_token"]))

    def _own(self, tx: Transaction, old: Row, what: str) -> None:
        """Only the session that has it may, and only while it has."""
        demand(
            old["lease_token"] is not None
            and old["session_id"] == tx.session_id
            and old["lease_until"] > tx.now,
            FENCE,
            f"{what} by {tx.process} at {tx.now}, the lease until {old['lease_until']}",
            tx.step,
        )

    def _revived(self, tx: Transaction, old: Row, new: Row) -> None:
        fresh = new["dead_lettered_at"] is None and new["attempts"] == 0
        demand(
            fresh and tx.process.startswith("overseer"),
            ONE_END,
            f"{_place(old)} was buried before",
            tx.step,
        )

    def _acked(self, tx: Transaction, old: Row, new: Row) -> None:
        self._own(tx, old, f"{_place(old)} was acked")
        demand(old["read_commit"] is not None, STARTED, f"{_place(old)} was acked", tx.step)
        demand(new["attempts"] == old["attempts"], COUNTED, f"{_place(old)} was acked", tx.step)
        ended = self.ended.get((old["event_id"], old["handler_id"], old["lease_token"]))
        demand(
            ended is not None and ended.outcome == "done",
            "only what a handler finished is acked",
            f"{_place(old)} was not finished",
            tx.step,
        )

    def _buried(self, tx: Transaction, old: Row, new: Row) -> None:
        demand(new["attempts"] == old["attempts"] + 1, COUNTED, f"{_place(old)} buried", tx.step)
        outcome = self._outcome(tx, old, new["attempts"])
        if outcome == _CRASHED:
            self._crashed(tx, old)
        elif outcome == _TIMED_OUT:
            self._timed_out(tx, old)
        else:
            self._own(tx, old, f"{_place(old)} was buried")
            self._said(tx, old, outcome)
        allowed = outcome in _FINAL or new["attempts"] >= self._limit
        demand(allowed, BURIED, f"{_place(old)} after {new['attempts']} attempts", tx.step)

    def _counted(self, tx: Transaction, old: Row, new: Row) -> None:
        demand(new["attempts"] == old["attempts"] + 1, COUNTED, f"{_place(old)}", tx.step)
        demand(new["attempts"] < self._limit, BURIED, f"{_place(old)} was not buried", tx.step)
        outcome = self._outcome(tx, old, new["attempts"])
        if outcome == _CRASHED:
            self._crashed(tx, old)
            return
        if outcome == _TIMED_OUT:
            self._timed_out(tx, old)
        else:
            self._own(tx, old, f"{_place(old)} was released")
            self._said(tx, old, outcome)
        self._backed_off(tx, old, new, outcome)

    def _outcome(self, tx: Transaction, old: Row, attempt: int) -> str:
        """What is on record of an attempt that just ended."""
        for change in tx.of("attempts"):
            row = change.new
            if row and (row["event_id"], row["handler_id"], row["attempt"]) == (
                *_place(old),
                attempt,
            ):
                return str(row["outcome"])
        raise Violation(COUNTED, f"attempt {attempt} of {_place(old)} is on no record", tx.step)

    def _said(self, tx: Transaction, old: Row, outcome: str) -> None:
        ended = self.ended.get((old["event_id"], old["handler_id"], old["lease_token"]))
        said = "undecodable" if ended is None else ended.outcome
        if said == "conflict" and old["conflicts"] >= self._most_conflicts:
            said = "failed"  # too many in a row
        demand(outcome == said, COUNTED, f"{_place(old)}: {outcome}, and was {said}", tx.step)

    def _timed_out(self, tx: Transaction, old: Row) -> None:
        """Its own session may say that the handler still runs, also after the end of the lease."""
        own = old["lease_token"] is not None and old["session_id"] == tx.session_id
        demand(own, FENCE, f"{_place(old)} timed out", tx.step)
        demand(old["read_commit"] is not None, COUNTED, f"{_place(old)} never started", tx.step)

    def _crashed(self, tx: Transaction, old: Row) -> None:
        """Any session may say that a lease is over."""
        demand(old["read_commit"] is not None, COUNTED, f"{_place(old)} never started", tx.step)
        over = old["lease_until"] <= tx.latest and lease_ran_out(
            old["lease_until"], old["available_at"]
        )
        demand(over, WAITED, f"{_place(old)} was leased until {old['lease_until']}", tx.step)

    def _backed_off(self, tx: Transaction, old: Row, new: Row, outcome: str) -> None:
        ended = self.ended.get((old["event_id"], old["handler_id"], old["lease_token"]))
        least = min(self._base * 2 ** new["attempts"], self._cap) / 1000
        most = least + _JITTER
        if outcome != _TIMED_OUT and ended is not None and ended.after_ms is not None:
            least = most = ended.after_ms / 1000
        earliest = from_text(tx.now) + timedelta(seconds=least)
        last = from_text(tx.latest) + timedelta(seconds=most)
        demand(
            earliest <= from_text(new["available_at"]) <= last,
            "the next attempt waits as long as the policy or the handler says",
            f"{_place(old)} {outcome} at {tx.now}, again at {new['available_at']}",
            tx.step,
        )

    def _returned(self, tx: Transaction, old: Row, new: Row) -> None:
        """Ready again: its time came, or it was handed back."""
        if old["due_at"] is None:
            return  # it was ready, and stays so
        if old["due_at"] <= tx.latest:
            crashed = old["read_commit"] is not None and lease_ran_out(
                old["lease_until"], old["available_at"]
            )
            handed = new["lease_until"] != old["lease_until"]  # by its owner, at the last moment
            demand(not crashed or handed, COUNTED, f"the crash of {_place(old)}", tx.step)
        else:
            demand(old["lease_token"] is not None, WAITED, f"{_place(old)} waits", tx.step)
            self._own(tx, old, f"{_place(old)} was handed back")

    def _taken(self, tx: Transaction, old: Row, new: Row) -> None:
        free = old["lease_token"] is None and old["due_at"] is None
        demand(free, WAITED, f"{_place(old)} was taken while it was not ready", tx.step)
        self._note_start(new)


def _place(row: Row) -> tuple[str, str]:
    return row["event_id"], row["handler_id"]


def _only_noted(old: Row, new: Row) -> bool:
    """Whether it was only put down more exactly at which commit an attempt had begun."""
    return old["read_commit"] is not None and old | {"read_commit": 0} == new | {"read_commit": 0}
