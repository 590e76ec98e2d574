"""What a program would meet in a store is told before it is deployed, and nothing is written."""

from __future__ import annotations

from contextlib import closing

import pytest
from pydantic import field_validator

from ontologia import (
    Discard,
    Entity,
    Event,
    Field,
    OntologiaConfig,
    Schedule,
    on_event,
)
from ontologia.runtime.modules import Contents
from ontologia.runtime.preflight import preflight
from ontologia.runtime.session import core_of
from ontologia.runtime.views.reading import ReadingSession
from ontologia.store.copying.tables import TABLES
from ontologia.store.events import backlog

PLACED, PAID = "preflight.placed", "preflight.paid"


class Placed(Event, name=PLACED):
    number: Field[int]


class PlacedNow(Event, name=PLACED):
    """The same in the next version of the program."""

    number: Field[int]
    total: Field[int]


class Paid(Event, name=PAID):
    number: Field[int] = Field(default=0)


class Report(Event, name="preflight.report"):
    kind: Field[str] = Field(default="all")


class Other(Event, name="preflight.other"):
    number: Field[int] = Field(default=0)


class Account(Entity):
    id: Field[str]
    name: Field[str] = Field(default="")


class AccountNow(Entity, name="Account"):
    id: Field[str]
    name: Field[str] = Field(default="")
    tier: Field[int] = Field(index=True)


class Ledger(Entity):
    id: Field[str]
    year: Field[int] = Field(index=True)


def handler(cls, name, **options):
    @on_event(cls, name=name, **options)
    def handle(ctx):
        """Nothing is called before a deployment."""
        raise AssertionError

    return handle


def program(*handlers, types=(), schedules=()):
    return Contents("program", entity_types=[*types], handlers=[*handlers], schedules=[*schedules])


@pytest.fixture
def look(uri, clock):
    """What a program would meet."""

    def ask(contents, **options):
        config = OntologiaConfig(clock=clock)
        with closing(
            ReadingSession(uri, entity_types=contents.entity_types, config=config)
        ) as session:
            return preflight(session, contents, **options)

    return ask


def subscribe(session, name, *types):
    session.event_store.consumers.register(session.namespace, name, types)


def said(findings):
    """Effects and what is said."""
    return [(each.effect.value, each.what) for each in findings]


def content_of(ask_store, uri):
    """Every row of every table, and the indexes."""
    names = [*(each.name for each in TABLES), "locks", "ontologia_layout"]
    if uri.startswith("postgres"):
        rows = [f"SELECT '{name}', t::text FROM {name} t" for name in names]
        made = "SELECT 'index', indexname FROM pg_indexes WHERE schemaname = current_schema()"
        return sorted(ask_store(uri, " UNION ALL ".join([*rows, made])))
    names.append("sqlite_master")
    return [sorted(map(repr, ask_store(uri, f"SELECT * FROM {name}"))) for name in names]


@pytest.mark.each_database
@pytest.mark.req("NEW-160")
def test_nothing_is_written_and_a_store_that_can_only_be_read_will_do(
    uri, clock, open_session, ask_store
):
    session = open_session(entity_types=[Account])
    session.ensure(Account(id="a"))
    session.commit(event=[Placed(number=1), Paid()])
    subscribe(session, "old", PLACED)
    session.defer(Placed(number=2), delay=60)
    before = content_of(ask_store, uri)
    only_read = uri
    if uri.startswith("postgres"):
        only_read += f"{'&' if '?' in uri else '?'}options=-c%20default_transaction_read_only%3Don"
    contents = program(
        handler(PlacedNow, "new", formerly=["old"]),
        handler(Paid, "newer"),
        types=[AccountNow, Ledger],
        schedules=[Schedule(event=Report(), cron="0 2 * * *")],
    )

    config = OntologiaConfig(clock=clock)
    with closing(
        ReadingSession(only_read, entity_types=contents.entity_types, config=config)
    ) as visitor:
        found = preflight(visitor, contents, sample=None)

    assert found.breaks
    assert {about for about, _ in found.findings()} == {
        *("layout", "types", "consumers", "payloads", "schedules", "sessions")
    }
    assert content_of(ask_store, uri) == before


