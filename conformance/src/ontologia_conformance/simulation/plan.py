"""What one run is made of: its settings, its handlers, who runs which of them, and for how long."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from random import Random
from typing import Any, Literal

from ontologia.clock import Clock
from ontologia.config import OntologiaConfig
from ontologia.delivery.schedule import Schedule
from ontologia.runtime.handlers import ordered
from ontologia.schema.entity import Entity
from ontologia.schema.relation import Relation
from ontologia_conformance.simulation.workload import (
    ENTITIES,
    RELATIONS,
    Handle,
    PostOffice,
    Produce,
)
from ontologia_conformance.simulation.world import Process


class Plan:
    """Drawn from the seed before anything happens."""

    def __init__(
        self,
        random: Random,
        handlers: Sequence[Handle] | None = None,
        produce: Produce | None = None,
        entity_types: Sequence[type[Entity]] | None = None,
        relation_types: Sequence[type[Relation[Any, Any]]] | None = None,
        schedules: Sequence[Schedule] | None = None,
    ) -> None:
        if (handlers is None) != (produce is None):
            raise TypeError("handlers= and produce= go together: what is produced is handled")
        office = PostOffice(Random(random.random()))
        own = self.own = handlers is None
        self.handlers: list[Handle] = list(office.handlers if handlers is None else handlers)
        self.produce: Produce = produce or office.produce
        self.entity_types = list(entity_types or (ENTITIES if own else ()))
        self.relation_types = list(relation_types or (RELATIONS if own else ()))
        self.schedules = list(schedules or (office.schedules if own else ()))
        marked = ordered(self.handlers)
        for handler in marked:
            if inspect.iscoroutinefunction(inspect.unwrap(handler.function)):
                raise TypeError(f"{handler.id} is async, and only plain handlers can be simulated")
        self.names = [handler.id for handler in marked]
        self.settings: dict[str, Any] = {
            "event_claim_lease_ms": 2_000,
            "session_heartbeat_interval_ms": 700,
            "session_ttl_ms": 3_000,
            "event_backoff_base_ms": random.choice([5, 100]),
            "event_backoff_max_ms": 300,
            "event_max_attempts": random.choice([1, 2, 3, 5]),
            "event_max_conflicts": 3,
            "event_claim_limit": random.choice([1, 3, 100]),
            "max_events_per_iteration": random.choice([2, 1_000]),
            "event_poll_interval_ms": random.choice([100, 1_000]),
            "ack_batch_size": random.choice([1, 2, 100]),
            "event_retention_ms": random.choice([4_000, 604_800_000]),
            "event_gc_interval_ms": random.choice([1_500, 60_000]),
            "max_event_chain_depth": 20,
            "max_abandoned_threads": 1_000_000,  # of this process, whose threads all of them share
        }
        self.steps = random.choice([150, 250, 400])
        """When the troubles end."""
        self.produced = random.choice([2, 4, 6])
        """How often something is produced, all in all."""
        late = random.randrange((len(self.handlers) + 2) // 2)
        self.late = random.sample(self.handlers, late) if random.random() < 0.6 else []
        starts: list[Literal["retained", "now"]] = ["retained", "now"]
        # A handler that starts now is meant to miss what was there; with others' handlers nothing is.
        self.late_start = random.choice(starts) if own else "retained"
        self.workers = random.choice([1, 1, 1, 2, 3])
        self.parts = self._parts(random)

    def _parts(self, random: Random) -> list[list[Handle]]:
        """Which handlers each worker process runs; each is run by one of them at least."""
        rest = [handler for handler in self.handlers if handler not in self.late]
        if random.random() < 0.4:
            return [rest] * random.choice([1, 2, 3])
        parts = [[each for each in rest if random.random() < 0.6] for _ in range(2)]
        for handler in rest:
            if not any(handler in part for part in parts):
                random.choice(parts).append(handler)
        return [part for part in parts if part]

    def config(self, process: Process) -> OntologiaConfig:
        """The settings of a process; what the machine's files and environment say is nothing here."""
        return OntologiaConfig.model_construct(
            clock=process.clock, random=process.random, **self.settings
        )

    def settled(self, clock: Clock) -> OntologiaConfig:
        """The same for whoever looks at it afterwards."""
        return OntologiaConfig.model_construct(clock=clock, **self.settings)
