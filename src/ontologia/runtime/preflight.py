"""What a program would meet in a store if it were deployed now. Reads only.

`preflight` compares what a program has (types, handlers, schedules) with what the store has, and has
the program's classes read a part of the payloads that wait for its handlers. Each finding says
whether the deployment would break something, and what helps. The session must have the program's types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cronsim import CronSimError
from pydantic import ValidationError

from ontologia.clock import from_text
from ontologia.delivery.retry import describe_error
from ontologia.delivery.schedule import Schedule, next_tick
from ontologia.engine.consumer import Consumer
from ontologia.engine.coroutines import Coroutines
from ontologia.runtime.handler_engine import consumer_of
from ontologia.runtime.handlers import event_registry, ordered
from ontologia.runtime.modules import Contents
from ontologia.runtime.session import core_of
from ontologia.schema.event import Event, payload_of
from ontologia.store.events.claims import ALL_TYPES
from ontologia.store.events.decoding import read_payload

if TYPE_CHECKING:
    from ontologia.migration.plan import MigrationPreview
    from ontologia.runtime.session import Session
    from ontologia.schema.diff import TypeDiff
    from ontologia.schema.registry import Registry
    from ontologia.store.events.backlog import Fire, Payload
    from ontologia.store.staging import PendingMigration

SAMPLE = 200
"""Payloads of a type that are read of each state, unless all are to be."""
_MOST_REASONS = 20  # of one type and state; whatever a class may say of each payload
_OTHER_REASONS = "other reasons"
_OTHER_COMMANDS = ("worker:", "bus:", "relay:", "actors:")
"""What the names of consumers begin with that are no handlers."""
_SLACK = timedelta(days=1)
State = Literal["waiting", "retained", "deferred", "dead-lettered"]
"""Payloads that wait for a handler, that a new handler gets, that wait for their time, dead letters."""


class Effect(StrEnum):
    """What a finding means for a deployment."""

    breaks = "breaks"
    """Something would fail, wait for ever or become a dead letter."""
    warns = "warns"
    """It may well be meant; somebody should know."""
    informs = "informs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that the program would meet."""

    effect: Effect
    what: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFinding(Finding):
    """The layout of the tables."""

    found: int | None
    known: int
    """The layout of this version of Ontologia."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeFinding(Finding):
    """A type that the store has otherwise than the program."""

    kind: str
    name: str
    version: int
    """The version in the store."""
    compatible: bool
    changes: dict[str, str]
    """Fields and parts that change, each with `compatible` or the reason why it is breaking."""
    objects: int
    """How many would be written anew."""
    missing_upgraders: list[int]
    duplicates: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFinding(Finding):
    """A consumer that the store and the program do not have alike."""

    name: str
    change: Literal["new", "subscribes", "adopts", "unsubscribed", "not in the program"]
    type: str | None
    """The event type; None for all types of the consumer."""
    events: int
    """How many it would get, or how many wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadFinding(Finding):
    """Payloads that the program's class cannot read, for one reason."""

    type: str
    state: State
    reason: str
    count: int
    """Deliveries: an event that waits for two handlers counts twice."""
    example: str
    """The ID of such an event."""


