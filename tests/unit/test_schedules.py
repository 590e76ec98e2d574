"""When a schedule fires: five fields, any time zone, clocks that go forward and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ontologia import Event, Field, Schedule
from ontologia.errors import ConfigError


class SystemCleanup(Event):
    cutoff_days: Field[int] = 90


def fires(cron: str, after: str, count: int, *, tz: str | None = None) -> list[str]:
    """The next ticks, as weekday and UTC time."""
    schedule, instant = Schedule(SystemCleanup(), cron, tz=tz), datetime.fromisoformat(after)
    ticks: list[str] = []
    for _ in range(count):
        tick = schedule.next_after(instant.replace(tzinfo=instant.tzinfo or UTC))
        assert tick is not None
        assert tick.tzinfo is UTC
        ticks.append(tick.strftime("%a %Y-%m-%d %H:%M"))
        instant = tick
    return ticks


# -- what it is -----------------------------------------------------------------------------------


@pytest.mark.req("ONT-071")
def test_a_schedule_keeps_its_event_and_its_cron_expression():
    event = SystemCleanup(cutoff_days=7, priority=50)

    schedule = Schedule(event=event, cron="0 2 * * *")

    assert schedule.event is event
    assert schedule.cron == "0 2 * * *"
    assert schedule.tz is None
    assert repr(schedule) == "Schedule(event=SystemCleanup(cutoff_days=7), cron='0 2 * * *')"


@pytest.mark.req("ONT-071")
@pytest.mark.parametrize("wrong", [SystemCleanup, "system.cleanup", None, {"cutoff_days": 1}])
def test_what_a_schedule_announces_is_an_event(wrong):
    with pytest.raises(TypeError, match="event"):
        Schedule(event=wrong, cron="* * * * *")


@pytest.mark.req("ONT-072")
@pytest.mark.parametrize(
    "cron",
    [
        "", "*", "* * * *", "* * * * * *", "@daily", "60 * * * *", "* 24 * * *", "* * 0 * *",
        "* * 32 * *", "* * * 13 * ", "* * * 0 *", "* * * * 8", "*/0 * * * *", "5-1 * * * *",
        "a * * * *", "1, * * * *", "-1 * * * *", "* * * * FOO", None, 5, b"* * * * *",
    ],
)  # fmt: skip
def test_a_malformed_expression_is_refused_when_the_schedule_is_made(cron):
    with pytest.raises(ConfigError, match="cron"):
        Schedule(event=SystemCleanup(), cron=cron)


@pytest.mark.parametrize("tz", ["Mars/Olympus", "../etc/passwd", "/etc/localtime", 7])
def test_a_zone_that_does_not_exist_is_refused(tz):
    with pytest.raises(ConfigError, match="time zone"):
        Schedule(event=SystemCleanup(), cron="* * * * *", tz=tz)


@pytest.mark.req("ONT-082")
def test_two_schedules_are_one_if_nothing_tells_them_apart():
    def key(cron: str = "0 2 * * *", tz: str | None = None, **event: int) -> str:
        return Schedule(SystemCleanup(**event), cron, tz=tz).key

    assert key() == key("0  2 * *   *") == key(cutoff_days=90) == key(priority=100)
    different = {key(), key("0 3 * * *"), key(tz="Asia/Tokyo"), key(cutoff_days=1), key(priority=1)}
    assert len(different) == 5


# -- when it fires --------------------------------------------------------------------------------


@pytest.mark.req("ONT-073")
def test_the_documents_three_expressions():
    assert fires("0 2 * * *", "2026-02-11T10:00", 2) == [
        "Thu 2026-02-12 02:00",
        "Fri 2026-02-13 02:00",
    ]
    assert fires("*/15 * * * *", "2026-02-11T10:00", 5) == [
        f"Wed 2026-02-11 {time}" for time in ("10:15", "10:30", "10:45", "11:00", "11:15")
    ]
    assert fires("0 0 * * 0", "2026-02-11T10:00", 2) == [
        "Sun 2026-02-15 00:00",
        "Sun 2026-02-22 00:00",
    ]


@pytest.mark.req("ONT-072")
def test_lists_ranges_and_steps():
    assert fires("5,50 8-9 * * *", "2026-02-11T00:00", 5) == [
        "Wed 2026-02-11 08:05", "Wed 2026-02-11 08:50", "Wed 2026-02-11 09:05",
        "Wed 2026-02-11 09:50", "Thu 2026-02-12 08:05",
    ]  # fmt: skip
    assert fires("10-30/10 0 1 */6 *", "2026-02-11T00:00", 4) == [
        "Wed 2026-07-01 00:10", "Wed 2026-07-01 00:20", "Wed 2026-07-01 00:30",
        "Fri 2027-01-01 00:10",
    ]  # fmt: skip


def test_seven_is_sunday_too_and_days_and_months_have_names():
    """C-070."""
    sundays = fires("0 0 * * 0", "2026-02-11T00:00", 3)

    assert fires("0 0 * * 7", "2026-02-11T00:00", 3) == sundays
    assert fires("0 0 * * SUN", "2026-02-11T00:00", 3) == sundays
    assert fires("0 0 * * sun", "2026-02-11T00:00", 3) == sundays
    assert fires("0 9 * * MON-FRI", "2026-02-13T09:00", 1) == ["Mon 2026-02-16 09:00"]
    assert fires("0 0 1 JAN,mar *", "2026-02-11T00:00", 2) == [
        "Sun 2026-03-01 00:00", "Fri 2027-01-01 00:00",
    ]  # fmt: skip


def test_when_both_days_are_restricted_either_fires():
    """C-070: the classic rule; the 13th, and every Friday."""
    assert fires("0 0 13 * FRI", "2026-02-07T00:00", 4) == [
        "Fri 2026-02-13 00:00", "Fri 2026-02-20 00:00", "Fri 2026-02-27 00:00",
        "Fri 2026-03-06 00:00",
    ]  # fmt: skip
    assert fires("0 0 13 4 FRI", "2026-04-10T00:00", 2) == [
        "Mon 2026-04-13 00:00", "Fri 2026-04-17 00:00",
    ]  # fmt: skip


def test_days_that_some_months_do_not_have_are_waited_for():
    assert fires("0 0 31 * *", "2026-02-01T00:00", 2) == [
        "Tue 2026-03-31 00:00",
        "Sun 2026-05-31 00:00",
    ]
    assert fires("0 0 29 2 *", "2026-02-01T00:00", 1) == ["Tue 2028-02-29 00:00"]


@pytest.mark.req("ONT-072")
@pytest.mark.parametrize("cron", ["0 0 31 2 *", "0 0 30 FEB *", "0 0 31 2,4,6,9,11 *"])
def test_a_day_that_never_comes_is_refused(cron):
    with pytest.raises(ConfigError, match="day-of-month"):
        Schedule(SystemCleanup(), cron)


@pytest.mark.req("ONT-076")
@given(
    start=st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)),
    step=st.integers(1, 59),
    tz=st.sampled_from([None, "Europe/Berlin", "America/New_York", "Asia/Kolkata"]),
)
def test_ticks_are_whole_minutes_that_only_go_forward(start, step, tz):
    schedule = Schedule(SystemCleanup(), f"*/{step} * * * *", tz=tz)
    ticks = [start.replace(tzinfo=UTC)]
    for _ in range(20):
        tick = schedule.next_after(ticks[-1])
        assert tick is not None
        ticks.append(tick)

    assert all(earlier < later for earlier, later in pairwise(ticks))
    assert all((tick.second, tick.microsecond) == (0, 0) for tick in ticks[1:])
    assert all(later - earlier <= timedelta(hours=1) for earlier, later in pairwise(ticks))


# -- zones (C-070) --------------------------------------------------------------------------------


def test_times_are_utc_unless_a_zone_is_named():
    assert fires("0 2 * * *", "2026-07-01T00:30+02:00", 1) == ["Wed 2026-07-01 02:00"]
    assert fires("0 2 * * *", "2026-07-01T00:00", 1, tz="Asia/Tokyo") == ["Wed 2026-07-01 17:00"]
    assert fires("0 2 * * *", "2026-07-01T00:00", 1, tz="Europe/Berlin") == ["Thu 2026-07-02 00:00"]


def test_where_clocks_go_forward_a_time_that_does_not_exist_fires_after_the_jump():
    # On 2026-03-29 Berlin has no 02:30: 02:00 is 03:00, which is 01:00 UTC.
    assert fires("30 2 * * *", "2026-03-27T12:00", 4, tz="Europe/Berlin") == [
        "Sat 2026-03-28 01:30",
        "Sun 2026-03-29 01:00",
        "Mon 2026-03-30 00:30",
        "Tue 2026-03-31 00:30",
    ]


def test_where_clocks_go_back_a_time_that_comes_twice_fires_once():
    # On 2026-10-25 Berlin has 02:30 at 00:30 UTC and again at 01:30 UTC.
    ticks = fires("30 2 * * *", "2026-10-24T12:00", 3, tz="Europe/Berlin")

    assert len({tick[:14] for tick in ticks}) == 3
    assert ticks[0] in ("Sun 2026-10-25 00:30", "Sun 2026-10-25 01:30")
    assert ticks[1:] == ["Mon 2026-10-26 01:30", "Tue 2026-10-27 01:30"]


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_what_fires_every_few_minutes_keeps_doing_so_whatever_the_clocks_do(day):
    ticks = fires("*/30 * * * *", f"{day}T00:00", 8, tz="Europe/Berlin")

    assert [tick[-5:] for tick in ticks] == [
        "00:30", "01:00", "01:30", "02:00", "02:30", "03:00", "03:30", "04:00",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("day", "ticks"),
    [
        ("2026-03-28", ["23:00", "00:00", "01:00", "02:00"]),
        ("2026-10-24", ["22:00", "23:00", "00:00", "01:00"]),
    ],
)
def test_hours_of_a_zone_stay_hours(day, ticks):
    assert [
        tick[-5:] for tick in fires("0 * * * *", f"{day}T{ticks[0]}", 3, tz="Europe/Berlin")
    ] == (ticks[1:])


# Zones, and instants at which their clocks change, in UTC.
CHANGES = [
    (zone, datetime.fromisoformat(f"{each}+00:00"))
    for zone, *instants in (
        ("Europe/Berlin", "2026-03-29T01:00", "2026-10-25T01:00"),
        ("Europe/London", "2026-03-29T01:00", "2026-10-25T01:00"),
        ("America/New_York", "2026-03-08T07:00", "2026-11-01T06:00"),
        ("Australia/Lord_Howe", "2026-10-03T15:30", "2026-04-04T15:00"),  # by half an hour
        ("Africa/Cairo", "2026-04-23T22:00", "2026-10-29T21:00"),  # at midnight
        ("America/Sao_Paulo", "2018-02-18T02:00", "2018-11-04T03:00"),  # at midnight, too
        ("Pacific/Apia", "2011-12-30T10:00"),  # a day that never was
        (None, "2026-01-01T00:00"),
    )
    for each in instants
]
CRONS = [
    *("* * * * *", "*/7 * * * *", "30 2 * * *", "0 2 * * *", "15 1 * * *", "0 0 * * *"),
    *("45 1-3 * * *", "*/30 0-4 * * *", "59 2 * * SUN", "0 * * * *", "0 12 1 * *"),
]


@pytest.mark.req("ONT-076", "ONT-083")
@given(
    change=st.sampled_from(CHANGES),
    seconds=st.integers(-3 * 3600, 3 * 3600) | st.integers(-300 * 86400, 300 * 86400),
    cron=st.sampled_from(CRONS),
    seen_from=st.sampled_from([UTC, ZoneInfo("Asia/Tokyo"), ZoneInfo("Europe/Berlin")]),
)
def test_the_next_tick_is_always_later_than_the_instant(change, seconds, cron, seen_from):
    tz, instant = change[0], change[1] + timedelta(seconds=seconds)
    schedule = Schedule(SystemCleanup(), cron, tz=tz)

    tick = schedule.next_after(instant.astimezone(seen_from))

    assert tick is not None
    assert tick.astimezone(UTC) > instant
    # From any instant between the two it is the same one: nothing is skipped or made up.
    between = instant + (tick - instant) / 2
    assert schedule.next_after(between) == tick


def test_who_starts_in_the_second_of_two_equal_hours_fires_what_is_still_to_come():
    # On 2026-10-25 in Berlin 01:03:55 UTC is 02:03:55 for the second time.
    start = "2026-10-25T01:03:55"

    assert fires("30 2 * * *", start, 2, tz="Europe/Berlin") == [
        "Mon 2026-10-26 01:30",
        "Tue 2026-10-27 01:30",
    ]
    assert fires("*/30 * * * *", start, 2, tz="Europe/Berlin") == [
        "Sun 2026-10-25 01:30",
        "Sun 2026-10-25 02:00",
    ]
