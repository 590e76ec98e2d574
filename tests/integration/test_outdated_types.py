"""A store that is migrated under those who work with it: no event is to blame for that."""

from __future__ import annotations

import pytest

from ontologia import Entity, Event, Field, on_event
from ontologia.commands import Env
from ontologia.errors import SchemaOutdatedError
from ontologia.queues import EventWorker, RetryPolicy
from tests.integration.freight import application
from tests.integration.running import statuses

pytestmark = pytest.mark.each_database

SEVERAL = 5


class KettleFilled(Event):
    kettle: Field[str]


def kettle():
    """The first version of a class."""

    class Kettle(Entity):
        id: Field[str]

    return Kettle


def kettle_with_spout():
    """The second."""

    class Kettle(Entity):
        id: Field[str]
        spout: Field[str] = "short"

    return Kettle


def migrate_under(open_session):
    newer = open_session(entity_types=[kettle_with_spout()])
    upgraders = {("Kettle", 1): lambda fields: fields | {"spout": "long"}}
    newer.migrate(dry_run=False, force=True, upgraders=upgraders)


def announced(session, number=SEVERAL):
    events = [KettleFilled(kettle=f"k{n}") for n in range(number)]
    for event in events:
        session.commit(event=event)
    return events


@pytest.fixture
def older(open_session):
    """The class of a program that is about to be too old, used by a session."""
    Kettle = kettle()
    session = open_session(entity_types=[Kettle], settings={"event_max_attempts": 1})
    session.ensure(Kettle(id="first"))
    session.commit()
    return session, Kettle


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", ["def", "async def", "one that goes on"])
def test_a_run_ends_and_its_events_are_handed_back_unpunished(older, open_session, kind, workers):
    session, Kettle = older
    events = announced(session)
    if workers > 1:
        migrate_under(open_session)

    def write(ctx):
        if workers == 1 and ctx.event.kettle == "k2":
            migrate_under(open_session)
        ctx.ensure(Kettle(id=ctx.event.kettle))
        ctx.commit()

    async def write_later(ctx):
        write(ctx)

    def go_on(ctx):
        try:
            write(ctx)
        except SchemaOutdatedError:
            return

    chosen = {"def": write, "async def": write_later}.get(kind, go_on)
    with pytest.raises(SchemaOutdatedError, match=r"entity Kettle.*-spout") as caught:
        session.run(
            [on_event(KettleFilled, name="pour")(chosen)], workers=workers, max_iterations=1
        )

    assert any(
        "(kettle.filled): pour was interrupted; it is released" in note
        for note in caught.value.__notes__
    )
    done = statuses(session).count("acked")
    assert done == (2 if workers == 1 else 0)
    assert session.event_store.list_dead_letters("default") == []
    assert [session.event_store.inspect_event(each.id)["attempts"] for each in events] == (
        [[]] * SEVERAL
    )
    assert session.event_store.check() == []

    seen = []
    newer = open_session(settings={"event_max_attempts": 1})
    newer.run(
        [on_event(KettleFilled, name="pour")(lambda ctx: seen.append(ctx.attempt))],
        max_iterations=1,
    )

    assert seen == [1] * (SEVERAL - done), (
        "the next program has them at once, as if for the first time"
    )
    assert set(statuses(newer)) == {"acked"}


def test_a_question_that_does_not_fit_any_more_ends_a_run_as_well(older, open_session):
    session, _ = older
    [event] = announced(session, 1)

    class Kettle(Entity):
        id: Field[str]
        colour: Field[str]

    @on_event(KettleFilled)
    def look(ctx):
        ctx.query().entities(Kettle).collect()

    with pytest.raises(SchemaOutdatedError, match="colour"):
        open_session(settings={"event_max_attempts": 1}).run([look], max_iterations=1)

    assert session.event_store.inspect_event(event.id)["attempts"] == []
    assert session.event_store.list_dead_letters("default") == []


def test_types_of_another_store_are_the_handlers_own_affair(older, open_session, tmp_path):
    """The run could go on, and an event that always fails must not end it again and again."""
    session, Kettle = older
    [event] = announced(session, 1)
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    open_session(uri=elsewhere, entity_types=[kettle_with_spout()])

    @on_event(KettleFilled)
    def write_elsewhere(ctx):
        other = open_session(uri=elsewhere)
        other.ensure(Kettle(id="k"))
        other.commit()

    session.run([write_elsewhere], max_iterations=1)

    [letter] = session.event_store.list_dead_letters("default")
    assert letter["event_id"] == event.id


@pytest.mark.parametrize("provider", ["store", "inmemory"])
def test_a_worker_of_a_queue_ends_and_hands_back_what_it_had(older, open_session, provider):
    session, Kettle = older
    env = Env(session, modules=[application()], queue=provider)
    for n in range(3):
        env.emit("kettle.filled", {"n": n})
    tried = []

    def handle(event, env):
        tried.append(event.payload["n"])
        if event.payload["n"] == 1:
            migrate_under(open_session)
        session.ensure(Kettle(id=f"q{event.payload['n']}"))
        session.commit()

    env.registry.get_event_handlers = lambda name: [handle]
    worker = EventWorker(env, retry_policy=RetryPolicy(max_attempts=2))
    with pytest.raises(SchemaOutdatedError, match="entity Kettle") as caught:
        worker.run_until_empty()

    session.discard()
    assert tried == [0, 1]
    assert any("(kettle.filled): " in n and " was interrupted" in n for n in caught.value.__notes__)
    told = worker.health_snapshot()
    assert (told["succeeded"], told["retried"], told["dead_lettered"]) == (1, 0, 0)

    numbers = []
    env.registry.get_event_handlers = lambda name: [lambda event, env: numbers.append(event)]
    again = EventWorker(env, retry_policy=RetryPolicy(max_attempts=2))
    again.run_until_empty()
    assert sorted(each.payload["n"] for each in numbers) == [1, 2]
