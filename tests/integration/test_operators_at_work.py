"""An operator beside sessions that work: nothing is lost, done twice, or cancelled and done."""

from __future__ import annotations

import threading
from random import Random

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.errors import AlreadyStartedError, NotFoundError
from ontologia.runtime.operator import ANY, Operator
from ontologia_conformance.event_world import POST, POSTED, ParcelPosted

CONSUMERS = ("ship", "bill")
EVENTS = 300


@pytest.fixture
def settings():
    """One attempt, so that an event dies at once; leases that do not run out."""
    return OntologiaConfig(event_max_attempts=1, event_claim_lease_ms=60_000)


def test_an_operator_and_sessions_at_once_break_no_rule(uri, settings):
    operated = threading.Event()
    outcomes: dict[str, list[str]] = {name: [] for name in CONSUMERS}
    failed: list[BaseException] = []

    def work(name: str, seed: int) -> None:
        chance = Random(seed)
        session = Session(uri, POST, config=settings)
        store = session.event_store
        while True:
            last = operated.is_set()
            events = store.claim(POST, name, session.session_id, [POSTED], 7, 60_000)
            for event in events:
                store.start(name, event.id, lease_ms=60_000)
                if not last and chance.random() < 0.5:
                    store.release(name, event.id, error="OSError: no van")
                else:
                    store.ack(name, event.id)
                    outcomes[name].append(event.id)
            if last and not events:
                break
        session.close()

    def guarded(name: str, seed: int) -> None:
        try:
            work(name, seed)
        except BaseException as error:
            failed.append(error)
            raise

    operator = Session(uri, POST, config=settings)
    by = Operator(operator, "ada@host")
    threads = [
        threading.Thread(target=guarded, args=(name, seed))
        for seed, name in enumerate(CONSUMERS * 2)
    ]
    for thread in threads:
        thread.start()
    ids, cancelled = [], set()
    for number in range(EVENTS):
        event = ParcelPosted(number=number)
        operator.event_store.enqueue(event, POST)
        ids.append(str(event.id))
        if number % 3 == 0:
            try:
                by.cancel(ids[-1])
                cancelled.add(ids[-1])
            except (AlreadyStartedError, NotFoundError):
                pass
        if number % 20 == 0:
            by.retry(ANY)
    operated.set()
    for thread in threads:
        thread.join(60)
    by.retry(ANY)  # what died last
    for name in CONSUMERS:
        work(name, 0)  # and now nothing fails

    assert not failed
    assert cancelled
    assert operator.event_store.check() == []
    assert operator.event_store.list_dead_letters(POST) == []
    for name in CONSUMERS:
        assert len(outcomes[name]) == len(set(outcomes[name]))
        assert set(outcomes[name]) == set(ids) - cancelled
    operator.close()
