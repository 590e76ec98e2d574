"""Events that changed since they were stored: handlers are given them as the class is now."""

from __future__ import annotations

import asyncio

import pytest

from ontologia import AsyncSession, Entity, Event, Field, Schedule, Session, on_event, upgrader
from ontologia.errors import (
    DefinitionError,
    HandlerError,
    MigrationError,
    MissingUpgraderError,
)
from ontologia.queues import StoreEventQueue
from ontologia.relay import Intake, Relay
from ontologia.runtime.operator import ANY, Operator
from ontologia.runtime.session import core_of
from ontologia.schema import upgraders as registry
from ontologia.store.copying import copy_store
from ontologia.store.s3 import S3EventStore
from ontologia.testing.fixtures import Emitted
from tests.integration.commands import invoke
from tests.integration.running import statuses

FERRY = "ferry.left"


@pytest.fixture(autouse=True)
def no_upgraders(monkeypatch):
    """Each test registers its own."""
    monkeypatch.setattr(registry, "_registered", {})


class Ferry(Event, name=FERRY):
    name: Field[str]


class Ferry2(Event, name=FERRY, version=2):
    ship: Field[str]


class Ferry3(Event, name=FERRY, version=3):
    ship: Field[str]
    berth: Field[int]


class Sailing(Event, name="sailing.begun", formerly=[FERRY]):
    """`Ferry` by a new name, without any other change."""

    name: Field[str]


class Sailing2(Event, name="sailing.begun", version=2, formerly=[FERRY]):
    ship: Field[str]


def named(fields):
    return {"ship": fields["name"].title()}


def moored(fields):
    return fields | {"berth": 7}


STEPS = {(FERRY, 1): named, ("event", FERRY, 2): moored}


def noting(cls, seen, **options):
    @on_event(cls, **({"name": "harbour"} | options))
    def note(ctx):
        seen.append(ctx.event)
        if "Lost" in getattr(ctx.event, "name", ""):
            raise ValueError("no such ship")

    return note


def leave(session, *events: Event) -> list[str]:
    for event in events:
        session.commit(event=event)
    return [str(event.id) for event in events]


# -- versions -------------------------------------------------------------------------------------


@pytest.mark.req("NEW-151")
def test_a_handler_is_given_events_of_every_version(open_session):
    session, seen = open_session(upgraders=STEPS), []
    leave(session, Ferry(name="ada"), Ferry2(ship="Bee"), Ferry3(ship="Cat", berth=1))

    session.run([noting(Ferry3, seen)], max_iterations=1)

    assert seen == [Ferry3(ship=s, berth=b) for s, b in (("Ada", 7), ("Bee", 7), ("Cat", 1))]
    assert statuses(session) == ["acked"] * 3


@pytest.mark.req("NEW-151")
def test_an_async_session_takes_upgraders_as_well(uri):
    seen = []

    @on_event(Ferry3, name="harbour")
    async def note(ctx):
        seen.append(ctx.event.berth)

    async def main() -> None:
        async with AsyncSession(uri, upgraders=STEPS) as session:
            await session.commit(event=Ferry(name="ada"))
            await session.run([note], max_iterations=1)

    asyncio.run(main())

    assert seen == [7]


@pytest.mark.req("NEW-151")
def test_a_handler_of_a_bucket_is_given_events_of_every_version(path, s3_uri):
    seen = []
    with S3EventStore(s3_uri) as store:
        store.enqueue(Ferry(name="ada"), "default")
    with Session(str(path), event_store=s3_uri, upgraders=STEPS) as session:
        session.run([noting(Ferry3, seen)], max_iterations=1)

    assert seen == [Ferry3(ship="Ada", berth=7)]


@pytest.mark.req("NEW-151")
def test_the_payload_is_explained_as_it_was_stored(open_session):
    class Log(Entity):
        id: Field[str]

    session = open_session(upgraders=STEPS)
    [event_id] = leave(session, Ferry2(ship="Bee"))

    @on_event(Ferry3, name="harbour")
    def note(ctx):
        ctx.ensure(Log(id=ctx.event.ship))
        ctx.commit()

    session.run([note], max_iterations=1)

    stored = {"$version": 2, "ship": "Bee"}
    assert session.event_store.inspect_event(event_id)["payload"] == stored
    assert session.trace(event_id).events[0].payload == stored
    [cause] = session.why(Log, "Bee").causes
    assert cause.payload == stored


