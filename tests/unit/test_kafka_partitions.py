"""What can be committed of a partition, and which attempts are known of it."""

from __future__ import annotations

import pytest

from ontologia.queues.kafka_client import Record
from ontologia.queues.kafka_partitions import (
    LONGEST_METADATA,
    Entry,
    Partition,
    State,
    read_starts,
    write_starts,
)

RETRY = Record("t.retry.default.1m", None, b"{}", [])


def partition(count: int, offset: int | None = 10, metadata: str = "") -> tuple[Partition, list]:
    made = Partition("t", 0, offset, metadata)
    entries = [
        Entry(made, (offset or 0) + n, n, Record("t", None, b"{}", []), 0) for n in range(count)
    ]
    for each in entries:
        made.add(each)
    return made, entries


def written(made: Partition, **how: bool) -> tuple[int, int] | None:
    """What a commit would write: the offset, and the number of messages that move with it."""
    step = made.progress(**how)
    if step is None:
        return None
    made.written(step, again=False)
    return step.offset, len(step.records)


@pytest.mark.req("EDE-049")
def test_only_what_is_done_without_a_gap_is_committed():
    made, (first, second, third) = partition(3)
    for each in (first, second, third):
        each.begin()
    assert written(made) == (10, 0)

    second.end(None)
    assert written(made) is None  # nothing new can be said
    first.end(None)
    assert written(made) == (12, 0)
    third.end(None)
    assert written(made) == (13, 0)
    assert made.entries == {}


@pytest.mark.req("EDE-049")
def test_what_moves_waits_for_what_is_open_before_it():
    made, (first, second) = partition(2)
    first.begin()
    second.begin()
    second.end(RETRY)
    assert written(made) == (10, 0)

    first.end(None)

    assert written(made) == (12, 1)


def test_what_is_not_due_moves_along_with_what_moves_behind_it():
    made, (waiting, failed, ready) = partition(3)
    waiting.state = State.WAITING
    failed.begin()
    failed.end(RETRY)

    step = made.progress()

    assert step is not None
    assert (step.offset, step.records) == (12, [waiting.record, RETRY])
    made.written(step, again=False)
    assert waiting.state is State.DONE  # it is delivered from its new place
    assert ready.state is State.READY


def test_what_is_not_due_is_left_alone_by_what_is_done_behind_it():
    made, entries = partition(101)
    entries[0].state = State.WAITING
    for each in entries[1:-1]:
        each.end(None)
    assert made.progress() is None  # 99 would be delivered again after a crash

    entries[-1].end(None)
    assert written(made) == (111, 1)


def test_a_member_that_leaves_moves_what_is_not_due_out_of_the_way():
    made, (waiting, done) = partition(2)
    waiting.state = State.WAITING
    done.end(None)

    assert written(made) is None
    assert written(made, leaving=True) == (12, 1)


def test_nothing_is_known_of_a_partition_that_nothing_came_from():
    assert Partition("t", 0, None, None).progress() is None
    assert Partition("t", 0, 7, "").progress() is None


@pytest.mark.req("EDE-049")
def test_attempts_are_counted_across_members():
    made, (first, second, third) = partition(3)
    first.begin()
    second.begin()
    step = made.progress()
    assert step is not None

    again, (same, other, rest) = partition(3, step.offset, step.metadata)

    assert (same.starts, other.starts, rest.starts) == (1, 1, 0)
    same.begin()
    assert again.progress().metadata == '{"starts":[[0,1,2],[1,1,1]]}'
    same.release()
    assert same.starts == 1
    other.end(None)
    assert third.starts == 0


@pytest.mark.parametrize(
    "starts",
    [{}, {5: 1}, {5: 1, 6: 1, 7: 1, 9: 1}, {5: 3, 6: 1, 2000: 2}, dict.fromkeys(range(5, 900), 2)],
)
def test_starts_come_back_as_they_were(starts):
    assert read_starts(5, write_starts(5, starts)) == starts


def test_metadata_has_a_limit_and_keeps_who_was_begun_most_often():
    starts = {offset: 1 + (offset % 7 == 0) * 4 for offset in range(0, 10_000, 2)}

    text = write_starts(0, starts)

    assert len(text) <= LONGEST_METADATA
    kept = read_starts(0, text)
    assert kept.items() <= starts.items()
    assert set(kept.values()) == {5}


@pytest.mark.parametrize(
    "text", ["", None, "hello", "{}", '{"starts": 3}', '{"starts": [[1]]}', "[]"]
)
def test_metadata_of_others_says_nothing(text):
    assert read_starts(3, text) == {}


def test_memory_is_bounded():
    made, entries = partition(999)
    assert not made.is_full
    made.add(Entry(made, 2000, 999, Record("t", None, b"", []), 0))
    assert made.is_full
    for each in entries[:600]:
        each.end(None)
    written(made)
    assert made.has_room

    large = Partition("t", 1, 0, "")
    large.add(Entry(large, 0, 0, Record("t", None, b"x" * 2**24, []), 0))
    assert large.is_full
