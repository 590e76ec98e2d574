"""A queue on Kafka: durable, shared by any number of machines, in order for each key.

A group of workers is a consumer group. Kafka knows no single message's end, only how far a group is
in a partition, so what is not simply done is written to another topic, in one transaction with the
offset that passes it: a retry to `<topic>.retry.<group>.*`, a dead letter to `<topic>.dlq`.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

from ontologia import codec
from ontologia.clock import SYSTEM_CLOCK, SystemClock, from_text, to_text
from ontologia.delivery.retry import describe_error, storable_text
from ontologia.errors import (
    ConfigError,
    ConnectionLostError,
    InvalidValueError,
    OntologiaError,
    SessionClosedError,
    UnknownReceiptError,
)
from ontologia.queues.cloudevents import Message, headers_of, read_message
from ontologia.queues.kafka_client import (
    KEY,
    NO_TOPIC,
    TOO_LARGE,
    KafkaConnection,
    Option,
    Publisher,
    Record,
    checked_options,
    library,
    message_key,
)
from ontologia.queues.kafka_partitions import Entry, Partition, Progress, State
from ontologia.queues.protocol import (
    DomainEvent,
    EventDelivery,
    check_dequeue,
    check_event,
    checked_name,
    checked_seconds,
    encoded_payload,
)
from ontologia.runtime.session import Session, core_of
from ontologia.store.events import checks

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
    from confluent_kafka import Message as Received
    from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

JOIN_SECONDS = 15.0
"""How long `dequeue` waits, once, for the group to assign partitions to this member."""
CATCH_UP_SECONDS = 5.0
"""How long `dequeue` waits, past its time, for what was in the partitions when that was over."""
GATHER_SECONDS = 0.002
"""How long a message waits for others to be delivered with it: a batch costs one commit."""
LEVELS = {"1m": 60, "1h": 3_600, "long": None}
"""Retry topics by the longest delay in seconds: in each, what is due first is near the front."""
_KEPT = {"1m": 7 * 86_400, "1h": 7 * 86_400, "long": None}
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}")  # Kafka takes topics of 249
_ATTEMPT, _NOT_BEFORE, _REASON, _ORIGIN, _GROUP = (
    *("attempt", "not_before", "reason", "origin"),
    "group",
)
_OURS = (_ATTEMPT, _NOT_BEFORE, _REASON, _ORIGIN, _GROUP)
_KEPT_OF_LARGE = ("ce_specversion", "ce_id", "ce_type", "ce_source", _ORIGIN)
_LARGEST = 16 * 1024 * 1024  # bytes of a message that can be retried
_LONGEST_REASON = 4_000  # characters: headers count for the size of a message
_SLICE, _QUICK_SLICE = 0.1, 0.005  # seconds of a poll: in between, others may end the wait
_OLDEST_COMMIT = 1.0  # seconds that acks wait for the next batch
_TRANSACTION_SECONDS = 10.0
_FLUSH_SECONDS = 1.0  # before a transaction is aborted
# Of a transaction, ILLEGAL_GENERATION says also that this member has not heard of a new epoch yet.
_UNSETTLED = ("REBALANCE_IN_PROGRESS", "STALE_MEMBER_EPOCH", "ILLEGAL_GENERATION", "_STATE")
# The broker has forgotten the producer, as after transactional.id.expiration.ms without a
# transaction (7 days), or has given its place to another one: nothing of it is committed.
_PRODUCER_GONE = (
    "INVALID_PRODUCER_ID_MAPPING",
    "UNKNOWN_PRODUCER_ID",
    "INVALID_PRODUCER_EPOCH",
    "_FENCED",
)
_DROPPED = (
    "UNKNOWN_MEMBER_ID",
    "FENCED_MEMBER_EPOCH",
    "FENCED_INSTANCE_ID",
    "_ASSIGNMENT_LOST",
)


class _Unsettled(Exception):
    """The group assigns partitions anew, and takes offsets of this member after the next poll."""


class _Dropped(_Unsettled):
    """This member is none any more: what it had is delivered to others."""


class _TooLarge(Exception):
    """A topic does not take some of the records, since they are too large for it."""

    def __init__(self, records: list[Record]) -> None:
        super().__init__()
        self.records = records


class KafkaEventQueue:
    """The events of a topic, for one group of workers. Thread-safe.

    Each group is given every event once. A queue that was asked for events is a member of the
    group and has some of its partitions, until `settle` or `close`, or until it does not ask
    for `max.poll.interval.ms`: then its deliveries are lost to other members. Events of one key,
    by default the root event's id, are delivered in order; one that failed does not hold up those
    behind it. The clock says when a retry is due, `timeout_seconds` of `dequeue` is real time.
    """

    provider_key = "kafka"

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str = "ontologia",
        group: str = "default",
        *,
        session: Session | None = None,
        options: Mapping[str, Option] | None = None,
    ) -> None:
        """Connects to nothing yet. ConfigError for what cannot be, or without confluent-kafka.

        Of a session, the queue takes the clock and the namespace, and is closed with it.
        """
        self.topic, self.group = _checked("topic", topic), _checked("group", group)
        options = checked_options(options or {})
        self.key = message_key(options.pop(KEY, "root"))
        """Gives the key of a message."""
        self._connection = KafkaConnection(bootstrap_servers, options)
        self._kafka = library()
        core = None if session is None else core_of(session)
        self._clock = SYSTEM_CLOCK if core is None else core.clock
        self._namespace = None if core is None else core.namespace
        self.retry_topics = {
            f"{topic}.retry.{group}.{level}": most for level, most in LEVELS.items()
        }
        """With the longest delay of each."""
        self.dead_letter_topic = f"{topic}.dlq"

        self._turn = threading.Lock()  # one thread at a time polls
        self._lock = threading.RLock()  # of the members below it, and of their clients
        self._setup = threading.Lock()  # of topics and publisher, which wait for no delivery
        self._made = False  # whether the topics are there
        self._publisher: Publisher | None = None
        self._admin: AdminClient | None = None
        self._producer: Producer | None = None
        self._transactions: bool | None = None
        self._consumer: Consumer | None = None
        self._joined_at = 0.0
        self._assigned = False
        self._broken = False
        """Whether only the broker knows what is committed, so that this member must join anew."""
        self._error: OntologiaError | None = None
        self._written_at = 0.0
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._moved: dict[tuple[str, int], int] = {}
        """Where partitions end at least, by what this member wrote to them."""
        self._ready: list[tuple[int, Entry]] = []
        self._later: list[tuple[datetime, int, Entry]] = []
        self._flight: dict[str, Entry] = {}
        self._numbers = count(1)
        self._prefix = secrets.token_hex(4)
        self._closed = False
        self._on_close = None if core is None else core.on_close
        if self._on_close is not None:
            self._on_close.append(self.close)

    @property
    def connection(self) -> KafkaConnection:
        """How the cluster is reached."""
        return self._connection

    def describe(self) -> str:
        """Where the events are, and for whom."""
        return f"kafka: {self._connection.servers}, topic {self.topic!r}, group {self.group!r}"

    # -- events that come in ----------------------------------------------------------------------

    def enqueue(self, event: DomainEvent) -> None:
        """Send an event; the broker has it, on all replicas that count, when this returns.

        ConnectionLostError, BrokerError or InvalidValueError if it may not have it.
        """
        check_event(event)
        message = self._message(event)
        key = self.key(message)
        headers: list[tuple[str, bytes | None]] = [*headers_of(message)]
        record = Record(self.topic, key.encode(), message.payload.encode(), headers)
        self._check_open()
        self._make_topics()
        self._sender().send([record])

    def _message(self, event: DomainEvent) -> Message:
        return Message(
            id=checks.name("event_id", event.event_id),
            type=checked_name(event.name),
            source="/ontologia" if self._namespace is None else f"/ontologia/{self._namespace}",
            time=event.occurred_at,
            payload=encoded_payload(event.name, event.payload),
            root_event_id=event.root_event_id,
            chain_depth=event.chain_depth,
            correlation_id=event.correlation_id,
            causation_id=event.causation_id,
            tenant_id=event.tenant_id,
            namespace=self._namespace,
        )

    def _sender(self) -> Publisher:
        with self._setup:
            if self._publisher is None:
                self._publisher = Publisher(self._connection)
            return self._publisher

    def _make_topics(self) -> None:
        with self._setup:
            if self._made:
                return
            kept = {name: _KEPT[name.rpartition(".")[2]] for name in self.retry_topics}
            topics = {name: _settings(seconds) for name, seconds in kept.items()}
            topics[self.dead_letter_topic] = _settings(None)
            self._connection.ensure_topics({self.topic: {}})
            self._connection.ensure_topics(topics, like=self.topic)
            self._made = True

    # -- deliveries -------------------------------------------------------------------------------

    def dequeue(self, batch_size: int, timeout_seconds: float) -> list[EventDelivery]:
        """At most this many events, the oldest of each partition first; [] if none came in time.

        The first call joins the group. With a time that is over the call still waits, for seconds at
        most, until this member has partitions and has received what was in them when it was asked.
        One commit, which also says that these attempts begin. An event whose attempt ended with its
        process comes alone. ConnectionLostError while the broker is away.
        """
        check_dequeue(batch_size, timeout_seconds)
        deadline = time.monotonic() + timeout_seconds
        if not self._turn.acquire(timeout=timeout_seconds):
            return []  # another thread of this process polls
        try:
            ends: dict[tuple[str, int], int] | None = None
            pause = 0.0
            while True:
                self._join()
                self._receive(max(1, batch_size - len(self._ready)), pause)
                if batch := self._next(batch_size):
                    return batch
                self._write_ends()
                self._hold_back()  # what has ended makes room, and what there was no room for is left
                now = time.monotonic()
                if now >= deadline and (self._assigned or now >= self._joined_at + JOIN_SECONDS):
                    if ends is None:
                        ends = self._ends()
                    if self._has_received(ends) or now >= deadline + CATCH_UP_SECONDS:
                        return []
                pause = self._pause(deadline)
        finally:
            self._turn.release()

    def _pause(self, deadline: float) -> float:
        """Seconds to poll for: others may end the wait, a retry may come due, a clock be moved."""
        left = deadline - time.monotonic()
        pause = min(_SLICE, left) if left > 0 else _QUICK_SLICE
        with self._lock:
            if self._later:
                due = (self._later[0][0] - self._clock.now()).total_seconds()
                manual = not isinstance(self._clock, SystemClock)
                pause = min(pause, _QUICK_SLICE if manual else max(0.0, due))
        return pause

    def _ends(self) -> dict[tuple[str, int], int]:
        """Where the partitions end now, as the broker says, which must be there to be asked."""
        with self._lock:
            asked = [at for at, each in self._partitions.items() if not each.paused]
        ends = self._connection.ends(self._client(), asked or [(self.topic, 0)])
        # A transaction is committed a moment before the broker counts its messages.
        return {at: max(ends[at], self._moved.get(at, 0)) for at in asked}

    def _client(self) -> AdminClient:
        with self._setup:
            if self._admin is None:
                self._admin = self._connection.admin()
            return self._admin

    def _has_received(self, ends: Mapping[tuple[str, int], int]) -> bool:
        with self._lock:
            found = ((self._partitions.get(at), end) for at, end in ends.items())
            return all(each is None or each.paused or each.reached(end) for each, end in found)

    def _receive(self, most: int, seconds: float) -> None:
        """Poll: what the group says is carried out, and what comes is ready or waits."""
        consumer = self._consumer
        if consumer is None:
            return
        received: list[Received] = []
        message = consumer.poll(seconds)
        while message is not None and message.error() is not None:  # such as the end of a partition
            received.append(message)
            message = consumer.poll(0)
        if message is not None:
            received.append(message)
            most -= 1
            deadline = time.monotonic() + GATHER_SECONDS
            while most > 0 and (left := deadline - time.monotonic()) > 0:
                more = consumer.consume(most, left)
                received += more
                most -= sum(each.error() is None for each in more)
        with self._lock:
            for each in received:
                self._add(each)
            self._hold_back()
            error, self._error = self._error, None
            if error is not None:
                raise error
            self._connection.check_login(consumer)

    def _hold_back(self) -> None:
        """Receive nothing more of partitions where too much is open: memory is bounded."""
        with self._lock:
            if (consumer := self._consumer) is None:
                return
            for each in self._partitions.values():
                if not each.paused and each.is_full:
                    consumer.pause([self._at(each)])
                    each.paused = True
                elif each.paused and each.has_room:
                    consumer.resume([self._at(each)])
                    each.paused = False

    def _at(self, partition: Partition) -> TopicPartition:
        at: TopicPartition = self._kafka.TopicPartition(partition.topic, partition.number)
        return at

    def _add(self, message: Received) -> None:
        at = (message.topic() or "", message.partition() or 0)
        partition = self._partitions.get(at)
        offset = message.offset()
        error = message.error()
        if error is not None:
            if error.code() == self._kafka.KafkaError._PARTITION_EOF:
                if partition is not None and offset is not None:
                    partition.end = offset
                return
            told = self._connection.error("nothing more is received", error)
            log.debug("%s", told.args[0])
            if error.name() in NO_TOPIC and not self._assigned:
                return  # the topics are there; this broker has not heard of new ones yet
            if not isinstance(told, ConnectionLostError) and error.name() != "_MAX_POLL_EXCEEDED":
                self._error = self._error or told
            return
        if partition is None or offset is None:
            return  # it was revoked meanwhile
        if partition.next is not None:
            if offset < partition.next:
                return  # it was revoked and assigned again meanwhile
            if partition.is_new and offset > partition.next:
                self._note_gap(partition, offset)
        number = next(self._numbers)
        headers: list[Any] = [*(message.headers() or [])]
        record = Record(partition.topic, message.key(), message.value(), headers)
        entry = Entry(partition, offset, number, record, 0)
        partition.add(entry)
        try:
            due = self._read(entry, record, message.timestamp()[1])
        except Exception as wrong:  # noqa: BLE001 - whatever it is, the partition goes on
            said = f"it cannot be read: {describe_error(wrong)}"
            log.error("%s is dead-lettered: %s", _place(entry), said)
            entry.end(self._dead(entry, said, 0))
            return
        if due is not None and due > self._clock.now():
            entry.state = State.WAITING
            heappush(self._later, (due, number, entry))
        else:
            heappush(self._ready, (number, entry))

    def _read(self, entry: Entry, record: Record, written_ms: int) -> datetime | None:
        """Decode the event of a message; when it is due, if that is said."""
        written_at = datetime.fromtimestamp(max(0, written_ms) / 1000, UTC)
        message = read_message(record.headers, record.value, written_at)
        entry.event = DomainEvent(
            checked_name(message.type),
            _payload(message),
            message.id,
            message.time.astimezone(UTC),
            message.tenant_id,
            message.correlation_id,
            message.causation_id,
            message.root_event_id,
            message.chain_depth,
        )
        if record.topic == self.topic:
            return None
        attempt, due = _header(record, _ATTEMPT), _header(record, _NOT_BEFORE)
        entry.attempts = checks.whole(_ATTEMPT, int(attempt or "1"), 1, 2**31 - 1) - 1
        if due is None:
            return None
        instant = from_text(due)
        return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)

    def _note_gap(self, partition: Partition, offset: int) -> None:
        """Say so if messages were deleted before this group had them."""
        at, expected = (partition.topic, partition.number), partition.next or 0
        try:
            first = self._connection.ends(self._client(), [at], first=True)[at]
        except OntologiaError:
            return
        if first > expected:
            log.error(
                "%s/%d: up to %d messages were deleted, by the topic's retention, before group %s "
                "had received them",
                *(*at, min(first, offset) - expected, self.group),
            )

    def _next(self, most: int) -> list[EventDelivery]:
        """The next batch, once it is written that its attempts begin."""
        with self._lock:
            self._check_open()
            self._ready_what_is_due()
            batch = self._take(most)
            if not batch:
                return []
            for entry in batch:
                entry.begin()
            try:
                self._write()
            except BaseException as error:
                for entry in batch:
                    if not entry.partition.lost:
                        entry.release()
                        heappush(self._ready, (entry.number, entry))
                if isinstance(error, _Unsettled):
                    return []
                raise
            return [self._delivery(entry) for entry in batch if not entry.partition.lost]

    def _ready_what_is_due(self) -> None:
        now = self._clock.now() if self._later else None
        while now is not None and self._later and self._later[0][0] <= now:
            _, number, entry = heappop(self._later)
            if entry.state is State.WAITING and not entry.partition.lost:
                entry.state = State.READY
                heappush(self._ready, (number, entry))

    def _take(self, most: int) -> list[Entry]:
        """The first that are ready. One whose process died comes, and stays, alone."""
        batch: list[Entry] = []
        if any(entry.starts > 1 for entry in self._flight.values()):
            return batch
        while self._ready and len(batch) < most:
            _, entry = self._ready[0]
            if entry.state is State.READY and not entry.partition.lost:
                if entry.starts:
                    if batch or self._flight:
                        break
                    most = 1
                batch.append(entry)
            heappop(self._ready)
        return batch

    def _delivery(self, entry: Entry) -> EventDelivery:
        receipt = f"{self._prefix}-{next(self._numbers)}"
        self._flight[receipt] = entry
        event = entry.event
        assert event is not None, "what is ready was read"  # noqa: S101
        return EventDelivery(event, receipt, entry.attempts + entry.starts)

    # -- the end of a delivery --------------------------------------------------------------------

    def ack(self, receipt_handle: str) -> None:
        """It is done; committed with the next batch, and with all that is before it in its partition.

        What a crash kept from being committed is delivered again.
        """
        with self._lock:
            entry = self._ended(receipt_handle)
            entry.end(None)
            late = time.monotonic() - self._written_at > _OLDEST_COMMIT
            if late or entry.partition.moving:
                self._write_if_possible()
                self._check_held(receipt_handle, entry)

    def nack(
        self, receipt_handle: str, *, retry_after_seconds: float, reason: str | None = None
    ) -> None:
        """It failed: it is written to a retry topic, as the next attempt.

        One transaction with the offset that passes it. As long as an earlier delivery of its
        partition is open, or the broker is away, it waits in memory; a crash then has the event
        delivered again from where it was.
        """
        checked_seconds("retry_after_seconds", retry_after_seconds)
        with self._lock:
            entry = self._entry(receipt_handle)
            due = self._clock.now() + timedelta(seconds=retry_after_seconds)
            level = next(
                name
                for name, most in self.retry_topics.items()
                if most is None or retry_after_seconds <= most
            )
            more = {_ATTEMPT: str(entry.attempts + entry.starts + 1), _NOT_BEFORE: to_text(due)}
            self._move(receipt_handle, self._copy(entry, level, reason, more))

    def dead_letter(self, receipt_handle: str, *, reason: str, tried: bool = True) -> None:
        """It failed for good: it is written to the dead-letter topic, as `nack` writes."""
        with self._lock:
            entry = self._entry(receipt_handle)
            attempts = entry.attempts + entry.starts - (not tried)
            self._move(receipt_handle, self._dead(entry, reason, attempts))

    def _dead(self, entry: Entry, reason: str, attempts: int) -> Record:
        more = {_ATTEMPT: str(attempts), _GROUP: self.group}
        return self._copy(entry, self.dead_letter_topic, reason, more)

    def _copy(
        self, entry: Entry, topic: str, reason: str | None, more: Mapping[str, str]
    ) -> Record:
        """The message for another topic, with the headers of its own, and with these."""
        old = entry.record
        assert old is not None, "only a message that has ended has none"  # noqa: S101
        said = dict(more)
        if reason is not None:
            said[_REASON] = storable_text(reason)[:_LONGEST_REASON]
        first = None if entry.partition.topic == self.topic else _header(old, _ORIGIN)
        said[_ORIGIN] = first or _place(entry)
        kept = [each for each in old.headers if each[0] not in _OURS]
        return Record(topic, old.key, old.value, kept + [(k, v.encode()) for k, v in said.items()])

    def _move(self, receipt: str, record: Record) -> None:
        entry = self._ended(receipt)
        entry.end(record)
        self._write_if_possible()
        self._check_held(receipt, entry)

    def abandon(self, receipt_handle: str) -> None:
        """It was not tried: it comes back at once, to its old place, as the same attempt."""
        with self._lock:
            entry = self._ended(receipt_handle)
            entry.release()
            heappush(self._ready, (entry.number, entry))

    def _entry(self, receipt: str) -> Entry:
        found = self._flight.get(receipt)
        if found is None:
            raise UnknownReceiptError(receipt)
        return found

    def _ended(self, receipt: str) -> Entry:
        entry = self._entry(receipt)
        del self._flight[receipt]
        return entry

    def _check_held(self, receipt: str, entry: Entry) -> None:
        """UnknownReceiptError if writing its end showed that the partition was lost."""
        if entry.partition.lost:
            raise UnknownReceiptError(receipt)

    # -- what is committed ------------------------------------------------------------------------

    def _write_ends(self) -> None:
        """Write what has ended; where the group is unsettled, soon."""
        with self._lock, suppress(_Unsettled):
            self._write()

    def _write_if_possible(self) -> None:
        """The same; what cannot be written now is written with the next batch."""
        try:
            self._write_ends()
        except ConnectionLostError as error:
            log.warning("it is written when Kafka is there again: %s", error.args[0])

    def _write(self, *, leaving: bool = False) -> None:
        """Commit how far each partition is, in a transaction with what moves to other topics.

        Of a message that moves either both are written or neither. Nothing is done where nothing has
        changed.
        """
        found = (each.progress(leaving=leaving) for each in self._partitions.values())
        steps = [each for each in found if each is not None]
        if not steps:
            self._written_at = time.monotonic()
            return
        records = [record for step in steps for record in step.records]
        offsets = [self._offset(step) for step in steps]
        if records and self._has_transactions():
            try:
                self._transact(records, offsets)
            except _TooLarge as error:
                self._make_smaller(steps, error.records)
                self._write(leaving=leaving)
                return
        else:
            for record in records:
                self._send(record)
            self._commit(offsets)
        for step in steps:
            step.partition.written(step, again=bool(records))
        self._written_at = time.monotonic()

    def _send(self, record: Record) -> None:
        """Send a record, or what is left of it that its topic takes, on a broker without transactions."""
        left: Record | None = record
        while left is not None:
            try:
                self._sender().send([left])
            except InvalidValueError:
                left = self._smaller(left)
                if left is None:
                    raise
            else:
                return

    def _make_smaller(self, steps: Iterable[Progress], records: Sequence[Record]) -> None:
        """Leave out of these records what their topics do not take; InvalidValueError if nothing can."""
        for step in steps:
            for entry in step.passed:
                if entry.record is None or not any(entry.record is each for each in records):
                    continue
                smaller = self._smaller(entry.record)
                if smaller is None:
                    raise InvalidValueError(
                        f"{_place(entry)} cannot be passed: {entry.record.topic} does not even take a "
                        "dead letter without the message; the event stays where it is",
                        hint="Raise max.message.bytes of that topic.",
                    )
                entry.record = smaller

    def _smaller(self, record: Record) -> Record | None:
        """A record without its reason, else a dead letter without the message; None of such a one."""
        if record.value is not None and _header(record, _REASON):
            headers = [each for each in record.headers if each[0] != _REASON]
            return record._replace(headers=headers)
        if record.topic == self.dead_letter_topic and record.key is None and record.value is None:
            return None
        said = f"it is too large for {record.topic}, and was left where it is"
        log.error("%s is dead-lettered without its payload: %s", _header(record, _ORIGIN), said)
        kept = [each for each in record.headers if each[0] in _KEPT_OF_LARGE]
        made = int(_header(record, _ATTEMPT) or "1") - (_header(record, _NOT_BEFORE) is not None)
        named = {_ATTEMPT: str(made), _GROUP: self.group, _REASON: said}
        headers = [*kept, *((name, text.encode()) for name, text in named.items())]
        return Record(self.dead_letter_topic, None, None, headers)

    def _offset(self, step: Progress) -> TopicPartition:
        partition = step.partition
        offset: TopicPartition = self._kafka.TopicPartition(
            partition.topic, partition.number, step.offset, metadata=step.metadata
        )
        return offset

    def _commit(self, offsets: list[TopicPartition]) -> None:
        consumer = self._consumer
        if consumer is None:
            raise _Unsettled
        try:
            written = consumer.commit(offsets=offsets, asynchronous=False) or []
            failed = next((each.error for each in written if each.error is not None), None)
            if failed is not None:
                raise self._kafka.KafkaException(failed)
        except self._kafka.KafkaException as error:
            raise self._not_written(error) from error

    def _not_written(self, error: KafkaException) -> Exception:
        name = error.args[0].name()
        if name in _PRODUCER_GONE:
            log.warning("Kafka has forgotten this member's producer (%s); it makes another", name)
            self._producer = None
            return _Unsettled()
        if name in _DROPPED:
            log.warning("group %s dropped this member (%s); it joins again", self.group, name)
            self._break()
            return _Dropped()
        if name in _UNSETTLED:
            return _Unsettled()
        return self._connection.error("no offset was committed", error)

    def _has_transactions(self) -> bool:
        """Whether the broker has transactions; said once if it has not."""
        if self._transactions is None or (self._transactions and self._producer is None):
            try:
                producer = self._connection.producer(
                    transactional_id=f"ontologia.{self.group}.{secrets.token_hex(8)}",
                    transaction_timeout_ms=int(_TRANSACTION_SECONDS * 1000),
                    delivery_timeout_ms=int(_TRANSACTION_SECONDS * 1000),
                    message_max_bytes=_LARGEST,  # the topics themselves say what is too large,
                    batch_num_messages=1,  # and of which message: a batch is refused as a whole
                )
                producer.init_transactions(_TRANSACTION_SECONDS)
                self._producer, self._transactions = producer, True
            except self._kafka.KafkaException as error:
                if (
                    not error.args[0]
                    .name()
                    .endswith(("UNSUPPORTED_FEATURE", "UNSUPPORTED_VERSION"))
                ):
                    raise self._connection.error("no transaction can begin", error) from error
                self._transactions = False
                log.warning(
                    "Kafka at %s has no transactions: after a crash an event that failed may come "
                    "back twice, from its topic and from the retry topic",
                    self._connection.servers,
                )
        return self._transactions

    def _transact(self, records: Iterable[Record], offsets: list[TopicPartition]) -> None:
        producer, consumer = self._producer, self._consumer
        if producer is None or consumer is None:
            raise _Unsettled
        self._ends()  # ConnectionLostError now, and not in the middle
        moved: dict[tuple[str, int], int] = {}
        too_large: list[Record] = []

        def deliver(record: Record) -> Callable[[KafkaError | None, Received], None]:
            def delivered(error: KafkaError | None, message: Received) -> None:
                if error is None:
                    at = (message.topic() or "", message.partition() or 0)
                    moved[at] = (message.offset() or 0) + 1
                elif error.name() in TOO_LARGE:
                    too_large.append(record)

            return delivered

        sending = None
        try:
            producer.begin_transaction()
            for sending in records:
                producer.produce(
                    sending.topic,
                    value=sending.value,
                    key=sending.key,
                    headers=list[tuple[str, Any]](sending.headers),
                    on_delivery=deliver(sending),
                )
            sending = None
            member = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction(offsets, member, _TRANSACTION_SECONDS)
        except (self._kafka.KafkaException, BufferError) as error:
            if isinstance(error, BufferError):
                self._abort(producer)
                raise InvalidValueError("too much moves to other topics at once") from error
            name = error.args[0].name()
            # Before the commit, nothing can be committed of a producer that the broker has forgotten.
            self._abort(producer, gone=name in _PRODUCER_GONE)
            if sending is not None and name in TOO_LARGE:
                too_large.append(sending)
            if too_large:
                raise _TooLarge(too_large) from error
            raise self._not_moved(error) from error
        try:
            self._conclude(producer)
        except (_Unsettled, OntologiaError) as error:
            if too_large:
                raise _TooLarge(too_large) from error
            raise
        self._moved |= moved

    def _conclude(self, producer: Producer) -> None:
        """Commit the transaction. If the answer stays away only the broker knows: join anew."""
        for left in (2, 1, 0):
            try:
                producer.commit_transaction(_TRANSACTION_SECONDS)
                return
            except self._kafka.KafkaException as error:
                said = error.args[0]
                if said.txn_requires_abort():
                    self._abort(producer)
                elif left and said.retriable():
                    continue
                else:
                    self._break()
                raise self._not_moved(error) from error

    def _not_moved(self, error: KafkaException) -> Exception:
        """As `_not_written`; what is wrong may be the producer, so the next transaction has another."""
        told = self._not_written(error)
        if not isinstance(told, _Unsettled | ConnectionLostError):
            self._producer = None
        return told

    def _abort(self, producer: Producer, *, gone: bool = False) -> None:
        try:
            producer.flush(_FLUSH_SECONDS)  # says what became of each record; the abort does not
            producer.abort_transaction(_TRANSACTION_SECONDS)
        except self._kafka.KafkaException:
            if not gone:
                self._break()

    def _break(self) -> None:
        """Forget all, and have the next poll join anew: the broker knows what is committed."""
        self._broken, self._producer = True, None
        self._drop(list(self._partitions.values()))

    # -- the group --------------------------------------------------------------------------------

    def _join(self) -> None:
        """Be a member of the group, which has the topics it reads."""
        if self._broken:
            self._leave()
        if self._consumer is not None:
            return
        with self._lock:
            self._check_open()
            self._make_topics()
            self._has_transactions()
            consumer = self._connection.consumer(self.group)
            consumer.subscribe(
                [self.topic, *self.retry_topics],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
            self._consumer, self._joined_at, self._assigned = consumer, time.monotonic(), False

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        """Read how far the group is in these, and which attempts did not end."""
        committed = self._committed(consumer, assigned) if assigned else []
        with self._lock:
            self._assigned = self._assigned or bool(assigned)  # of the first ones there may be none
            for at in committed:
                offset = None if at.offset < 0 else at.offset
                partition = Partition(at.topic, at.partition, offset, at.metadata)
                self._partitions[at.topic, at.partition] = partition

    def _committed(
        self, consumer: Consumer, assigned: list[TopicPartition]
    ) -> list[TopicPartition]:
        """What is committed. The broker does not say while a transaction of a dead member is open."""
        deadline = time.monotonic() + 3 * _TRANSACTION_SECONDS
        while True:
            try:
                return consumer.committed(assigned, timeout=1.0)
            except self._kafka.KafkaException as error:
                if self._closed or time.monotonic() >= deadline:
                    told = self._connection.error("attempts before this one are not known", error)
                    log.warning("%s", told.args[0])
                    return assigned

    def _on_revoke(self, consumer: Consumer, revoked: list[TopicPartition]) -> None:
        """Write what has ended before others have these partitions; the rest was not tried."""
        with self._lock:
            gone = self._mine(revoked)
            for partition in gone:
                for entry in partition.entries.values():
                    if entry.state is State.IN_FLIGHT:
                        partition.forget_start(entry.offset)
            try:
                self._write(leaving=True)
            except (_Unsettled, OntologiaError) as error:
                log.warning("what ended last is delivered again: %s", describe_error(error))
            self._drop(gone)

    def _on_lost(self, consumer: Consumer, lost: list[TopicPartition]) -> None:
        """Others have these partitions already."""
        with self._lock:
            gone = self._mine(lost)
            names = ", ".join(f"{each.topic}/{each.number}" for each in gone)
            if names:
                log.warning("group %s took %s from this member; it joins again", self.group, names)
            self._drop(gone)

    def _mine(self, partitions: Iterable[TopicPartition]) -> list[Partition]:
        found = (self._partitions.get((at.topic, at.partition)) for at in partitions)
        return [each for each in found if each is not None]

    def _drop(self, gone: Iterable[Partition]) -> None:
        """Know nothing more of these: the receipts of their deliveries are unknown."""
        for partition in gone:
            partition.lost = True
            self._partitions.pop((partition.topic, partition.number), None)
        flight = self._flight.items()
        self._flight = {key: entry for key, entry in flight if not entry.partition.lost}
        self._ready = sorted(each for each in self._ready if not each[1].partition.lost)
        self._later = sorted(each for each in self._later if not each[2].partition.lost)

    def _leave(self) -> None:
        """Leave the group: others are given the partitions at once."""
        with self._lock:
            consumer = self._consumer
            if consumer is None:
                return
            try:
                consumer.close()  # revokes first
            finally:
                self._consumer, self._broken = None, False
                self._drop(list(self._partitions.values()))

    # -- the end ----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Commit what is done, and leave the group unless deliveries are in flight.

        What was received and not delivered is another member's. The next `dequeue` joins again.
        """
        self._write_ends()
        if self._turn.acquire(blocking=False):  # or another thread waits for events, as a member
            try:
                if not self._flight:
                    self._leave()
            finally:
                self._turn.release()

    def close(self) -> None:
        """Commit what is done, leave the group, and stop. Idempotent."""
        if self._closed:
            return
        self._closed = True  # a thread that waits in `dequeue` is told
        with self._turn:
            self._leave()
            with self._lock:
                self._flight.clear()
                if self._publisher is not None:
                    self._publisher.close()
                self._publisher = self._producer = self._admin = None
        if self._on_close is not None:
            self._on_close.remove(self.close)

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosedError("the queue is closed", hint="Open another one.")


# -- messages -------------------------------------------------------------------------------------


def _checked(what: str, name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        raise ConfigError(
            f"a Kafka {what} has 1 to 100 letters, digits, dots, dashes and underscores, got "
            f"{name!r:.200}"
        )
    return name


def _settings(seconds: int | None) -> dict[str, str]:
    """Of a topic that keeps messages for so long, or for good."""
    kept = "-1" if seconds is None else str(seconds * 1000)
    more = {"max.message.bytes": str(_LARGEST)}  # what is copied there has headers besides
    return {"cleanup.policy": "delete", "retention.ms": kept} | more


def _payload(message: Message) -> dict[str, Any]:
    payload: dict[str, Any] = codec.decode(message.payload)
    return payload


def _header(record: Record, name: str) -> str | None:
    found = deque((value for key, value in record.headers if key == name), maxlen=1)
    return found[0].decode(errors="replace") if found and found[0] is not None else None


def _place(entry: Entry) -> str:
    return f"{entry.partition.topic}/{entry.partition.number}/{entry.offset}"
