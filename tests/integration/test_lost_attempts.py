"""Commits that fail and leases that run out: nothing of the attempt stays, and nothing is doubled."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ontologia import (
    Event,
    Field,
    LeaseExpiredError,
    on_event,
)
from ontologia.errors import IntegrityError
from tests.integration.running import claim_of, stored
from tests.shop import Customer

pytestmark = pytest.mark.each_database


class Charge(Event):
    number: Field[int] = 0


class Charged(Event):
    number: Field[int] = 0


EVE = ("entity_history", "entity_key = 'eve'")


def announce(session, event: Event) -> str:
    session.commit(event=event)
    assert event.id is not None
    return event.id


def versions(session) -> list[tuple[str, int]]:
    found = session.query().entities(Customer).with_history().collect()
    return [(each.id, each.meta().commit_id) for each in found]


@pytest.fixture
def session(open_session):
    session = open_session(settings={"event_max_attempts": 4})
    yield session
    assert session.event_store.check() == []


# -- commits that fail ----------------------------------------------------------------------------


@pytest.mark.req("ONT-045", "ONT-148")
def test_a_handler_whose_commit_always_fails_ends_as_a_dead_letter(session, refuse):
    refuse(*EVE)
    caught = []

    @on_event(Charge)
    def write(ctx):
        ctx.emit(Charged())
        ctx.ensure(Customer(id="eve", name="Eve"))
        try:
            ctx.commit()
        except IntegrityError as error:
            caught.append(error)
            raise

    event_id = announce(session, Charge())
    session.run([write], max_iterations=12)

    assert len(caught) == 4
    claim = claim_of(session, event_id)
    assert claim["dead_lettered_at"] is not None
    assert claim["last_error"].startswith("IntegrityError: ")
    assert "refused" in claim["last_error"]
    assert (session.head, stored(session, "charged")) == (0, [])


@pytest.mark.req("ONT-046")
def test_a_commit_failure_that_is_swallowed_is_a_failure_all_the_same(session, refuse):
    refuse(*EVE)
    seen = []

    @on_event(Charge)
    def swallow(ctx):
        ctx.emit(Charged())
        ctx.ensure(Customer(id="eve", name="Eve"))
        for _ in range(2):
            try:
                ctx.commit()
            except IntegrityError as error:
                seen.append(error)
        ctx.discard()
        ctx.commit()

    event_id = announce(session, Charge())
    session.run([swallow], max_iterations=1)

    assert len(seen) == 2
    claim = claim_of(session, event_id)
    assert (claim["attempts"], claim["ack_at"]) == (1, None)
    assert "refused" in claim["last_error"]
    assert stored(session, "charged") == []


@pytest.mark.req("ONT-059", "ONT-200")
def test_after_a_failed_second_commit_the_first_is_not_written_twice(session, refuse):
    allow = refuse(*EVE)
    results = []

    @on_event(Charge)
    def write(ctx):
        ctx.ensure([Customer(id="c1", name="A"), Customer(id="c2", name="B")])
        results.append(ctx.commit())
        ctx.ensure(Customer(id="eve", name="Eve"))
        results.append(ctx.commit())

    announce(session, Charge())
    session.run([write], max_iterations=1)
    assert versions(session) == [("c1", 1), ("c2", 1)]

    allow()
    session.run([write], max_iterations=2)

    assert results == [1, None, 2]
    assert versions(session) == [("c1", 1), ("c2", 1), ("eve", 2)]


# -- leases ---------------------------------------------------------------------------------------


@pytest.mark.req("ONT-047", "ONT-046")
@pytest.mark.parametrize("swallow", [False, True])
def test_a_commit_at_the_end_of_the_lease_writes_nothing(session, clock, swallow):
    caught, attempts = [], []

    @on_event(Charge)
    def slow(ctx):
        attempts.append(ctx.attempt)
        ctx.emit(Charged(number=ctx.attempt))
        ctx.ensure(Customer(id="c1", name="Ada"))
        if ctx.attempt == 1:
            clock.advance(seconds=30)
        try:
            ctx.commit(event=Charged(number=10 * ctx.attempt))
        except LeaseExpiredError as error:
            caught.append((error.event_id, session.head, stored(session, "charged")))
            if not swallow:
                raise

    event_id = announce(session, Charge())
    session.run([slow], max_iterations=1)

    assert caught == [(event_id, 0, [])]
    assert attempts == [1, 2]
    claim = claim_of(session, event_id)
    assert claim["attempts"] == 1
    assert claim["ack_at"] is not None
    assert sorted(each["payload"]["number"] for each in stored(session, "charged")) == [2, 20]
    assert versions(session) == [("c1", 1)]


@pytest.mark.req("ONT-047", "ONT-049")
def test_a_commit_of_nothing_tells_that_the_lease_is_over(session, clock):
    caught = []

    @on_event(Charge)
    def slow(ctx):
        if ctx.attempt == 1:
            clock.advance(seconds=30)
            for commit in (ctx.commit, ctx.session.commit):
                with pytest.raises(LeaseExpiredError):
                    commit()
                caught.append(commit)

    event_id = announce(session, Charge())
    session.run([slow], max_iterations=1)

    assert len(caught) == 2
    assert claim_of(session, event_id)["attempts"] == 1


@pytest.mark.req("ONT-047")
def test_a_commit_just_before_the_end_of_the_lease_is_in_time(session, clock):
    @on_event(Charge)
    def slow(ctx):
        clock.advance(seconds=29.999999)
        ctx.ensure(Customer(id="c1", name="Ada"))
        ctx.commit()

    event_id = announce(session, Charge())
    session.run([slow], max_iterations=1)

    assert session.head == 1
    assert claim_of(session, event_id)["ack_at"] is not None


@pytest.mark.req("ONT-048", "ONT-121")
def test_what_was_too_slow_here_is_finished_by_another_session_once(session, open_session, clock):
    other, log = open_session(), []

    @on_event(Charge)
    def slow(ctx):
        mine = ctx.session is session
        ctx.ensure(Customer(id="c1", name="slow" if mine else "other"))
        ctx.emit(Charged(number=1 if mine else 2))
        if mine:
            clock.advance(seconds=30)
            other.run([slow], max_iterations=1)
        try:
            log.append((mine, ctx.commit()))
        except LeaseExpiredError:
            log.append((mine, "too late"))
            raise

    event_id = announce(session, Charge())
    session.run([slow], max_iterations=3)

    assert log == [(False, 1), (True, "too late")]
    assert [c.name for c in session.query().entities(Customer).collect()] == ["other"]
    assert [each["payload"]["number"] for each in stored(session, "charged")] == [2]
    claim = claim_of(session, event_id)
    assert (claim["session_id"], claim["attempts"]) == (other.session_id, 1)


@pytest.mark.req("ONT-049", "ONT-139")
def test_a_handler_that_outlives_its_lease_is_not_acknowledged_and_counts_as_an_attempt(
    session, clock
):
    attempts = []

    @on_event(Charge)
    def slow(ctx):
        attempts.append(ctx.attempt)
        ctx.emit(Charged(number=ctx.attempt))
        clock.advance(seconds=30 if ctx.attempt < 3 else 1)

    event_id = announce(session, Charge())
    session.run([slow], max_iterations=3)

    assert attempts == [1, 2, 3]
    assert [each["payload"]["number"] for each in stored(session, "charged")] == [3]
    told = session.event_store.inspect_event(event_id)
    assert (told["claims"][0]["attempts"], told["claims"][0]["last_error"]) == (2, "lease expired")
    assert [each["outcome"] for each in told["attempts"]] == ["lease expired"] * 2


@pytest.mark.req("ONT-139", "NEW-031")
def test_an_event_whose_attempts_all_end_without_a_word_is_buried_and_its_batch_is_not(
    session, clock
):
    """A process that dies says nothing: the next claim finds the lease run out."""
    store, sid = session.event_store, session.session_id
    ids = [announce(session, Charge(number=n)) for n in range(5)]

    for _ in range(4):
        claimed = store.claim("default", "charge", sid, ["charge"], 10, 1000)
        assert [event.id for event in claimed] == ids
        assert store.start("charge", ids[2], lease_ms=1000)
        clock.advance(seconds=0.999999)
        assert store.claim("default", "charge", sid, ["charge"], 10, 1000) == []
        clock.advance(seconds=0.000001)
    left = store.claim("default", "charge", sid, ["charge"], 10, 1000)

    assert [event.id for event in left] == [*ids[:2], *ids[3:]]
    assert [claim_of(session, each)["attempts"] for each in ids] == [0, 0, 4, 0, 0]
    [letter] = store.list_dead_letters("default")
    assert (letter["event_id"], letter["last_error"]) == (ids[2], "lease expired")


@pytest.mark.req("ONT-097", "ONT-105", "NEW-025")
def test_a_lease_can_be_renewed_while_it_lasts(session, clock):
    leases, caught = [], []

    @on_event(Charge)
    def slow(ctx):
        if ctx.attempt > 1:
            return
        leases.append(ctx.lease_until - clock.now())
        clock.advance(seconds=29)
        ctx.renew()
        leases.append(ctx.lease_until - clock.now())
        clock.advance(seconds=29)
        ctx.ensure(Customer(id="c1", name="Ada"))
        ctx.commit()
        ctx.renew(seconds=100)
        leases.append(ctx.lease_until - clock.now())
        clock.advance(seconds=100)
        with pytest.raises(LeaseExpiredError) as error:
            ctx.renew()
        caught.append(error.value.event_id)

    event_id = announce(session, Charge())
    session.run([slow], max_iterations=1)

    assert leases == [timedelta(seconds=s) for s in (30, 30, 100)]
    assert caught == [event_id]
    assert issubclass(LeaseExpiredError, RuntimeError)
    assert session.head == 1
    assert claim_of(session, event_id)["attempts"] == 1