class PayloadCount(NamedTuple):
    """How many payloads of a type were read, and how many of them cannot be."""

    type: str
    state: State
    read: int
    unreadable: int
    complete: bool
    """Whether these are all that there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFinding(Finding):
    """A schedule that the store and the program do not have alike."""

    change: Literal["new", "changed", "not in the program"]
    type: str | None
    """None if the event of its last tick is not retained."""
    cron: str | None
    tz: str | None = None
    last_tick: datetime | None = None
    """When the one that the store knows fired last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFinding(Finding):
    """A session that is alive."""

    session_id: str
    namespace: str
    hostname: str | None
    pid: int | None
    started_at: str
    consumers: list[str]
    outdated: list[str]
    """Types with a breaking change that it is known to have as they are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFinding(Finding):
    """The attempt that runs longest."""

    event_id: str
    type: str
    handler: str
    session_id: str
    started_at: datetime
    seconds: float


@dataclass(frozen=True, slots=True)
class Preflight:
    """What a program would meet."""

    namespace: str | None
    """The namespace of the events; None if nothing but the layout could be looked at."""
    layout: LayoutFinding
    types: list[TypeFinding] = field(default_factory=list[TypeFinding])
    consumers: list[ConsumerFinding] = field(default_factory=list[ConsumerFinding])
    payloads: list[PayloadFinding] = field(default_factory=list[PayloadFinding])
    read: list[PayloadCount] = field(default_factory=list[PayloadCount])
    schedules: list[ScheduleFinding] = field(default_factory=list[ScheduleFinding])
    sessions: list[SessionFinding] = field(default_factory=list[SessionFinding])
    longest_attempt: AttemptFinding | None = None

    def findings(self) -> Iterator[tuple[str, Finding]]:
        """All of them, each with what it is about."""
        yield "layout", self.layout
        for about in ("types", "consumers", "payloads", "schedules", "sessions"):
            for finding in getattr(self, about):
                yield about, finding
        if self.longest_attempt is not None:
            yield "attempts", self.longest_attempt

    @property
    def breaks(self) -> bool:
        """Whether the deployment would break something."""
        return any(finding.effect is Effect.breaks for _, finding in self.findings())


def of_layout(found: int | None, known: int) -> Preflight:
    """What there is to say of a store that this version of Ontologia does not open as it is."""
    if found is not None and found > known:
        what = f"layout {found}, and this version of Ontologia knows layouts up to {known}"
        remedy = "Deploy with the version that wrote it, or a newer one."
    else:
        what = (
            f"layout {found}, which this version of Ontologia brings to {known} when it first opens "
            f"the store; nothing else could be looked at"
        )
        remedy = (
            "ontologia init brings it up to date; then ask again. A program with an older version "
            "cannot open the store afterwards."
        )
    finding = LayoutFinding(
        effect=Effect.breaks, what=what, remedy=remedy, found=found, known=known
    )
    return Preflight(None, finding)


def preflight(
    session: Session,
    program: Contents,
    *,
    sample: int | None = SAMPLE,
    progress: Callable[[str], None] = lambda _: None,
) -> Preflight:
    """What this program would meet in the session's store and namespace. Writes nothing.

    Costs what waits, the retained events of types that are new to a handler, and the objects of
    types that change; what was finished costs nothing. `sample` is how many payloads of a type are
    read of each state, those next in line; None for all. `progress` is told what is looked at.
    HandlerError if the handlers cannot run together.
    """
    handlers = ordered(program.handlers)
    event_registry(handlers)  # as a run, which has one class for each type
    coroutines = Coroutines()
    consumers = [consumer_of(session, each, coroutines) for each in handlers]
    classes = {each.id: each.event_cls for each in handlers}
    core = core_of(session)
    layout = core.store.inventory.about().layout
    progress("types")
    preview = session.migrate()
    live = session.event_store.listings.live_sessions()
    progress("consumers")
    changes = _Changes(session, consumers, live)
    reading = _Reading(session, sample, progress)
    reading.read(consumers, classes, changes.new_types)
    progress("schedules, sessions and attempts")
    return Preflight(
        session.namespace,
        LayoutFinding(
            effect=Effect.informs,
            what=f"layout {layout}, which is that of this version of Ontologia",
            found=layout,
            known=layout,
        ),
        list(_types(preview, core.registry, session.pending_migration())),
        changes.findings,
        list(reading.findings()),
        reading.counts(),
        list(_schedules(session, program.schedules)),
        list(_sessions(session, live, preview.diffs)),
        _longest_attempt(session),
    )


# -- types ------------------------------------------------------------------------------------------


def _types(
    preview: MigrationPreview, registry: Registry, pending: PendingMigration | None
) -> Iterator[TypeFinding]:
    for diff, name in zip(preview.diffs, preview.objects, strict=True):
        missing = preview.missing_upgraders.get(name, [])
        duplicates = [str(each) for each in preview.duplicates.get(name, ())]
        wrong = [
            *(f'there is no @upgrader("{diff.name}", from_version={each})' for each in missing),
            *duplicates,
        ]
        reasons = [f"{changed}: {reason}" for changed, reason in diff.breaking]
        what = f"{diff.kind} {diff.name}, version {diff.from_version}: "
        what += f"breaking ({', '.join(reasons)})" if reasons else "a compatible change"
        effect, remedy = Effect.informs, "Apply it before the program starts: ontologia migrate"
        if shape := registry.find(diff.kind, diff.name):
            remedy += f" --models {shape.cls.__module__}"
        if wrong:
            effect, what = Effect.breaks, f"{what}; {', '.join(wrong)}"
            remedy = (
                "Write the upgrader."
                if missing
                else "Change these values first, with the old program."
            )
        elif reasons:
            effect = Effect.warns
        if pending is not None and (diff.kind, diff.name) in pending.keys:
            what += f"; {pending}"
        yield TypeFinding(
            effect=effect,
            what=what,
            remedy=remedy,
            kind=diff.kind,
            name=diff.name,
            version=diff.from_version,
            compatible=diff.compatible,
            changes={each: diff.verdict(each) for each in _changed(diff)},
            objects=preview.objects[name],
            missing_upgraders=missing,
            duplicates=duplicates,
        )


def _changed(diff: TypeDiff) -> list[str]:
    return [*diff.added, *diff.removed, *(name for name, _, _ in diff.changed)]


# -- consumers --------------------------------------------------------------------------------------


class _Changes:
    """The consumers of a program against those of a namespace."""

    def __init__(
        self, session: Session, consumers: Sequence[Consumer], live: list[dict[str, Any]]
    ) -> None:
        self._session = session
        self._events = session.event_store
        self._live = [each for each in live if each["namespace"] == session.namespace]
        self._stored = {
            each["name"]: set[str](each["types"])
            for each in self._events.list_consumers(session.namespace)
        }
        self._waiting: dict[tuple[str, str], int] = {}
        for row in self._events.activity.waiting(session.namespace):
            number = row["waiting"] + row["claimed"] + row["backoff"]
            self._waiting[row["handler"], row["type"]] = number
        ours = {name for each in consumers for name in _names(each)}
        self._others = sorted(self._stored.keys() - ours)
        self.new_types: set[tuple[str, str]] = set()
        """Consumers and types that they would subscribe to."""
        self.findings: list[ConsumerFinding] = []
        for consumer in consumers:
            self._compare(consumer)
        for name in self._others:
            self._add_other(name)

    def _add(
        self,
        effect: Effect,
        what: str,
        remedy: str | None,
        name: str,
        change: Literal["new", "subscribes", "adopts", "unsubscribed", "not in the program"],
        event_type: str | None,
        events: int,
    ) -> None:
        self.findings.append(
            ConsumerFinding(
                effect=effect,
                what=what,
                remedy=remedy,
                name=name,
                change=change,
                type=event_type,
                events=events,
            )
        )

    def _compare(self, consumer: Consumer) -> None:
        names = [name for name in _names(consumer) if name in self._stored]
        subscribed = {each for name in names for each in self._stored[name]}
        for event_type in sorted(set(consumer.types) - subscribed):
            self._add_new(consumer, event_type, known=bool(names))
        for name in names:
            if name != consumer.name:
                self._add_adopted(consumer, name)
        for event_type in sorted(subscribed - set(consumer.types) - {ALL_TYPES}):
            self._add_unsubscribed(consumer, names, event_type)

    def _add_new(self, consumer: Consumer, event_type: str, *, known: bool) -> None:
        self.new_types.add((consumer.name, event_type))
        count = self._events.backlog.count_retained(
            self._session.namespace, _names(consumer), event_type
        )
        is_new = "subscribes to another type" if known else "is new to the store"
        gets = f"it gets {_counted(count, 'retained event')} of {event_type}"
        remedy = "`ontologia run --start now` skips them." if count else None
        if count and not known:
            alike = [name for name in self._others if event_type in self._stored[name]]
            renamed = f"formerly=[{alike[0]!r}]" if alike else "formerly=['its old name']"
            remedy = f"If it was renamed: on_event(..., {renamed}). Otherwise {remedy}"
        self._add(
            Effect.warns if count else Effect.informs,
            f"{consumer.name} {is_new}: {gets}",
            remedy,
            *(consumer.name, "subscribes" if known else "new", event_type, count),
        )

    def _add_adopted(self, consumer: Consumer, old: str) -> None:
        running = [each["session_id"] for each in self._live if old in _consumers(each)]
        count = self._count(old)
        self._add(
            Effect.informs,
            f"{consumer.name} adopts what {old} had; {_waits(count)}",
            f"It begins once these sessions, which run {old}, have ended: {', '.join(running)}"
            if running
            else None,
            *(consumer.name, "adopts", None, count),
        )

    def _add_unsubscribed(self, consumer: Consumer, names: list[str], event_type: str) -> None:
        count = sum(self._waiting.get((name, event_type), 0) for name in names)
        self._add(
            Effect.breaks if count else Effect.informs,
            f"{consumer.name} is subscribed to {event_type} and does not take it any more; "
            + _waits(count)
            + (" for ever" if count else ""),
            f"If the class was renamed, give it the stored type: class NewName(Event, "
            f"name={event_type!r}). Otherwise have the old program finish them first."
            if count
            else None,
            *(consumer.name, "unsubscribed", event_type, count),
        )

    def _add_other(self, name: str) -> None:
        count = self._count(name)
        foreign = name.startswith(_OTHER_COMMANDS)
        self._add(
            Effect.warns if count and not foreign else Effect.informs,
            f"{name} is {'no handler' if foreign else 'not in the program'}; {_waits(count)} for it",
            f"Have a program run it, adopt it with on_event(..., formerly=[{name!r}]), or remove it: "
            f"ontologia events forget {name}"
            if count and not foreign
            else None,
            *(name, "not in the program", None, count),
        )

    def _count(self, name: str) -> int:
        return sum(count for (whose, _), count in self._waiting.items() if whose == name)


def _names(consumer: Consumer) -> list[str]:
    """What the store may know it by."""
    return [consumer.name, *consumer.formerly]


def _consumers(session: dict[str, Any]) -> list[str]:
    """What a session said it runs."""
    named: list[str] = session["metadata"].get("consumers", [])
    return named


# -- payloads ---------------------------------------------------------------------------------------


class _Tally:
    """What came of reading payloads of one type and state."""

    def __init__(self, class_name: str) -> None:
        self.class_name = class_name
        self.read = 0
        self.complete = True
        self.reasons: dict[str, list[Any]] = {}
        """How many payloads cannot be read, and an event's ID, by the reason."""

    def add(self, reason: str, event_id: str) -> None:
        """One more cannot be read."""
        if reason not in self.reasons and len(self.reasons) >= _MOST_REASONS:
            reason = _OTHER_REASONS
        self.reasons.setdefault(reason, [0, event_id])[0] += 1


