"""What an extension can do through its context, and what its manifest keeps it from."""

from __future__ import annotations

import asyncio
import logging
import sys
import types
from datetime import timedelta

import pytest

from ontologia import Entity, Field, OntologiaConfig, Session
from ontologia.clock import to_text
from ontologia.errors import (
    ConfigError,
    InvalidValueError,
    LeaseExpiredError,
    NotFoundError,
    PermissionDeniedError,
)
from ontologia.extensions.bus import EventBus
from ontologia.extensions.context import ExtensionContext
from ontologia.testing import ManualClock
from tests.integration.buses import NEVER, Ear, ended, until


class TeaGuest(Entity):
    id: Field[str]
    name: Field[str]
    cups: Field[int] = Field(default=0)


GUESTS = [
    {"id": "g1", "name": "Ada", "cups": 3},
    {"id": "g2", "name": "Grace", "cups": 1},
    {"id": "g3", "name": "Mary", "cups": 2},
]


@pytest.fixture
def bus(uri):
    return EventBus(uri, poll_interval=NEVER)


def context_of(bus, extension_id="tea", **options):
    return ExtensionContext(extension_id=extension_id, event_bus=bus, **options)


async def serve(ctx):
    """Commit the guests."""
    for guest in GUESTS:
        await ctx.ensure("TeaGuest", guest)
    return await ctx.commit()


# -- events ---------------------------------------------------------------------------------------


@pytest.mark.req("BUS-005", "BUS-021", "BUS-022", "BUS-024", "BUS-029", "BUS-030", "BUS-031")
def test_extensions_speak_to_each_other_under_their_own_names(bus):
    async def story():
        kettle, table, heard = context_of(bus, "kettle"), context_of(bus, "table"), []

        async def pour(event):
            await table.emit("tea.poured", {"cup": 1}, event.correlation_id)
            heard.append(await table.schedule_at(0.01, "tea.poured", {"cup": 2}))

        ear = Ear()
        assert callable(table.subscribe_event("tea.ready", pour))
        kettle.subscribe_event("tea.poured", ear)
        table.subscribe_event("tea.poured", ear)
        async with bus:
            assert await kettle.emit("tea.ready", {}, correlation_id="c-1") is None
            await until(lambda: len(ear.events) == 4)
        return ear.events, heard

    events, [number] = asyncio.run(story())

    assert [event.payload["cup"] for event in events] == [1, 1, 2, 2]
    assert {event.source for event in events} == {"table"}
    assert {event.correlation_id for event in events} == {"c-1"}
    assert isinstance(number, int)


@pytest.mark.req("BUS-019")
def test_an_extension_takes_back_what_it_scheduled_and_nothing_else(bus):
    async def story():
        mine, theirs = context_of(bus, "mine"), context_of(bus, "theirs")
        number = await mine.schedule_at(timedelta(hours=1), "tea.ready", {})
        answers = [await theirs.cancel_deferred(number), await mine.cancel_deferred(number)]
        answers.append(await mine.cancel_deferred(number))
        await bus.close()
        return answers

    assert asyncio.run(story()) == [False, True, False]


@pytest.mark.req("BUS-025", "BUS-026")
def test_without_a_bus_nothing_is_announced_and_nothing_comes(caplog):
    async def story():
        ctx = ExtensionContext(extension_id="alone")
        ctx.subscribe_event("tea.ready", Ear())()
        await ctx.emit("tea.ready", {})
        return await ctx.schedule_at(1, "tea.ready", {}), await ctx.cancel_deferred(1), ctx

    with caplog.at_level(logging.DEBUG, logger="ontologia.extensions.context"):
        number, cancelled, ctx = asyncio.run(story())

    assert (number, cancelled) == (None, False)
    assert len(caplog.records) == 3
    with pytest.raises(ConfigError, match="alone has no bus"):
        ctx.query("TeaGuest")


@pytest.mark.req("BUS-023")
def test_what_is_no_json_object_is_refused_where_it_is_said(bus, sql):
    async def story():
        ctx = context_of(bus)
        with pytest.raises(InvalidValueError):
            await ctx.emit("tea.ready", {"at": timedelta()})
        for event in ("tea.ready", {"topic": "tea.ready"}, {"topic": "t", "payload": {}, "x": 1}):
            with pytest.raises(InvalidValueError, match="an event is"):
                await ctx.commit(event)
        await bus.close()

    asyncio.run(story())

    assert sql("SELECT COUNT(*) FROM events") == [[0]]


