"""Any sequence of what can happen to claims, held against a model of a few lines.

The model knows for each consumer and event one state, as `delivery/lifecycle.py` draws them. The
clock goes forward and back, sessions die without a word, and nobody is told.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from ontologia import OntologiaConfig
from ontologia.clock import from_text, to_text
from ontologia.store.open import open_event_store
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import POST, ParcelPosted, claim, claim_of

LEASE = timedelta(seconds=10)
MOST_ATTEMPTS = 3
NAMES = st.sampled_from(["ship", "bill", "late"])
SESSIONS = st.sampled_from(["s1", "s2"])


@dataclass
class Pair:
    """One event for one consumer."""

    state: str = "ready"
    until: datetime | None = None
    token: str | None = None
    started: bool = False
    attempts: int = 0


@dataclass
class Told:
    """One event."""

    order: tuple[int, int]
    created_at: str
    pairs: dict[str, Pair] = field(default_factory=dict)


class ClaimsMachine(RuleBasedStateMachine):
    """What a store of claims does, and what it should."""

    handles: Bundle[tuple[str, str, str]] = Bundle("handles")

    @initialize()
    def open(self) -> None:
        logging.disable(logging.ERROR)  # burials are expected here
        self.clock = ManualClock()
        config = OntologiaConfig(clock=self.clock, event_max_attempts=MOST_ATTEMPTS)
        self.opened = open_event_store("sqlite://", config, self.clock, Random(7))
        self.store = self.opened.events
        self.told: dict[str, Told] = {}
        self.paused: dict[str, bool] = {}
        self.count = 0

    def teardown(self) -> None:
        logging.disable(logging.NOTSET)
        if hasattr(self, "opened"):
            self.opened.close()

    # -- what happens -------------------------------------------------------------------------

    @rule(priority=st.sampled_from([1, 100, 100]))
    def enqueue(self, priority: int) -> None:
        self.count += 1
        event = ParcelPosted(number=self.count, priority=priority)
        self.store.enqueue(event, POST)
        pairs = {name: Pair() for name in self.paused}
        self.told[str(event.id)] = Told((-priority, self.count), str(event.created_at), pairs)

    @rule(seconds=st.sampled_from([0.5, 1, 5, 9.999999, 10, 45]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds=seconds)

    @rule(seconds=st.sampled_from([0.5, 5, 20]))
    def clock_steps_back(self, seconds: float) -> None:
        self.clock.advance(seconds=-seconds)

    @rule(target=handles, name=NAMES, session=SESSIONS, limit=st.integers(1, 3))
    def claim(self, name: str, session: str, limit: int) -> Any:
        if name not in self.paused:  # it registers, and gets all that is retained
            self.paused[name] = False
            for told in self.told.values():
                told.pairs[name] = Pair()
        expected = [] if self.paused[name] else self._claimable(name)[:limit]

        got = claim(
            self.store,
            name,
            session=session,
            limit=limit,
            lease_ms=LEASE // timedelta(milliseconds=1),
        )

        assert [event.id for event in got] == expected
        for event_id in expected:
            row = claim_of(self.store, event_id, name)
            pair = self.told[event_id].pairs[name]
            assert (row["attempts"], row["session_id"]) == (pair.attempts, session)
            pair.state, pair.until, pair.started = "leased", self.clock.now() + LEASE, False
            pair.token = row["lease_token"]
        return multiple(*((name, each, self._pair(name, each).token) for each in expected))

    def _claimable(self, name: str) -> list[str]:
        """What came due is ready again, or buried; then the ready ones, the most urgent first."""
        for told in self.told.values():
            pair = told.pairs[name]
            if pair.until is None or pair.until > self.clock.now():
                continue
            if pair.state == "leased" and pair.started:
                pair.attempts += 1
            buried = pair.state == "leased" and pair.started and pair.attempts >= MOST_ATTEMPTS
            pair.state, pair.until = ("dead" if buried else "ready"), None
        ready = [each for each, told in self.told.items() if told.pairs[name].state == "ready"]
        return sorted(ready, key=lambda each: self.told[each].order)

    @rule(handle=handles)
    def start(self, handle: tuple[str, str, str]) -> None:
        pair = self._held(handle)
        assert self._do("start", handle, lease_ms=10_000) is (pair is not None)
        if pair is not None:
            row = claim_of(self.store, handle[1], handle[0])
            pair.started, pair.until = True, from_text(row["lease_until"])
            assert abs(pair.until - (self.clock.now() + LEASE)) <= LEASE * 0.02 or (
                pair.until > self.clock.now() + LEASE  # the clock stepped back since the claim
            )

    @rule(handle=handles)
    def renew(self, handle: tuple[str, str, str]) -> None:
        pair = self._held(handle)
        assert self._do("renew", handle, lease_ms=10_000) is (pair is not None)
        if pair is not None:
            pair.until = self.clock.now() + LEASE

    @rule(handle=handles)
    def ack(self, handle: tuple[str, str, str]) -> None:
        pair = self._held(handle)
        self._do("ack", handle)
        if pair is not None:
            pair.state, pair.until = "acked", None

    @rule(handle=handles)
    def release(self, handle: tuple[str, str, str]) -> None:
        pair = self._held(handle)
        self._do("release", handle, error="OSError: no van")
        if pair is None:
            return
        pair.attempts += 1
        if pair.attempts >= MOST_ATTEMPTS:
            pair.state, pair.until = "dead", None
        else:
            available = from_text(claim_of(self.store, handle[1], handle[0])["available_at"])
            waits = timedelta(milliseconds=250 * 2**pair.attempts)
            assert waits <= available - self.clock.now() <= waits + timedelta(milliseconds=100)
            pair.state, pair.until = "backoff", available

    @rule(handle=handles)
    def abandon(self, handle: tuple[str, str, str]) -> None:
        pair = self._held(handle)
        self._do("abandon", handle)
        if pair is not None:
            pair.state, pair.until = "ready", None

    @rule(handle=consumes(handles))
    def crash(self, handle: tuple[str, str, str]) -> None:
        """Nobody knows of this claim any more."""

    @rule(name=NAMES, paused=st.booleans())
    def pause(self, name: str, paused: bool) -> None:
        done = self.store.pause(POST, name) if paused else self.store.resume(POST, name)
        assert done is (name in self.paused)
        if done:
            self.paused[name] = paused

    @rule()
    def clean_up(self) -> None:
        now = self.clock.now()
        self.store.cleanup_events(POST, now)
        for event_id, told in list(self.told.items()):
            leased = any(self._is_leased(pair) for pair in told.pairs.values())
            if told.created_at < to_text(now) and not leased:
                del self.told[event_id]

    # -- what holds ---------------------------------------------------------------------------

    @invariant()
    def the_rules_of_delivery_hold(self) -> None:
        if hasattr(self, "store"):
            assert self.store.check() == []

    @invariant()
    def every_claim_is_where_the_model_has_it(self) -> None:
        if not hasattr(self, "store"):
            return
        stored = {each["id"] for each in self.store.list_events(POST) if each["type"] != _DEAD}
        assert stored == set(self.told)
        for event_id, told in self.told.items():
            for name, pair in told.pairs.items():
                row = claim_of(self.store, event_id, name)
                assert bool(row.get("ack_at")) is (pair.state == "acked")
                assert bool(row.get("dead_lettered_at")) is (pair.state == "dead")
                assert row.get("attempts", 0) == pair.attempts

    # -- the model ----------------------------------------------------------------------------

    def _pair(self, name: str, event_id: str) -> Pair:
        return self.told[event_id].pairs[name]

    def _is_leased(self, pair: Pair) -> bool:
        return pair.state == "leased" and pair.until is not None and pair.until > self.clock.now()

    def _held(self, handle: tuple[str, str, str]) -> Pair | None:
        """The pair, if whoever has this handle holds it at this moment."""
        name, event_id, token = handle
        if event_id not in self.told:
            return None
        pair = self._pair(name, event_id)
        return pair if pair.token == token and self._is_leased(pair) else None

    def _do(self, what: str, handle: tuple[str, str, str], **options: Any) -> Any:
        name, event_id, token = handle
        return getattr(self.store, what)(name, event_id, lease_token=token, **options)


_DEAD = "event.dead_letter"
TestClaimsModel = ClaimsMachine.TestCase
TestClaimsModel.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestClaimsModel = pytest.mark.req(
    *("ONT-121", "ONT-130", "ONT-131", "ONT-133", "ONT-134", "ONT-135", "ONT-136", "ONT-139")
)(TestClaimsModel)
