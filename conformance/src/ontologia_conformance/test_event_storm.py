"""Everybody at once: late commits, late consumers, sessions that die, and nothing is lost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from ontologia.store.events.leases import Done
from ontologia.store.events.store import EventStore
from ontologia.store.rows import Claim
from ontologia.testing import ManualClock
from ontologia_conformance.event_world import LEASE, POST, POSTED, ParcelPosted

TRANSACTIONS = 40
PRODUCERS = 2
CONSUMERS = ("ship", "ship", "bill", "late")


class Storm:
    """Producers and workers over one database, each with a store of its own."""

    def __init__(self, stores: list[EventStore], clock: ManualClock) -> None:
        self.stores = stores
        self.clock = clock
        self.produced: set[str] = set()
        self.producing = PRODUCERS
        self.half_way = threading.Event()
        self.acked: Counter[tuple[str, str]] = Counter()
        self.lock = threading.Lock()

    def produce(self, number: int) -> None:
        store, random = self.stores[number], Random(number)
        for done in range(TRANSACTIONS):
            if done == TRANSACTIONS // 2:
                self.half_way.set()
            rows = [
                store.log.given_row(ParcelPosted(number=0, priority=random.randint(1, 3)), POST)
                for _ in range(random.randint(1, 5))
            ]
            try:
                with store.transaction() as tx:
                    store.log.add(tx, rows)
                    if random.random() < 0.2:
                        raise _TakenBack
            except _TakenBack:
                continue
            with self.lock:
                self.produced |= {row.id for row in rows}
        with self.lock:
            self.producing -= 1

    def work(self, number: int) -> None:
        name = CONSUMERS[number]
        store, random = self.stores[PRODUCERS + number], Random(100 + number)
        if name == "late":
            self.half_way.wait(30)
        consumer = store.consumers.register(POST, name, [POSTED])
        while True:
            finished = not self.producing  # asked before the claim: what is stored by now is seen
            claims = store.claims.claim(
                consumer,
                [POSTED],
                session_id=f"s{number}",
                limit=random.randint(1, 8),
                lease_ms=LEASE,
                policy=store.policy,
            )
            if claims:
                self.end(store, claims, random)
            elif finished and self.is_done(name):
                return
            else:
                self.clock.advance(seconds=LEASE / 1000)  # what was dropped comes back

    def end(self, store: EventStore, claims: list[Claim], random: Random) -> None:
        chance = random.random()
        if chance < 0.15:
            return  # died without a word
        if chance < 0.3:
            store.claims.abandon(claims)
            return
        lost, _ = store.claims.settle([Done(each) for each in claims])
        gone = {each.event.id for each in lost}
        with self.lock:
            for each in claims:
                if each.event.id not in gone:
                    self.acked[each.event.id, each.handler_id] += 1

    def is_done(self, name: str) -> bool:
        with self.lock:
            return all(self.acked[each, name] for each in self.produced)


class _TakenBack(Exception):
    pass


@pytest.mark.req("SQL-128", "ONT-121", "ONT-133", "ONT-140")
def test_every_event_is_acked_once_by_every_consumer(
    open_events: Callable[..., EventStore], clock: ManualClock
) -> None:
    storm = Storm([open_events() for _ in range(PRODUCERS + len(CONSUMERS))], clock)

    with ThreadPoolExecutor(PRODUCERS + len(CONSUMERS)) as threads:
        running = [threads.submit(storm.produce, each) for each in range(PRODUCERS)]
        running += [threads.submit(storm.work, each) for each in range(len(CONSUMERS))]
        for each in running:
            each.result()

    names = set(CONSUMERS)
    assert storm.acked == Counter((each, name) for each in storm.produced for name in names)
