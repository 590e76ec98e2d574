"""What one handler says of its own deliveries: lease, attempts, backoff, and a lease that is renewed."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from ontologia import Entity, Event, Field, on_event
from ontologia.clock import from_text
from tests.integration.running import claim_of, running, statuses, until


class Film(Entity):
    id: Field[str]
    minutes: Field[int] = 0


class FilmUploaded(Event):
    number: Field[int] = 0


def upload(session, *numbers: int) -> list[str]:
    events = [FilmUploaded(number=number) for number in numbers]
    for event in events:
        session.commit(event=event)
    return [event.id for event in events]


def seconds_left(session, clock, event_id: str) -> float:
    until_ = from_text(claim_of(session, event_id)["lease_until"])
    return (until_ - clock.now()).total_seconds()


# -- lease ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lease", [300, timedelta(minutes=5)])
def test_a_handler_has_its_own_lease_for_claims_starts_and_renewals(session, clock, lease):
    first, second = upload(session, 1, 2)
    seen = []

    @on_event(FilmUploaded, name="encode", lease=lease)
    def encode(ctx):
        seen.append((ctx.event.number, (ctx.lease_until - clock.now()).total_seconds()))
        if ctx.event.number == 1:
            waiting = seconds_left(session, clock, second)
            clock.advance(seconds=299)  # the keeper renews what waits; this one has its own lease
            until(lambda: seconds_left(session, clock, second) == 300)
            ctx.renew()
            seen.append((waiting, seconds_left(session, clock, first)))
            ctx.ensure(Film(id="f1"))
            ctx.commit()

    @on_event(FilmUploaded, name="count")
    def count(ctx):
        seen.append((ctx.event.number, (ctx.lease_until - clock.now()).total_seconds()))

    session.run([encode], max_iterations=1)
    session.run([count], max_iterations=1)

    assert seen == [(1, 300), (300, 300), (2, 300), (1, 30), (2, 30)]
    assert statuses(session) == ["acked"] * 2
    assert session.event_store.check() == []


def test_after_a_conflict_a_handler_begins_with_its_own_lease(session, open_session, clock):
    other, left = open_session(), []
    session.ensure(Film(id="f1", minutes=1))
    session.commit()
    upload(session, 1)

    @on_event(FilmUploaded, name="encode", lease=300)
    def encode(ctx):
        left.append((ctx.lease_until - clock.now()).total_seconds())
        film = ctx.one(Film, "f1")
        film.minutes += 1
        ctx.ensure(film)
        if len(left) == 1:
            clock.advance(seconds=200)
            other.ensure(Film(id="f1", minutes=7))
            other.commit()
        ctx.commit()

    session.run([encode], max_iterations=1)

    assert left[0] == 300
    assert 300 - 0.1 < left[1] <= 300  # the pause after a conflict moves this clock
    assert session.one(Film, "f1").minutes == 8


# -- attempts and backoff -------------------------------------------------------------------------


def test_a_handler_has_its_own_number_of_attempts_and_its_own_backoff(session, clock):
    [event_id] = upload(session, 1)
    attempts = []

    @on_event(FilmUploaded, name="encode", max_attempts=3, backoff=(timedelta(minutes=1), 180))
    def encode(ctx):
        attempts.append(ctx.attempt)
        raise ValueError("no codec")

    @on_event(FilmUploaded, name="count")
    def count(ctx):
        raise ValueError("no counter")

    waits = []
    for _ in range(2):
        session.run([encode], max_iterations=1)
        claim = claim_of(session, event_id)
        waits.append((from_text(claim["available_at"]) - clock.now()).total_seconds())
        clock.advance(seconds=waits[-1])
    session.run([encode], max_iterations=1)
    session.run([count], max_iterations=1)

    assert attempts == [1, 2, 3]
    assert [int(each) for each in waits] == [120, 180]
    [letter] = session.event_store.list_dead_letters("default")
    assert (letter["attempts"], letter["last_error"]) == (3, "ValueError: no codec")
    assert session.event_store.check() == []


@pytest.mark.req("ONT-166")
def test_a_handler_slower_than_its_lease_is_dead_lettered_at_its_own_number_of_attempts(
    session, clock
):
    [event_id] = upload(session, 1)
    attempts = []

    @on_event(FilmUploaded, name="encode", max_attempts=2)
    def encode(ctx):
        attempts.append(ctx.attempt)
        clock.advance(seconds=90)

    session.run([encode], max_iterations=4)

    assert attempts == [1, 2]
    told = session.event_store.inspect_event(event_id)
    assert [each["outcome"] for each in told["attempts"]] == ["lease expired"] * 2
    [letter] = session.event_store.list_dead_letters("default")
    assert (letter["event_id"], letter["last_error"]) == (event_id, "lease expired")


# -- a lease that is renewed while the handler runs -----------------------------------------------


def slow(session, other, clock, calls, *, asynchronous, **options):
    """A handler that takes 90 seconds, three times its lease, while another session wants the event."""

    def work(ctx) -> None:
        calls.append(ctx.attempt)
        for _ in range(9):
            clock.advance(seconds=10)
            if options.get("renew"):
                until(lambda: ctx.lease_until >= clock.now() + timedelta(seconds=30))
        other.run([handler], max_iterations=1)
        ctx.ensure(Film(id="f1", minutes=ctx.event.number))
        ctx.commit()

    async def encode(ctx):
        work(ctx)

    handler = on_event(FilmUploaded, name="encode", **options)(encode if asynchronous else work)
    return handler


@pytest.mark.parametrize(("workers", "asynchronous"), [(1, False), (2, False), (2, True)])
def test_a_slow_handler_with_renew_runs_once(session, open_session, clock, workers, asynchronous):
    [event_id] = upload(session, 1)
    calls: list[int] = []
    handler = slow(session, open_session(), clock, calls, asynchronous=asynchronous, renew=True)

    session.run([handler], max_iterations=1, workers=workers)

    assert calls == [1]
    assert session.one(Film, "f1").minutes == 1
    assert statuses(session) == ["acked"]
    assert session.event_store.inspect_event(event_id)["attempts"] == []
    assert session.event_store.check() == []


def test_without_renew_the_same_handler_is_dead_lettered(session, clock):
    upload(session, 1)
    calls: list[int] = []

    @on_event(FilmUploaded, name="encode")
    def encode(ctx):
        calls.append(ctx.attempt)
        clock.advance(seconds=90)
        ctx.ensure(Film(id="f1"))
        ctx.commit()

    for _ in range(12):
        session.run([encode], max_iterations=1)
        clock.advance(seconds=60)

    assert calls == list(range(1, 11))
    assert session.get(Film, "f1") is None
    [letter] = session.event_store.list_dead_letters("default")
    assert letter["attempts"] == 10


def test_renewing_does_not_shorten_what_the_handler_asked_for(session, clock):
    upload(session, 1)
    left = []

    @on_event(FilmUploaded, name="encode", renew=True)
    def encode(ctx):
        ctx.renew(seconds=600)
        for _ in range(3):
            clock.advance(seconds=10)
            until(
                lambda: (
                    from_text(session.event_store.list_sessions("default")[0]["last_heartbeat"])
                    == clock.now()
                )
            )
        left.append((ctx.lease_until - clock.now()).total_seconds())

    session.run([encode], max_iterations=1)

    assert left == [570]


@pytest.mark.thorough
def test_a_run_that_stops_gives_the_event_of_a_renewing_handler_back(open_session):
    session = open_session(settings={"shutdown_grace_ms": 50})
    [event_id] = upload(session, 1)
    before = set(threading.enumerate())
    began, go_on = threading.Event(), threading.Event()

    @on_event(FilmUploaded, name="encode", renew=True)
    def encode(ctx):
        began.set()
        go_on.wait(60)

    with running(session, [encode], workers=2):
        assert began.wait(60)
    go_on.set()

    claim = claim_of(session, event_id)
    assert (claim["attempts"], claim["ack_at"], claim["lease_token"]) == (0, None, None)
    started = set(threading.enumerate()) - before
    assert "ontologia-keeper" not in {each.name for each in started}
    assert session.event_store.check() == []
