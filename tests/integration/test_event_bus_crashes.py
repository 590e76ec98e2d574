"""Buses in processes that are killed: nothing is lost, and nothing is announced twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.extensions.bus import EventBus
from tests.integration.buses import NEVER, Ear, ended, until
from tests.integration.processes import Process

pytestmark = pytest.mark.each_database

HOST = """
import asyncio
from ontologia.extensions import dispatch
from ontologia.extensions.bus import EventBus
from ontologia.store.events.claims import Claims
from ontologia.store.events.log import EventLog

def stopping(cls, name):
    # Say so when this is called, and go on when told.
    whole = getattr(cls, name)
    def stopped(*args, **kwargs):
        say("inside")
        listen()
        return whole(*args, **kwargs)
    setattr(cls, name, stopped)

async def host(handler):
    bus = EventBus(sys.argv[1])
    bus.subscribe("tea.ready", handler)
    async with bus:
        await asyncio.Event().wait()

async def silent(event):
    pass
"""

PUBLISH = """
import asyncio
from ontologia.extensions.bus import EventBus

async def publish():
    bus = EventBus(sys.argv[1])
    say("published", await bus.publish("tea.ready", "kitchen", {"n": 1}))
    listen()

asyncio.run(publish())
"""

IN_A_HANDLER = (
    HOST
    + """
async def stuck(event):
    if event.payload["n"] == 1:
        say("inside")
        await asyncio.Event().wait()

asyncio.run(host(stuck))
"""
)

STOPPED = HOST + "\nstopping({place})\nasyncio.run(host(silent))\n"

POISON = (
    HOST
    + """