@pytest.mark.req("NEW-161")
def test_a_type_with_a_breaking_change_needs_its_upgrader(open_session, look, monkeypatch):
    from ontologia.schema import upgraders

    monkeypatch.setattr(upgraders, "_registered", {})
    session = open_session(entity_types=[Account])
    session.ensure(Account(id="a"))
    session.commit()

    [missing] = look(program(types=[AccountNow, Ledger])).types
    upgraders.upgrader("Account", from_version=1)(lambda fields: fields | {"tier": 1})
    with_it = look(program(types=[AccountNow]))

    assert missing.effect == "breaks"
    assert missing.what == (
        "entity Account, version 1: breaking (tier: a new field without a default); "
        'there is no @upgrader("Account", from_version=1)'
    )
    assert (missing.missing_upgraders, missing.objects, missing.compatible) == ([1], 1, False)
    assert said(with_it.types) == [
        ("warns", "entity Account, version 1: breaking (tier: a new field without a default)")
    ]
    assert with_it.types[0].remedy.endswith(f"ontologia migrate --models {__name__}")
    assert not with_it.breaks


@pytest.mark.req("NEW-163", "NEW-151", "NEW-155")
def test_payloads_are_read_through_the_upgraders_of_the_class_and_by_its_former_types(
    open_session, look, monkeypatch
):
    from ontologia.schema import upgraders

    class PlacedLater(Event, name="preflight.ordered", version=2, formerly=[PLACED]):
        number: Field[int]
        total: Field[int]

    monkeypatch.setattr(upgraders, "_registered", {})
    session = open_session()
    subscribe(session, "handle", PLACED)
    session.commit(event=Placed(number=1))

    without = look(program(handler(PlacedLater, "handle")))
    upgraders.upgrader(PlacedLater, from_version=1)(lambda fields: fields | {"total": 1})
    with_it = look(program(handler(PlacedLater, "handle")))

    [found] = without.payloads
    assert (found.effect, found.type, found.count) == ("breaks", PLACED, 1)
    assert "MissingUpgraderError" in found.reason
    assert not with_it.payloads
    assert not with_it.breaks


@pytest.mark.req("NEW-161")
def test_a_compatible_change_breaks_nothing_unless_values_are_not_unique(open_session, look):
    class Wider(Entity, name="Account"):
        id: Field[str]
        name: Field[str | None] = Field(default=None)

    class Unique(Entity, name="Account"):
        id: Field[str]
        name: Field[str] = Field(default="", unique=True)

    session = open_session(entity_types=[Account])
    session.ensure([Account(id="a"), Account(id="b")])
    session.commit()

    assert said(look(program(types=[Wider])).types) == [
        ("informs", "entity Account, version 1: a compatible change")
    ]
    [twice] = look(program(types=[Unique])).types
    assert twice.effect == "breaks"
    assert len(twice.duplicates) == 1
    assert twice.duplicates[0] in twice.what


@pytest.mark.req("NEW-162")
def test_a_handler_that_the_store_does_not_know_gets_what_is_retained(session, look):
    session.commit(event=[Placed(number=1), Placed(number=2), Paid()])
    subscribe(session, "charge", PLACED)

    found = look(program(handler(Placed, "bill"), handler(Other, "other"), handler(Paid, "pay")))

    renamed = "If it was renamed: on_event(..., formerly=['charge']). Otherwise"
    bill, other, pay, charge = found.consumers
    assert said([bill, other, pay, charge]) == [
        ("warns", f"bill is new to the store: it gets 2 retained events of {PLACED}"),
        ("informs", "other is new to the store: it gets 0 retained events of preflight.other"),
        ("warns", f"pay is new to the store: it gets 1 retained event of {PAID}"),
        ("warns", "charge is not in the program; 2 events wait for it"),
    ]
    assert bill.remedy == f"{renamed} `ontologia run --start now` skips them."
    assert (bill.events, bill.change, charge.events) == (2, "new", 2)
    assert "its old name" in pay.remedy  # nobody else has its type
    assert not found.breaks


@pytest.mark.req("NEW-162")
def test_a_handler_that_was_renamed_gets_nothing_anew(session, look, clock):
    done = []

    @on_event(Placed, name="charge")
    def charge(ctx):
        done.append(ctx.event.number)

    session.commit(event=[Placed(number=1), Placed(number=2)])
    session.run([charge], max_iterations=1)
    session.commit(event=Placed(number=3))
    assert done == [1, 2]

    found = look(program(handler(Placed, "bill", formerly=["charge"])))
    again = look(program(handler(Paid, "bill", formerly=["charge"]), handler(Placed, "charged")))

    assert said(found.consumers) == [("informs", "bill adopts what charge had; 1 event waits")]
    assert [each.read for each in found.read] == [1]
    assert found.consumers[0].remedy is None
    assert [(each.change, each.events) for each in again.consumers] == [
        *(("subscribes", 0), ("adopts", 1), ("unsubscribed", 1), ("new", 3))
    ]