@pytest.mark.req("NEW-151")
def test_a_handler_of_a_name_is_given_the_payload_as_it_was_stored(session):
    queue = StoreEventQueue(session)
    leave(session, Ferry2(ship="Bee"))

    [delivery] = queue.dequeue(1, 0)

    assert delivery.event.payload == {"$version": 2, "ship": "Bee"}


@pytest.mark.req("NEW-152")
def test_a_payload_that_cannot_be_upgraded_runs_when_it_is_retried_after_a_fix(session):
    seen = []
    leave(session, Ferry(name="ada"), Ferry2(ship="Bee"))
    upgrader(Ferry2, from_version=1)(lambda fields: {"ship": fields["title"]})

    session.run([noting(Ferry2, seen)], max_iterations=1)

    assert [each.ship for each in seen] == ["Bee"]
    [letter] = session.event_store.list_dead_letters("default")
    assert letter["last_error"] == (
        f"UpgraderError: upgrading ferry.left '{letter['event_id']}': the upgrader raised "
        "KeyError('title'); this version of it cannot be read"
    )
    fixed = {(FERRY, 1): named}
    registry._registered.clear()
    Operator(session, "ada").retry(ANY)
    core_of(session).versions.add_upgraders(fixed)
    session.run([noting(Ferry2, seen)], max_iterations=1)
    assert [each.ship for each in seen] == ["Bee", "Ada"]
    assert session.event_store.list_dead_letters("default") == []


@pytest.mark.req("NEW-153")
def test_an_event_of_a_newer_version_is_tried_again_as_its_handler_says(session, clock):
    old, new = [], []
    leave(session, Ferry2(ship="Bee"), Ferry(name="ada"))
    options = {"max_attempts": 3, "backoff": (5, 5)}

    session.run([noting(Ferry, old, **options)], max_iterations=1)
    clock.advance(seconds=6)
    session.run([noting(Ferry, old, **options)], max_iterations=1)

    assert [each.name for each in old] == ["ada"]
    assert session.event_store.list_dead_letters("default") == []
    clock.advance(seconds=6)
    upgrader(Ferry2, from_version=1)(named)
    session.run([noting(Ferry2, new, **options)], max_iterations=1)
    assert [each.ship for each in new] == ["Bee"]


# -- a class and its upgraders --------------------------------------------------------------------


@pytest.mark.req("NEW-154")
def test_an_upgrader_past_the_version_of_its_class_is_refused_where_it_is_written():
    with pytest.raises(DefinitionError, match="leads to version 3") as caught:
        upgrader(Ferry2, from_version=2)

    assert caught.value.hint == "Write class Ferry2(Event, version=3)."


@pytest.mark.req("NEW-154")
@pytest.mark.parametrize("key", [(FERRY, 2), ("event", FERRY, 2)])
def test_an_upgrader_past_the_version_that_was_given_by_name_is_refused_before_a_run(
    open_session, key
):
    session, seen = open_session(upgraders={(FERRY, 1): named, key: moored}), []
    leave(session, Ferry2(ship="Bee"))

    with pytest.raises(DefinitionError, match="Ferry2 is version 2, and has an upgrader from ver"):
        session.run([noting(Ferry2, seen)], max_iterations=1)

    assert (seen, session.event_store.list_consumers("default")) == ([], [])


@pytest.mark.req("NEW-154")
def test_a_gap_between_upgraders_is_refused_before_a_run(open_session):
    session, seen = open_session(upgraders={(FERRY, 1): named}), []
    leave(session, Ferry(name="ada"))

    with pytest.raises(MissingUpgraderError) as caught:
        session.run([noting(Ferry3, seen)], max_iterations=1)

    assert (caught.value.type_name, caught.value.missing_versions) == (FERRY, [2])
    assert session.event_store.list_dead_letters("default") == []


@pytest.mark.req("NEW-154")
def test_steps_that_nothing_needs_any_more_may_go_and_the_log_says_what_that_means(session, caplog):
    seen = []
    leave(session, Ferry3(ship="Cat", berth=1))

    session.run([noting(Ferry3, seen)], max_iterations=1)

    assert len(seen) == 1
    assert "Ferry3 is version 3 and has no upgraders" in caplog.text


