"""When an attempt does not succeed: again after a while, never with half of its work, not forever."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random

import pytest

from ontologia import (
    Discard,
    Event,
    EventDeadLetter,
    Field,
    Retry,
    on_event,
)
from tests.integration.running import claim_of, stored


class Charge(Event):
    number: Field[int] = 0


class Charged(Event):
    number: Field[int] = 0


class Ping(Event):
    pass


def announce(session, event: Event) -> str:
    session.commit(event=event)
    assert event.id is not None
    return event.id


@pytest.fixture
def session(open_session):
    session = open_session(settings={"event_max_attempts": 4})
    yield session
    assert session.event_store.check() == []


@pytest.mark.req("ONT-141", "ONT-142")
def test_each_failure_waits_longer_until_the_cap(open_session, clock):
    session = open_session(settings={"random": Random(1), "event_backoff_max_ms": 3000})
    times: list[datetime] = []
    waits: list[float] = []

    @on_event(Charge)
    def fail(ctx):
        times.append(clock.now())
        raise ValueError(f"try {ctx.attempt}")

    event_id = announce(session, Charge())
    for n in range(1, 6):
        session.run([fail], max_iterations=1)
        claim = claim_of(session, event_id)
        waits.append((datetime.fromisoformat(claim["available_at"]) - clock.now()).total_seconds())
        assert (claim["attempts"], claim["last_error"]) == (n, f"ValueError: try {n}")
        clock.advance(seconds=waits[-1] - 0.000001)
        session.run([fail], max_iterations=1)
        assert len(times) == n
        clock.advance(seconds=0.000001)

    for wait, bare in zip(waits, [0.5, 1, 2, 3, 3], strict=True):
        assert bare <= wait <= bare + 0.1
    assert len({wait % 0.5 for wait in waits}) > 1


@pytest.mark.req("ONT-142", "ONT-149")
def test_the_loop_itself_comes_back_when_the_wait_is_over(session, clock):
    attempts = []

    @on_event(Charge)
    def third_time_lucky(ctx):
        attempts.append((ctx.attempt, ctx.event.number))
        if ctx.attempt < 3:
            raise TimeoutError

    announce(session, Charge(number=7))
    session.run([third_time_lucky], max_iterations=5)

    assert attempts == [(1, 7), (2, 7), (3, 7)]


@pytest.mark.req("ONT-143", "ONT-144", "ONT-147", "ONT-149")
def test_the_last_attempt_buries_the_event_for_good(session, clock):
    attempts = []

    @on_event(Charge, name="charge")
    def fail(ctx):
        attempts.append(ctx.attempt)
        raise TimeoutError("SMTP timeout")

    event_id = announce(session, Charge(number=7))
    session.run([fail], max_iterations=12)
    clock.advance(seconds=6 * 86400)
    session.run([fail], max_iterations=3)

    assert attempts == [1, 2, 3, 4]
    claim = claim_of(session, event_id)
    assert (claim["attempts"], claim["ack_at"]) == (4, None)
    assert claim["dead_lettered_at"] is not None
    [letter] = session.event_store.list_dead_letters("default")
    assert letter == {
        "event_id": event_id, "type": "charge", "handler": "charge", "attempts": 4,
        "last_error": "TimeoutError: SMTP timeout", "failed_at": claim["dead_lettered_at"],
    }  # fmt: skip


@pytest.mark.req("ONT-144")
def test_a_dead_letter_has_a_copy_of_what_it_buries(session, sql):
    @on_event(Ping)
    def announce_charge(ctx):
        ctx.emit(Charge(number=7))

    @on_event(Charge)
    def fail(ctx):
        raise Discard("never")

    root = announce(session, Ping())
    session.run([announce_charge, fail], max_iterations=1)

    [row] = sql(
        "SELECT namespace, event_type, event_payload, root_event_id, chain_depth, attempts, last_error"
        " FROM dead_letters"
    )
    assert row == ["default", "charge", '{"number":7}', root, 1, 1, "never"]


@pytest.mark.req("ONT-137", "ONT-138", "ONT-118")
def test_one_handlers_failures_and_burial_are_nothing_to_another(session):
    fine, failed = [], []

    @on_event(Charge, priority=200)
    def fail(ctx):
        failed.append(ctx.attempt)
        raise ValueError

    @on_event(Charge)
    def succeed(ctx):
        fine.append((ctx.event.number, len(failed)))

    event_id = announce(session, Charge(number=1))
    session.run([fail, succeed], max_iterations=12)

    assert fine == [(1, 1)]
    assert failed == [1, 2, 3, 4]
    claims = session.event_store.inspect_event(event_id)["claims"]
    assert sorted((c["ack_at"] is None, c["dead_lettered_at"] is None) for c in claims) == [
        (False, True), (True, False),
    ]  # fmt: skip


@pytest.mark.req("ONT-145")
def test_a_burial_is_announced_to_who_subscribed_to_it(session):
    told = []

    @on_event(Charge, name="charge")
    def fail(ctx):
        raise ValueError("no card")

    @on_event(EventDeadLetter)
    def mourn(ctx):
        told.append(ctx.event)

    event_id = announce(session, Charge())
    session.run([fail, mourn], max_iterations=8)

    [event] = told
    assert event.model_dump() == {
        "event_id": event_id, "handler_id": "charge", "attempts": 4,
        "last_error": "ValueError: no card",
    }  # fmt: skip
    assert (event.root_event_id, event.chain_depth) == (event_id, 1)


@pytest.mark.req("ONT-146")
def test_burying_the_announcement_of_a_burial_announces_nothing(session):
    @on_event(Charge)
    def fail(ctx):
        raise Discard("no")

    @on_event(EventDeadLetter)
    def fail_too(ctx):
        raise Discard("not this either")

    announce(session, Charge())
    session.run([fail, fail_too], max_iterations=3)

    assert len(stored(session, "event.dead_letter")) == 1
    assert len(session.event_store.list_dead_letters("default")) == 2


@pytest.mark.req("NEW-024")
def test_a_handler_may_ask_for_a_retry_at_a_time_of_its_own(session, clock):
    times, began = [], clock.now()

    @on_event(Charge)
    def later(ctx):
        times.append((clock.now() - began).total_seconds())
        raise Retry("rate limit", after=[5, timedelta(minutes=1), 0, 7][ctx.attempt - 1])

    event_id = announce(session, Charge())
    session.run([later], max_iterations=100)

    assert times == [0, 5, 65, 65]
    told = session.event_store.inspect_event(event_id)
    assert [each["outcome"] for each in told["attempts"]] == ["retry"] * 4
    assert told["claims"][0]["dead_lettered_at"] is not None
    assert told["claims"][0]["last_error"] == "rate limit"


@pytest.mark.req("NEW-024")
def test_a_discarded_event_is_buried_at_once_with_its_reason(session):
    attempts = []

    @on_event(Charge)
    def refuse(ctx):
        attempts.append(ctx.attempt)
        ctx.emit(Charged())
        raise Discard("no such customer")

    event_id = announce(session, Charge())
    session.run([refuse], max_iterations=3)

    assert attempts == [1]
    told = session.event_store.inspect_event(event_id)
    assert told["claims"][0]["last_error"] == "no such customer"
    assert told["attempts"][0]["outcome"] == "discarded"
    assert stored(session, "charged") == []


def fail_deep(text: str) -> None:
    raise ValueError(text)


def test_the_traceback_of_a_failed_attempt_is_kept(session, clock):
    @on_event(Charge)
    def charge(ctx):
        match ctx.attempt:
            case 1:
                fail_deep("no \0")
            case 2:
                raise Retry("later", after=1)
            case 3:
                fail_deep("é" * 20_000 + " the end")
        raise Discard("enough")

    charged = announce(session, Charge())
    for _ in range(4):
        session.run([charge], max_iterations=1)
        clock.advance(seconds=60)

    kept = [each["traceback"] for each in session.event_store.inspect_event(charged)["attempts"]]
    assert kept[0].startswith("Traceback (most recent call last):\n")
    assert ", in fail_deep\n    raise ValueError(text)\n" in kept[0]
    assert kept[0].endswith("ValueError: no \\0\n")
    assert kept[1] is kept[3] is None  # decisions of the handler
    assert kept[2].startswith("...\né")
    assert kept[2].endswith("é the end\n")
    assert 7_990 < len(kept[2].encode()) <= 8_000


def test_tracebacks_are_not_kept_where_a_setting_says_so(open_session):
    session = open_session(settings={"keep_tracebacks": False})

    @on_event(Charge)
    def charge(ctx):
        fail_deep("no")

    charged = announce(session, Charge())
    session.run([charge], max_iterations=1)

    [attempt] = session.event_store.inspect_event(charged)["attempts"]
    assert (attempt["error"], attempt["traceback"]) == ("ValueError: no", None)