def test_a_context_that_is_closed_hears_no_more(bus):
    async def story():
        ctx, ear, other = context_of(bus), Ear(), Ear()
        ctx.subscribe_event("tea.ready", ear)
        bus.subscribe("tea.ready", other)
        ctx.close()
        async with bus:
            await ended(bus, await bus.publish("tea.ready", "x", {}))
        return len(ear.events), len(other.events)

    assert asyncio.run(story()) == (0, 1)


# -- what else it has -----------------------------------------------------------------------------


def test_settings_can_be_read_and_the_logger_has_the_extensions_name():
    given = {"cups": 2}
    ctx = ExtensionContext(extension_id="tea", settings=given)

    given["cups"] = 3

    assert ctx.settings == {"cups": 2}
    with pytest.raises(TypeError):
        ctx.settings["cups"] = 4
    assert ctx.logger.name == "ontologia.extension.tea"
    assert ctx.extension_id == "tea"


# -- permissions ----------------------------------------------------------------------------------


def test_what_the_manifest_does_not_name_is_refused_with_the_line_it_lacks(bus, sql):
    async def story():
        allowed = {"publish": ["tea.ready"], "subscribe": ["tea.gone"], "read": ["TeaGuest"]}
        ctx = context_of(bus, permissions=allowed, models=[TeaGuest])
        await ctx.emit("tea.ready", {})
        ctx.subscribe_event("tea.gone", Ear())
        assert await ctx.query("TeaGuest").collect() == []
        refused = [
            ("publish", "reminder.due", lambda: ctx.emit("reminder.due", {})),
            ("publish", "reminder.due", lambda: ctx.schedule_at(1, "reminder.due", {})),
            (
                "publish",
                "reminder.due",
                lambda: ctx.commit({"topic": "reminder.due", "payload": {}}),
            ),
            ("subscribe", "tea.ready", lambda: ctx.subscribe_event("tea.ready", Ear())),
            ("read", "Customer", lambda: ctx.query("Customer")),
            ("write", "TeaGuest", lambda: ctx.ensure("TeaGuest", GUESTS[0])),
            ("write", "TeaGuest", lambda: ctx.delete("TeaGuest", "g1")),
        ]
        for action, name, step in refused:
            with pytest.raises(PermissionDeniedError, match=f"extension tea may not.*{name}") as e:
                await step()
            assert isinstance(e.value, PermissionError)
            assert f"permissions.{action}: - {name}" in str(e.value)
        await bus.close()

    asyncio.run(story())

    assert sql("SELECT type FROM events") == [["tea.ready"]]
    assert sql("SELECT COUNT(*) FROM deferred_events") == [[0]]


def test_permissions_that_make_no_sense_are_refused():
    for given in ({"publsh": []}, {"publish": "tea.ready"}, {"read": [1]}, ["publish"]):
        with pytest.raises(ConfigError, match="permission"):
            ExtensionContext(extension_id="tea", permissions=given)


# -- state ----------------------------------------------------------------------------------------


def test_state_is_asked_and_changed_by_the_names_of_types(bus):
    async def story():
        ctx = context_of(bus, models=[TeaGuest])
        first = await serve(ctx)
        again = await serve(ctx)
        await ctx.delete("TeaGuest", "g2")
        second = await ctx.commit()
        guests = ctx.query("TeaGuest")
        answers = [
            await guests.where(("cups", ">", 1), ("name", "like", "A%")).collect(),
            await guests.order_by("cups desc").limit(1).offset(1).collect(),
            await guests.where("|", ("id", "=", "g1"), ("id", "=", "g3"))
            .where(("cups", "=", 2))
            .first(),
            await guests.where(("cups", ">", 9)).first(),
            await guests.limit(1).count(),
            await guests.as_of(first).count(),
        ]
        await bus.close()
        return first, again, second, answers

    first, again, second, answers = asyncio.run(story())

    assert again is None
    assert second > first
    assert answers == [[GUESTS[0]], [GUESTS[2]], GUESTS[2], None, 2, 3]


