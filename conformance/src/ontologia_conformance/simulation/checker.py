"""After a run: what happened is held against what was promised, and the tables against both."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import apsw

from ontologia import codec
from ontologia.store.doctor import examine
from ontologia.store.findings import Severity
from ontologia.store.open import open_store
from ontologia.testing.clock import ManualClock
from ontologia_conformance.simulation.claim_rules import ClaimRules
from ontologia_conformance.simulation.event_rules import EventRules
from ontologia_conformance.simulation.history import (
    Begun,
    Committed,
    Ended,
    Entry,
    Refused,
    Transaction,
    Tried,
)
from ontologia_conformance.simulation.model import Model
from ontologia_conformance.simulation.plan import Plan
from ontologia_conformance.simulation.violation import demand
from ontologia_conformance.simulation.world import World

LOST = "a commit that returned is in the history, with its content"
CONTIGUOUS = "commits are numbered without a gap"
LATEST = "the current state is what the history says"
LEFT = "nothing claimable is left behind"


def check_run(world: World, plan: Plan, path: str) -> None:
    """Violation if a promise was not kept."""
    steps = world.troubles.count["clock stepped"]
    model = replay(world.history, plan, clock_is_right=not steps)
    connection = apsw.Connection(path)
    try:
        _compare(connection, model, world.drained_at)
    finally:
        connection.close()
    _examine(world, plan, path)
    world.troubles.count["events"] += len(model.events)
    world.troubles.count["commits"] += len(model.commits)


def replay(history: Iterable[Entry], plan: Plan, *, clock_is_right: bool) -> Model:
    """Go through a history from its beginning, and hold every entry against the rules."""
    model = Model()
    claims = ClaimRules(plan.settings)
    events = EventRules(model, claims, plan.settings, clock_is_right=clock_is_right)
    for entry in history:
        match entry:
            case Transaction():
                for change in entry.of("event_claims"):
                    claims.changed(entry, change)
                events.before(entry)
                model.apply(entry)
                events.after(entry)
            case Tried():
                events.tried(entry)
            case Refused():
                events.refused(entry)
            case Committed():
                events.told(entry)
                _written(model, entry)
            case Begun():
                claims.begun(entry)
            case Ended():
                claims.finished(entry)
    return model


def _written(model: Model, entry: Committed) -> None:
    """What a caller was told is written is there, as of its commit."""
    number = entry.written.commit_id
    demand(number is None or number in model.commits, LOST, f"commit {number}", entry.step)
    for (kind, type_name), intents in entry.unit.queue.items():
        for key, intent in intents.items():
            found = model.values((kind, type_name, *key), number)
            detail = f"{kind} {type_name} {key} is {found}, and {intent} was committed"
            if intent.patch is None:
                demand(intent.fields in found, LOST, detail, entry.step)
            else:
                patch, stored = codec.decode(intent.patch), [codec.decode(f or "{}") for f in found]
                demand(any(each | patch == each for each in stored), LOST, detail, entry.step)


def _compare(connection: apsw.Connection, model: Model, drained_at: str) -> None:
    """The tables at the end."""
    numbers = [number for (number,) in connection.execute("SELECT id FROM commits ORDER BY id")]
    demand(numbers == list(range(1, len(numbers) + 1)), CONTIGUOUS, f"{numbers}")
    demand(numbers == model.commits, LOST, f"{numbers} are there of {model.commits}")
    latest = {
        ("entity", *row[:2]): row[2]
        for row in connection.execute(
            "SELECT entity_type, entity_key, json(fields) FROM entity_latest"
        )
    } | {
        ("relation", *row[:4]): row[4]
        for row in connection.execute(
            "SELECT relation_type, left_key, right_key, instance_key, json(fields) "
            "FROM relation_latest"
        )
    }
    demand(latest == model.state, LATEST, f"{latest} is current, and {model.state} should be")
    for event_type, consumer_id in sorted(model.subscriptions):
        name = model.name_of(consumer_id)
        for event_id, row in model.events.items():
            if event_type in (row["type"], "*") and row["created_at"] < drained_at:
                claim = model.claims.get((event_id, name))
                over = claim and (claim["ack_at"] or claim["dead_lettered_at"])
                demand(over, LEFT, f"{row['type']} {event_id} for {name}")


def _examine(world: World, plan: Plan, path: str) -> None:
    """What the store's own doctor finds."""
    clock = ManualClock(world.now())
    config = plan.settled(clock)
    store = open_store(path, config, clock, Random(0))
    try:
        broken = store.events.check()
        demand(not broken, "event_store.check() finds nothing", "; ".join(broken))
        for finding in examine(store, clock, config):
            grave = finding.severity is Severity.error
            demand(not grave, "the doctor finds nothing", f"{finding.what}: {finding.where}")
    finally:
        store.close()