@pytest.mark.req("NEW-162", "NEW-163")
def test_a_handler_that_comes_back_gets_what_it_had_not_finished(session, look):
    session.commit(event=[Placed(number=1), Placed(number=2)])
    session.run([finished("charge")], max_iterations=1)
    session.event_store.forget("default", "charge")
    session.commit(event=Placed(number=3))

    found = look(program(handler(Placed, "charge")))

    assert [(each.change, each.events) for each in found.consumers] == [("new", 1)]
    assert [(each.state, each.read) for each in found.read] == [("retained", 1)]


@pytest.mark.req("NEW-162")
def test_an_event_class_that_was_renamed_leaves_events_that_wait_for_ever(session, look):
    subscribe(session, "charge", PLACED, "preflight.quiet")
    session.commit(event=Placed(number=1))

    found = look(program(handler(Other, "charge")))

    assert found.breaks
    assert said(found.consumers) == [
        (
            "informs",
            "charge subscribes to another type: it gets 0 retained events of preflight.other",
        ),
        (
            "breaks",
            f"charge is subscribed to {PLACED} and does not take it any more; 1 event waits for ever",
        ),
        (
            "informs",
            "charge is subscribed to preflight.quiet and does not take it any more; nothing waits",
        ),
    ]
    assert f"name={PLACED!r}" in found.consumers[1].remedy


@pytest.mark.req("NEW-162")
def test_a_handler_waits_for_the_sessions_that_run_its_old_name(session, look):
    subscribe(session, "charge", PLACED)
    metadata = {"hostname": "h", "pid": 1, "consumers": ["charge"]}
    session.event_store.register_session("s-old", "default", metadata)
    session.event_store.register_session("s-else", "elsewhere", metadata)

    [adopts] = look(program(handler(Placed, "bill", formerly=["charge"]))).consumers

    assert adopts.remedy.endswith("which run charge, have ended: s-old")


@pytest.mark.req("NEW-162")
def test_what_other_commands_run_is_no_handler(session, look):
    for name in ("worker:default", "bus:default", "relay:kafka://k/t"):
        subscribe(session, name, "*")
    session.commit(event=Placed(number=1))

    assert said(look(program()).consumers) == [
        ("informs", "bus:default is no handler; 1 event waits for it"),
        ("informs", "relay:kafka://k/t is no handler; 1 event waits for it"),
        ("informs", "worker:default is no handler; 1 event waits for it"),
    ]


@pytest.fixture
def in_every_state(session, clock):
    """Events that a handler has in every state; their numbers by where they are."""
    seen = []

    @on_event(Placed, name="charge")
    def charge(ctx):
        seen.append(ctx.event.number)
        if ctx.event.number < 10:
            raise Discard("no")
        if ctx.event.number < 20:
            raise OSError("later")

    session.commit(event=[Placed(number=each) for each in (1, 2, 3, 11, 12, 21)])
    session.run([charge], max_iterations=1)
    session.commit(event=[Placed(number=each) for each in (31, 32, 33)])
    with session.event_store.transaction() as tx:
        session.event_store.claims.dispatch_all(tx)
    session.commit(event=[Placed(number=each) for each in (41, 42)])
    for number in (51, 52, 53):
        session.defer(Placed(number=number), delay=60 + number)
    assert sorted(seen) == [1, 2, 3, 11, 12, 21]


@pytest.mark.each_database
@pytest.mark.req("NEW-163")
@pytest.mark.parametrize(("most", "most_bytes"), [(2, 2**20), (500, 1), (500, 2**20)])
def test_payloads_are_read_by_the_class_of_the_program(
    in_every_state, look, monkeypatch, most, most_bytes
):
    monkeypatch.setattr(backlog, "_MOST", most)  # of a page
    monkeypatch.setattr(backlog, "_MOST_BYTES", most_bytes)

    found = look(program(handler(PlacedNow, "charge")), sample=None)
    fine = look(program(handler(Placed, "charge")), sample=None)

    counts = [(each.state, each.read, each.unreadable, each.complete) for each in found.read]
    assert counts == [
        *(("dead-lettered", 3, 3, True), ("deferred", 3, 3, True), ("waiting", 7, 7, True))
    ]
    missing = "InvalidValueError: PlacedNow: total is missing"
    assert [(each.effect, each.state, each.count, each.reason) for each in found.payloads] == [
        ("warns", "dead-lettered", 3, missing),
        ("breaks", "deferred", 3, missing),
        ("breaks", "waiting", 7, missing),
    ]
    assert fine.payloads == []
    assert [each.read for each in fine.read] == [3, 3, 7]
    assert not fine.breaks