def test_a_type_that_only_the_store_knows_is_enough(uri):
    with Session(uri, entity_types=[TeaGuest]) as session:
        session.ensure(TeaGuest(id="g1", name="Ada"))

    async def story():
        bus = EventBus(uri)
        one, other = context_of(bus, "one"), context_of(bus, "other")
        for ctx in (one, other):
            [guest] = await ctx.query("TeaGuest").collect()
            await ctx.ensure("TeaGuest", guest | {"cups": guest["cups"] + 1})
            await ctx.commit()
        [guest] = await one.query("TeaGuest").collect()
        with pytest.raises(NotFoundError, match="TeaGest") as error:
            await one.query("TeaGest").collect()
        with pytest.raises(InvalidValueError):
            await one.ensure("TeaGuest", {"id": "g1", "name": 5, "cups": 0})
        await bus.close()
        return guest, str(error.value)

    guest, said = asyncio.run(story())

    assert guest == {"id": "g1", "name": "Ada", "cups": 2}
    assert "TeaGuest" in said


def test_a_commit_says_which_extension_made_it_and_stores_its_event_with_it(bus, sql):
    async def story():
        ctx = context_of(bus, models=[TeaGuest])
        outside = await serve(ctx)
        inside = []

        async def pour(event):
            await ctx.ensure("TeaGuest", GUESTS[0] | {"cups": 4})
            told = {"topic": "tea.poured", "payload": {"to": "g1"}, "correlation_id": "c-9"}
            inside.append(await ctx.commit(event=told))

        ctx.subscribe_event("tea.ready", pour)
        async with bus:
            number = await bus.publish("tea.ready", "kitchen", {})
            [entry] = await ended(bus, number)
            [poured] = await bus.journal.list(topic="tea.poured")
            commits = [bus.session.get_commit(each) for each in (outside, *inside)]
        return entry, poured, [commit["metadata"] for commit in commits]

    entry, poured, [outside, inside] = asyncio.run(story())

    assert outside["extension_id"] == inside["extension_id"] == "tea"
    assert "event_id" not in outside
    assert inside["event_id"] == entry["event_id"]
    assert (inside["handler_id"], inside["attempt"]) == ("bus:default", 1)
    assert (poured["source"], poured["correlation_id"]) == ("tea", "c-9")
    [[cause]] = sql("SELECT causation_id FROM events WHERE type = 'tea.poured'")
    assert cause == entry["event_id"]


def test_a_handler_that_lost_its_event_can_write_and_announce_nothing(bus, sql):
    async def story():
        ctx, refused = context_of(bus, models=[TeaGuest]), []

        async def pour(event):
            await ctx.ensure("TeaGuest", GUESTS[0])
            await asyncio.to_thread(sql, "UPDATE event_claims SET lease_token = 'another'")
            for step in (ctx.commit(), ctx.emit("tea.poured", {}), ctx.schedule_at(1, "t", {})):
                try:
                    await step
                except LeaseExpiredError as error:
                    refused.append(error)

        ctx.subscribe_event("tea.ready", pour)
        async with bus:
            await bus.publish("tea.ready", "kitchen", {})
            await until(lambda: len(refused) == 3)

    asyncio.run(story())

    assert sql("SELECT COUNT(*) FROM commits") == [[0]]
    assert sql("SELECT type FROM events") == [["tea.ready"]]
    assert sql("SELECT COUNT(*) FROM deferred_events") == [[0]]


def test_what_a_handler_queues_and_does_not_commit_is_dropped_and_a_task_of_it_lives_on(
    bus, caplog
):
    async def story():
        ctx, tasks, go = context_of(bus, models=[TeaGuest]), [], asyncio.Event()

        async def later():
            await go.wait()
            await ctx.emit("tea.poured", {})
            await ctx.ensure("TeaGuest", GUESTS[1])
            return await ctx.commit()

        async def pour(event):
            await ctx.ensure("TeaGuest", GUESTS[0])
            tasks.append(asyncio.create_task(later()))

        ctx.subscribe_event("tea.ready", pour)
        async with bus:
            await ended(bus, await bus.publish("tea.ready", "kitchen", {}))
            nothing = await ctx.commit()
            go.set()
            commit_id = await tasks[0]
            guests = await ctx.query("TeaGuest").collect()
        return nothing, commit_id, guests

    with caplog.at_level(logging.WARNING, logger="ontologia.extensions"):
        nothing, commit_id, guests = asyncio.run(story())

    assert nothing is None
    assert isinstance(commit_id, int)
    assert guests == [GUESTS[1]]
    assert "tea queued 1 objects and did not commit them" in caplog.text


