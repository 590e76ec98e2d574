"""What a member of a Kafka group knows of its partitions: what is open, and what can be committed.

A group's offset in a partition says that everything before it has ended, so it can pass a message
only together with all before it. How often an open message was begun is in the metadata that is
committed with the offset: if its process dies, the next one knows of the attempt.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from ontologia.queues.kafka_client import Record
from ontologia.queues.protocol import DomainEvent

LONGEST_METADATA = 4_000
"""Bytes of metadata beside an offset; brokers take 4,096 unless they are told otherwise."""
_MOST = 1_000  # open messages of a partition, or ended ones behind an open one
_MOST_BYTES = 16 * 1024 * 1024
_MOST_BEHIND = 100  # ended messages behind one that is not due, which a crash would deliver again


class State(enum.Enum):
    """Where a message is."""

    WAITING = enum.auto()
    """It is not due."""
    READY = enum.auto()
    IN_FLIGHT = enum.auto()
    DONE = enum.auto()
    MOVING = enum.auto()
    """It has ended here, and its `record` is to be written to another topic."""


class Entry:
    """A message that was received, until the group's offset has passed it."""

    __slots__ = ("attempts", "event", "number", "offset", "partition", "record", "size", "state")

    def __init__(
        self, partition: Partition, offset: int, number: int, record: Record, attempts: int
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.number = number
        """In the order in which messages were received."""
        self.record: Record | None = record
        """The message as it was received; of a MOVING one, as it is to be written."""
        self.attempts = attempts
        """How often it was tried before it came into this topic."""
        self.event: DomainEvent | None = None
        self.size = len(record.value or b"")
        self.state = State.READY

    @property
    def starts(self) -> int:
        """How often it was begun here without coming to an end that was written."""
        return self.partition.starts.get(self.offset, 0)

    def begin(self) -> None:
        """It is in flight, which is an attempt from now on."""
        self.state = State.IN_FLIGHT
        self.partition.starts[self.offset] = self.starts + 1

    def release(self) -> None:
        """It was not tried after all."""
        self.state = State.READY
        self.partition.forget_start(self.offset)

    def end(self, record: Record | None) -> None:
        """It is done, or it is to be written to another topic as this record."""
        self.state = State.DONE if record is None else State.MOVING
        self.partition.moving += record is not None
        self.record, self.event = record, None


class Progress(NamedTuple):
    """How far a partition is, as it is to be committed."""

    partition: Partition
    offset: int
    metadata: str
    passed: list[Entry]
    """What ends with this commit."""
    records: list[Record]
    """What is to be written in the same transaction."""


class Partition:
    """A partition that is assigned to this member."""

    def __init__(self, topic: str, number: int, offset: int | None, metadata: str | None) -> None:
        self.topic = topic
        self.number = number
        self.is_new = True
        """Whether nothing was received yet."""
        self.moving = 0
        """Number of entries that move."""
        self.next: int | None = offset
        """The offset after the last message that was received."""
        self.end = -1
        """The offset at which the broker said that there is nothing more."""
        self.starts: dict[int, int] = read_starts(offset, metadata)
        self.entries: dict[int, Entry] = {}
        self.lost = False
        """Whether it is another member's by now."""
        self.paused = False
        self._size = 0
        self._written: tuple[int | None, str] | None = (offset, metadata or "")

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be received before something has ended."""
        return len(self.entries) >= _MOST or self._size >= _MOST_BYTES

    @property
    def has_room(self) -> bool:
        """Whether so much has ended that receiving is worth it again."""
        return len(self.entries) < _MOST // 2 and self._size < _MOST_BYTES // 2

    def reached(self, end: int) -> bool:
        """Whether all before this offset was received."""
        return max(self.next or 0, self.end) >= end

    def add(self, entry: Entry) -> None:
        """A message was received."""
        self.entries[entry.offset] = entry
        self._size += entry.size
        self.next = entry.offset + 1
        self.is_new = False

    def forget_start(self, offset: int) -> None:
        """One attempt less."""
        if (left := self.starts.get(offset, 0) - 1) > 0:
            self.starts[offset] = left
        else:
            self.starts.pop(offset, None)

    def progress(self, *, leaving: bool = False) -> Progress | None:
        """What is to be committed; None if that is what was committed last.

        A message that is not due keeps the offset from passing it, though no worker has it. It is
        written again, to the end of its topic, if one behind it moves or if many behind it are done;
        if this member is `leaving`, also for one.
        """
        closed: list[Entry] = []
        last = behind = 0
        moving = waiting = False
        for entry in self.entries.values():
            if entry.state in (State.READY, State.IN_FLIGHT):
                break
            closed.append(entry)
            if entry.state is State.WAITING:
                waiting = True
                continue
            moving = moving or entry.state is State.MOVING
            behind += waiting
            if not waiting or moving or leaving or behind >= _MOST_BEHIND:
                last = len(closed)
        passed = closed[:last]
        offset = self._after(passed)
        if offset is None:
            return None
        metadata = write_starts(offset, self.starts)
        records = [each.record for each in passed if each.record is not None]
        if not records and (offset, metadata) == self._written:
            return None
        return Progress(self, offset, metadata, passed, records)

    def _after(self, passed: list[Entry]) -> int | None:
        """The offset that passes these: of the first message that is left, or of the next."""
        if len(passed) == len(self.entries):
            return self.next
        return next(islice(self.entries, len(passed), None))

    def written(self, progress: Progress, *, again: bool) -> None:
        """It is committed; it will be `again`, without a transaction.

        librdkafka's mock cluster keeps no offsets of transactions, and one more commit is cheap.
        """
        for entry in progress.passed:
            self.moving -= entry.state is State.MOVING
            entry.state = State.DONE
            del self.entries[entry.offset]
            self.starts.pop(entry.offset, None)
            self._size -= entry.size
        self._written = None if again else (progress.offset, progress.metadata)


def write_starts(first: int, starts: Mapping[int, int]) -> str:
    """How often open messages were begun, as metadata of the offset `first`; "" if none was.

    `{"starts": [[distance from the offset, number of messages, starts], ...]}`. What has no room is
    left out, and then an attempt of it is not counted; those that were begun most often go first.
    """
    runs: list[list[int]] = []
    for offset in sorted(each for each in starts if each >= first):
        distance, count = offset - first, starts[offset]
        if runs and runs[-1][0] + runs[-1][1] == distance and runs[-1][2] == count:
            runs[-1][1] += 1
        else:
            runs.append([distance, 1, count])
    text = _starts(runs)
    if len(text) > LONGEST_METADATA:
        runs.sort(key=lambda run: run[2], reverse=True)
        while len(text) > LONGEST_METADATA:
            runs = runs[: len(runs) * 9 // 10]
            text = _starts(runs)
    return text


def _starts(runs: list[list[int]]) -> str:
    return json.dumps({"starts": runs}, separators=(",", ":")) if runs else ""


def read_starts(first: int | None, metadata: str | None) -> dict[int, int]:
    """What `write_starts` wrote; {} of what others wrote."""
    if first is None or not metadata or len(metadata) > 2 * LONGEST_METADATA:
        return {}
    try:
        return {
            first + distance + each: int(count)
            for distance, length, count in json.loads(metadata)["starts"]
            for each in range(min(length, _MOST * 10))
        }
    except (ValueError, TypeError, KeyError):
        return {}