class _Reading:
    """Has the program's classes read payloads, as its handlers would have them read."""

    def __init__(
        self, session: Session, sample: int | None, progress: Callable[[str], None]
    ) -> None:
        self._namespace = session.namespace
        self._backlog = session.event_store.backlog
        self._upgraders = session.event_store.upgraders
        self._sample = sample
        self._progress = progress
        self._tallies: dict[tuple[str, State], _Tally] = {}

    def read(
        self,
        consumers: Sequence[Consumer],
        classes: dict[str, type[Event]],
        new_types: set[tuple[str, str]],
    ) -> None:
        """Read what waits for these consumers, and what a new one gets."""
        namespace, backlog = self._namespace, self._backlog
        names: dict[str, list[str]] = {}
        by_type: dict[str, type[Event]] = {}
        for consumer in consumers:
            cls = classes[consumer.name]
            for event_type in consumer.types:
                by_type.setdefault(event_type, cls)
                names.setdefault(event_type, []).extend(_names(consumer))
                new = (consumer.name, event_type) in new_types
                ask = backlog.retained if new else backlog.waiting
                found = partial(ask, namespace, _names(consumer), event_type)
                self._read(cls, event_type, "retained" if new else "waiting", found)
        for event_type, cls in by_type.items():
            found = partial(backlog.deferred, namespace, event_type)
            self._read(cls, event_type, "deferred", found)
            found = partial(backlog.dead, namespace, names[event_type], event_type)
            self._read(cls, event_type, "dead-lettered", found)

    def _read(
        self,
        cls: type[Event],
        event_type: str,
        state: State,
        found: Callable[[], Iterator[Payload]],
    ) -> None:
        tally = self._tallies.setdefault((event_type, state), _Tally(cls.__name__))
        self._progress(f"{state} payloads of {event_type}")
        for payload in found():
            if self._sample is not None and tally.read >= self._sample:
                tally.complete = False
                return
            tally.read += 1
            try:
                read_payload(cls, event_type, payload.event_id, payload.text, self._upgraders)
            except Exception as error:  # noqa: BLE001 - a validator of the user's may raise anything
                tally.add(_reason(cls, error), payload.event_id)

    def counts(self) -> list[PayloadCount]:
        """How many were read, where there were any."""
        return [
            PayloadCount(
                event_type,
                state,
                tally.read,
                sum(count for count, _ in tally.reasons.values()),
                tally.complete,
            )
            for (event_type, state), tally in sorted(self._tallies.items())
            if tally.read
        ]

    def findings(self) -> Iterator[PayloadFinding]:
        """What could not be read."""
        for (event_type, state), tally in sorted(self._tallies.items()):
            dead = state == "dead-lettered"
            for reason, (count, example) in tally.reasons.items():
                yield PayloadFinding(
                    effect=Effect.warns if dead else Effect.breaks,
                    what=f"{count:,} of {_counted(tally.read, f'{state} payload')} of {event_type} "
                    f"cannot be read as {tally.class_name}, such as event {example}: {reason}",
                    remedy="A retry fails until the class reads them."
                    if dead
                    else "They would become dead letters. Give new fields a default and accept the "
                    "values of before, or have the old program finish these events first.",
                    type=event_type,
                    state=state,
                    reason=reason,
                    count=count,
                    example=example,
                )


