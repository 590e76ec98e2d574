"""Commands: what is dispatched, who carries it out, what comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ontologia import Session
from ontologia.commands import (
    Command,
    CommandBus,
    CommandHandlerNotFound,
    CommandTarget,
    DomainModel,
    DuplicateHandler,
    Env,
    RecordNotFound,
    RecordSet,
    Registry,
    api,
)
from ontologia.errors import (
    ConfigError,
    DefinitionError,
    InvalidValueError,
    NotFoundError,
    SessionClosedError,
)
from ontologia.queues import InMemoryEventQueue
from tests.integration.freight import FreightShipment, application, do, model, queued


@pytest.fixture
def env(uri: str) -> Iterator[Env]:
    with Env(uri, modules=[application()]) as env:
        yield env


def shipment(env: Env, **values: Any) -> RecordSet:
    return env.models["freight.shipment"].create({"reference": "S-1", **values})


# -- the command itself ---------------------------------------------------------------------------


@pytest.mark.req("EDE-001")
def test_a_command_needs_a_name_and_a_payload() -> None:
    command = Command(name="shipment.confirm", payload={})
    assert (command.model_key, command.model_id) == (None, None)
    with pytest.raises(TypeError):
        Command("shipment.confirm")  # type: ignore[call-arg]
    for wrong in (["a"], None, "text"):
        with pytest.raises(InvalidValueError, match="a payload is a dict"):
            Command("shipment.confirm", wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="model_id is text"):
        Command("shipment.confirm", {}, "freight.shipment", 7)  # type: ignore[arg-type]


@pytest.mark.req("EDE-002")
def test_a_command_cannot_be_changed(env: Env) -> None:
    payload = {"by": 1}
    command = Command("shipment.confirm", payload, "freight.shipment", "x")
    payload["by"] = 2
    for name, value in (("name", "other"), ("payload", {}), ("model_id", "y")):
        with pytest.raises(AttributeError):
            setattr(command, name, value)
    assert command.payload == {"by": 1}
    with pytest.raises(RecordNotFound):
        env.dispatch(command)
    assert command == Command("shipment.confirm", {"by": 1}, "freight.shipment", "x")


@pytest.mark.req("EDE-003", "EDE-005", "EDE-006")
def test_the_record_of_a_command_is_the_one_it_names(env: Env) -> None:
    [record] = shipment(env)
    other = shipment(env, reference="S-2")

    def look(model: FreightShipment, cmd: Command) -> RecordSet:
        found: RecordSet = cmd.record
        found.write({"status": "seen"})
        return found

    found = do(env, look, record.id)
    assert (found.model_key, found.ids) == ("freight.shipment", [record.id])
    assert record.read()[0]["status"] == "seen"
    assert other.read()[0]["status"] == "draft"


@pytest.mark.req("EDE-004")
def test_a_command_without_ids_has_no_record_and_outside_of_a_dispatch_it_cannot_be_had(
    env: Env,
) -> None:
    assert do(env, lambda model, cmd: cmd.record) is None
    assert Command("shipment.confirm", {}).record is None
    command = Command("shipment.confirm", {}, "freight.shipment", shipment(env).id)
    with pytest.raises(RuntimeError, match="not being dispatched"):
        _ = command.record
    env.dispatch(command)
    with pytest.raises(RuntimeError, match="not being dispatched"):
        _ = command.record


# -- dispatch -------------------------------------------------------------------------------------


@pytest.mark.req("EDE-006", "EDE-081")
def test_dispatch_returns_what_the_handler_returns(env: Env) -> None:
    [record] = shipment(env)
    result = env.dispatch(
        Command("shipment.confirm", {}, model_key="freight.shipment", model_id=record.id)
    )
    assert result["status"] == "confirmed"
    assert result["id"] == record.id
    assert record.read() == [result]
    assert [event.name for event in queued(env)] == ["shipment.confirmed"]


@pytest.mark.req("EDE-007", "EDE-008")
def test_the_bus_is_what_dispatch_calls(env: Env) -> None:
    assert isinstance(env.commands, CommandBus)
    assert env.registry.resolve_command("shipment.confirm") == CommandTarget(
        FreightShipment, "confirm"
    )
    command = Command("shipment.call", {"do": lambda model, cmd: (model, cmd, model.env)})
    model, given, within = env.commands.dispatch(command, env)
    assert isinstance(model, FreightShipment)
    assert given is command
    assert within is env
    assert command._env is env


@pytest.mark.req("EDE-009", "EDE-014")
def test_every_dispatch_has_a_model_of_its_own(env: Env) -> None:
    first = do(env, lambda model, cmd: model)
    assert do(env, lambda model, cmd: model) is not first


@pytest.mark.req("EDE-010")
def test_an_unknown_command_is_named(env: Env) -> None:
    with pytest.raises(CommandHandlerNotFound, match=r"'shipment\.explode'.*shipment\.confirm"):
        env.dispatch(Command("shipment.explode", {}))


@pytest.mark.req("EDE-011", "EDE-080", "EDE-082")
def test_a_failing_handler_leaves_nothing_and_is_not_tried_again(env: Env) -> None:
    record = shipment(env)
    head = env.session.head
    calls: list[int] = []

    def explode(model: FreightShipment, cmd: Command) -> None:
        calls.append(1)
        cmd.record.write({"status": "half done"})
        model.env.models["freight.note"].create({"text": "so far so good"})
        model.emit("shipment.half_done", {})
        raise LookupError("the truck is gone")

    with pytest.raises(LookupError, match=r"^'the truck is gone'$|^the truck is gone$") as raised:
        do(env, explode, record.id)
    assert type(raised.value) is LookupError
    assert calls == [1]
    assert env.session.head == head
    assert record.read()[0]["status"] == "draft"
    assert env.models["freight.note"].count() == 0
    assert queued(env) == []


def test_a_command_that_changes_nothing_writes_nothing(env: Env) -> None:
    record = shipment(env, status="confirmed")
    head = env.session.head
    record.write({"status": "confirmed"})
    assert env.session.head == head


@pytest.mark.req("EDE-019")
def test_one_command_may_change_many_records_in_one_commit(env: Env) -> None:
    ids = env.models["freight.shipment"].create([{"reference": f"S-{n}"} for n in range(5)]).ids
    head = env.session.head
    assert env.dispatch(Command("shipment.bulk_confirm", {"ids": ids})) == {"confirmed": 5}
    assert env.session.head == head + 1
    found = env.models["freight.shipment"].browse(*ids).read(["status"])
    assert [record["status"] for record in found] == ["confirmed"] * 5


def test_a_command_within_a_command_is_of_the_same_unit_of_work(env: Env) -> None:
    record = shipment(env)
    head = env.session.head

    def both(model: FreightShipment, cmd: Command) -> Any:
        model.env.dispatch(Command("shipment.weigh", {"by": 5}, cmd.model_key, cmd.model_id))
        return model.env.dispatch(Command("shipment.confirm", {}, cmd.model_key, cmd.model_id))

    result = do(env, both, record.id)
    assert (result["weight"], result["status"]) == (5, "confirmed")
    assert env.session.head == head + 1


def test_what_a_failed_inner_command_did_is_taken_back_though_the_outer_one_goes_on(
    env: Env,
) -> None:
    record = shipment(env)

    def make_and_fail(model: FreightShipment, cmd: Command) -> None:
        model.env.models["freight.note"].create({"text": "made"})
        raise ZeroDivisionError

    def forgiving(model: FreightShipment, cmd: Command) -> None:
        cmd.record.write({"weight": 7})
        with pytest.raises(LookupError):
            model.env.dispatch(Command("shipment.fail", {}, cmd.model_key, cmd.model_id))
        assert cmd.record.read()[0]["status"] == "draft"
        with pytest.raises(ZeroDivisionError):
            do(model.env, make_and_fail)
        assert model.env.models["freight.note"].count() == 0
        model.emit("shipment.forgiven", {})

    do(env, forgiving, record.id)
    assert record.read(["weight", "status"]) == [{"id": record.id, "weight": 7, "status": "draft"}]
    assert env.models["freight.note"].count() == 0
    assert [event.name for event in queued(env)] == ["shipment.forgiven"]


def test_commands_that_call_each_other_forever_are_stopped(env: Env) -> None:
    def again(model: FreightShipment, cmd: Command) -> Any:
        return do(model.env, again)

    head = env.session.head
    with pytest.raises(RecursionError, match=r"more than 40 deep.*shipment\.call"):
        do(env, again)
    assert env.session.head == head


def test_only_commands_are_dispatched(env: Env) -> None:
    with pytest.raises(TypeError, match="takes a Command"):
        env.dispatch("shipment.confirm")  # type: ignore[arg-type]


# -- the env --------------------------------------------------------------------------------------


def test_an_env_over_a_session_leaves_it_open(uri: str) -> None:
    with Session(uri, namespace="freight") as session:
        with Env(session, modules=[application()]) as env:
            [record] = shipment(env)
            env.emit("shipment.seen", {})
        assert session.query().entities(FreightShipment).count() == 1
        assert session.get_commit(session.head)["metadata"]["namespace"] == "freight"  # type: ignore[index]
    with Env(uri, modules=[application()]) as env:
        assert record.ids == env.models["freight.shipment"].search().ids
        assert queued(env) == []  # it is another namespace


def test_an_env_that_is_closed_does_nothing_more_and_closes_what_it_opened(uri: str) -> None:
    with Session(uri) as session:
        given = InMemoryEventQueue()
        envs = [Env(session, modules=[application()], queue=queue) for queue in (None, given)]
        for env in envs:
            shipment(env)
            records = env.models["freight.shipment"]
            env.close()
            env.close()
            for attempt in (
                lambda: shipment(env),  # noqa: B023 - called here
                lambda: env.emit("shipment.seen", {}),  # noqa: B023
                lambda: records.search(),  # noqa: B023
                lambda: records.browse("x").read(),  # noqa: B023
                lambda: records.count(),  # noqa: B023
            ):
                with pytest.raises(SessionClosedError, match="the env is closed"):
                    attempt()
        assert envs[0].queue is not None
        with pytest.raises(SessionClosedError, match="the queue is closed"):
            envs[0].queue.dequeue(1, 0)
        assert given.dequeue(1, 0) == []
        with Env(session, modules=[application()]) as another:
            assert another.models["freight.shipment"].count() == 2


def test_commits_say_which_command_made_them(uri: str) -> None:
    with Env(uri, modules=[application()], tenant_id="acme") as env:
        record = shipment(env)
        env.dispatch(Command("shipment.confirm", {}, "freight.shipment", record.id))
        metadata = env.session.get_commit(env.session.head)["metadata"]  # type: ignore[index]
    assert metadata["command"] == "shipment.confirm"
    assert metadata["tenant_id"] == "acme"


def test_modules_are_given_by_name_as_well(uri: str) -> None:
    with Env(uri, modules=["tests.integration.freight"]) as env:
        assert "freight.shipment" in env.models
        assert sorted(env.models) == ["freight.note", "freight.shipment"]
    with pytest.raises(ConfigError, match=r"there is no module 'no\.such\.module'"):
        Env(uri, modules=["no.such.module"])
    with pytest.raises(ConfigError, match="modules takes a list"):
        Env(uri, modules="tests.integration.freight")


def test_an_unknown_model_is_named(env: Env) -> None:
    with pytest.raises(NotFoundError, match=r"no model 'freight\.truck'.*freight\.note"):
        _ = env.models["freight.truck"]
    assert "freight.truck" not in env.models


# -- registering ----------------------------------------------------------------------------------


@pytest.mark.req("EDE-013", "EDE-040")
def test_loading_a_module_twice_registers_nothing_twice() -> None:
    registry = Registry()
    calls: list[str] = []

    @api.on_event("shipment.confirmed")
    def handler(event: Any, env: Any) -> None:
        calls.append(event)

    module = application(handler)
    for _ in range(2):
        registry.load_module(module)
    registry.register_model(FreightShipment)
    assert list(registry.get_event_handlers("shipment.confirmed")) == [handler]
    assert set(registry.models) == {"freight.shipment", "freight.note"}
    assert "shipment.confirm" in registry.commands


@pytest.mark.req("EDE-015")
def test_two_handlers_of_one_command_are_refused_by_name() -> None:
    @api.on_command("shipment.confirm")
    def other(self: Any, cmd: Command) -> None: ...

    rival = model("freight.rival", other=other)
    with pytest.raises(
        DuplicateHandler, match=r"'shipment\.confirm' has two handlers: .*confirm and"
    ):
        Registry().load_module(application(rival))


@pytest.mark.req("EDE-030")
def test_names_of_built_in_commands_cannot_be_taken() -> None:
    with pytest.raises(DefinitionError, match="built in"):
        api.on_command("ede.create")
    with pytest.raises(DefinitionError, match="taken"):
        api.model("ede.things")


def test_what_cannot_be_registered_is_said_when_it_is_loaded() -> None:
    @api.on_command("loose.command")
    def loose(cmd: Command) -> None: ...

    with pytest.raises(DefinitionError, match="must be a method of a DomainModel"):
        Registry().load_module(application(loose))

    @api.on_command("slow.command")
    async def slow(self: Any, cmd: Command) -> None: ...

    with pytest.raises(DefinitionError, match="is async"):
        Registry().load_module(application(model("freight.slow", slow=slow)))

    @api.on_command("lazy.command")
    def lazy(self: Any, cmd: Command) -> Any:
        yield cmd

    with pytest.raises(DefinitionError, match=r"lazy has a yield in it") as info:
        Registry().load_module(application(model("freight.lazy", lazy=lazy)))
    assert info.value.hint == "Return a list."

    @api.on_event("lazy.event")
    async def lazily(event: Any, env: Any) -> Any:
        yield event

    with pytest.raises(DefinitionError, match="has a yield in it"):
        Registry().load_module(application(lazily))

    for kind in (staticmethod, classmethod):
        odd = kind(api.on_command("odd.command")(lambda *given: None))
        with pytest.raises(DefinitionError, match=rf"odd is marked, but is a {kind.__name__}"):
            Registry().load_module(application(model("freight.odd", odd=odd)))
        with pytest.raises(DefinitionError, match="only functions are decorated"):
            api.on_command("odd.command")(kind(lambda *given: None))

    class Stranger:
        __module__ = "application"

        @api.on_event("shipment.confirmed")
        def handle(self, event: Any, env: Any) -> None: ...

    with pytest.raises(DefinitionError, match="is no DomainModel"):
        Registry().load_module(application(Stranger))
    with pytest.raises(DefinitionError, match="two models are called"):
        Registry().load_module(application(model("freight.note")))
    with pytest.raises(DefinitionError, match="derive from DomainModel"):
        api.model("freight.text")(str)  # type: ignore[type-var]
    with pytest.raises(DefinitionError, match="identifiers"):
        model("freight shipment")

    class Nameless(DomainModel): ...

    with pytest.raises(DefinitionError, match="is no model"):
        Registry().register_model(Nameless)


@pytest.mark.req("EDE-020")
def test_a_command_may_have_any_name_whatever_the_convention(uri: str) -> None:
    odd = model("freight.odd", handle=api.on_command("Größe ändern!")(lambda self, cmd: 1))
    with Env(uri, modules=[application(odd)]) as env:
        assert env.dispatch(Command("Größe ändern!", {})) == 1


def test_a_hook_that_nothing_calls_is_said(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    def hooked(*keys: str) -> Any:
        def hook(self: Any, cmd: Command) -> None: ...

        for key in keys:
            hook = api.hook(key)(hook)
        return model("freight.hooked", hook=hook)

    called = ("pre.shipment.confirm", "post.freight.shipment.update", "pre.ede.delete")
    with Env(uri, modules=[application(hooked(*called))]):
        assert caplog.messages == []
    with Env(uri, modules=[application(hooked(*called, "pre.shipment.update"))]):
        [message] = caplog.messages
    assert "hook waits for pre.shipment.update, and there is no such command" in message


def test_models_are_a_mapping(env: Env) -> None:
    assert sorted(env.models) == ["freight.note", "freight.shipment"]
    assert len(env.models) == 2
    assert "freight.note" in env.models
    found = env.models.get("freight.note")
    assert found is not None
    assert found.model_key == "freight.note"
    assert env.models.get("freight.nothing") is None


def test_a_field_of_a_record_is_not_an_attribute_of_its_model(env: Env) -> None:
    with pytest.raises(AttributeError, match=r"cmd\.record\.read"):
        do(env, lambda model, cmd: model.status)
    with pytest.raises(RuntimeError, match="has an env only while"):
        _ = FreightShipment(id="x", reference="S").env