@pytest.mark.req("NEW-154")
def test_a_name_that_an_entity_has_too_needs_a_kind(open_session):
    class Pier(Entity):
        id: Field[str]

    class PierEvent(Event, name="Pier"):
        pass

    class PierEvent2(Event, name="Pier", version=2):
        pass

    session = open_session(entity_types=[Pier], upgraders={("Pier", 1): dict})
    session.run([noting(PierEvent, [])], max_iterations=1)  # it is the entity's

    with pytest.raises(MigrationError, match="could mean the event or the entity") as caught:
        session.run([noting(PierEvent2, [])], max_iterations=1)

    assert 'kind="event"' in caught.value.hint
    session.migrate(upgraders={("event", "Pier", 1): dict})
    with pytest.raises(MigrationError, match="could mean the entity or the event"):
        core_of(session).versions.chain(Pier.__shape__, 1, 2)


@pytest.mark.req("NEW-154")
@pytest.mark.parametrize("wrong", [0, -1, 1.0, "2", True, None, 2**31])
def test_a_version_counts_from_1(wrong):
    with pytest.raises(DefinitionError, match="version= is a whole number from 1 on"):
        type(Event)("Wrong", (Event,), {"__module__": __name__}, version=wrong)


@pytest.mark.parametrize("given", [{"version": 2}, {"formerly": ["Quay"]}])
def test_an_entity_is_told_that_the_store_counts_its_versions(given):
    with pytest.raises(DefinitionError, match=r"Pier: (version|formerly)= is for events"):
        type(Entity)("Pier", (Entity,), {"__module__": __name__}, **given)


def test_a_subclass_is_version_1_of_a_type_of_its_own():
    class Express(Sailing2):
        pass

    assert (Express.__event_version__, Express.__event_formerly__) == (1, ())


@pytest.mark.req("NEW-151")
def test_an_upgrader_may_name_its_entity_by_the_class(session):
    class Quay(Entity):
        id: Field[str]

    step = upgrader(Quay, from_version=1)(dict)

    assert registry.registered() == {("entity", "Quay", 1): step}
    with pytest.raises(DefinitionError, match="is of the kind entity, and not event"):
        upgrader(Quay, from_version=1, kind="event")
    with pytest.raises(DefinitionError, match="a class that is stored, or for a name"):
        upgrader(Event, from_version=1)


# -- former types ---------------------------------------------------------------------------------


@pytest.mark.req("NEW-155")
def test_a_class_takes_over_everything_of_its_former_type(session, clock, caplog):
    seen = []
    leave(session, Ferry(name="Ada"), Ferry(name="Lost"), Ferry(name="Lost too"))
    session.defer(Ferry(name="Dee"), delay=3600)
    before = noting(Ferry, seen, max_attempts=1)
    session.run([before], max_iterations=1)
    leave(session, Ferry(name="Bee"))
    assert [each.name for each in seen] == ["Ada", "Lost", "Lost too"]
    seen.clear()
    caplog.clear()

    after = noting(Sailing, seen, max_attempts=1)
    session.run([after], max_iterations=1)
    assert seen == [Sailing(name="Bee")]
    Operator(session, "ada").retry(ANY)
    session.run([after], max_iterations=1)
    assert sorted(each.name for each in seen[1:]) == ["Lost", "Lost too"]
    clock.advance(seconds=3601)
    leave(session, Ferry(name="Cat"), Sailing(name="Eve"))  # old programs still run
    session.run([after], max_iterations=1)

    assert sorted(each.name for each in seen[3:]) == ["Cat", "Dee", "Eve"]
    assert {type(each) for each in seen} == {Sailing}
    assert "is subscribed to" not in caplog.text
    [consumer] = session.event_store.list_consumers("default")
    assert sorted(consumer["types"]) == [FERRY, "sailing.begun"]
    assert session.event_store.check() == []


@pytest.mark.req("NEW-155")
def test_a_new_handler_gets_what_is_retained_of_all_types_through_upgraders(session):
    seen = []
    leave(session, Ferry(name="ada"), Sailing2(ship="Bee"))
    upgrader("ferry.left", from_version=1)(named)

    session.run([noting(Sailing2, seen)], max_iterations=1)

    assert seen == [Sailing2(ship="Ada"), Sailing2(ship="Bee")]


@pytest.mark.req("NEW-155")
def test_a_type_cannot_be_one_classs_and_formerly_anothers_in_one_run(session):
    with pytest.raises(HandlerError, match=r"are, or were, both stored as 'ferry\.left'"):
        session.run([noting(Ferry, []), noting(Sailing, [], name="other")], max_iterations=1)


