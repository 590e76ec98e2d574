"""Commands at the same time, and commands that are asked for twice."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.commands import Command, Env, RecordSet, replies
from ontologia.errors import (
    IdempotencyKeyReused,
    InvalidValueError,
    LockContentionError,
    StateConflictError,
)
from tests.integration.freight import FreightShipment, application, do, queued

pytestmark = pytest.mark.each_database

KEY = "freight.shipment"


def test_ten_threads_on_one_record_lose_no_update(uri: str) -> None:
    with Env(uri, modules=[application()]) as env:
        record = env.models[KEY].create({"reference": "S"})

        def weigh(_: int) -> int:
            result: int = env.dispatch(Command("shipment.weigh", {"by": 1}, KEY, record.id))
            return result

        with ThreadPoolExecutor(10) as pool:
            results = list(pool.map(weigh, range(100)))
        assert record.read()[0]["weight"] == 100
        assert sorted(results) == list(range(1, 101))


_WEIGH = """
import sys
from ontologia.commands import Command, Env, RecordSet, replies
from ontologia.errors import StateConflictError

uri, id, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
conflicts = 0
with Env(uri, modules=["tests.integration.freight"]) as env:
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(times):
        while True:
            try:
                env.dispatch(Command("shipment.weigh", {"by": 1}, "freight.shipment", id))
                break
            except StateConflictError:
                conflicts += 1
