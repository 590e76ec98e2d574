"""Time comes from one clock, and as text it sorts the way instants do."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontologia.clock import Clock, Stamps, SystemClock, from_text, to_text
from ontologia.testing import ManualClock

# Far enough from both ends of the calendar that an offset cannot push an instant over them.
INSTANTS = st.datetimes(
    min_value=datetime(2, 1, 1),
    max_value=datetime(9998, 1, 1),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone.min]),
)


def test_an_instant_is_written_in_utc_with_microseconds():
    noon_in_delhi = datetime(2026, 11, 15, 12, 0, tzinfo=timezone(timedelta(hours=5, minutes=30)))

    assert to_text(noon_in_delhi) == "2026-11-15T06:30:00.000000+00:00"


@given(INSTANTS, INSTANTS)
@settings(max_examples=200, deadline=None)
def test_the_order_of_the_text_is_the_order_of_time(first, second):
    texts = [to_text(first), to_text(second)]

    assert [len(text) for text in texts] == [32, 32]
    assert (texts[0] < texts[1]) == (first < second)
    assert (texts[0] == texts[1]) == (first == second)


@given(INSTANTS)
@settings(max_examples=100, deadline=None)
def test_text_gives_back_the_instant_it_was_made_from(instant):
    back = from_text(to_text(instant))

    assert back == instant
    assert back.utcoffset() == timedelta(0)


def test_a_trailing_z_is_understood():
    assert from_text("2026-11-15T06:30:00Z") == datetime(2026, 11, 15, 6, 30, tzinfo=UTC)


def test_the_system_clock_is_aware_and_its_monotonic_side_does_not_go_back():
    clock = SystemClock()

    before = datetime.now(UTC)
    now, first = clock.now(), clock.monotonic()
    clock.sleep(0.001)

    assert isinstance(clock, Clock)
    assert now.utcoffset() == timedelta(0)
    assert before <= now <= datetime.now(UTC)
    assert clock.monotonic() > first


def test_a_manual_clock_stands_still_until_it_is_told_to_move():
    clock = ManualClock(datetime(2026, 5, 1, tzinfo=UTC))

    first = clock.now()
    clock.advance(seconds=90)

    assert isinstance(clock, Clock)
    assert first == datetime(2026, 5, 1, tzinfo=UTC)
    assert clock.now() - first == timedelta(seconds=90)
    assert clock.monotonic() == 90


def test_sleeping_on_a_manual_clock_moves_it_and_does_not_wait():
    clock = ManualClock()
    start = clock.now()

    clock.sleep(3600 * 24 * 365)

    assert clock.now() - start == timedelta(days=365)


def test_a_wall_clock_can_step_back_and_the_monotonic_side_never_does():
    clock = ManualClock()
    clock.advance(seconds=10)
    start = clock.now()

    clock.advance(seconds=-5)

    assert clock.now() - start == timedelta(seconds=-5)
    assert clock.monotonic() == 10


def test_a_manual_clock_needs_to_know_where_it_stands():
    with pytest.raises(ValueError, match="aware datetime"):
        ManualClock(datetime(2026, 5, 1))


def test_a_start_in_another_zone_is_the_same_instant_in_utc():
    clock = ManualClock(datetime(2026, 5, 1, 2, tzinfo=timezone(timedelta(hours=2))))

    assert clock.now().isoformat() == "2026-05-01T00:00:00+00:00"


def test_several_threads_move_one_manual_clock_without_losing_a_step():
    clock = ManualClock()
    start = clock.now()

    def move():
        for _ in range(500):
            clock.advance(seconds=1)

    threads = [threading.Thread(target=move) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert clock.now() - start == timedelta(seconds=4000)
    assert clock.monotonic() == 4000


@pytest.mark.parametrize("microsecond", [0, 999_990])
def test_stamps_for_several_go_forward_by_a_microsecond_each(microsecond):
    now = datetime(2026, 1, 2, 3, 4, 5, microsecond, UTC)
    stamps = Stamps()
    first = stamps.next(now)

    several = stamps.several(now, 20)

    wanted = [to_text(now + timedelta(microseconds=number)) for number in range(22)]
    assert [first, *several, stamps.next(now)] == wanted
    later = now + timedelta(hours=1)
    assert stamps.several(later, 1) == [to_text(later)]