@pytest.mark.req("NEW-155")
@pytest.mark.parametrize("wrong", ["ferry.left", [""], [7], 7, None, ["*"], ["wrong"]])
def test_former_types_are_a_list_of_other_types(wrong):
    with pytest.raises(DefinitionError, match=r"Wrong.*(formerly|an event type is text)"):
        type(Event)("Wrong", (Event,), {"__module__": __name__}, formerly=wrong)


@pytest.mark.req("NEW-156")
@pytest.mark.parametrize("first", [Ferry, Sailing])
def test_programs_of_both_types_fire_a_tick_of_one_schedule_once(open_session, clock, first):
    second = Sailing if first is Ferry else Ferry
    schedules = [Schedule(cls(name="Ada"), "0 * * * *") for cls in (first, second)]
    sessions = [open_session(), open_session()]
    for session, schedule in zip(sessions, schedules, strict=True):
        session.add_schedule(schedule)
    clock.advance(seconds=3600)

    fired = [core_of(session).scheduler.fire_due() for session in sessions]

    assert fired == [1, 0]
    [row] = sessions[0].event_store.list_events("default")
    assert row["type"] == first.__event_type__


@pytest.mark.req("NEW-156")
def test_a_new_version_of_the_same_fields_is_the_same_schedule():
    class Swept(Event, name="deck.swept"):
        pass

    class Swept2(Event, name="deck.swept", version=2):
        pass

    keys = {Schedule(cls(), "0 2 * * *").key for cls in (Swept, Swept2)}

    assert keys == {"571d5f0078653a485eeb795a4a1c6032"}  # as it was before there were versions


@pytest.mark.req("NEW-156")
def test_what_a_handler_emits_with_a_key_of_a_former_type_is_not_stored_again(session):
    seen, emitted = [], []
    leave(session, Ferry(name="ada"))
    session.commit(event=Ferry(name="bee"), dedup_key="k")

    @on_event(Sailing, name="echo")
    def echo(ctx):
        seen.append(ctx.event.name)
        event = Sailing(name=f"{ctx.event.name} again")
        ctx.emit(event, dedup_key="k")
        emitted.append(event.id)

    session.run([echo], max_iterations=3)

    assert seen == ["ada", "bee"]
    assert len({*emitted}) == 1
    assert session.event_store.inspect_event(emitted[0])["type"] == FERRY


# -- elsewhere ------------------------------------------------------------------------------------


@pytest.mark.req("NEW-151", "NEW-155")
def test_emitted_gives_events_of_all_types_and_versions(session):
    leave(session, Ferry(name="ada"), Sailing2(ship="Bee"), Ferry(name="cat"))
    upgrader(Sailing2, from_version=1)(named)

    assert [each.ship for each in Emitted(session)(Sailing2)] == ["Ada", "Bee", "Cat"]


@pytest.mark.req("NEW-157")
def test_the_version_survives_a_copy_and_a_way_through_a_bucket(session, uri, place, s3_uri):
    seen = []
    leave(session, Ferry2(ship="Bee"))
    copied = place("sqlite")
    copy_store(uri, copied)
    with Session(copied, config=session.config) as here:
        here.run([noting(Ferry2, seen)], max_iterations=1)
        Relay(here, s3_uri, types=[FERRY]).run_until_empty()
    with Session(place("sqlite"), config=session.config) as there:
        Intake(there, s3_uri).run_until_empty()
        there.run([noting(Ferry2, seen)], max_iterations=1)

    assert seen == [Ferry2(ship="Bee")] * 2


@pytest.mark.req("NEW-150")
def test_an_event_given_by_an_operator_is_of_the_version_of_its_class(
    session, uri, tmp_path, monkeypatch
):
    (tmp_path / "ferries.py").write_text(
        "from ontologia import Event, Field\n"
        "class Ferry(Event, name='ferry.left', version=2):\n"
        "    ship: Field[str]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    done = invoke("emit", "Ferry", '{"ship":"Bee"}', "--models", "ferries", "--datastore-uri", uri)

    assert done.exit_code == 0, done.output
    shown = session.event_store.inspect_event(done.stdout.strip())
    assert shown["payload"] == {"$version": 2, "ship": "Bee"}