async def poison(event):
    if event.payload["n"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with open(sys.argv[2], "a") as notes:
        notes.write(f"{event.payload['n']}\\n")

asyncio.run(host(poison))
"""
)

SHARE = (
    HOST
    + """
async def note(event):
    with open(sys.argv[2], "a") as notes:
        notes.write(f"{event.payload['n']}\\n")

async def share():
    bus = EventBus(sys.argv[1])
    bus.subscribe("tea.ready", note)
    async with bus:
        say("began")
        await asyncio.to_thread(listen)
    report("ended")

asyncio.run(share())
"""
)


async def take_over(uri, ears=1):
    """Recover and deliver in this process: how many were recovered, how, and what was heard."""
    bus, ear = EventBus(uri, poll_interval=NEVER), Ear()
    bus.subscribe("tea.ready", ear)
    recovered = await bus.recover()
    before = [entry["status"] for entry in await bus.journal.list(topic="tea.ready")]
    await bus.start()
    await until(lambda: len(ear.events) >= ears)
    await ended(bus, *(event.id for event in ear.events))
    await bus.close()
    return recovered, before, ear.heard()


def publish(uri, *numbers, delay=None):
    async def story():
        bus = EventBus(uri)
        for n in numbers:
            if delay is None:
                await bus.publish("tea.ready", "kitchen", {"n": n})
            else:
                await bus.schedule_at(delay, "tea.ready", "kitchen", {"n": n})
        await bus.close()

    asyncio.run(story())


@pytest.mark.req("BUS-001")
def test_what_was_published_before_a_kill_is_delivered_by_the_next_process(uri, sql):
    with Process(PUBLISH, uri) as process:
        process.hear("published")
        process.kill()

    assert sql("SELECT status FROM event_journal") == [["pending"]]
    assert asyncio.run(take_over(uri)) == (0, ["pending"], [1])


@pytest.mark.req("BUS-002", "BUS-055", "BUS-058")
def test_what_was_being_handled_at_a_kill_is_delivered_again_without_waiting_for_its_lease(
    uri, sql
):
    publish(uri, 0, 1, 2)
    with Process(IN_A_HANDLER, uri) as process:
        process.hear("inside")
        process.kill()

    statuses = "SELECT status FROM event_journal ORDER BY id"
    assert sql(statuses) == [["done"], ["processing"], ["pending"]]
    assert asyncio.run(take_over(uri, 2)) == (1, ["done", "pending", "pending"], [1, 2])
    assert sql(statuses) == [["done"]] * 3
    # The one that was begun has an attempt more; the one that was only claimed has not.
    attempts = (
        "SELECT k.attempts FROM event_claims k JOIN events e ON e.id = k.event_id ORDER BY e.seq"
    )
    assert sql(attempts) == [[0], [1], [0]]


def test_recovering_leaves_alone_what_a_living_process_is_handling(uri, sql):
    publish(uri, 1)

    async def story():
        bus = EventBus(uri)
        recovered = await bus.recover()
        status = [entry["status"] for entry in await bus.journal.list()]
        await bus.close()
        return recovered, status

    with Process(IN_A_HANDLER, uri) as process:
        process.hear("inside")

        assert asyncio.run(story()) == (0, ["processing"])


@pytest.mark.req("BUS-017")
@pytest.mark.parametrize(
    "place",
    [
        pytest.param('EventLog, "add"', id="within the promotion"),
        pytest.param('Claims, "lease"', id="before the claim"),
        pytest.param('dispatch.Dispatch, "_deliver"', id="before the handler"),
    ],
)
def test_a_kill_around_the_promotion_neither_loses_nor_doubles_the_event(uri, sql, place):
    publish(uri, 1, delay=0.01)
    with Process(STOPPED.replace("{place}", place), uri) as process:
        process.hear("inside")
        process.kill()

    _, _, heard = asyncio.run(take_over(uri))

    assert heard == [1]
    assert sql("SELECT status FROM deferred_events") == [["fired"]]
    assert sql("SELECT topic, status FROM event_journal") == [["tea.ready", "done"]]


@pytest.mark.thorough
def test_an_event_that_kills_its_process_each_time_fails_in_the_end_and_takes_no_other_along(
    uri, sql, tmp_path
):
    publish(uri, 0, 1, 2)
    notes, limited = tmp_path / "notes", POISON.replace("EventBus(sys.argv[1])", LIMITED)
    for _ in range(3):
        with Process(limited, uri, notes) as process:
            process.popen.wait(60)

    with Session(uri, config=OntologiaConfig(event_max_attempts=3)) as session:
        asyncio.run(take_over_poison(session))

    rows = sql("SELECT status, error FROM event_journal WHERE topic = 'tea.ready' ORDER BY id")
    assert [row[0] for row in rows] == ["done", "failed", "done"]
    assert rows[1][1] == "lease expired"
    assert sql("SELECT attempts FROM dead_letters") == [[3]]
    assert sql("SELECT attempt, outcome FROM attempts ORDER BY attempt") == [
        [number, "lease expired"] for number in (1, 2, 3)
    ]
    assert notes.read_text() == "0\n"


LIMITED = "EventBus(Session(sys.argv[1], config=OntologiaConfig(event_max_attempts=3)))"


async def take_over_poison(session):
    bus, ear = EventBus(session), Ear()
    bus.subscribe("tea.ready", ear)
    async with bus:
        await until(lambda: ear.events)
        await ended(bus, 1, 2, 3)
    assert ear.heard() == [2]


@pytest.mark.thorough
@pytest.mark.req("BUS-071")
def test_two_processes_on_one_store_handle_each_event_once(uri, tmp_path):
    notes = [tmp_path / "one", tmp_path / "other"]
    with Process(SHARE, uri, notes[0]) as one, Process(SHARE, uri, notes[1]) as other:
        one.hear("began")
        other.hear("began")
        publish(uri, *range(200))
        asyncio.run(all_done(uri, 200))
        for process in (one, other):
            process.tell()
            assert process.report() == "ended"

    assert sorted(handled(notes)) == list(range(200))


def handled(notes: list[Path]) -> list[int]:
    texts = [each.read_text() for each in notes if each.exists()]
    return [int(line) for text in texts for line in text.split()]


async def all_done(uri, count):
    bus = EventBus(uri)

    async def enough():
        return len(await bus.journal.list(status="done", limit=count)) == count

    await until(enough)
    await bus.close()
