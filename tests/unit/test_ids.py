"""Ids are UUIDs of version 7, ascending within a process."""

from __future__ import annotations

import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ontologia.clock import SystemClock
from ontologia.ids import Ids, made_at
from ontologia.testing import ManualClock


class _Extreme(Random):
    """Draws the least or the greatest number there is."""

    def __init__(self, *, greatest):
        super().__init__()
        self._greatest = greatest

    def getrandbits(self, k):
        return (1 << k) - 1 if self._greatest else 0


def test_an_id_is_a_uuid_of_version_7_in_the_usual_form():
    made = [Ids(SystemClock()).new() for _ in range(100)]

    assert {uuid.UUID(text).version for text in made} == {7}
    assert {uuid.UUID(text).variant for text in made} == {uuid.RFC_4122}
    assert [str(uuid.UUID(text)) for text in made] == made


def test_version_and_variant_hold_whatever_is_drawn():
    for greatest in (False, True):
        ids = Ids(ManualClock(), _Extreme(greatest=greatest))
        made = [uuid.UUID(ids.new()) for _ in range(3)]

        assert {one.version for one in made} == {7}
        assert {one.variant for one in made} == {uuid.RFC_4122}


def test_an_id_of_version_7_says_when_it_was_made():
    clock = ManualClock(datetime(2026, 3, 1, 12, 0, 0, 7_654, tzinfo=UTC))

    assert made_at(Ids(clock).new()) == datetime(2026, 3, 1, 12, 0, 0, 7_000, tzinfo=UTC)
    assert made_at(str(uuid.uuid4())) is None
    assert made_at("order-7") is None
    assert made_at("ffffffff-ffff-7fff-bfff-ffffffffffff") is None  # after the last year


def test_an_id_begins_with_the_millisecond_it_was_made_in():
    instant = datetime(2026, 11, 15, 19, 39, 43, 123_000, tzinfo=UTC)

    made = uuid.UUID(Ids(ManualClock(instant), Random(1)).new())

    since_epoch = instant - datetime(1970, 1, 1, tzinfo=UTC)
    assert made.int >> 80 == since_epoch // timedelta(milliseconds=1)


@given(st.lists(st.floats(-3600, 3600), max_size=50), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_ids_ascend_whatever_the_clock_does(steps, seed):
    clock = ManualClock()
    ids = Ids(clock, Random(seed))

    made = [ids.new(), ids.new()]
    for step in steps:
        clock.advance(seconds=step)
        made += [ids.new(), ids.new()]

    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {uuid.UUID(text).version for text in made} == {7}


def test_a_clock_that_stands_leaves_room_for_many_ids_of_one_millisecond():
    clock = ManualClock()
    ids = Ids(clock, _Extreme(greatest=True))

    made = [ids.new() for _ in range(10_000)]

    assert made == sorted(set(made))
    assert {text[:13] for text in made} == {made[0][:13]}


def test_threads_never_draw_the_same_id_and_each_sees_its_own_ascend():
    ids = Ids(ManualClock(), Random(7))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    try:
        with ThreadPoolExecutor(8) as pool:
            batches = list(pool.map(lambda _: [ids.new() for _ in range(10_000)], range(8)))
    finally:
        sys.setswitchinterval(interval)

    assert len({text for batch in batches for text in batch}) == 80_000
    assert all(batch == sorted(batch) for batch in batches)


def test_the_same_seed_and_clock_give_the_same_ids():
    def run(seed):
        clock = ManualClock()
        ids = Ids(clock, Random(seed))
        made = []
        for _ in range(20):
            made.append(ids.new())
            clock.advance(seconds=0.25)
        return made

    assert run(42) == run(42)
    assert run(42) != run(43)


def test_without_a_source_of_randomness_two_makers_do_not_agree():
    clock = ManualClock()

    first, second = Ids(clock).new(), Ids(clock).new()

    assert first != second
    assert first[:13] == second[:13]


@pytest.mark.parametrize("greatest", [True, False])
def test_several_at_once_ascend_and_come_before_the_next(greatest):
    clock = ManualClock()
    ids = Ids(clock, _Extreme(greatest=greatest))
    before = ids.new()

    made = [*ids.several(clock.now(), 1_000), ids.new()]

    assert [before, *made] == sorted({before, *made})
    assert {uuid.UUID(text).version for text in made} == {7}
    assert {uuid.UUID(text).variant for text in made} == {uuid.RFC_4122}


def test_several_that_overflow_their_last_digits_still_ascend():
    clock = ManualClock()
    ids = Ids(clock, _Fixed((1 << 48) - 3))  # three more, and the last twelve digits are used up

    made = ids.several(clock.now(), 10)

    assert made == sorted(set(made))
    assert len({text[:24] for text in made}) == 2


class _Fixed(Random):
    def __init__(self, value: int) -> None:
        super().__init__()
        self._value = value

    def getrandbits(self, bits: int) -> int:
        return self._value