def _reason(cls: type[Event], error: Exception) -> str:
    """Why a payload cannot be read, in words that are the same for all that fail alike."""
    cause = error.__cause__
    if isinstance(cause, ValidationError):
        return f"{type(error).__name__}: {cls.__shape__.explain(cause, values=False)}"
    return describe_error(error)


# -- schedules --------------------------------------------------------------------------------------


def _schedules(session: Session, schedules: Sequence[Schedule]) -> Iterator[ScheduleFinding]:
    now = core_of(session).clock.now()
    ours = {each.key: each for each in schedules}
    fires = session.event_store.backlog.last_fires(session.namespace)
    known = {each.key for each in fires}
    gone = [each for each in fires if each.key not in ours and not _has_stopped(each, now)]
    for key, schedule in ours.items():
        if key in known:
            continue
        event_type = type(schedule.event).__event_type__
        facts: dict[str, Any] = {"type": event_type, "cron": schedule.cron, "tz": schedule.tz}
        at = f"{event_type} at '{schedule.cron}'{f' {schedule.tz}' if schedule.tz else ''}"
        before = _before(schedule, gone)
        if before is None:
            what = f"{at} is new to the store: it fires from its next time on"
            yield ScheduleFinding(effect=Effect.informs, what=what, change="new", **facts)
            continue
        gone.remove(before)
        cron = "" if before.cron == schedule.cron else f" from '{before.cron}'"
        yield ScheduleFinding(
            effect=Effect.warns,
            what=f"{at} has changed{cron or ' in its fields, priority or zone'}",
            remedy="While programs of both versions run, both fire. Stop the old one first if that "
            "matters.",
            change="changed",
            last_tick=before.tick,
            **facts,
        )
    for each in gone:
        named = each.event_type or "a schedule whose event is not retained"
        cron = f" at '{each.cron}'" if each.cron else ""
        yield ScheduleFinding(
            effect=Effect.warns,
            what=f"{named}{cron} is not in the program; it fired last at {each.tick:%Y-%m-%d %H:%M} UTC",
            remedy="If no other program has it, it does not fire any more.",
            change="not in the program",
            type=each.event_type,
            cron=each.cron,
            last_tick=each.tick,
        )


