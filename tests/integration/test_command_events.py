"""What commands announce, who hears of it, and changes of fields that are announced by themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ontologia import Entity, Event, Field, HandlerContext, OntologiaConfig, Session, on_event
from ontologia.commands import (
    Command,
    DomainEvent,
    DomainModel,
    Env,
    api,
    get_current_tenant_id,
    set_current_tenant_id,
)
from ontologia.errors import (
    ConfigError,
    DefinitionError,
    EventLoopLimitError,
    InvalidValueError,
    LeaseExpiredError,
    SessionClosedError,
)
from ontologia.queues import EventWorker, InMemoryEventQueue, RetryPolicy
from ontologia.testing import ManualClock
from tests.integration.freight import FreightShipment, application, do, model, queued
from tests.integration.running import PATIENCE, until

KEY = "freight.shipment"


@contextmanager
def working(env: Env, **options: Any) -> Iterator[EventWorker]:
    """A worker beside the test."""
    worker = EventWorker(env, **options)
    thread = threading.Thread(target=worker.run_forever)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join()


def tracking(*fields: str | None, seen: list[DomainEvent]) -> Any:
    """A model `freight.box` that tracks these fields, one method each; None is all of them."""

    def method(field: str | None) -> Callable[..., None]:
        def handle(self: Any, event: DomainEvent, env: Env) -> None:
            assert self.env is env
            seen.append(event)

        names = None if field is None else [field]
        return api.on_event("freight.box.field_changed", track_fields=names)(handle)

    members = {f"on_{field}": method(field) for field in fields}
    return model("freight.box", **members)


# -- emitting -------------------------------------------------------------------------------------


@pytest.mark.req("EDE-033", "EDE-034", "EDE-035")
def test_what_a_command_announces_is_queued_with_its_changes(uri: str) -> None:
    with Env(uri, modules=[application()], tenant_id="acme") as env:
        record = env.models[KEY].create({"reference": "S"})
        env.dispatch(Command("shipment.confirm", {}, KEY, record.id))

        def shorthand(model: FreightShipment, cmd: Command) -> None:
            model.emit("shipment.seen", {"n": 1}, tenant_id="other", correlation_id="req-abc")
            assert queued(model.env) != []  # only what was announced before

        do(env, shorthand)
        [seen] = queued(env)
        metadata = env.session.get_commit(env.session.head)["metadata"]  # type: ignore[index]
    assert (seen.name, seen.payload) == ("shipment.seen", {"n": 1})
    assert (seen.tenant_id, seen.correlation_id) == ("other", "req-abc")
    assert metadata["command"] == "shipment.confirm"


@pytest.mark.req("EDE-035")
def test_tenant_correlation_and_causation_come_from_what_is_going_on(uri: str) -> None:
    with Env(uri, modules=[application()]) as env:
        token = set_current_tenant_id("acme")
        try:
            env.dispatch(
                Command("shipment.confirm", {}, KEY, env.models[KEY].create({"reference": "S"}).id)
            )
        finally:
            set_current_tenant_id(token.old_value if isinstance(token.old_value, str) else None)
        env.emit("shipment.alone", {})
        confirmed, alone = queued(env)
        metadata = env.session.get_commit(env.session.head)["metadata"]  # type: ignore[index]
    assert confirmed.tenant_id == "acme"
    assert confirmed.correlation_id == metadata["command_id"]
    assert confirmed.causation_id == f"command:{metadata['command_id']}"
    assert (alone.tenant_id, alone.causation_id) == (None, None)


@pytest.mark.req("EDE-033")
def test_outside_of_a_command_an_event_is_queued_at_once(uri: str) -> None:
    with Env(uri, modules=[application()]) as env:
        assert env.emit("shipment.seen", {"n": 1}) is None  # type: ignore[func-returns-value]
        assert [event.payload for event in queued(env)] == [{"n": 1}]
        for wrong in ([1], "text", {"n": object()}, {"n": float("nan")}):
            with pytest.raises(InvalidValueError):
                env.emit("shipment.seen", wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidValueError):
            env.emit("", {})


@pytest.mark.req("EDE-082")
@pytest.mark.parametrize("queue", [None, "inmemory"])
def test_no_event_of_a_failed_command_is_ever_delivered(uri: str, queue: str | None) -> None:
    with Env(uri, modules=[application()], queue=queue) as env:
        record = env.models[KEY].create({"reference": "S"})
        with pytest.raises(LookupError):
            env.dispatch(Command("shipment.fail", {}, KEY, record.id))
        assert queued(env) == []
        env.dispatch(Command("shipment.confirm", {}, KEY, record.id))
        assert [event.name for event in queued(env)] == ["shipment.confirmed"]


def test_an_event_that_cannot_be_stored_takes_its_command_back(uri: str) -> None:
    config = OntologiaConfig(max_payload_bytes=100)
    with Session(uri, config=config) as session, Env(session, modules=[application()]) as env:

        def large(model: FreightShipment, cmd: Command) -> None:
            model.env.models[KEY].create({"reference": "S"})
            model.emit("shipment.large", {"text": "x" * 200})

        with pytest.raises(InvalidValueError, match="max_payload_bytes"):
            do(env, large)
        assert (session.head, queued(env)) == (0, [])


@pytest.mark.req("EDE-070")
def test_without_a_queue_nothing_is_announced_and_everything_else_works(uri: str) -> None:
    seen: list[DomainEvent] = []
    with Env(uri, modules=[application(tracking("code", seen=seen))], queue="none") as env:
        assert env.queue is None
        box = env.models["freight.box"].create({"code": "a"})
        box.write({"code": "b"})
        env.emit("shipment.seen", {})
        assert box.read()[0]["code"] == "b"
        with pytest.raises(ConfigError, match="needs a queue"):
            EventWorker(env)
    with Env(uri) as env:
        assert queued(env) == []


def test_the_setting_chooses_the_provider(uri: str) -> None:
    for provider, expected in (("inmemory", "inmemory"), ("store", "store")):
        config = OntologiaConfig(default_message_broker_provider=provider)
        with Session(uri, config=config) as session, Env(session) as env:
            assert env.queue is not None
            assert env.queue.provider_key == expected
    with pytest.raises(ConfigError, match="no queue provider 'rabbit'"):
        Env(uri, queue="rabbit")
    given = InMemoryEventQueue()
    with Env(uri, queue=given) as env:
        assert env.queue is given
    given.enqueue(DomainEvent.build(name="a", payload={}))  # a queue that is given stays open


# -- handlers -------------------------------------------------------------------------------------


@pytest.mark.req("EDE-036", "EDE-037", "EDE-038", "EDE-039", "EDE-079")
@pytest.mark.parametrize("queue", [None, "inmemory"])
def test_a_worker_handles_what_commands_announce(uri: str, queue: str | None) -> None:
    said: list[Any] = []

    @api.on_event("shipment.confirmed")
    def first(event: DomainEvent, env: Env) -> None:
        said.append(("first", get_current_tenant_id(), event.payload["shipment_id"]))
        env.dispatch(Command("shipment.weigh", {"by": 3}, KEY, event.payload["shipment_id"]))
        env.emit("web.client.reload", {"reason": "confirmed"})

    @api.on_event("shipment.confirmed")
    def second(event: DomainEvent, env: Env) -> None:
        said.append("second")

    @api.on_event("web.client.reload")
    def reload(event: DomainEvent, env: Env) -> None:
        said.append(("reload", event))

    with Env(
        uri, modules=[application(first, second, reload)], queue=queue, tenant_id="acme"
    ) as env:
        record = env.models[KEY].create({"reference": "S"})
        env.dispatch(Command("shipment.confirm", {}, KEY, record.id))
        assert said == []
        with working(env) as worker:
            until(lambda: len(said) == 3)
            until(lambda: worker.health_snapshot()["succeeded"] == 2)
        assert record.read()[0]["weight"] == 3
        weighed = env.session.get_commit(env.session.head)["metadata"]  # type: ignore[index]
    assert said[:2] == [("first", "acme", record.id), "second"]
    event = said[2][1]
    assert event.tenant_id == "acme"
    assert event.chain_depth == 1
    if queue is None:
        assert weighed["handler_id"] == "worker:default"
        assert weighed["event_id"] == event.causation_id
        assert weighed["attempt"] == 1


@pytest.mark.parametrize("queue", [None, "inmemory"])
def test_a_conflict_in_a_handler_runs_it_again_and_counts_no_attempt(
    uri: str, queue: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def weigh(model: Any, cmd: Command) -> None:
        weight = cmd.record.read()[0]["weight"]
        calls.append(weight)
        if len(calls) == 1:
            with Env(uri, modules=[application()]) as other:
                other.dispatch(Command("shipment.weigh", {"by": 10}, KEY, cmd.model_id))
        cmd.record.write({"weight": weight + 1})

    @api.on_event("shipment.confirmed")
    def weighed(event: DomainEvent, env: Env) -> None:
        do(env, weigh, event.payload["shipment_id"])

    with Env(uri, modules=[application(weighed)], queue=queue) as env:
        record = env.models[KEY].create({"reference": "S"})
        env.dispatch(Command("shipment.confirm", {}, KEY, record.id))
        worker = EventWorker(env, retry_policy=RetryPolicy(max_attempts=1))
        worker.run_until_empty()

        assert calls == [0, 10]
        assert record.read()[0]["weight"] == 11
    health = worker.health_snapshot()
    assert (health["processed"], health["succeeded"], health["last_error"]) == (1, 1, None)
    assert "StateConflictError" not in caplog.text


@pytest.mark.req("EDE-079")
def test_a_failing_handler_does_not_touch_the_command_that_announced_it(uri: str) -> None:
    @api.on_event("shipment.confirmed")
    def broken(event: DomainEvent, env: Env) -> None:
        raise OSError("no mail today")

    with Env(uri, modules=[application(broken)], queue="inmemory") as env:
        record = env.models[KEY].create({"reference": "S"})
        assert (
            env.dispatch(Command("shipment.confirm", {}, KEY, record.id))["status"] == "confirmed"
        )
        policy = RetryPolicy(max_attempts=2, base_delay_seconds=0)
        with working(env, retry_policy=policy) as worker:
            until(lambda: worker.health_snapshot()["dead_lettered"] == 1)
        assert record.read()[0]["status"] == "confirmed"
        assert isinstance(env.queue, InMemoryEventQueue)
        [dead] = env.queue.dead_letters
        assert dead.reason == "no mail today"


def test_a_worker_that_lost_its_lease_writes_nothing(uri: str) -> None:
    clock = ManualClock()
    raised: list[BaseException] = []

    @api.on_event("shipment.confirmed")
    def slow(event: DomainEvent, env: Env) -> None:
        clock.advance(seconds=31)  # longer than the lease
        try:
            env.dispatch(Command("shipment.weigh", {"by": 3}, KEY, event.payload["shipment_id"]))
        except LeaseExpiredError as error:
            raised.append(error)
            raise
        finally:
            worker.stop()

    with (
        Session(uri, config=OntologiaConfig(clock=clock)) as session,
        Env(session, modules=[application(slow)]) as env,
    ):
        record = env.models[KEY].create({"reference": "S"})
        env.dispatch(Command("shipment.confirm", {}, KEY, record.id))
        worker = EventWorker(env)
        worker.run_forever()
        assert len(raised) == 1
        assert record.read()[0]["weight"] == 0


def test_an_env_that_is_closed_under_a_worker_leaves_the_event_to_others(uri: str) -> None:
    begun, closed = threading.Event(), threading.Event()
    raised: list[BaseException] = []

    @api.on_event("shipment.seen")
    def note(event: DomainEvent, env: Env) -> None:
        begun.set()
        assert closed.wait(PATIENCE)
        env.models["freight.note"].create({"by": "the first"})

    def work(env: Env) -> None:
        with pytest.raises(SessionClosedError, match="closed") as info:
            EventWorker(env).run_forever()
        raised.append(info.value)

    env = Env(uri, modules=[application(note)])
    env.emit("shipment.seen", {})
    thread = threading.Thread(target=work, args=(env,))
    thread.start()
    assert begun.wait(PATIENCE)
    env.close()
    closed.set()
    thread.join()

    assert len(raised) == 1
    with Env(uri, modules=[application()]) as other:
        assert [event.name for event in queued(other)] == ["shipment.seen"]
        assert other.models["freight.note"].count() == 0


def test_a_chain_of_events_that_never_ends_is_ended(uri: str) -> None:
    reached: list[int] = []

    @api.on_event("ping")
    def pong(event: DomainEvent, env: Env) -> None:
        reached.append(event.chain_depth)
        try:
            env.emit("ping", {})
        except EventLoopLimitError:
            reached.append(-1)

    config = OntologiaConfig(max_event_chain_depth=3)
    with Session(uri, config=config) as session, Env(session, modules=[application(pong)]) as env:
        env.emit("ping", {})
        with working(env):
            until(lambda: -1 in reached)
    assert reached == [0, 1, 2, 3, -1]


@pytest.mark.parametrize("queue", [None, "inmemory"])
def test_every_event_of_a_chain_knows_the_first(uri: str, queue: str | None) -> None:
    seen: list[DomainEvent] = []

    @api.on_event("link")
    def link(event: DomainEvent, env: Env) -> None:
        seen.append(event)
        if event.payload["left"]:
            env.emit("link", {"left": event.payload["left"] - 1})

    with Env(uri, modules=[application(link)], queue=queue) as env:
        env.emit("link", {"left": 3})
        with working(env):
            until(lambda: len(seen) == 4)
    assert [event.root_event_id for event in seen] == [None, *[seen[0].event_id] * 3]
    assert [event.causation_id for event in seen[1:]] == [event.event_id for event in seen[:-1]]
    assert [event.chain_depth for event in seen] == [0, 1, 2, 3]


def test_why_goes_back_from_a_record_over_the_event_to_the_command(uri: str) -> None:
    @api.on_event("shipment.confirmed")
    def weigh(event: DomainEvent, env: Env) -> None:
        env.dispatch(Command("shipment.weigh", {"by": 3}, KEY, event.payload["shipment_id"]))

    with Env(uri, modules=[application(weigh)]) as env:
        record = env.models[KEY].create({"reference": "S"})
        env.dispatch(Command("shipment.confirm", {}, KEY, record.id))
        confirmed = env.session.head
        with working(env):
            until(lambda: env.session.head > confirmed)
        why = env.session.why(FreightShipment, record.id, "weight")
        assert (why.value, why.handler_id) == (3, "worker:default")
        [cause] = why.causes
        assert (cause.type, cause.commit_id) == ("shipment.confirmed", confirmed)
        assert why.complete
        commit = env.session.get_commit(confirmed)
        assert commit is not None
        assert cause.causation_id == f"command:{commit['metadata']['command_id']}"


# -- beside typed handlers ------------------------------------------------------------------------


class FreightPaid(Event):
    __event_type__ = "freight.paid"
    shipment_id: Field[str]


class FreightLedger(Entity):
    id: Field[str]


def test_a_typed_handler_may_dispatch_commands_and_hear_what_they_announce(uri: str) -> None:
    heard: list[Any] = []

    @on_event(FreightPaid)
    def paid(ctx: HandlerContext[FreightPaid]) -> None:
        env.dispatch(Command("shipment.confirm", {}, KEY, ctx.event.shipment_id))
        heard.append(ctx.attempt)

    with Session(uri) as session, Env(session, modules=[application()]) as env:
        record = env.models[KEY].create({"reference": "S"})
        session.commit(event=FreightPaid(shipment_id=record.id))
        session.run([paid], max_iterations=1)
        commit = session.get_commit(session.head)
        assert commit is not None
        assert commit["metadata"]["handler_id"].endswith("paid")
        assert commit["metadata"]["command"] == "shipment.confirm"
        confirmed = next(e for e in queued(env) if e.name == "shipment.confirmed")
        assert confirmed.causation_id == commit["metadata"]["event_id"]
        assert confirmed.chain_depth == 1
        stored = session.event_store.inspect_event(confirmed.event_id)
        assert stored is not None
        assert stored["source"] == commit["metadata"]["handler_id"]
    assert heard == [1]


# -- changes of fields ------------------------------------------------------------------------------


def changes(env: Env) -> list[dict[str, Any]]:
    return [event.payload for event in queued(env) if event.name == "freight.box.field_changed"]


@pytest.mark.req("EDE-063", "EDE-064", "EDE-065", "EDE-066", "EDE-068", "EDE-071")
@pytest.mark.parametrize("queue", [None, "inmemory"])
def test_changes_of_tracked_fields_are_announced(uri: str, queue: str | None) -> None:
    seen: list[DomainEvent] = []
    modules = [application(tracking("code", "size", seen=seen))]
    with Env(uri, modules=modules, queue=queue, tenant_id="acme") as env:
        box = env.models["freight.box"].create({"code": "a", "size": 1, "colour": "red"})
        assert changes(env) == []  # a record that is made has changed nothing
        box.write({"code": "b"})
        assert changes(env) == [
            {
                "model_key": "freight.box",
                "record_id": box.id,
                "field": "code",
                "old_value": "a",
                "new_value": "b",
                "tenant_id": "acme",
            }
        ]
        box.write({"code": "b", "colour": "blue"})
        assert changes(env) == []
        env.dispatch(Command("ede.update", {"code": "c", "size": 2}, "freight.box", box.id))
        assert [(c["field"], c["old_value"], c["new_value"]) for c in changes(env)] == [
            ("code", "b", "c"),
            ("size", 1, 2),
        ]
        box.unlink()
        assert changes(env) == []


def test_what_a_command_sets_and_sets_back_was_not_changed(uri: str) -> None:
    seen: list[DomainEvent] = []
    with Env(uri, modules=[application(tracking("code", seen=seen))]) as env:
        box = env.models["freight.box"].create({"code": "a", "n": 0})

        def there_and_back(model: FreightShipment, cmd: Command) -> None:
            for code in ("b", "a"):
                model.env.models["freight.box"].browse(box.id).write({"code": code})
            model.env.models["freight.box"].browse(box.id).write({"n": 1})

        do(env, there_and_back)
        assert changes(env) == []

        def step_by_step(model: FreightShipment, cmd: Command) -> None:
            for code in ("b", "c"):
                model.env.models["freight.box"].browse(box.id).write({"code": code})

        do(env, step_by_step)
        assert [(c["old_value"], c["new_value"]) for c in changes(env)] == [("a", "c")]


@pytest.mark.req("EDE-071")
def test_a_failed_update_announces_no_change(uri: str) -> None:
    seen: list[DomainEvent] = []

    def refuse(self: Any, cmd: Command) -> None:
        raise ValueError("no")

    strict = model("freight.strict", refuse=api.hook("post.freight.box.update")(refuse))
    with Env(uri, modules=[application(tracking("code", seen=seen), strict)]) as env:
        box = env.models["freight.box"].create({"code": "a"})
        with pytest.raises(ValueError, match="no"):
            box.write({"code": "b"})
        assert changes(env) == []


@pytest.mark.req("EDE-067", "EDE-072")
def test_each_method_is_given_the_changes_it_tracks(uri: str) -> None:
    code: list[DomainEvent] = []
    every: list[DomainEvent] = []

    def on_code(self: Any, event: DomainEvent, env: Env) -> None:
        code.append(event)

    def on_any(self: Any, event: DomainEvent, env: Env) -> None:
        every.append(event)

    name = "freight.box.field_changed"
    box_model = model(
        "freight.box",
        on_code=api.on_event(name, track_fields=["code"])(on_code),
        on_size=api.on_event(name, track_fields=["size"])(lambda self, event, env: None),
        on_any=api.on_event(name)(on_any),
    )
    with Env(uri, modules=[application(box_model)]) as env:
        box = env.models["freight.box"].create({"code": "a", "size": 1})
        box.write({"code": "b", "size": 2, "colour": "red"})
        with working(env) as worker:
            until(lambda: worker.health_snapshot()["succeeded"] == 2)
    assert [event.payload["field"] for event in code] == ["code"]
    assert [event.payload["field"] for event in every] == ["code", "size"]


@pytest.mark.req("EDE-069")
def test_a_model_that_tracks_nothing_announces_nothing(uri: str) -> None:
    listener = api.on_event("freight.box.field_changed")(lambda self, event, env: None)
    with Env(uri, modules=[application(model("freight.box", listener=listener))]) as env:
        box = env.models["freight.box"].create({"code": "a"})
        box.write({"code": "b"})
        assert queued(env) == []
        assert env.registry.tracked == {}


def test_tracking_belongs_on_the_model_and_names_its_fields() -> None:
    handler = api.on_event("freight.box.field_changed", track_fields=["code"])
    with pytest.raises(DefinitionError, match="belongs on a method"):
        Env("unused.db", modules=[application(handler(lambda event, env: None))])
    wrong = api.on_event("freight.other.field_changed", track_fields=["code"])
    misplaced = model("freight.box", wrong=wrong(lambda self, event, env: None))
    with pytest.raises(DefinitionError, match=r"freight\.box\.field_changed, not with"):
        Env("unused.db", modules=[application(misplaced)])
    with pytest.raises(DefinitionError, match=r"write \['code'\]"):
        api.on_event("freight.box.field_changed", track_fields="code")

    @api.model("freight.closed")
    class Closed(DomainModel):
        code: Field[str]

        @api.on_event("freight.closed.field_changed", track_fields=["colour"])
        def changed(self, event: Any, env: Any) -> None: ...

    with pytest.raises(DefinitionError, match="tracks 'colour', which is no field"):
        Env("unused.db", modules=[application(Closed)])
