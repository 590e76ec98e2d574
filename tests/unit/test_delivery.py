"""The rules of delivery, without a database: states, waits, limits and where events come from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontologia import Discard, EventLoopLimitError, OntologiaConfig, Retry
from ontologia.clock import to_text
from ontologia.delivery.lifecycle import (
    NEXT,
    ClaimState,
    ClaimTimes,
    event_status,
    lease_is_valid,
    lease_ran_out,
    state_of,
)
from ontologia.delivery.lifetimes import instant_before
from ontologia.delivery.lineage import Lineage, check_depth, child_of, deferred
from ontologia.delivery.retry import (
    Backoff,
    RetryPolicy,
    Verdict,
    describe_error,
    handler_policy,
    storable_text,
    traceback_text,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> str:
    return to_text(START + timedelta(seconds=seconds))


def least(low: int, high: int) -> int:
    return low


def most(low: int, high: int) -> int:
    return high


def test_no_example_has_to_be_quick() -> None:
    """A busy machine is no fault of the code: tests/conftest.py has it so for all tests."""
    assert settings().deadline is None


instants = st.integers(-5, 5).map(at)
claims = st.builds(ClaimTimes, instants, instants, st.none() | instants, st.none() | instants)


# -- states ---------------------------------------------------------------------------------------


@pytest.mark.req("ONT-134")
@pytest.mark.parametrize(
    ("claim", "state"),
    [
        (None, "unclaimed"),
        (ClaimTimes(at(1), at(-9)), "claimed"),
        (ClaimTimes(at(-1), at(1)), "backoff"),
        (ClaimTimes(at(-1), at(-1)), "reclaimable"),
        (ClaimTimes(at(-1), at(0)), "reclaimable"),
        (ClaimTimes(at(1), at(-9), ack_at=at(-1)), "acked"),
        (ClaimTimes(at(-1), at(-1), dead_lettered_at=at(-1)), "dead_lettered"),
    ],
)
def test_the_columns_of_a_claim_say_its_state(claim, state):
    assert state_of(claim, at(0)) == state


@pytest.mark.req("ONT-134")
@given(claim=claims, now=instants)
def test_a_claim_is_in_the_one_state_that_the_table_gives_it(claim, now):
    ended = claim.ack_at is not None or claim.dead_lettered_at is not None
    rows = {
        ClaimState.ACKED: claim.ack_at is not None,
        ClaimState.DEAD_LETTERED: claim.ack_at is None and claim.dead_lettered_at is not None,
        ClaimState.CLAIMED: not ended and claim.lease_until > now,
        ClaimState.BACKOFF: not ended and claim.lease_until <= now < claim.available_at,
        ClaimState.RECLAIMABLE: not ended and max(claim.lease_until, claim.available_at) <= now,
    }

    assert [state for state, holds in rows.items() if holds] == [state_of(claim, now)]


@pytest.mark.req("ONT-047")
def test_a_lease_ends_at_its_very_instant():
    """C-034: whoever looks at that instant, exactly one of two sessions has the event."""
    assert lease_is_valid(at(1), at(0.999999))
    assert not lease_is_valid(at(1), at(1))
    assert state_of(ClaimTimes(at(1), at(0)), at(1)) is ClaimState.RECLAIMABLE


@given(claim=claims, now=instants)
def test_no_instant_is_both_the_holders_and_anothers(claim, now):
    held = lease_is_valid(claim.lease_until, now)
    takeable = state_of(claim, now) is ClaimState.RECLAIMABLE

    assert not (held and takeable)


@pytest.mark.req("ONT-135")
def test_success_failure_time_and_crash_lead_where_the_document_says():
    assert NEXT[ClaimState.UNCLAIMED] == {ClaimState.CLAIMED}
    assert {ClaimState.ACKED, ClaimState.BACKOFF, ClaimState.RECLAIMABLE} < NEXT[ClaimState.CLAIMED]
    assert NEXT[ClaimState.BACKOFF] == {ClaimState.RECLAIMABLE}
    assert ClaimState.CLAIMED in NEXT[ClaimState.RECLAIMABLE]
    assert ClaimState.ACKED not in NEXT[ClaimState.RECLAIMABLE]


@pytest.mark.req("ONT-136")
@given(claim=claims, now=instants, later=st.integers(0, 10**8))
def test_time_alone_leads_only_along_the_transitions_and_never_out_of_the_end(claim, now, later):
    before = state_of(claim, now)
    after = state_of(claim, to_text(datetime.fromisoformat(now) + timedelta(seconds=later)))

    if before in (ClaimState.ACKED, ClaimState.DEAD_LETTERED):
        assert after is before
        assert not NEXT[before]
    else:
        assert after is before or after in NEXT[before]


@pytest.mark.req("ONT-139")
@given(claimed=st.integers(0, 100), lease=st.integers(1, 100), wait=st.integers(0, 100))
def test_a_claim_that_is_due_knows_whether_its_lease_ran_out_or_its_wait_ended(
    claimed, lease, wait
):
    failed = claimed + lease // 2

    assert lease_ran_out(lease_until=at(claimed + lease), available_at=at(claimed))
    assert not lease_ran_out(lease_until=at(failed), available_at=at(failed + wait))


@pytest.mark.req("ONT-192")
def test_the_gravest_claim_speaks_for_an_event():
    acked, leased = ClaimTimes(at(9), at(0), ack_at=at(0)), ClaimTimes(at(9), at(0))
    buried, waiting = ClaimTimes(at(0), at(0), None, at(0)), ClaimTimes(at(0), at(9))

    assert event_status([], at(1)) == "pending"
    assert event_status([waiting], at(1)) == "pending"
    assert event_status([waiting, leased], at(1)) == "claimed"
    assert event_status([leased, acked, waiting], at(1)) == "acked"
    assert event_status([acked, leased, buried], at(1)) == "dead_lettered"


# -- waits and limits -----------------------------------------------------------------------------


@pytest.mark.req("ONT-110", "ONT-141")
def test_the_waits_of_handlers_are_those_the_document_lists():
    """C-048: the exponent counts the failure at hand; chance comes after the cap."""
    waits = handler_policy(OntologiaConfig()).backoff

    expected = [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]
    assert [waits.delay_ms(n, least) for n in range(1, 10)] == expected
    assert [waits.delay_ms(n, most) for n in range(1, 10)] == [ms + 100 for ms in expected]


def test_the_waits_of_workers_are_the_same_rule_with_other_numbers():
    """C-006: 0.25 s after the first failure, at most 10 s, no chance at all."""
    waits = Backoff(250, 10_000, jitter_ms=0, first_exponent=0)

    def never(low: int, high: int) -> int:
        raise AssertionError("nothing is left to chance")

    assert [waits.delay_ms(n, never) for n in range(1, 9)] == [
        250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000,
    ]  # fmt: skip


@pytest.mark.req("ONT-141")
@given(
    base=st.integers(0, 10_000),
    cap=st.integers(0, 10**6),
    failures=st.integers(1, 10_000),
    seed=st.integers(),
)
def test_a_wait_never_shrinks_and_never_passes_the_cap_and_the_chance(base, cap, failures, seed):
    waits = Backoff(base, cap)
    drawn = waits.delay_ms(failures, Random(seed).randint)
    bare = waits.delay_ms(failures, least)

    assert bare == min(base * 2**failures, cap)
    assert bare <= drawn <= bare + 100
    assert bare <= waits.delay_ms(failures + 1, least) <= cap


@pytest.mark.req("ONT-141")
def test_chance_is_spread_over_the_whole_tenth_of_a_second():
    waits, draw = Backoff(250, 30_000), Random(7).randint

    drawn = {waits.delay_ms(1, draw) for _ in range(5_000)}

    assert drawn == set(range(500, 601))


@pytest.mark.req("ONT-143")
@given(limit=st.integers(1, 50), before=st.integers(0, 60))
def test_the_attempt_that_reaches_the_limit_is_the_last(limit, before):
    policy = handler_policy(OntologiaConfig(event_max_attempts=limit))

    failure, crash = policy.after_failure(before, least), policy.after_crash(before)

    assert failure.attempts == crash.attempts == before + 1
    assert failure.buried == crash.buried == (before + 1 >= limit)
    assert failure.delay_ms == (0 if failure.buried else policy.backoff.delay_ms(before + 1, least))
    assert crash.delay_ms == 0


@pytest.mark.req("ONT-109", "ONT-143")
def test_ten_attempts_are_the_default():
    policy = handler_policy(OntologiaConfig())

    assert [policy.after_failure(n, least).buried for n in range(10)] == [False] * 9 + [True]


def test_failures_and_crashes_have_limits_of_their_own():
    policy = RetryPolicy(max_failures=1, max_crashes=3, backoff=Backoff(1, 1))

    assert policy.after_failure(0, least) == Verdict(1, buried=True)
    assert [policy.after_crash(n).buried for n in range(3)] == [False, False, True]


@pytest.mark.req("NEW-024")
def test_a_handler_may_choose_the_wait_but_not_the_limit():
    policy = handler_policy(OntologiaConfig(event_max_attempts=3))

    assert policy.after_failure(0, least, after_ms=7) == Verdict(1, buried=False, delay_ms=7)
    assert policy.after_failure(0, least, after_ms=0) == Verdict(1, buried=False, delay_ms=0)
    assert policy.after_failure(2, least, after_ms=7).buried
    assert Retry(after=1.5).after_ms == Retry(after=timedelta(seconds=1.5)).after_ms == 1500
    assert str(Discard("no such customer")) == "no such customer"
    for wrong in (-1, float("nan"), True, "soon", None):
        with pytest.raises((ValueError, TypeError)):
            Retry(after=wrong)
    assert START + timedelta(milliseconds=Retry(after=float("inf")).after_ms) > START


# -- what is written down of an error -------------------------------------------------------------


@pytest.mark.req("ONT-147")
def test_an_error_is_its_class_and_its_message():
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe_error(TimeoutError("SMTP timeout")) == "TimeoutError: SMTP timeout"
    assert describe_error(KeyError("k")) == "KeyError: 'k'"
    assert describe_error(ValueError()) == "ValueError"
    assert describe_error(Mute()).startswith("Mute: ")


@given(st.text(max_size=30))
def test_whatever_a_message_holds_can_be_stored(message):
    text = storable_text(message)

    assert "\0" not in text
    assert text.encode("utf-8").decode() == text
    assert len(storable_text(message * 10_000)) <= 10_010


# -- lineage --------------------------------------------------------------------------------------


@pytest.mark.req("ONT-058", "ONT-202")
@given(hops=st.integers(1, 30), correlation=st.none() | st.just("order-7"))
def test_a_chain_has_one_root_one_correlation_and_a_depth_that_counts_hops(hops, correlation):
    chain = [child_of("e0", "e0", 0, correlation, "h0")]
    for n in range(1, hops):
        last = chain[-1]
        chain.append(
            child_of(f"e{n}", last.root_event_id, last.chain_depth, last.correlation_id, "h")
        )

    assert {each.root_event_id for each in chain} == {"e0"}
    assert {each.correlation_id for each in chain} == {correlation or "e0"}
    assert [each.chain_depth for each in chain] == list(range(1, hops + 1))
    assert [each.causation_id for each in chain] == [f"e{n}" for n in range(hops)]
    assert chain[0].source == "h0"


@pytest.mark.req("ONT-098")
@given(depth=st.integers(0, 40), limit=st.integers(0, 40))
def test_a_depth_equal_to_the_limit_is_allowed_and_one_more_is_not(depth, limit):
    lineage = Lineage("root", depth)

    if depth <= limit:
        check_depth("a.b", lineage, limit)
    else:
        with pytest.raises(EventLoopLimitError, match=r"a\.b") as caught:
            check_depth("a.b", lineage, limit)
        assert (caught.value.depth, caught.value.limit) == (depth, limit)
        assert caught.value.root_event_id == "root"


def _hours(*pairs):
    midnight = datetime(2026, 1, 1, tzinfo=UTC)
    return [tuple(midnight + timedelta(hours=hour) for hour in pair) for pair in pairs]


@pytest.mark.req("ONT-150")
@pytest.mark.parametrize(
    ("lifetimes", "alive", "since"),
    [
        ([(0, 10)], 4, 6),
        ([(0, 10)], 10, 0),
        ([(0, 10)], 11, None),
        ([(0, 5), (8, 10)], 2, 8),  # nobody was alive from 5 to 8
        ([(0, 5), (8, 10)], 3, 4),
        ([(0, 9), (5, 10)], 6, 4),  # what two lived at once counts once
        ([(5, 10), (0, 9), (6, 7)], 10, 0),
        ([(3, 3)], 1, None),
        ([], 1, None),
    ],
)
def test_only_time_in_which_somebody_was_alive_is_counted(lifetimes, alive, since):
    found = instant_before(_hours(*lifetimes), timedelta(hours=alive))

    assert found == (None if since is None else _hours((since, since))[0][0])


@pytest.mark.parametrize(
    ("wait", "depth"), [(None, 7), (0.0, 7), (0.9, 7), (1.0, 0), (86_400.0, 0)]
)
def test_a_deferred_event_begins_a_new_count_and_keeps_the_rest(
    wait: float | None, depth: int
) -> None:
    lineage = Lineage("root", 7, "correlation", "cause", "handler")
    fire_at = None if wait is None else START.timestamp() + wait

    assert deferred(lineage, fire_at, START) == lineage._replace(chain_depth=depth)


def test_an_event_without_a_subscription_has_a_status_of_its_own_until_it_is_claimed() -> None:
    acked = ClaimTimes(at(0), at(0), ack_at=at(0))

    assert event_status([], at(1), subscribed=False) == "unsubscribed"
    assert event_status([], at(1)) == "pending"
    assert event_status([acked], at(1), subscribed=False) == "acked"  # by one that was forgotten


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


def test_a_traceback_can_be_stored_whatever_the_error_says() -> None:
    try:
        raise Unreadable from ValueError("\ud800\0")
    except Unreadable as error:
        text = traceback_text(error)

    assert "ValueError: \\ud800\\0\n" in text
    assert "Unreadable" in text
    assert text.encode()
