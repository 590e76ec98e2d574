"""Hooks before and after commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ontologia.commands import Command, Env, api
from ontologia.commands.bus import vetoed_by
from ontologia.errors import DefinitionError, RecordNotFound
from tests.integration.freight import application, do, model, queued

KEY = "freight.shipment"


def hooks(*listed: tuple[str, Callable[[Any, Command], Any]]) -> Any:
    """A model with these hooks, in this order."""
    return model(
        "freight.hooks",
        **{f"hook_{n}": api.hook(key)(function) for n, (key, function) in enumerate(listed)},
    )


@pytest.mark.req("EDE-073", "EDE-074", "EDE-078")
def test_hooks_run_around_the_handler_in_the_order_of_registration(uri: str) -> None:
    said: list[str] = []

    def say(what: str) -> Callable[[Any, Command], Any]:
        def hook(self: Any, cmd: Command) -> str:
            said.append(f"{what} {cmd.record.read()[0]['status']}")
            assert self.env is env
            return "ignored"

        return hook

    around = hooks(
        ("pre.shipment.confirm", say("first")),
        ("post.shipment.confirm", say("third")),
        ("pre.shipment.confirm", say("second")),
        ("post.shipment.confirm", say("fourth")),
    )
    with Env(uri, modules=[application(around)]) as env:
        record = env.models[KEY].create({"reference": "S"})
        result = env.dispatch(Command("shipment.confirm", {}, KEY, record.id))
    assert result["status"] == "confirmed"
    assert said == ["first draft", "second draft", "third confirmed", "fourth confirmed"]


@pytest.mark.req("EDE-075", "EDE-080")
def test_a_hook_before_can_refuse(uri: str) -> None:
    ran: list[str] = []

    def only_once(self: Any, cmd: Command) -> None:
        if cmd.record.read()[0]["status"] == "confirmed":
            raise ValueError("already confirmed")

    around = hooks(
        ("pre.shipment.confirm", only_once),
        ("pre.shipment.confirm", lambda self, cmd: ran.append("next hook")),
        ("post.shipment.confirm", lambda self, cmd: ran.append("after")),
    )
    with Env(uri, modules=[application(around)]) as env:
        record = env.models[KEY].create({"reference": "S", "status": "confirmed"})
        head = env.session.head
        with pytest.raises(ValueError, match=r"^already confirmed$") as raised:
            env.dispatch(Command("shipment.confirm", {}, KEY, record.id))
        assert vetoed_by(raised.value) == "pre.shipment.confirm"
        assert (ran, env.session.head, queued(env)) == ([], head, [])
        with pytest.raises(LookupError) as failed:
            env.dispatch(Command("shipment.fail", {}, KEY, record.id))
        assert vetoed_by(failed.value) is None


@pytest.mark.req("EDE-076")
def test_a_hook_after_that_raises_takes_everything_back(uri: str) -> None:
    def refuse(self: Any, cmd: Command) -> None:
        self.env.models["freight.note"].create({"text": "seen"})
        assert cmd.record.read()[0]["status"] == "confirmed"
        raise PermissionError("not on a Sunday")

    with Env(uri, modules=[application(hooks(("post.shipment.confirm", refuse)))]) as env:
        record = env.models[KEY].create({"reference": "S"})
        head = env.session.head
        with pytest.raises(PermissionError, match="not on a Sunday"):
            env.dispatch(Command("shipment.confirm", {}, KEY, record.id))
        assert record.read()[0]["status"] == "draft"
        assert (env.session.head, queued(env)) == (head, [])


@pytest.mark.req("EDE-029", "EDE-077")
def test_every_way_to_change_a_record_has_its_hooks_and_no_way_to_read_it(uri: str) -> None:
    said: list[str] = []

    def say(what: str) -> Callable[[Any, Command], Any]:
        def hook(self: Any, cmd: Command) -> None:
            said.append(what)

        return hook

    verbs = ("create", "update", "delete", "read_one", "search", "count", "read_group")
    listed = [
        (f"{when}.{name}.{verb}", say(f"{when} {name} {verb}"))
        for when in ("pre", "post")
        for name in ("ede", KEY)
        for verb in verbs
    ]

    def around(verb: str) -> list[str]:
        return [f"{when} {name} {verb}" for when in ("pre", "post") for name in ("ede", KEY)]

    with Env(uri, modules=[application(hooks(*listed))]) as env:
        record = env.models[KEY].create({"reference": "S"})
        record.write({"weight": 1})
        env.dispatch(Command("ede.update", {"weight": 2}, KEY, record.id))
        record.read()
        env.models[KEY].search([]).read()
        env.models[KEY].count()
        env.models[KEY].read_group(group_by=["status"])
        env.dispatch(Command("ede.read_one", {}, KEY, record.id))
        env.dispatch(Command("ede.search", {}, KEY))
        env.dispatch(Command("ede.count", {}, KEY))
        env.dispatch(Command("ede.read_group", {"group_by": ["status"]}, KEY))
        record.unlink()
    assert said == [*around("create"), *around("update"), *around("update"), *around("delete")]


@pytest.mark.req("EDE-077")
def test_a_new_record_is_there_after_its_creation_and_a_deleted_one_before(uri: str) -> None:
    seen: list[Any] = []

    def before_create(self: Any, cmd: Command) -> None:
        seen.append(cmd.record)

    def after_create(self: Any, cmd: Command) -> None:
        seen.append(cmd.record.read()[0]["reference"])

    def before_delete(self: Any, cmd: Command) -> None:
        seen.append(cmd.record.read()[0]["reference"])

    def after_delete(self: Any, cmd: Command) -> None:
        with pytest.raises(RecordNotFound):
            cmd.record.read()
        seen.append("gone")

    around = hooks(
        (f"pre.{KEY}.create", before_create),
        (f"post.{KEY}.create", after_create),
        (f"pre.{KEY}.delete", before_delete),
        (f"post.{KEY}.delete", after_delete),
    )
    with Env(uri, modules=[application(around)]) as env:
        env.models[KEY].create({"reference": "S"}).unlink()
    assert seen == [None, "S", "S", "gone"]


def test_a_hook_may_change_what_the_handler_is_given(uri: str) -> None:
    def upper(self: Any, cmd: Command) -> None:
        cmd.payload["reference"] = cmd.payload["reference"].upper()

    with Env(uri, modules=[application(hooks((f"pre.{KEY}.create", upper)))]) as env:
        values = {"reference": "s"}
        assert env.models[KEY].create(values).read()[0]["reference"] == "S"
    assert values == {"reference": "s"}


def test_a_hook_that_changes_its_own_record_is_not_called_for_that(uri: str) -> None:
    calls: list[str] = []

    def stamp(self: Any, cmd: Command) -> None:
        calls.append(cmd.model_id or "")
        cmd.record.write({"weight": cmd.record.read()[0]["weight"] + 1})

    def touch_others(self: Any, cmd: Command) -> None:
        others = self.env.models[KEY].search([("weight", "=", 0)])
        others.write({"status": "touched"})

    around = hooks((f"post.{KEY}.update", stamp), ("post.shipment.confirm", touch_others))
    with Env(uri, modules=[application(around)]) as env:
        first, second = env.models[KEY].create([{"reference": "a"}, {"reference": "b"}])
        first.write({"status": "sent"})
        assert calls == [first.id]
        assert first.read()[0]["weight"] == 1
        calls.clear()
        env.dispatch(Command("shipment.confirm", {}, KEY, first.id))
        assert calls == [first.id, second.id]  # another record's update has its hooks
        assert second.read(["status", "weight"])[0] | {"id": ""} == {
            "id": "",
            "status": "touched",
            "weight": 1,
        }


@pytest.mark.req("C-151")
@pytest.mark.parametrize("when", ["pre", "post"])
def test_a_record_that_a_hook_makes_has_hooks_of_its_own(uri: str, when: str) -> None:
    seen: list[str] = []

    def copy(self: Any, cmd: Command) -> None:
        seen.append(cmd.payload["reference"])
        if cmd.payload["reference"] == "bad copy":
            raise ValueError("no bad copies")
        if "copy" not in cmd.payload["reference"]:
            values = {"reference": f"{cmd.payload['reference']} copy"}
            self.env.models[KEY].create(values)

    with Env(uri, modules=[application(hooks((f"{when}.{KEY}.create", copy)))]) as env:
        env.models[KEY].create({"reference": "good"})
        assert seen == ["good", "good copy"]
        with pytest.raises(ValueError, match="no bad copies"):
            env.models[KEY].create({"reference": "bad"})
        assert env.models[KEY].count() == 2


def test_a_hook_has_a_key_that_says_when() -> None:
    with pytest.raises(DefinitionError, match=r"begins with pre\. or post\."):
        api.hook("shipment.confirm")


def test_a_hook_of_an_inner_command_that_refuses_takes_back_only_that(uri: str) -> None:
    def refuse(self: Any, cmd: Command) -> None:
        raise ValueError("no")

    with Env(uri, modules=[application(hooks(("post.shipment.weigh", refuse)))]) as env:
        record = env.models[KEY].create({"reference": "S"})

        def outer(model: Any, cmd: Command) -> None:
            cmd.record.write({"status": "sent"})
            with pytest.raises(ValueError, match="no"):
                model.env.dispatch(Command("shipment.weigh", {"by": 5}, KEY, cmd.model_id))

        do(env, outer, record.id)
        assert record.read(["status", "weight"])[0] == {
            "id": record.id,
            "status": "sent",
            "weight": 0,
        }
