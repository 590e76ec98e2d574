"""Replies to requests with a key: stored with what was done, found again, collected with events."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from ontologia.errors import InvalidValueError
from ontologia.runtime.session import core_of
from ontologia.store.replies import MOST_PRUNED, Reply


@pytest.fixture
def store(session):
    return core_of(session).store


@pytest.fixture
def keep(store):
    """Store a reply in a transaction of its own; whether its key was free."""

    def add(key, reply="{}", namespace="default"):
        with store.write() as transaction:
            return store.replies.add(transaction.tx, namespace, key, f"hash of {key[:9]}", reply)

    return add


@pytest.fixture
def stored(direct):
    """The keys that are stored."""
    return lambda: sorted(row[0] for row in direct("SELECT key FROM replies"))


def test_a_reply_is_found_by_its_namespace_and_key(store, clock, keep):
    assert store.replies.find("default", "k1") is None

    assert keep("k1", '{"answer":"é🦊"}')

    found = store.replies.find("default", "k1")
    assert found == Reply("hash of k1", '{"answer":"é🦊"}', clock.now())
    assert store.replies.find("default", "k2") is None
    assert store.replies.find("other", "k1") is None


def test_the_first_reply_to_a_key_stays(store, keep):
    assert keep("k", "first")

    assert not keep("k", "second")

    assert store.replies.find("default", "k").reply == "first"
    assert keep("k", "elsewhere", namespace="other")
    assert store.replies.find("other", "k").reply == "elsewhere"


def test_a_reply_is_there_exactly_when_what_it_tells_of_is(store, stored):
    def fail():
        with store.write() as transaction:
            store.replies.add(transaction.tx, "default", "k", "h", "done")
            raise RuntimeError("changed my mind")

    with pytest.raises(RuntimeError, match="changed my mind"):
        fail()

    assert store.replies.find("default", "k") is None
    assert stored() == []


def test_of_many_at_once_one_has_the_key(open_session, stored):
    sessions = [open_session() for _ in range(4)]
    start, kept = threading.Barrier(4), []

    def race(number, store):
        start.wait()
        for key in range(10):
            with store.write() as transaction:
                if store.replies.add(transaction.tx, "default", f"{key}", "h", f"{number}"):
                    kept.append((f"{key}", f"{number}"))

    threads = [
        threading.Thread(target=race, args=(number, core_of(session).store))
        for number, session in enumerate(sessions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    replies = core_of(sessions[0]).store.replies
    assert sorted(kept) == [
        (f"{key}", replies.find("default", f"{key}").reply) for key in range(10)
    ]
    assert stored() == [f"{key}" for key in range(10)]


def test_whoever_takes_a_key_that_is_being_taken_waits_and_is_refused(open_session):
    """The one that is refused sees that the other has ended, and can read its reply."""
    first, second = core_of(open_session()).store, core_of(open_session()).store
    begun, answers = threading.Event(), []

    def late():
        begun.wait()
        with second.events.transaction() as tx:
            taken = second.replies.add(tx, "default", "k", "h", "second")
        answers.append((taken, second.replies.find("default", "k").reply))

    thread = threading.Thread(target=late)
    thread.start()
    with first.events.transaction() as tx:
        assert first.replies.add(tx, "default", "k", "h", "first")
        begun.set()
        thread.join(0.2)  # as far as it comes
        assert answers == []
    thread.join()

    assert answers == [(False, "first")]


@pytest.mark.parametrize("key", ["", "x" * 501, "🦊" * 463, "\0", "\ud800", 5, None])
def test_a_key_is_text_that_every_database_keeps(store, keep, key):
    with pytest.raises(InvalidValueError, match="key"):
        store.replies.find("default", key)
    with store.events.transaction() as tx, pytest.raises(InvalidValueError, match="key"):
        store.replies.add(tx, "default", key, "h", "{}")


def test_the_longest_key_fits_whatever_it_is_made_of(store, keep):
    key, namespace = (
        "".join(chr(0x10000 + 7919 * n % 0x100000) for n in range(length)) for length in (462, 200)
    )

    assert keep(key, namespace=namespace)

    assert store.replies.find(namespace, key) is not None


def test_a_reply_is_text_that_every_database_keeps(store, stored):
    with store.events.transaction() as tx, pytest.raises(InvalidValueError, match="reply"):
        store.replies.add(tx, "default", "k", "h", "\0")

    assert stored() == []


def test_pruning_takes_the_oldest_of_one_namespace_and_not_too_many(store, clock, keep, stored):
    for number in range(3):
        keep(f"old {number}")
        clock.advance(seconds=1)
    keep("other", namespace="other")
    limit = clock.now()
    keep("at the limit")
    with store.events.transaction() as tx:
        assert store.replies.prune(tx, "default", limit) == 3
        assert store.replies.prune(tx, "default", limit) == 0

    assert stored() == ["at the limit", "other"]


def test_one_call_deletes_a_portion(store, clock, stored):
    with store.events.transaction() as tx:
        for number in range(MOST_PRUNED + 5):
            store.replies.add(tx, "default", f"{number:04}", "h", "{}")
            clock.advance(seconds=1)
    with store.events.transaction() as tx:
        assert store.replies.prune(tx, "default", clock.now()) == MOST_PRUNED

    assert stored() == [f"{number:04}" for number in range(MOST_PRUNED, MOST_PRUNED + 5)]


def test_replies_are_collected_when_events_of_their_age_are(open_session, clock, stored):
    session = open_session(settings={"event_retention_ms": 60_000})
    store = core_of(session).store
    with store.events.transaction() as tx:
        for number in range(2 * MOST_PRUNED + 1):
            store.replies.add(tx, "default", f"{number}", "h", "{}")
        store.replies.add(tx, "other", "of another namespace", "h", "{}")
    clock.advance(seconds=60)
    with store.events.transaction() as tx:
        store.replies.add(tx, "default", "young", "h", "{}")
    store.events.collect_events("default")
    assert len(stored()) == 2 * MOST_PRUNED + 3  # a minute old, and not older

    clock.advance(seconds=1)
    assert store.events.collect_events("default", lambda: True) == 0  # told to stop
    assert len(stored()) == 2 * MOST_PRUNED + 3
    store.events.collect_events("default")

    assert stored() == ["of another namespace", "young"]


def test_a_long_retention_keeps_replies(open_session, clock, stored):
    session = open_session()
    with core_of(session).store.events.transaction() as tx:
        core_of(session).store.replies.add(tx, "default", "k", "h", "{}")

    clock.advance(seconds=timedelta(days=6).total_seconds())
    core_of(session).store.events.collect_events("default")
    assert stored() == ["k"]

    clock.advance(seconds=timedelta(days=2).total_seconds())
    core_of(session).store.events.collect_events("default")
    assert stored() == []
