"""A topic of Kafka: where relays send events, and where intakes read them.

A message is a CloudEvent in binary mode, keyed by the first event of its chain, so that a chain is
in one partition and in order.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ontologia.clock import Clock
from ontologia.delivery.retry import describe_error
from ontologia.errors import (
    BrokerError,
    ConfigError,
    ConnectionLostError,
    InvalidValueError,
    OntologiaError,
)
from ontologia.queues.cloudevents import Message, headers_of, read_message
from ontologia.queues.kafka_client import (
    ASK_SECONDS,
    KEY,
    KafkaConnection,
    Key,
    library,
    message_key,
)
from ontologia.relay.endpoints import Arrival, Portion, Progress

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

    from ontologia.config import OntologiaConfig
    from ontologia.queues.kafka import KafkaEventQueue

log = logging.getLogger(__name__)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SERVER = re.compile(r"[A-Za-z0-9._-]+:\d{1,5}|\[[0-9A-Fa-f:.]+\]:\d{1,5}")
_LOOK = 0.1  # seconds between two looks whether the relay is to stop
_GATHER = 0.005  # seconds that a message waits for others to be stored with it
_SILENCE = 5.0  # seconds without an answer, after which the broker is asked whether it is there
_SETTINGS = 2.0  # seconds for the broker to tell the topic's settings or id; it works without, too
_MOST_BYTES = 1_000_000_000  # librdkafka's own limit
_PARTITIONS = (
    30.0  # seconds between two looks for new partitions, and for another topic of the name
)
_HAS_ID = "topic id"  # stored beside the ids of topics: without it they were not stored yet


def _place(uri: str) -> tuple[str, str]:
    """The servers and the topic of a URI; ConfigError, which does not repeat it, if it has none."""
    servers, _, topic = uri.partition("://")[2].partition("/")
    if "@" in servers:
        raise ConfigError(
            "the URI has an @: Kafka takes no user or password there, so it is not repeated here",
            hint="Give kafka://host:9092/topic, and sasl.username and sasl.password in kafka_options.",
        )
    listed = _with_ports(servers)
    if not listed or not all(map(_SERVER.fullmatch, listed)) or not _TOPIC.fullmatch(topic):
        raise ConfigError(
            "the URI names no topic of Kafka", hint="kafka://broker:9092/topic; ./_- in the name."
        )
    return ",".join(listed), topic


def _with_ports(servers: str) -> list[str]:
    listed = filter(None, map(str.strip, servers.split(",")))
    return [each if ":" in each else f"{each}:9092" for each in listed]


def _connected(uri: str, config: OntologiaConfig) -> tuple[KafkaConnection, str, Key]:
    """How the cluster of a URI is reached, its topic, and what the keys of messages are."""
    servers, topic = _place(uri)
    options = dict(config.kafka_options)
    key = message_key(options.pop(KEY, "root"))
    return KafkaConnection(servers, options), topic, key


class _Topic:
    """A topic of a cluster."""

    def __init__(self, connection: KafkaConnection, topic: str) -> None:
        servers = sorted(_with_ports(connection.servers))
        self.uri = f"kafka://{','.join(servers)}/{topic}"
        self._connection = connection
        self._topic = topic

    def _partitions(self, client: Any, seconds: float | None = None) -> list[int]:
        """The partitions of the topic; BrokerError if there is none.

        All topics are listed: a broker may create one that a producer asks for by its name.
        """
        kafka = library()
        try:
            listed = client.list_topics(timeout=seconds or ASK_SECONDS).topics
        except kafka.KafkaException as error:
            raise self._connection.error(f"{self.uri} cannot be opened", error) from error
        self._connection.answered()
        found = listed.get(self._topic)
        if found is None:
            raise BrokerError(
                f"there is no topic {self._topic} at Kafka at {self._connection.servers}",
                hint=f"Create it: kafka-topics.sh --create --topic {self._topic}. Without the right "
                "to describe a topic, it does not seem to be there.",
            )
        if found.error is not None:
            raise self._connection.error(f"{self.uri} cannot be opened", found.error)
        return sorted(found.partitions)

    def _topic_id(self, admin: Any) -> str | None:
        """What tells a topic from one of the same name before; None if the broker does not say."""
        kafka = library()
        try:
            wanted = kafka.TopicCollection([self._topic])
            [asked] = admin.describe_topics(wanted, request_timeout=_SILENCE).values()
            found = str(asked.result(timeout=_SETTINGS).topic_id)
        except (kafka.KafkaException, TimeoutError) as error:
            log.debug("%s: the topic's id cannot be read: %s", self.uri, type(error).__name__)
            return None
        return None if set(found) <= {"A", "="} else found  # zeros: of brokers before 2.8


class KafkaTarget(_Topic):
    """Sends messages to a topic; see `Target`."""

    def __init__(self, connection: KafkaConnection, topic: str, key: Key) -> None:
        super().__init__(connection, topic)
        self._key = key
        self._create = False
        self._producer: Producer | None = None
        self._left = 0
        self._failed: list[KafkaError] = []

    @classmethod
    def of_uri(cls, uri: str, config: OntologiaConfig) -> KafkaTarget:
        """The topic that a URI names, with the options of the settings."""
        return cls(*_connected(uri, config))

    @classmethod
    def of_queue(cls, queue: KafkaEventQueue) -> KafkaTarget:
        """The topic of a queue, which is created if there is none."""
        made = cls(queue.connection, queue.topic, queue.key)
        made._create = True
        return made

    def open(self) -> None:
        if self._producer is not None:
            return
        library()
        admin = self._connection.admin()
        if self._create:
            self._connection.ensure_topics({self._topic: {}})
        self._partitions(admin)
        # It sends until the broker has a message: one that times out would be passed by others.
        options: dict[str, Any] = {"delivery_timeout_ms": 0, "linger_ms": 5}
        if (largest := self._largest(admin)) is not None:
            options["message_max_bytes"] = largest
        self._producer = self._connection.producer(**options)

    def _largest(self, admin: Any) -> int | None:
        """The most bytes that the topic takes; None if the broker does not say."""
        kafka_admin = library("confluent_kafka.admin")
        resource = kafka_admin.ConfigResource(kafka_admin.ResourceType.TOPIC, self._topic)
        try:
            [asked] = admin.describe_configs([resource], request_timeout=_SILENCE).values()
            found = asked.result(timeout=_SETTINGS)["max.message.bytes"].value
            return min(int(found), _MOST_BYTES)
        except (library().KafkaException, KeyError, ValueError, TimeoutError) as error:
            log.debug("%s: the topic's settings cannot be read: %s", self.uri, type(error).__name__)
            return None

    def send(self, messages: Sequence[Message], stopped: Callable[[], bool]) -> Mapping[int, str]:
        self.open()
        refused = self._produce(messages, stopped)
        if self._failed:
            # Which of them the broker has is found out one by one; it may get some twice.
            for at, message in enumerate(messages):
                if at not in refused:
                    self._failed.clear()
                    refused |= self._produce([message], stopped, at)
                    if self._failed:
                        refused |= self._refusal(at, self._failed[0])
        return refused

    def _refusal(self, at: int, error: KafkaError) -> dict[int, str]:
        """Why the broker will not take a message; raises what is wrong with more than that one."""
        told = self._connection.error("events were not sent", error)
        if not isinstance(told, InvalidValueError):
            raise told
        return {at: told.args[0]}

    def _produce(
        self, messages: Sequence[Message], stopped: Callable[[], bool], first: int = 0
    ) -> dict[int, str]:
        """Give them to the producer, and wait for all answers; those that are too large.

        They are numbered from `first` on.
        """
        producer, kafka = self._producer, library()
        assert producer is not None  # noqa: S101 - it is open
        refused: dict[int, str] = {}
        self._left, self._failed = 0, []
        for at, message in enumerate(messages, first):
            try:
                self._left += 1
                producer.produce(
                    self._topic,
                    value=message.payload.encode(),
                    key=self._key(message).encode(),
                    headers=headers_of(message),  # type: ignore[arg-type]
                    on_delivery=self._delivered,
                )
            except BufferError:
                self._left -= 1
                self._wait(producer, stopped)
                refused |= self._produce(messages[at - first :], stopped, at)
                break
            except kafka.KafkaException as error:
                self._left -= 1
                refused |= self._refusal(at, error.args[0])
        self._wait(producer, stopped)
        return refused

    def _delivered(self, error: KafkaError | None, _: Any) -> None:
        self._left -= 1
        if error is not None:
            self._failed.append(error)

    def _wait(self, producer: Producer, stopped: Callable[[], bool]) -> None:
        """Until the broker has all that was produced."""
        silent_since = time.monotonic()
        left = self._left
        asked = False
        while self._left:
            producer.flush(_LOOK)  # which lets nothing linger
            if self._left < left:
                left, silent_since, asked = self._left, time.monotonic(), False
                continue
            try:
                self._connection.check_login(producer)
            except BrokerError:
                self._drop(producer)
                raise
            silent = time.monotonic() - silent_since
            if stopped() and silent > 1:
                self._drop(producer)
                raise ConnectionLostError(f"{self.uri} was left before it had all events")
            if silent > _SILENCE and not asked:
                asked = True
                log.warning("%s does not answer; %d events wait for it", self.uri, self._left)

    def _drop(self, producer: Producer) -> None:
        """Give up what is on its way; it is sent again by another producer."""
        producer.purge()
        producer.flush(_LOOK)
        self._producer = None

    def close(self) -> None:
        self._producer = None


class KafkaSource(_Topic):
    """Reads the messages of all partitions of a topic; see `Source`.

    It is no member of a group: the store has the offsets, and the broker none.
    """

    def __init__(self, uri: str, config: OntologiaConfig, clock: Clock) -> None:
        connection, topic, _ = _connected(uri, config)
        super().__init__(connection, topic)
        self._clock = clock
        self._consumer: Any = None
        self._admin: Any = None
        self._progress: Progress | None = None
        self._names: list[str] = []
        """The topic's id, until it is stored."""
        self._known_id: str | None = None
        self._anew: list[str] = []
        """Partitions whose stored positions are those of a topic that was deleted."""
        self._assigned: list[int] = []
        self._next: dict[int, int] = {}
        self._ended: set[int] = set()
        self._looked = 0.0
        self._heard = 0.0

    @property
    def at_end(self) -> bool:
        return self._ended.issuperset(self._assigned)

    def open(self, progress: Progress) -> None:
        if self._consumer is None:
            self._consumer = self._connection.consumer(
                "ontologia-intake", auto_offset_reset="error", fetch_wait_max_ms=100
            )
            self._admin = self._connection.admin()
        partitions = self._partitions(self._consumer)
        self._next = {int(part): at for part, at in progress.positions().items()}
        self._progress, self._known_id = progress, None
        self._names, self._anew = [], []
        self._check_topic()
        self._assign(partitions)

    def _check_topic(self) -> bool:
        """Begin at the first message of a topic that was created again; whether it was.

        Its offsets are not those of the topic before. Ids of events tell what is stored already.
        """
        found = self._topic_id(self._admin)
        if found is None or found == self._known_id or self._progress is None:
            return False
        name = f"{_HAS_ID} {found}"
        known = self._progress.known([_HAS_ID, name])
        created = self._known_id is not None or known == {_HAS_ID}
        self._known_id, self._names = found, [] if name in known else [_HAS_ID, name]
        if created:
            log.warning(
                "%s was deleted and created again; the intake begins with its first message, and leaves "
                "out events that are stored",
                self.uri,
            )
            self._next, self._anew = {}, [*self._progress.positions()]
        return created

    def _assign(self, partitions: list[int]) -> None:
        kafka = library()
        self._looked = self._heard = time.monotonic()
        self._assigned, self._ended = partitions, set()
        self._consumer.assign(
            [
                kafka.TopicPartition(
                    self._topic, each, self._next.get(each, kafka.OFFSET_BEGINNING)
                )
                for each in partitions
            ]
        )

    def read(self, most: int, seconds: float, stopped: Callable[[], bool]) -> Portion | None:
        kafka = library()
        self._look_for_partitions()
        if self._anew:
            portion = Portion(positions=dict.fromkeys(self._anew, (0, 0)), names=self._names)
            self._anew, self._names = [], []
            return portion
        try:
            # `consume` waits for as many as it was asked for, or else for all of its time.
            first = self._consumer.poll(max(seconds, _LOOK))
            found = [] if first is None else [first, *self._consumer.consume(most - 1, _GATHER)]
        except kafka.KafkaException as error:
            raise self._connection.error(f"{self.uri} cannot be read", error) from error
        portion = Portion()
        last: dict[int, int] = {}
        for message in found:
            partition, trouble = message.partition(), message.error()
            if trouble is None:
                self._ended.discard(partition)
                last[partition] = message.offset() + 1
                portion.arrivals.append(self._arrival(message))
            elif trouble.name() == "_PARTITION_EOF":
                self._ended.add(partition)
                # Behind the last message are offsets of transactions: their ends, and what was aborted.
                if message.offset() > last.get(partition, self._next.get(partition, 0)):
                    last[partition] = message.offset()
            elif trouble.name() in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
                last[partition] = self._skip_deleted(partition, portion)
            else:
                raise self._connection.error(f"{self.uri} cannot be read", trouble)
        if found:
            self._heard = time.monotonic()
        elif not self.at_end:
            self._check_there()
        if not last:
            return None
        self._next |= last
        portion.positions = {
            str(partition): (position, self._behind(partition, position))
            for partition, position in last.items()
        }
        portion.names, self._names = self._names, []
        return portion

    def _arrival(self, message: Any) -> Arrival:
        place = f"partition {message.partition()}, offset {message.offset()}"
        value: bytes | None = message.value()
        content = value or b""
        try:
            kind, milliseconds = message.timestamp()
            written = (
                datetime.fromtimestamp(milliseconds / 1000, UTC) if kind else self._clock.now()
            )
            event = read_message(message.headers() or [], value, written)
        except OntologiaError as error:
            return Arrival(place, content, problem=error.args[0])
        except Exception as error:  # noqa: BLE001 - whatever it is, the partition goes on
            return Arrival(place, content, problem=f"it cannot be read: {describe_error(error)}")
        return Arrival(place, content, event)

    def _skip_deleted(self, partition: int, portion: Portion) -> int:
        """Go on with the first message there is, and say that those before it were not read."""
        kafka = library()
        place = kafka.TopicPartition(self._topic, partition)
        try:
            first, _ = self._consumer.get_watermark_offsets(place, timeout=ASK_SECONDS)
        except kafka.KafkaException as error:
            raise self._connection.error(f"{self.uri} cannot be read", error) from error
        wanted = self._next.get(partition, 0)
        portion.arrivals.append(
            Arrival(
                f"partition {partition}, offset {wanted}",
                b"",
                problem=f"the broker does not have this offset any more, or not yet: the first that "
                f"it has is {first}, and the intake goes on with that",
            )
        )
        self._next[partition] = first
        self._assign(self._assigned)
        return int(first)

    def _look_for_partitions(self) -> None:
        """Read partitions that were added, too, and a topic that was created again."""
        if time.monotonic() - self._looked < _PARTITIONS:
            return
        self._looked = time.monotonic()
        partitions = self._partitions(self._consumer)
        if self._check_topic() or partitions != self._assigned:
            self._assign(partitions)

    def _check_there(self) -> None:
        """Ask the broker whether it is there, if nothing came from it for a while."""
        self._connection.check_login(self._consumer)
        if time.monotonic() - self._heard > _SILENCE:
            self._heard = time.monotonic()
            self._partitions(self._consumer, _SILENCE)

    def _behind(self, partition: int, position: int) -> int:
        """How many messages come after a position, as far as the client knows."""
        place = library().TopicPartition(self._topic, partition)
        _, high = self._consumer.get_watermark_offsets(place, cached=True)
        return max(0, int(high) - position)

    def lag(self, progress: Progress) -> int:
        kafka = library()
        client = self._connection.consumer("ontologia-intake")
        try:
            positions = progress.positions()
            behind = 0
            for partition in self._partitions(client):
                place = kafka.TopicPartition(self._topic, partition)
                try:
                    low, high = client.get_watermark_offsets(place, timeout=ASK_SECONDS)
                except kafka.KafkaException as error:
                    doing = f"the lag of {self.uri} cannot be counted"
                    raise self._connection.error(doing, error) from error
                behind += max(0, high - max(low, positions.get(str(partition), 0)))
            return behind
        finally:
            client.close()

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = self._admin = None