def _has_stopped(fire: Fire, now: datetime) -> bool:
    """Whether nobody fires it now: its next two times have passed, in whatever zone they are."""
    if fire.cron is None:
        return False
    try:
        following = next_tick(fire.cron, fire.tick)
        second = following and next_tick(fire.cron, following)
    except CronSimError:  # another program may give its events any source
        return False
    return second is not None and second + _SLACK < now


def _before(schedule: Schedule, gone: Sequence[Fire]) -> Fire | None:
    """Which of these the schedule was, as far as can be told: one of the same event."""
    alike = [each for each in gone if each.event_type == type(schedule.event).__event_type__]
    payload = payload_of(schedule.event)
    return max(
        alike,
        key=lambda each: (each.payload == payload, each.cron == schedule.cron, each.tick),
        default=None,
    )


# -- sessions and attempts --------------------------------------------------------------------------


def _sessions(
    session: Session, live: list[dict[str, Any]], diffs: Sequence[TypeDiff]
) -> Iterator[SessionFinding]:
    breaking = [each for each in diffs if not each.compatible]
    has: dict[str, list[str]] = {}
    with core_of(session).store.inventory.read() as contents:
        for diff in breaking:
            writer = contents.history(diff.kind, diff.name)[-1].runtime_id or ""
            # A session's ID may be followed by the number of its thread.
            has.setdefault(writer.partition(":")[0], []).append(diff.name)
    names = ", ".join(each.name for each in breaking)
    for each in live:
        consumers, outdated = _consumers(each), has.get(each["session_id"], [])
        runs = f"runs {', '.join(consumers)}" if consumers else "runs no handlers"
        where = f" on {each['hostname']}, process {each['pid']}," if each["hostname"] else ""
        what = f"session {each['session_id']}{where} {runs}"
        if outdated:
            what += f", and has {', '.join(outdated)} as it is stored: once the breaking change is "
            what += "applied, it is refused when it writes that type, and a worker stops"
        elif breaking:
            what += (
                f"; if it has {names} as stored, which the store does not say, it stops writing "
            )
            what += "it once the breaking change is applied"
        yield SessionFinding(
            effect=Effect.warns if breaking else Effect.informs,
            what=what,
            remedy="Restart it with the new program right after the migration."
            if breaking
            else None,
            session_id=each["session_id"],
            namespace=each["namespace"],
            hostname=each["hostname"],
            pid=each["pid"],
            started_at=str(from_text(each["started_at"])),
            consumers=consumers,
            outdated=outdated,
        )


def _longest_attempt(session: Session) -> AttemptFinding | None:
    found = session.event_store.backlog.longest_attempt(session.namespace)
    if found is None:
        return None
    seconds = (core_of(session).clock.now() - found.started_at).total_seconds()
    return AttemptFinding(
        effect=Effect.informs,
        what=f"{found.handler} has worked on event {found.event_id} ({found.type}) for {seconds:,.1f} "
        f"s, the longest attempt now: a stop of its worker waits for it",
        remedy="At most until its timeout, or shutdown_grace_ms with several workers.",
        event_id=found.event_id,
        type=found.type,
        handler=found.handler,
        session_id=found.session_id,
        started_at=found.started_at,
        seconds=seconds,
    )


def _waits(number: int) -> str:
    if not number:
        return "nothing waits"
    return f"{_counted(number, 'event')} {'waits' if number == 1 else 'wait'}"


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