def test_a_handler_on_another_bus_of_the_session_leaves_nothing_queued_either(uri):
    async def story(session):
        bus, other = EventBus(session, name="one"), EventBus(session, name="other")
        ctx, commits = context_of(bus, models=[TeaGuest]), []

        async def pour(event):
            await ctx.ensure("TeaGuest", GUESTS[0])
            commits.append(await ctx.commit())
            await ctx.ensure("TeaGuest", GUESTS[1])

        other.subscribe("tea.ready", pour)
        async with other:
            await ended(other, await other.publish("tea.ready", "kitchen", {}))
        nothing = await ctx.commit()
        await bus.close()
        return nothing, session.get_commit(commits[0])["metadata"]

    with Session(uri) as session:
        nothing, metadata = asyncio.run(story(session))

    assert nothing is None
    assert (metadata["extension_id"], metadata["handler_id"]) == ("tea", "bus:other")


def test_a_handler_that_takes_longer_than_a_lease_keeps_its_event(uri, sql):
    clock = ManualClock()

    async def later_than(end):
        """When the lease ends, if that is later."""
        [[found]] = await asyncio.to_thread(sql, "SELECT lease_until FROM event_claims")
        return found if found > end else None

    async def story(session):
        bus = EventBus(session)
        ctx, ear = context_of(bus, models=[TeaGuest]), Ear()

        async def slow(event):
            await ear(event)
            first = end = await later_than("")
            while to_text(clock.now()) <= first:
                clock.advance(seconds=10)  # a third of the lease
                end = await until(lambda end=end: later_than(end))
            await serve(ctx)

        ctx.subscribe_event("tea.ready", slow)
        async with bus:
            [entry] = await ended(bus, await bus.publish("tea.ready", "kitchen", {}))
        return entry["status"], len(ear.events)

    config = OntologiaConfig(clock=clock, event_claim_lease_ms=30_000)
    with Session(uri, config=config) as session:
        assert asyncio.run(story(session)) == ("done", 1)
    assert sql("SELECT attempts FROM event_claims") == [[0]]


# -- nothing but the context ----------------------------------------------------------------------

COUNTER = """
class Extension:
    async def initialize(self, context):
        self.context = context
        context.subscribe_event("tea.ready", self.on_ready)

    async def on_ready(self, event):
        guest = await self.context.query("TeaGuest").where(("id", "=", event.payload["to"])).first()
        cups = guest["cups"] + 1
        await self.context.ensure("TeaGuest", guest | {"cups": cups})
        await self.context.commit(event={"topic": "tea.poured", "payload": {"cups": cups}})
        if cups < self.context.settings["most"]:
            await self.context.schedule_at(0.01, "tea.ready", event.payload)
        self.context.logger.info("poured %d", cups)
"""


@pytest.mark.req("BUS-020", "BUS-065")
def test_an_extension_that_imports_nothing_works_with_the_context_alone(bus):
    module = types.ModuleType("counter")
    known = set(sys.modules)
    exec(compile(COUNTER, "counter.py", "exec"), module.__dict__)  # noqa: S102 - the text above
    assert "import" not in COUNTER
    assert set(sys.modules) == known

    async def story():
        ctx = context_of(
            bus,
            "counter",
            models=[TeaGuest],
            settings={"most": 3},
            permissions={
                "publish": ["tea.ready", "tea.poured"],
                "subscribe": ["tea.ready"],
                "read": ["TeaGuest"],
                "write": ["TeaGuest"],
            },
        )
        host = context_of(bus, "host", models=[TeaGuest])
        await host.ensure("TeaGuest", {"id": "g1", "name": "Ada"})
        await host.commit()
        ear = Ear()
        host.subscribe_event("tea.poured", ear)
        await module.Extension().initialize(ctx)
        async with bus:
            await host.emit("tea.ready", {"to": "g1"})
            await until(lambda: len(ear.events) == 3)
            return ear.heard("cups"), await host.query("TeaGuest").first()

    cups, guest = asyncio.run(story())

    assert cups == [1, 2, 3]
    assert guest["cups"] == 3