print(conflicts, flush=True)
"""


@pytest.mark.thorough
def test_processes_on_one_record_lose_no_update_that_was_acknowledged(uri: str) -> None:
    with Env(uri, modules=[application()]) as env:
        record = env.models[KEY].create({"reference": "S"})
        command = [sys.executable, "-c", _WEIGH, uri, record.id, "60"]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes = [subprocess.Popen(command, **pipes) for _ in range(3)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.communicate("go\n", timeout=120)
        assert [process.returncode for process in processes] == [0, 0, 0]
        assert record.read()[0]["weight"] == 180


def between(env: Env, act: Callable[[Env], object], id: str) -> Callable[[Any, Command], None]:
    """A command that reads, lets somebody else act, and writes."""

    def command(model: FreightShipment, cmd: Command) -> None:
        weight = cmd.record.read()[0]["weight"]
        thread = threading.Thread(target=act, args=(env,))
        thread.start()
        thread.join()
        cmd.record.write({"weight": weight + 1})

    return command


@pytest.mark.parametrize("meanwhile", [{"weight": 7}, {"weight": 1}, {"status": "sent"}])
def test_a_record_that_somebody_else_changed_in_between_is_a_conflict(
    uri: str, meanwhile: dict[str, Any]
) -> None:
    with (
        Env(uri, modules=[application()]) as env,
        Env(uri, modules=[application()]) as other,
    ):
        record = env.models[KEY].create({"reference": "S"})

        def act(other: Env) -> None:
            other.models[KEY].browse(record.id).write(meanwhile)

        with pytest.raises(
            StateConflictError, match=rf"{KEY} '{record.id}' was read at version 1 and changed"
        ):
            do(env, between(other, act, record.id), record.id)
        assert record.read()[0] | meanwhile == record.read()[0]
        assert queued(env) == []


def test_a_record_that_was_only_read_must_still_be_as_it_was_read(uri: str) -> None:
    with (
        Env(uri, modules=[application()]) as env,
        Env(uri, modules=[application()]) as other,
    ):
        record, customer = env.models[KEY].create([{"reference": "S"}, {"reference": "C"}])

        def confirm(model: FreightShipment, cmd: Command) -> None:
            assert model.env.models[KEY].browse(customer.id).read()[0]["status"] == "draft"
            other.models[KEY].browse(customer.id).write({"status": "blocked"})
            cmd.record.write({"status": "confirmed"})

        with pytest.raises(StateConflictError, match=customer.id):
            do(env, confirm, record.id)
        assert record.read()[0]["status"] == "draft"

        def announce(model: FreightShipment, cmd: Command) -> None:
            assert model.env.models[KEY].browse(customer.id).read()[0]["status"] == "blocked"
            other.models[KEY].browse(customer.id).unlink()
            model.emit("shipment.blocked", {})

        with pytest.raises(StateConflictError, match=customer.id):
            do(env, announce)
        assert queued(env) == []


def test_others_may_change_what_the_command_did_not_look_at(uri: str) -> None:
    with (
        Env(uri, modules=[application()]) as env,
        Env(uri, modules=[application()]) as other,
    ):
        record, stranger = env.models[KEY].create([{"reference": "S"}, {"reference": "T"}])

        def act(other: Env) -> None:
            other.models[KEY].browse(stranger.id).write({"weight": 9})

        do(env, between(other, act, record.id), record.id)
        assert record.read()[0]["weight"] == 1


def test_a_record_that_is_held_for_too_long_is_not_waited_for(uri: str) -> None:
    config = OntologiaConfig(lock_timeout_ms=50)
    with Session(uri, config=config) as session, Env(session, modules=[application()]) as env:
        record = env.models[KEY].create({"reference": "S"})
        failures: list[BaseException] = []

        def hold(model: FreightShipment, cmd: Command) -> None:
            def second() -> None:
                try:
                    env.dispatch(Command("shipment.weigh", {"by": 1}, KEY, record.id))
                except LockContentionError as error:
                    failures.append(error)

            thread = threading.Thread(target=second)
            thread.start()
            thread.join()

        do(env, hold, record.id)
        assert len(failures) == 1
        env.dispatch(Command("shipment.weigh", {"by": 1}, KEY, record.id))
        assert record.read()[0]["weight"] == 1


# -- once -----------------------------------------------------------------------------------------


def test_under_the_same_key_a_command_is_carried_out_once(uri: str) -> None:
    with Env(uri, modules=[application()]) as env:
        record = env.models[KEY].create({"reference": "S"})
        command = Command("shipment.confirm", {}, KEY, record.id)
        first = env.dispatch(command, idempotency_key="k-1")
        head = env.session.head
        env.models[KEY].browse(record.id).write({"weight": 5})
        again = env.dispatch(Command("shipment.confirm", {}, KEY, record.id), idempotency_key="k-1")
        assert again == first
        assert again["weight"] == 0
        assert env.session.head == head + 1
        assert len(queued(env)) == 1
    with Env(uri, modules=[application()]) as env:
        assert env.dispatch(command, idempotency_key="k-1") == first
        assert env.dispatch(command, idempotency_key="k-2")["weight"] == 5


def test_a_key_stands_for_one_request_of_one_tenant(uri: str) -> None:
    with Env(uri, modules=[application()], tenant_id="acme") as env:
        record = env.models[KEY].create({"reference": "S"})
        weigh = Command("shipment.weigh", {"by": 1}, KEY, record.id)
        env.dispatch(weigh, idempotency_key="k")
        for other in (
            Command("shipment.weigh", {"by": 2}, KEY, record.id),
            Command("shipment.confirm", {"by": 1}, KEY, record.id),
            Command("shipment.weigh", {"by": 1}, KEY, "another"),
        ):
            with pytest.raises(IdempotencyKeyReused, match="'k' was used for another request"):
                env.dispatch(other, idempotency_key="k")
        assert record.read()[0]["weight"] == 1
        with Env(env.session, modules=[application()], tenant_id="other") as other_env:
            assert other_env.dispatch(weigh, idempotency_key="k") == 2
        for wrong in ("", "x" * 256, 5):
            with pytest.raises(InvalidValueError, match="an idempotency key is text"):
                env.dispatch(weigh, idempotency_key=wrong)  # type: ignore[arg-type]

        def nested(model: FreightShipment, cmd: Command) -> None:
            model.env.dispatch(weigh, idempotency_key="inner")

        with pytest.raises(InvalidValueError, match="whole unit of work"):
            do(env, nested)


def weighed(session: Session, record: RecordSet, tenant_id: str | None, key: str) -> Any:
    """The weight after a command of a tenant has added 1; the same again if it was asked before."""
    with Env(session, modules=[application()], tenant_id=tenant_id) as env:
        return env.dispatch(
            Command("shipment.weigh", {"by": 1}, KEY, record.id), idempotency_key=key
        )


def test_tenants_share_no_answer_whatever_they_and_their_keys_are_called(uri: str) -> None:
    callers = [("acme", "eu:1"), ("acme:eu", "1"), ("acme", "1"), (None, "acme:eu:1"), ("", "1")]
    with Env(uri, modules=[application()]) as env:
        record = env.models[KEY].create({"reference": "S"})

        first = [weighed(env.session, record, *caller) for caller in callers]
        again = [weighed(env.session, record, *caller) for caller in callers]

    assert first == again == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("tenant_id", ["acme:" + "e" * 300, "acme:" + "\N{DRAGON}" * 240])
def test_a_long_name_of_a_tenant_is_no_reason_to_refuse_its_key(uri: str, tenant_id: str) -> None:
    """An older version could have stored nothing there."""
    key = "\N{DRAGON}" * 250
    with Env(uri, modules=[application()]) as env:
        record = env.models[KEY].create({"reference": "S"})

        assert weighed(env.session, record, tenant_id, key) == 1
        assert weighed(env.session, record, tenant_id, key) == 1


def test_an_answer_of_an_older_version_is_given_to_its_tenant_or_to_nobody(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Env(uri, modules=[application()]) as env:
        record = env.models[KEY].create({"reference": "S"})
        with monkeypatch.context() as older:
            older.setattr(replies, "_places", lambda tenant, key: (f"{tenant}:{key}", None))
            for caller in (("acme", "1"), (None, "order:17"), ("acme:eu", "1")):
                weighed(env.session, record, *caller)

        assert weighed(env.session, record, "acme", "1") == 1
        assert weighed(env.session, record, None, "order:17") == 2
        for caller in (("acme:eu", "1"), ("acme", "eu:1")):
            with pytest.raises(IdempotencyKeyReused):
                weighed(env.session, record, *caller)
        assert record.read()[0]["weight"] == 3


def test_a_command_that_failed_may_be_asked_for_again_under_its_key(uri: str) -> None:
    with Env(uri, modules=[application()]) as env:
        record = env.models[KEY].create({"reference": "S"})
        fail = Command("shipment.fail", {}, KEY, record.id)
        for _ in range(2):
            with pytest.raises(LookupError):
                env.dispatch(fail, idempotency_key="k")
        command = Command("shipment.confirm", {}, KEY, record.id)
        assert env.dispatch(command, idempotency_key="k")["status"] == "confirmed"


def test_what_cannot_be_answered_is_not_done(uri: str) -> None:
    """The same as long as nobody asks for an answer that can be kept."""
    with Env(uri, modules=[application()]) as env:
        record = env.models[KEY].create({"reference": "S"})
        head = env.session.head
        ask = Command("shipment.answer", {}, KEY, record.id)

        class Thing: ...

        from ontologia.commands import api
        from tests.integration.freight import model

        def answer(self: Any, cmd: Command) -> Any:
            self.env.models[KEY].browse(record.id).write({"status": "sent"})
            return Thing()

        odd = model("freight.odd", answer=api.on_command("shipment.answer")(answer))
        env.registry.register_model(odd)
        with pytest.raises(InvalidValueError, match="cannot be given as JSON"):
            env.dispatch(ask, idempotency_key="k")
        assert env.session.head == head
        assert isinstance(env.dispatch(ask), Thing)


def test_the_same_request_at_the_same_time_is_carried_out_once(uri: str) -> None:
    with (
        Env(uri, modules=[application()]) as env,
        Env(uri, modules=[application()]) as other,
    ):
        record = env.models[KEY].create({"reference": "S"})
        command = Command("shipment.weigh", {"by": 1}, KEY, record.id)

        def ask(n: int) -> Any:
            return (env if n % 2 else other).dispatch(
                Command("shipment.weigh", {"by": 1}, KEY, record.id), idempotency_key="k"
            )

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(8)))
        assert answers == [1] * 8
        assert record.read()[0]["weight"] == 1
        assert env.dispatch(command, idempotency_key="k") == 1
