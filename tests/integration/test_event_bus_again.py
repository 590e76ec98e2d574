"""Events of a bus that are tried again, and chains that would never end."""

from __future__ import annotations

import asyncio

import pytest

from ontologia import Discard, OntologiaConfig, Retry, Session
from ontologia.extensions.bus import EventBus
from ontologia.testing import ManualClock
from tests.integration.buses import Ear, ended, until


@pytest.mark.req("BUS-053", "BUS-057")
def test_a_failed_event_stays_failed_until_somebody_retries_it(uri):
    async def story():
        bus, mended = EventBus(uri), []
        ear = Ear(lambda event: None if mended else ValueError("broken"))
        bus.subscribe("tea.ready", ear)
        async with bus:
            number = await bus.publish("tea.ready", "kitchen", {})
            [failed] = await ended(bus, number)
            recovered = await bus.recover()
            other = await bus.publish("tea.gone", "kitchen", {})
            await ended(bus, other)
            calls = len(ear.events)
            mended.append(True)
            answers = [await bus.retry(each) for each in (number, other, 10**9)]
            await until(lambda: len(ear.events) == 2)
            [done] = await ended(bus, number)
            answers.append(await bus.retry(number))
        return failed, recovered, calls, answers, done

    failed, recovered, calls, answers, done = asyncio.run(story())

    assert (failed["status"], recovered, calls) == ("failed", 0, 1)
    assert answers == [True, False, False, False]
    assert (done["status"], done["error"]) == ("done", None)


@pytest.mark.req("BUS-053")
def test_further_attempts_are_for_those_that_failed_and_allow_them(uri):
    async def story(session):
        bus = EventBus(session)
        calm = Ear()
        once = Ear(lambda event: ValueError("never again"))
        twice = Ear(lambda event: ValueError("not yet") if len(twice.events) < 2 else None)
        for name, ear, most in (("calm", calm, 5), ("once", once, 1), ("twice", twice, 3)):
            bus.subscribe("tea.ready", ear, subscriber_id=name, max_attempts=most)
        async with bus:
            [entry] = await ended(bus, await bus.publish("tea.ready", "kitchen", {}))
        return [len(ear.events) for ear in (calm, once, twice)], entry

    with Session(uri, config=OntologiaConfig(event_backoff_base_ms=1)) as session:
        calls, entry = asyncio.run(story(session))

    assert calls == [1, 1, 2]
    assert (entry["status"], entry["error"]) == ("failed", "once: ValueError: never again")


def test_attempts_end_at_their_number_and_a_handler_may_choose_the_wait(uri):
    async def story(session):
        bus = EventBus(session)
        again = Ear(lambda event: Retry("later", after=0))
        never = Ear(lambda event: Discard("no use"))
        bus.subscribe("tea.ready", again, subscriber_id="again", max_attempts=3)
        bus.subscribe("tea.gone", never, subscriber_id="never", max_attempts=3)
        async with bus:
            numbers = [await bus.publish(topic, "x", {}) for topic in ("tea.ready", "tea.gone")]
            entries = await ended(bus, *numbers)
        return len(again.events), len(never.events), [entry["error"] for entry in entries]

    with Session(uri, config=OntologiaConfig(event_backoff_base_ms=3_600_000)) as session:
        assert asyncio.run(story(session)) == (
            3,
            1,
            ["again: Retry: later", "never: Discard: no use"],
        )


@pytest.mark.req("BUS-030")
def test_a_topic_that_answers_itself_forever_is_ended_by_the_chain_limit(uri, sql):
    async def story(session):
        bus = EventBus(session)

        async def echo(event):
            await bus.publish("tea.echo", "echo", {"n": event.payload["n"] + 1})

        bus.subscribe("tea.echo", echo, subscriber_id="echo", max_attempts=5)
        async with bus:
            first = await bus.publish("tea.echo", "echo", {"n": 0}, "c-1")
            await until(lambda: bus.journal.list(status="failed"))
            return first, await bus.journal.list(topic="tea.echo")

    with Session(uri, config=OntologiaConfig(max_event_chain_depth=5)) as session:
        first, entries = asyncio.run(story(session))

    assert [entry["payload"]["n"] for entry in entries] == [0, 1, 2, 3, 4, 5]
    assert [entry["status"] for entry in entries] == ["done"] * 5 + ["failed"]
    assert {entry["correlation_id"] for entry in entries} == {"c-1"}
    assert "EventLoopLimitError" in entries[-1]["error"]
    asked = "SELECT root_event_id, chain_depth, causation_id FROM events WHERE type = 'tea.echo' ORDER BY seq"
    ids = [entry["event_id"] for entry in entries]
    assert sql(asked) == [[ids[0], n, ids[n - 1] if n else None] for n in range(6)]
    assert entries[0]["id"] == first


def test_what_schedules_itself_for_later_may_do_so_for_ever(uri, sql):
    clock = ManualClock()
    heard = []

    def scheduled():
        [[count]] = sql("SELECT count(*) FROM deferred_events")
        return count

    async def story(session):
        bus = EventBus(session)

        async def daily(event):
            heard.append(event.payload["day"])
            await bus.schedule_at(2, "tea.daily", "clock", {"day": event.payload["day"] + 1})

        bus.subscribe("tea.daily", daily)
        async with bus:
            await bus.publish("tea.daily", "clock", {"day": 1}, "c-1")
            for day in range(1, 9):
                await until(lambda day=day: len(heard) >= day and scheduled() == day)
                clock.advance(seconds=2)

    with Session(uri, config=OntologiaConfig(max_event_chain_depth=3, clock=clock)) as session:
        asyncio.run(story(session))

    assert heard[:8] == [1, 2, 3, 4, 5, 6, 7, 8]
    asked = "SELECT chain_depth, correlation_id FROM events WHERE type = 'tea.daily' ORDER BY seq"
    assert sql(asked)[:8] == [[0, "c-1"]] * 8
    causes = sql("SELECT causation_id FROM events WHERE type = 'tea.daily' ORDER BY seq")
    ids = sql("SELECT id FROM events WHERE type = 'tea.daily' ORDER BY seq")
    assert causes[1:8] == ids[:7]
    roots = sql("SELECT root_event_id FROM events WHERE type = 'tea.daily' ORDER BY seq")
    assert roots[:8] == ids[:1] * 8
