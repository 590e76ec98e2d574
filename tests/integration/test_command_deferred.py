"""What commands announce for later, or only once; and what says who announced it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.commands import Command, DomainEvent, Env, api
from ontologia.errors import ConfigError, InvalidValueError
from ontologia.queues import EventWorker, open_queue
from ontologia.testing import ManualClock
from tests.integration.commands import invoke
from tests.integration.freight import FreightNote, FreightShipment, application, do, queued

KEY = "freight.shipment"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def env(uri: str, clock: ManualClock) -> Iterator[Env]:
    with (
        Session(uri, config=OntologiaConfig(clock=clock)) as session,
        Env(session, modules=[application()]) as env,
    ):
        yield env


def emit(env: Env, where: str, number: int, **options: Any) -> None:
    """Announce an event within a command, which writes nothing, or outside of one."""
    if where == "outside":
        env.emit("shipment.seen", {"number": number}, **options)
    else:
        do(env, lambda model, _: model.emit("shipment.seen", {"number": number}, **options))


def numbers(env: Env) -> list[int]:
    return [event.payload["number"] for event in queued(env)]


# -- later, and once ------------------------------------------------------------------------------


@pytest.mark.req("NEW-022", "EDE-033")
@pytest.mark.parametrize("where", ["within", "outside"])
def test_an_event_may_be_announced_for_later(env: Env, clock: ManualClock, where: str) -> None:
    emit(env, where, 1, delay=3, tenant_id="acme")
    emit(env, where, 2, at=clock.now() + timedelta(seconds=2))
    emit(env, where, 3, delay=timedelta(seconds=1))
    emit(env, where, 4)

    assert numbers(env) == [4]
    for expected in ([3], [2]):
        clock.advance(seconds=1)
        assert numbers(env) == expected
    clock.advance(seconds=1)
    [last] = queued(env)
    assert (last.payload, last.tenant_id) == ({"number": 1}, "acme")


@pytest.mark.req("NEW-023", "EDE-033")
@pytest.mark.parametrize("where", ["within", "outside"])
def test_an_event_with_a_key_is_announced_once(env: Env, clock: ManualClock, where: str) -> None:
    emit(env, where, 1, dedup_key="a", delay=1)
    emit(env, where, 2, dedup_key="a")
    emit(env, where, 3, dedup_key="b")
    emit(env, where, 4, dedup_key="b")

    assert numbers(env) == [3]
    clock.advance(seconds=1)
    assert numbers(env) == [1]


@pytest.mark.req("NEW-022", "EDE-082")
def test_nothing_is_deferred_by_a_command_that_fails(env: Env, clock: ManualClock) -> None:
    def fail(model: FreightShipment, cmd: Command) -> None:
        model.emit("shipment.seen", {"number": 1}, delay=1, dedup_key="a")
        raise LookupError("the truck is gone")

    with pytest.raises(LookupError):
        do(env, fail)
    clock.advance(seconds=2)
    emit(env, "within", 2, dedup_key="a")

    assert numbers(env) == [2]


@pytest.mark.req("NEW-022", "NEW-023")
def test_a_deferral_that_makes_no_sense_is_refused_as_it_is_in_a_handler(
    env: Env, clock: ManualClock
) -> None:
    for wrong, said in (
        ({"delay": -1}, "delay= takes seconds"),
        ({"delay": 1, "at": clock.now()}, "not both"),
        ({"at": clock.now().replace(tzinfo=None)}, "aware datetime"),
        ({"dedup_key": ""}, "dedup_key"),
    ):
        with pytest.raises(InvalidValueError, match=said):
            env.emit("shipment.seen", {}, **wrong)
    assert queued(env) == []


def test_only_a_queue_in_the_store_can_keep_an_event_for_later(uri: str) -> None:
    with Env(uri, queue="inmemory") as env:
        for options in ({"delay": 1}, {"dedup_key": "a"}):
            with pytest.raises(ConfigError, match="this one is inmemory; nothing was announced"):
                env.emit("shipment.seen", {}, **options)  # type: ignore[arg-type]
        assert queued(env) == []
    with Env(uri, queue="none") as env:
        env.emit("shipment.seen", {}, delay=1)
        with pytest.raises(InvalidValueError):
            env.emit("shipment.seen", {}, delay=-1)


def test_the_queue_of_another_session_keeps_an_event_for_later(
    uri: str, env: Env, clock: ManualClock
) -> None:
    queue = open_queue("store", session=env.session, group="other")
    with (
        Session(uri, config=OntologiaConfig(clock=clock)) as session,
        Env(session, modules=[application()], queue=queue) as beside,
    ):
        emit(beside, "within", 1, delay=1)
        emit(beside, "outside", 2, dedup_key="a")
        assert numbers(beside) == [2]
        clock.advance(seconds=1)
        assert numbers(beside) == [1]


# -- who announced it -----------------------------------------------------------------------------


def source(env: Env, name: str) -> str | None:
    events = env.session.event_store
    [found] = [each for each in events.list_events("default", limit=100) if each["type"] == name]
    inspected = events.inspect_event(found["id"])
    assert inspected is not None
    said: str | None = inspected["source"]
    return said


def test_an_event_says_the_command_where_there_is_no_commit_to_say(env: Env) -> None:
    record = env.models[KEY].create({"reference": "S", "status": "confirmed"})

    def look(model: FreightShipment, cmd: Command) -> None:
        model.env.models[KEY].browse(record.id).read()
        model.emit("shipment.looked", {})

    env.dispatch(Command("shipment.confirm", {}, KEY, record.id))  # writes what is so already
    do(env, look, record.id)
    emit(env, "within", 1)
    env.emit("shipment.alone", {})
    head = env.session.head
    do(env, lambda model, _: (record.write({"weight": 3}), model.emit("shipment.weighed", {})))

    assert source(env, "shipment.confirmed") == "command:shipment.confirm"
    assert source(env, "shipment.looked") == "command:shipment.call"
    assert source(env, "shipment.seen") == "command:shipment.call"
    assert source(env, "shipment.alone") is None
    assert source(env, "shipment.weighed") == f"commit:{head + 1}"


@pytest.mark.parametrize("delay", [None, 1])
def test_why_and_trace_go_back_to_a_command_that_wrote_nothing(
    uri: str, clock: ManualClock, delay: float | None
) -> None:
    with Session(uri, config=OntologiaConfig(clock=clock)) as session:
        with Env(session, modules=[_noting()]) as env:
            emit(env, "within", 1, delay=delay)
            clock.advance(seconds=1)
            EventWorker(env).run_until_empty()
        why = session.why(FreightNote, "n1")
        trace = session.trace(why.event_id or "")

    [cause] = why.causes
    assert why.complete
    assert (cause.source, cause.commit_id) == ("command:shipment.call", None)
    assert (cause.causation_id or "").startswith("command:")
    [event] = trace.events
    assert (event.source, event.event_id) == ("command:shipment.call", cause.event_id)
    told = invoke("why", "freight.note", "n1", "--datastore-uri", uri).stdout
    assert told.splitlines()[-1].endswith('{"number":1}, announced by command:shipment.call')
    drawn = invoke("trace", cause.event_id, "--datastore-uri", uri).stdout
    assert ", announced by command:shipment.call" in drawn.splitlines()[0]
    journal = invoke("trace", cause.event_id, "--json", "--datastore-uri", uri).stdout
    assert json.loads(journal.splitlines()[0])["source"] == "command:shipment.call"


def _noting() -> ModuleType:
    @api.on_event("shipment.seen")
    def note(event: DomainEvent, env: Env) -> None:
        env.models["freight.note"].create({"id": "n1", **event.payload})

    return application(note)
