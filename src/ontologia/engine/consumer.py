"""Consumers: who processes events of some types under one name, and by which rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ontologia.clock import Clock
from ontologia.delivery.retry import RetryPolicy
from ontologia.engine.scheduler import Scheduler
from ontologia.errors import StateConflictError
from ontologia.store.events.leases import Done
from ontologia.store.protocol import Store
from ontologia.store.rows import Claim

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig

Call: TypeAlias = Callable[[Claim], Done | StateConflictError | None]


@dataclass(slots=True, eq=False)
class InOrder:
    """For a consumer that takes events in order, many at a time.

    They are claimed oldest first, whatever their priority, and by one session at a time: while one
    has claims that have not ended, no other gets any. An engine runs such a consumer with one
    worker.
    """

    most: int
    """Maximum events of the next batch."""
    prepare: Callable[[Sequence[Claim]], None]
    """Called with a batch before its events are processed one by one, while their leases are renewed.

    What it raises ends the run.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Consumer:
    """What an engine runs: a handler, a group of workers, a bus, a mirror or a relay."""

    name: str
    types: Sequence[str]
    call: Call
    """Processes one event; returns its ack, or None if the claim has ended already.

    What it raises ends the attempt. A conflict that it returns runs it again at once.
    """
    policy: RetryPolicy
    lease_ms: float
    timeout_ms: float | None = None
    """How long a call may take; None for until shortly before its lease ends, `inf` for any time."""
    renew: bool = False
    """Whether the lease is renewed while the call runs."""
    formerly: Sequence[str] = ()
    """Names that it had before."""
    batch: int | None = None
    """Maximum events to claim at a time, each started alone; None for as many as take 50 ms."""
    in_order: InOrder | None = None
    """Whether, and how, it takes batches in order; None for the order of urgency."""
    reason: Callable[[BaseException], str] | None = None
    """The text of its dead letters; None for the class and the message of the error."""
    is_outdated: Callable[[], bool] = lambda: False
    """Whether this program's types are outdated, so that a SchemaOutdatedError ends the run."""


class Host(Protocol):
    """What an engine needs to know of the session for which it claims."""

    config: OntologiaConfig
    namespace: str
    session_id: str
    instance: dict[str, Any]
    """Metadata of the session's row."""
    clock: Clock
    random: Random
    store: Store
    scheduler: Scheduler
    running: list[Consumer]
    on_close: list[Callable[[], None]]

    def check_open(self) -> None:
        """SessionClosedError if the session is closed."""
        ...

    def register_session(self, **more: Any) -> None:
        """Write the row of the session."""
        ...

    def end_session(self) -> None:
        """Write that the session has ended."""
        ...
