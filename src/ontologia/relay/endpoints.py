"""Targets of relays and sources of intakes: what one is, and how a URI chooses it.

`kafka://host:9092/topic` is a topic; several servers stand with commas between. `s3://bucket/prefix`
are the objects `<prefix>/<namespace>/messages/<id>.json` of a bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ontologia.delivery.retry import describe_error
from ontologia.errors import ConfigError, ConfigTypeError, OntologiaError
from ontologia.queues.cloudevents import Message
from ontologia.runtime.session import core_of

if TYPE_CHECKING:
    from ontologia.runtime.session import Session
    from ontologia.store.events.intakes import Intakes

LONGEST_URI = 480
"""Characters: a consumer is named by it."""


class Target(Protocol):
    """Where a relay sends events."""

    uri: str
    """Names the target, and says where it is; without user, password and options."""

    def open(self) -> None:
        """Connect. ConfigError, BrokerError or DatabaseError if nothing can be sent there.

        ConnectionLostError if it cannot be reached. Idempotent.
        """
        ...

    def send(self, messages: Sequence[Message], stopped: Callable[[], bool]) -> Mapping[int, str]:
        """Send messages, those of one key one after the other, and wait until the target has them.

        Returns why it will never take some of them, by their numbers; it has all others then.
        ConnectionLostError if it cannot be reached, or if `stopped` before it has them: some
        may have arrived, and all are to be sent again.
        """
        ...

    def close(self) -> None:
        """Disconnect. Idempotent."""
        ...


@dataclass(slots=True)
class Arrival:
    """A message that an intake has read."""

    place: str
    """Where the source has it: `partition 3, offset 17`, or a key."""
    content: bytes
    """What it consists of, for one that cannot be understood."""
    message: Message | None = None
    problem: str | None = None
    """What is wrong with it, if it is no event."""


def problem_of(error: Exception) -> str:
    """Why a message cannot be stored, in a sentence, for the error that it gave."""
    if isinstance(error, OntologiaError):
        return str(error.args[0])
    return f"it cannot be read: {describe_error(error)}"


@dataclass(slots=True)
class Portion:
    """What one read of a source has found."""

    arrivals: list[Arrival] = field(default_factory=list[Arrival])
    positions: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """For each part that was read: the next position, and how many messages are left behind it."""
    names: list[str] = field(default_factory=list[str])
    """Names of messages that were read, where the source has no positions."""


class Progress(NamedTuple):
    """How far a source was read, as the store has it."""

    intakes: Intakes
    namespace: str
    source: str

    def positions(self) -> dict[str, int]:
        """The next position to read of each part."""
        return self.intakes.positions(self.namespace, self.source)

    def known(self, names: Sequence[str]) -> set[str]:
        """Those of these names that were read."""
        return self.intakes.known(self.namespace, self.source, names)

    def prune(self, after: str, until: str, kept: Sequence[str]) -> None:
        """Forget the names after one and up to another that the source does not have any more."""
        self.intakes.prune(self.namespace, self.source, after, until, kept)


class Source(Protocol):
    """Where an intake gets messages from. For one thread, but for `lag`."""

    uri: str
    """Names the source, and says where it is; without user, password and options."""

    def open(self, progress: Progress) -> None:
        """Connect, and go on after what was read. Raises as `Target.open` does.

        Again when something else has stored progress.
        """
        ...

    def read(self, most: int, seconds: float, stopped: Callable[[], bool]) -> Portion | None:
        """The next messages, about `most`; None if none came within the time.

        ConnectionLostError if it cannot be reached.
        """
        ...

    @property
    def at_end(self) -> bool:
        """Whether the last read found that nothing is left."""
        ...

    def lag(self, progress: Progress) -> int:
        """How many messages were not read: 0 once all were, and before that an upper bound.

        ConnectionLostError if it cannot be reached.
        """
        ...

    def close(self) -> None:
        """Disconnect. Idempotent."""
        ...


def open_target(uri: str, session: Session) -> Target:
    """The target that a URI names; nothing is sent to it yet. ConfigError if there is none such."""
    match _scheme(uri, "target"):
        case "kafka":
            from ontologia.relay.kafka import KafkaTarget

            return KafkaTarget.of_uri(uri, session.config)
        case _:
            from ontologia.relay.bucket import BucketTarget

            return BucketTarget(uri)


def open_source(uri: str, session: Session) -> Source:
    """The source that a URI names; it is not asked anything yet. ConfigError if there is none such."""
    match _scheme(uri, "source"):
        case "kafka":
            from ontologia.relay.kafka import KafkaSource

            return KafkaSource(uri, session.config, core_of(session).clock)
        case _:
            from ontologia.relay.bucket import BucketSource

            return BucketSource(uri, session.namespace, core_of(session).clock)


def _scheme(uri: object, what: str) -> str:
    if not isinstance(uri, str):
        raise ConfigTypeError(f"the URI of a {what} is text, got {type(uri).__name__}")
    scheme, found, _ = uri.partition("://")
    if not found or scheme.lower() not in ("kafka", "s3"):
        # The rest is not repeated: people put passwords into URIs.
        known = scheme if found and scheme.isalnum() and len(scheme) < 20 else ""
        raise ConfigError(
            f"there is no {what} of the scheme {known}://" if known else f"the {what} is no URI",
            hint="kafka://broker:9092/topic or s3://bucket/prefix.",
        )
    if len(uri) > LONGEST_URI:
        raise ConfigError(f"the URI of a {what} has at most {LONGEST_URI} characters")
    return scheme.lower()
