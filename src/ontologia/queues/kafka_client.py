"""Connections to Kafka, for the queue and for relays: settings, topics, sending, and errors.

The library `confluent_kafka` is imported when the first connection is made. Options may hold
passwords and keys, so neither options nor their values are ever in a message or a `repr`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ontologia import codec
from ontologia.errors import (
    BrokerError,
    ConfigError,
    ConfigTypeError,
    ConnectionLostError,
    InvalidValueError,
    OntologiaError,
    SessionClosedError,
)
from ontologia.queues.cloudevents import Message as CloudEvent

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
    from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)
Option: TypeAlias = str | int | float | bool
Key: TypeAlias = Callable[[CloudEvent], str]
KEY = "ontologia.key"
"""The option that says what the key of a message is."""

ASK_SECONDS = 5.0
"""How long the broker has to answer a request about topics or offsets."""
_RECENT = 30.0  # seconds a refused login is taken for the cause of what fails
_ANSWER = 2.0  # seconds for a broker to answer a client after another connection was refused
_AGAIN = 0.05  # seconds before a request is made again
_SLICE = 0.005  # seconds a thread waits for the one that serves the producer
_LOGIN = (
    "_AUTHENTICATION",
    "SASL_AUTHENTICATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
    "ILLEGAL_SASL_STATE",
    "_SSL",
)
_AWAY = (
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_MSG_TIMED_OUT",
    "_RESOLVE",
    "_WAIT_COORD",
    "_DESTROY",
    "_NOENT",  # no leader of a partition is known
    "REQUEST_TIMED_OUT",
    "NETWORK_EXCEPTION",
    "BROKER_NOT_AVAILABLE",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "UNKNOWN_LEADER_EPOCH",
    "FENCED_LEADER_EPOCH",
    "OFFSET_NOT_AVAILABLE",
    "UNSTABLE_OFFSET_COMMIT",
    "CONCURRENT_TRANSACTIONS",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "NOT_COORDINATOR",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
)
# While a broker starts, or has just made a topic.
_ELECTING = (
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "UNKNOWN_LEADER_EPOCH",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_TOPIC_OR_PART",
)
NO_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
TOO_LARGE = ("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE")
_OURS = (
    "acks",
    "auto.offset.reset",
    "bootstrap.servers",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "enable.partition.eof",
    "group.id",
    "isolation.level",
    "metadata.broker.list",
    "request.required.acks",
    "transactional.id",
)
"""Options that the guarantees depend on."""


class Record(NamedTuple):
    """A message to be sent."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class KafkaConnection:
    """How a cluster is reached; makes clients of it. Thread-safe; its `repr` has no options.

    `servers` is `host:port`, several with commas between; `options` are properties of librdkafka,
    such as `security.protocol` and `sasl.password`. ConfigError if they cannot be.
    """

    def __init__(self, servers: str, options: Mapping[str, Option] | None = None) -> None:
        if not isinstance(servers, str) or not servers.strip():
            raise ConfigError(
                "Kafka needs bootstrap_servers, and there are none",
                hint="Set kafka_bootstrap_servers (ONTOLOGIA_KAFKA_BOOTSTRAP_SERVERS) to host:port.",
            )
        if "@" in servers:
            raise ConfigError(
                "bootstrap_servers has an @; Kafka takes no user or password there, so it is not "
                "repeated here",
                hint="Give host:port, and sasl.username and sasl.password in kafka_options.",
            )
        self.servers = servers.strip()
        self._options = checked_options(options or {})
        self._login: tuple[float, KafkaError] | None = None
        self._entered = False

    def __repr__(self) -> str:
        return f"<KafkaConnection {self.servers}>"

    def producer(self, **more: Option) -> Producer:
        """An idempotent producer that waits for all replicas (`acks=all`).

        With `transactional_id=` it has transactions. Other keywords are properties, with `_` for `.`.
        """
        own: dict[str, Option] = {
            "linger.ms": 0,
            "partitioner": "murmur2_random",  # as in Java: a key has one partition in all languages
            "delivery.timeout.ms": 30_000,
            **self._options,
            "enable.idempotence": True,
        }
        producer: Producer = self._client("Producer", own | _dotted(more))
        return producer

    def consumer(self, group: str, **more: Option) -> Consumer:
        """A member of a group, which does not commit on its own; a new group starts at `earliest`.

        It reads committed messages only, and says when it is at the end of a partition.
        """
        own: dict[str, Option] = {
            "queued.max.messages.kbytes": 16_384,
            **_assignor(self._options),
            **self._options,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
        consumer: Consumer = self._client("Consumer", own | _dotted(more))
        return consumer

    def admin(self) -> AdminClient:
        """A client for topics and offsets."""
        admin: AdminClient = self._client("AdminClient", dict(self._options))
        return admin

    def _client(self, kind: str, properties: dict[str, Option]) -> Any:
        kafka = library()
        make = getattr(kafka if kind != "AdminClient" else library("confluent_kafka.admin"), kind)
        # What goes wrong comes out as errors; librdkafka's own lines repeat it by the second.
        settings: dict[str, Any] = {"log_level": 2, **properties, "error_cb": self._note}
        settings["bootstrap.servers"] = self.servers
        try:
            return make(settings)
        except kafka.KafkaException as error:
            raise _refused(error, self._options) from error

    # -- topics -----------------------------------------------------------------------------------

    def ensure_topics(self, topics: Mapping[str, Mapping[str, str]], *, like: str = "") -> None:
        """Create those topics that do not exist, each with its own settings (`retention.ms`).

        They get the broker's default numbers of partitions and replicas; with `like`, the number of
        partitions of that topic. ConnectionLostError or BrokerError if one of them is not there
        afterwards; the others are.
        """
        kafka = library()
        admin = self.admin()
        new_topic = library("confluent_kafka.admin").NewTopic
        try:
            found = admin.list_topics(timeout=ASK_SECONDS).topics
        except kafka.KafkaException as error:
            admin.poll(0)  # it says why
            raise self.error("the topics cannot be listed", error) from error
        self.answered()
        missing = [topic for topic in topics if topic not in found]
        if not missing:
            return
        partitions = len(found[like].partitions) if like in found else -1
        asked = admin.create_topics(
            [
                new_topic(
                    *(topic, partitions if topic != like else -1),
                    replication_factor=-1,
                    config=dict(topics[topic]),
                )
                for topic in missing
            ],
            operation_timeout=ASK_SECONDS,
            request_timeout=ASK_SECONDS,
        )
        for topic, created in asked.items():
            try:
                created.result()
            except kafka.KafkaException as error:
                if _name_of(error) != "TOPIC_ALREADY_EXISTS":
                    raise self._not_created(topic, error) from error
        self._await_topics(admin, missing)

    def _await_topics(self, admin: AdminClient, topics: Iterable[str]) -> None:
        """Wait until brokers know of topics that were just made: a consumer would miss them."""
        deadline = time.monotonic() + ASK_SECONDS
        while time.monotonic() < deadline:
            try:
                if admin.list_topics(timeout=ASK_SECONDS).topics.keys() >= set(topics):
                    return
            except library().KafkaException as error:
                raise self.error("the topics cannot be listed", error) from error
            time.sleep(_AGAIN)

    def _not_created(self, topic: str, error: KafkaException) -> OntologiaError:
        told = self.error(f"the topic {topic} does not exist, and cannot be created", error)
        if isinstance(told, BrokerError):
            told.hint = f"Create it, or give this user the right to: {topic}."
        return told

    def ends(
        self, admin: AdminClient, partitions: Iterable[tuple[str, int]], *, first: bool = False
    ) -> dict[tuple[str, int], int]:
        """The offset after the last committed message of each partition, at this moment.

        With `first` the offset of the first message that is still there.
        """
        kafka, admins = library(), library("confluent_kafka.admin")
        spec = admins.OffsetSpec.earliest() if first else admins.OffsetSpec.latest()
        wanted = {kafka.TopicPartition(*each): spec for each in partitions}
        deadline = time.monotonic() + ASK_SECONDS
        while True:
            asked = admin.list_offsets(
                wanted,
                isolation_level=kafka.IsolationLevel.READ_COMMITTED,
                request_timeout=ASK_SECONDS,
            )
            try:
                found = {(at.topic, at.partition): each.result() for at, each in asked.items()}
                self.answered()
                return {at: each.offset for at, each in found.items()}
            except kafka.KafkaException as error:
                if _name_of(error) in _ELECTING and time.monotonic() < deadline:
                    time.sleep(_AGAIN)
                    # The client keeps what it knows of leaders for 15 minutes unless it lists them.
                    with suppress(kafka.KafkaException):
                        admin.list_topics(timeout=ASK_SECONDS)
                    continue
                admin.poll(0)
                raise self.error("the ends of partitions cannot be read", error) from error

    # -- errors -----------------------------------------------------------------------------------

    def _note(self, error: KafkaError) -> None:
        """What a client says between requests; the requests themselves then only time out."""
        log.debug("Kafka at %s: %s", self.servers, error.name())
        # A broker that goes away while a connection begins gives _SSL, as a wrong certificate does;
        # with a wrong one no broker would have answered before.
        if error.name() in _LOGIN and not (error.name() == "_SSL" and self._entered):
            self._login = time.monotonic(), error

    def answered(self) -> None:
        """A broker did what it was asked: what was refused before was not this login."""
        self._login, self._entered = None, True

    def check_login(self, client: Any) -> None:
        """BrokerError if a broker refused the login lately, and none answers this client now.

        Costs nothing unless one did.
        """
        if (refused := self.refused()) is None:
            return
        try:
            client.list_topics(timeout=_ANSWER)
        except library().KafkaException as error:
            raise refused from error
        self.answered()

    def refused(self) -> BrokerError | None:
        """The error, if a broker refused the login lately and none has answered since."""
        noted = self._login
        if noted is None or time.monotonic() - noted[0] > _RECENT:
            return None
        return BrokerError(
            f"Kafka at {self.servers} refused the login ({noted[1].name()})",
            hint="See security.protocol, sasl.* and ssl.* in kafka_options.",
        )

    def error(self, doing: str, error: KafkaException | KafkaError) -> OntologiaError:
        """An error of the client as one of ours: what was not done, why, and what helps.

        ConnectionLostError for what passes; InvalidValueError for a message that is too large;
        BrokerError for the rest.
        """
        name, said = _name_of(error), _error_of(error)
        if name in _LOGIN:
            self._note(said)
        if name in _LOGIN + _AWAY and (refused := self.refused()) is not None:
            return BrokerError(f"{doing}: {refused.args[0]}", hint=refused.hint)
        if name.endswith("_AUTHORIZATION_FAILED"):
            what = name.removesuffix("_AUTHORIZATION_FAILED").lower().replace("_", " ")
            return BrokerError(
                f"{doing}: this user has not the rights on the {what} at Kafka at {self.servers}",
                hint="The how-to page on Kafka lists the rights that are needed.",
            )
        if name in NO_TOPIC:
            return BrokerError(
                f"{doing}: a topic does not exist at Kafka at {self.servers}",
                hint="It was deleted, or the setting kafka_topic names another one.",
            )
        if name in TOO_LARGE:
            return InvalidValueError(
                f"{doing}: the message is larger than Kafka at {self.servers} accepts",
                hint="Send less, or raise message.max.bytes of the broker and of kafka_options.",
            )
        if name in (*_AWAY, "_SSL") or said.retriable():
            hint = "Do it again: connections are made anew as soon as the broker is there."
            if not self._entered:  # no broker has answered yet: maybe none will
                hint += (
                    " If it is there, check the address, and security.protocol in kafka_options."
                )
            return ConnectionLostError(
                f"{doing}: Kafka at {self.servers} cannot be reached ({name})", hint=hint
            )
        return BrokerError(f"{doing}: Kafka at {self.servers} refused it ({name})")


class Publisher:
    """An idempotent producer that returns when the broker has what it was given. Thread-safe."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._producer = connection.producer()
        self._serving = threading.Lock()
        self._closed = False

    def send(self, records: Sequence[Record]) -> None:
        """Send them, in this order, and wait until all replicas that count have them.

        Raises as `KafkaConnection.error` says, for the first that failed; the broker may have any
        of them then, so sending all of them again may double some.
        """
        if self._closed:
            raise SessionClosedError("the connection to Kafka is closed", hint="Open another one.")
        left, failed = len(records), list[Any]()
        done = threading.Event()

        def delivered(error: KafkaError | None, message: Message) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                failed.append(error)
            if not left:
                done.set()

        for sent, record in enumerate(records):
            try:
                self._produce(record, delivered)
            except library().KafkaException as error:
                failed.append(error)
                left -= len(records) - sent  # this one, and those after it, are not sent
                break
        while left > 0:
            # One thread serves the deliveries of all.
            if self._serving.acquire(blocking=False):
                try:
                    while left > 0:
                        self._producer.poll(0.1)
                        if left > 0:
                            self._check_login()
                finally:
                    self._serving.release()
            else:
                done.wait(_SLICE)
        if failed:
            told = self._connection.error("the message was not stored", failed[0])
            if _error_of(failed[0]).fatal():
                self._producer = self._connection.producer()  # the other one can send nothing more
            raise told
        self._connection.answered()

    def _check_login(self) -> None:
        try:
            self._connection.check_login(self._producer)
        except BrokerError:
            self._producer.purge()  # it would be tried for half a minute
            raise

    def _produce(self, record: Record, delivered: Any) -> None:
        while True:
            try:
                self._producer.produce(
                    record.topic,
                    value=record.value,
                    key=record.key,
                    headers=list[tuple[str, Any]](record.headers),
                    on_delivery=delivered,
                )
                return
            except BufferError:  # the client's own queue is full
                self._producer.poll(0.1)

    def close(self) -> None:
        """Take nothing more. Idempotent."""
        self._closed = True


def library(module: str = "confluent_kafka") -> Any:
    """The module; ConfigError where the extra `kafka` is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            "Kafka needs the library confluent-kafka, which is not installed",
            hint="pip install 'ontologia[kafka]'",
        ) from error