@pytest.mark.req("NEW-163")
def test_a_sample_is_what_is_next_in_line_and_says_so(session, look):
    class Early(Event, name=PLACED):
        number: Field[int]

        @field_validator("number")
        @classmethod
        def _refuse_late(cls, value):
            assert value < 4
            return value

    subscribe(session, "charge", PLACED)
    session.commit(event=[Placed(number=each) for each in (1, 2, 3, 4, 5)])
    session.commit(event=[Placed(number=0, priority=200)])
    with session.event_store.transaction() as tx:
        session.event_store.claims.dispatch_all(tx)
    contents = program(handler(Early, "charge"))

    [four] = look(contents, sample=4).read
    [five] = look(contents, sample=5).read
    [six] = look(contents, sample=6).read

    assert (four.read, four.unreadable, four.complete) == (4, 0, False)
    assert (five.read, five.unreadable, five.complete) == (5, 1, False)
    assert (six.read, six.unreadable, six.complete) == (6, 2, True)


@pytest.mark.req("NEW-163")
def test_payloads_are_listed_by_reason_with_an_example(session, look):
    subscribe(session, "charge", PLACED)
    ids = []
    for number in (1, 50, 51, 52):
        event = Placed(number=number)
        session.event_store.enqueue(event, "default")
        ids.append(event.id)

    class Picky(Event, name=PLACED):
        number: Field[int]
        total: Field[int] = Field(default=0)

        @field_validator("number")
        @classmethod
        def _refuse_large(cls, value):
            if value > 50:
                raise ValueError("too large")
            return value

    [found] = look(program(handler(Picky, "charge"))).payloads

    assert (found.count, found.example, found.type) == (2, ids[2], PLACED)
    assert found.what.startswith(
        f"2 of 4 waiting payloads of {PLACED} cannot be read as Picky, such as event {ids[2]}: "
    )
    assert found.reason == "InvalidValueError: Picky: number: Value error, too large"


@pytest.mark.req("NEW-163")
def test_a_reason_is_one_wherever_in_a_list_it_is(session, look):
    class Packed(Event, name="preflight.packed"):
        items: Field[list[str]]

    class PackedNow(Event, name="preflight.packed"):
        items: Field[list[int]]

    subscribe(session, "pack", "preflight.packed")
    session.commit(event=[Packed(items=["a"]), Packed(items=["1", "b"]), Packed(items=["2"])])

    [found] = look(program(handler(PackedNow, "pack"))).payloads

    assert found.count == 2
    assert "PackedNow: items.*: Input should be a valid integer" in found.reason


@pytest.mark.req("NEW-163")
def test_however_many_reasons_there_are_few_are_kept(session, look):
    class Talkative(Event, name=PLACED):
        number: Field[int]

        @field_validator("number")
        @classmethod
        def _refuse(cls, value):
            raise ValueError(f"not {value}")

    subscribe(session, "charge", PLACED)
    session.commit(event=[Placed(number=each) for each in range(30)])

    found = look(program(handler(Talkative, "charge"))).payloads

    assert len(found) == 21
    assert [each.count for each in found if each.reason == "other reasons"] == [10]
    assert sum(each.count for each in found) == 30


@pytest.mark.req("NEW-163")
def test_what_a_new_handler_gets_is_read_as_well(session, look):
    subscribe(session, "charge", PLACED)
    session.commit(event=[Placed(number=1), Placed(number=2)])
    session.run([finished("charge")], max_iterations=1)

    found = look(program(handler(PlacedNow, "charge"), handler(PlacedNow, "audit")))

    assert [(each.state, each.read, each.unreadable) for each in found.read] == [("retained", 2, 2)]
    assert [each.effect for each in found.payloads] == ["breaks"]


def finished(name):
    @on_event(Placed, name=name)
    def finish(ctx):
        """Done."""

    return finish


def fire(session, clock, *schedules, ticks=1):
    scheduler = core_of(session).scheduler
    scheduler.add(schedules)
    for _ in range(ticks):
        clock.advance(seconds=3_600)
        scheduler.fire_due()