def checked_options(options: Any) -> dict[str, Option]:
    """A copy of the options; ConfigError unless these can be some. No value is repeated."""
    if not isinstance(options, Mapping):
        raise ConfigTypeError(
            f"kafka_options is a table of librdkafka's properties, got {type(options).__name__}"
        )
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float | bool):
            raise ConfigTypeError(
                f"kafka_options: {name!r:.100} is a {type(value).__name__}; properties are texts, "
                "numbers or booleans"
            )
        if name in _OURS:
            raise ConfigError(
                f"kafka_options cannot set {name}: what is promised depends on it",
                hint="Leave it out. Servers, topic and group have settings of their own.",
            )
    return dict(options)


def _assignor(options: Mapping[str, Option]) -> dict[str, Option]:
    """Partitions move one by one; the newer protocol has the broker assign them."""
    if options.get("group.protocol") == "consumer":
        return {}
    return {"partition.assignment.strategy": "cooperative-sticky"}


def _dotted(properties: Mapping[str, Option]) -> dict[str, Option]:
    return {name.replace("_", "."): value for name, value in properties.items()}


def _refused(error: KafkaException, names: Iterable[str]) -> ConfigError:
    """Of what librdkafka says about properties, the name alone: values may be secret."""
    said = _error_of(error).str()
    found = next((name for name in names if name in said), None)
    if found is None:
        return ConfigError("librdkafka does not accept the kafka_options, or these together")
    return ConfigError(
        f"kafka_options: librdkafka does not know {found}, or does not accept its value",
        hint="Its page CONFIGURATION lists the properties.",
    )


def _error_of(error: KafkaException | KafkaError) -> KafkaError:
    told: KafkaError = error.args[0] if isinstance(error, Exception) else error
    return told


def _name_of(error: KafkaException | KafkaError) -> str:
    return _error_of(error).name()


def message_key(chosen: Option) -> Key:
    """What gives the key of a message, as the option `ontologia.key` says; ConfigError for another.

    Where a message has none it is the root event's id.
    """
    found: dict[Option, Key] = {
        "root": lambda message: message.root,
        "type": lambda message: message.type,
        "tenant": lambda message: message.tenant_id or message.root,
        "correlation": lambda message: message.correlation_id or message.root,
    }
    if chosen in found:
        return found[chosen]
    if isinstance(chosen, str) and chosen.startswith("payload.") and len(chosen) > len("payload."):
        field = chosen.removeprefix("payload.")

        def from_payload(message: CloudEvent) -> str:
            value = codec.decode(message.payload).get(field)
            return message.root if value is None else str(value)

        return from_payload
    raise ConfigError(
        f"{KEY} in kafka_options is {chosen!r:.100}; it is root, type, tenant, correlation, or "
        "payload. and the name of a field"
    )