@pytest.mark.each_database
@pytest.mark.req("NEW-164")
def test_schedules_that_change_come_and_go(session, look, clock):
    same = Schedule(event=Report(kind="same"), cron="0 * * * *")
    moved = Schedule(event=Report(kind="moved"), cron="0 * * * *")
    gone = Schedule(event=Other(), cron="0 * * * *")
    fire(session, clock, same, moved, gone, ticks=3)
    now = Schedule(event=Report(kind="moved"), cron="30 * * * *")
    new = Schedule(event=Paid(), cron="0 2 * * *", tz="Europe/Berlin")

    found = look(program(schedules=[same, now, new])).schedules

    tick = clock.now().replace(minute=0, second=0, microsecond=0)
    last = f"{tick:%Y-%m-%d %H:%M} UTC"
    assert said(found) == [
        ("warns", "preflight.report at '30 * * * *' has changed from '0 * * * *'"),
        (
            "informs",
            f"{PAID} at '0 2 * * *' Europe/Berlin is new to the store: it fires from its next time on",
        ),
        ("warns", f"preflight.other at '0 * * * *' is not in the program; it fired last at {last}"),
    ]
    assert [each.last_tick for each in found] == [tick, None, tick]


@pytest.mark.req("NEW-164")
def test_a_schedule_with_another_event_of_the_same_type_has_changed(session, look, clock):
    fire(session, clock, Schedule(event=Report(kind="a"), cron="0 * * * *"))
    after = Schedule(event=Report(kind="b"), cron="0 * * * *")
    zoned = Schedule(event=Report(kind="z"), cron="0 * * * *", tz="Europe/Berlin")
    fire(session, clock, Schedule(event=Report(kind="z"), cron="10 * * * *"))

    changed, also = look(program(schedules=[zoned, after])).schedules

    assert changed.what.endswith("Europe/Berlin has changed from '10 * * * *'")
    assert said([also]) == [
        (
            "warns",
            "preflight.report at '0 * * * *' has changed in its fields, priority or zone",
        )
    ]


@pytest.mark.req("NEW-164")
def test_a_schedule_that_nobody_has_fired_for_long_is_not_missed(session, look, clock):
    fire(session, clock, Schedule(event=Report(), cron="0 * * * *"))
    clock.advance(seconds=26 * 3_600)  # its next two times, and a day for its zone
    assert [each.change for each in look(program()).schedules] == ["not in the program"]

    clock.advance(seconds=1)

    assert look(program()).schedules == []


@pytest.mark.req("NEW-165")
def test_sessions_that_a_breaking_change_stops_are_named(open_session, look, clock):
    writer = open_session(entity_types=[Account], instance_metadata={"hostname": "a", "pid": 1})
    worker = open_session(instance_metadata={"hostname": "b", "pid": 2}, namespace="else")
    closed = open_session()
    closed.close()
    quiet = look(program()).sessions
    found = look(program(types=[AccountNow])).sessions

    first, second = f"session {worker.session_id} on b, process 2, runs no handlers", ""
    second = f"session {writer.session_id} on a, process 1, runs no handlers"
    assert {each.what for each in quiet} == {first, second}
    assert {each.effect for each in quiet} == {"informs"}
    by_id = {each.session_id: each for each in found}
    assert {each.effect for each in found} == {"warns"}
    assert by_id[writer.session_id].outdated == ["Account"]
    assert by_id[worker.session_id].outdated == []
    assert by_id[worker.session_id].namespace == "else"
    assert "if it has Account as stored" in by_id[worker.session_id].what
    clock.advance(seconds=3_600)
    assert look(program()).sessions == []  # they have said nothing for too long


@pytest.mark.each_database
@pytest.mark.req("NEW-165")
def test_the_attempt_that_runs_longest_is_named(session, look, clock):
    subscribe(session, "charge", PAID)
    store = session.event_store
    session.commit(event=[Paid(number=1), Paid(number=2), Paid(number=3)])
    claimed = store.claim("default", "charge", "s1", [PAID], 3, 600_000)
    assert look(program()).longest_attempt is None  # none has begun
    for event in claimed[1:]:
        store.start("charge", event.id, lease_ms=600_000)
        clock.advance(seconds=10)
    session.event_store.register_session("s1", "default", {"consumers": ["charge"]})

    found = look(program())

    longest = found.longest_attempt
    assert (longest.event_id, longest.handler, longest.type) == (claimed[1].id, "charge", PAID)
    assert longest.seconds == 20
    assert "for 20.0 s" in longest.what
    assert "runs charge" in found.sessions[0].what
    store.ack("charge", claimed[1].id)
    assert look(program()).longest_attempt.event_id == claimed[2].id
    clock.advance(seconds=600)
    assert look(program()).longest_attempt is None  # its lease is over
