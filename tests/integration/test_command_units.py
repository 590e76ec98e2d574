"""What belongs to a command's unit of work, and what does not."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.commands import Command, Env, RecordExists, RecordSet, api
from ontologia.errors import BatchSizeExceededError, LockContentionError, StateConflictError
from tests.integration.freight import application, do, model, queued

pytestmark = pytest.mark.each_database

KEY = "freight.shipment"


@pytest.fixture
def env(uri: str) -> Iterator[Env]:
    with Env(uri, modules=[application()]) as env:
        yield env


@pytest.fixture
def record(env: Env) -> RecordSet:
    return env.models[KEY].create({"id": "S-1", "reference": "first"})


def reference(env: Env) -> str:
    found: str = env.models[KEY].browse("S-1").read()[0]["reference"]
    return found


# -- one id, one record ---------------------------------------------------------------------------


def again(env: Env) -> RecordSet:
    return env.models[KEY].create({"id": "S-1", "reference": "second"})


@pytest.mark.parametrize(
    "before",
    [
        lambda records: None,
        lambda records: records.browse("S-1").read(),
        lambda records: records.search(),
        lambda records: records.browse("S-1").write({"weight": 1}),
    ],
    ids=["unread", "read", "found", "written"],
)
def test_a_record_is_never_made_over_one_that_is_there(
    env: Env, record: RecordSet, before: Callable[[Any], object]
) -> None:
    def make(model: Any, cmd: Command) -> None:
        before(env.models[KEY])
        again(env)

    with pytest.raises(RecordExists, match=r"there is a freight\.shipment 'S-1' already") as info:
        do(env, make)
    assert not isinstance(info.value, StateConflictError)
    assert (info.value.type_name, info.value.key) == (KEY, "S-1")
    assert "another key" in str(info.value)
    assert reference(env) == "first"
    assert record.read()[0]["weight"] == 0


def test_a_command_that_knows_of_a_record_is_told_when_it_makes_it_again(
    env: Env, record: RecordSet
) -> None:
    def make(model: Any, cmd: Command) -> None:
        env.models[KEY].search()
        with pytest.raises(RecordExists, match=r"there is a freight\.shipment 'S-1' already"):
            again(env)
        record.write({"weight": 2})

    do(env, make)
    assert record.read(["reference", "weight"]) == [
        {"id": "S-1", "reference": "first", "weight": 2}
    ]


def test_an_id_that_was_free_and_was_taken_meanwhile_is_no_conflict(uri: str, env: Env) -> None:
    with Env(uri, modules=[application()]) as other:

        def make(model: Any, cmd: Command) -> None:
            assert not env.models[KEY].browse("S-1").exists()
            other.models[KEY].create({"id": "S-1", "reference": "first"})
            again(env)

        with pytest.raises(RecordExists, match="nothing was written"):
            do(env, make)
    assert reference(env) == "first"


def test_an_id_that_was_made_in_vain_must_still_be_free(uri: str, env: Env) -> None:
    def fail(model: Any, cmd: Command) -> None:
        again(env)
        raise LookupError("no")

    with Env(uri, modules=[application()]) as other:

        def outer(model: Any, cmd: Command) -> None:
            assert not env.models[KEY].browse("S-1").exists()
            with pytest.raises(LookupError):
                do(env, fail)
            other.models[KEY].create({"id": "S-1", "reference": "first"})
            env.emit("shipment.missing", {})

        with pytest.raises(StateConflictError, match="S-1"):
            do(env, outer)
    assert queued(env) == []


def test_a_command_makes_no_two_records_of_one_id(env: Env) -> None:
    def twice(model: Any, cmd: Command) -> None:
        again(env)
        again(env)

    with pytest.raises(RecordExists):
        do(env, twice)
    assert env.models[KEY].count() == 0
    with pytest.raises(RecordExists):
        env.models[KEY].create([{"id": "S-1", "reference": "a"}, {"id": "S-1", "reference": "b"}])
    assert env.models[KEY].count() == 0


def test_an_id_is_free_again_when_its_record_is_unlinked(env: Env, record: RecordSet) -> None:
    def replace(model: Any, cmd: Command) -> None:
        record.unlink()
        again(env)

    do(env, replace)
    assert reference(env) == "second"
    record.unlink()
    env.models[KEY].create({"id": "S-1", "reference": "third"})
    assert reference(env) == "third"


def test_a_record_that_was_made_in_vain_can_be_read_and_changed(
    env: Env, record: RecordSet
) -> None:
    def make(model: Any, cmd: Command) -> None:
        again(env)
        raise LookupError("no")

    def outer(model: Any, cmd: Command) -> None:
        with pytest.raises(LookupError):
            do(env, make)
        record.write({"weight": 5})

    do(env, outer)
    assert record.read(["reference", "weight"]) == [
        {"id": "S-1", "reference": "first", "weight": 5}
    ]


def test_a_command_writes_no_more_than_a_commit_may(uri: str) -> None:
    with Session(uri, config=OntologiaConfig(max_batch_size=10)) as session:
        env = Env(session, modules=[application()])
        with pytest.raises(BatchSizeExceededError):
            env.models["freight.note"].create([{"n": n} for n in range(11)])
        assert env.models["freight.note"].count() == 0
        env.models["freight.note"].create([{"n": n} for n in range(10)])


# -- other contexts -------------------------------------------------------------------------------


def test_what_outlives_a_command_is_not_lost_in_it(env: Env, record: RecordSet) -> None:
    def remember(model: Any, cmd: Command) -> contextvars.Context:
        return contextvars.copy_context()

    within = do(env, remember)
    within.run(record.write, {"weight": 7})
    within.run(env.emit, "shipment.late", {})

    assert record.read()[0]["weight"] == 7
    assert [event.name for event in queued(env)] == ["shipment.late"]


def test_a_task_that_a_handler_leaves_behind_does_its_work(env: Env, record: RecordSet) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def later() -> None:
        record.write({"weight": 7})

    def leave(model: Any, cmd: Command) -> None:
        tasks.append(asyncio.get_running_loop().create_task(later()))

    async def main() -> None:
        do(env, leave)
        assert record.read()[0]["weight"] == 0
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert record.read()[0]["weight"] == 7


def test_another_thread_is_no_part_of_the_command_that_started_it(
    env: Env, record: RecordSet
) -> None:
    """Also where the context goes along, as with `asyncio.to_thread`."""

    def aside(model: Any, cmd: Command) -> None:
        record.write({"weight": 1})
        context = contextvars.copy_context()
        create = env.models["freight.note"].create
        thread = threading.Thread(target=context.run, args=(create, {"id": "n", "by": "another"}))
        thread.start()
        thread.join()
        raise LookupError("the command fails")

    with pytest.raises(LookupError):
        do(env, aside)
    assert record.read()[0]["weight"] == 0
    assert env.models["freight.note"].browse("n").read() == [{"id": "n", "by": "another"}]


def test_a_thread_waits_for_the_record_that_its_own_command_holds(uri: str) -> None:
    with Session(uri, config=OntologiaConfig(lock_timeout_ms=50)) as session:
        env = Env(session, modules=[application()])
        record = env.models[KEY].create({"reference": "S"})
        raised: list[BaseException] = []

        def write() -> None:
            with pytest.raises(LockContentionError) as info:
                record.write({"weight": 1})
            raised.append(info.value)

        def aside(model: Any, cmd: Command) -> None:
            thread = threading.Thread(target=write)
            thread.start()
            thread.join()

        do(env, aside, record.id)
        assert len(raised) == 1


def test_commands_from_asyncio_threads_lose_nothing(env: Env, record: RecordSet) -> None:
    weigh = Command("shipment.weigh", {"by": 1}, KEY, record.id)

    async def main() -> list[int]:
        return await asyncio.gather(*(asyncio.to_thread(env.dispatch, weigh) for _ in range(20)))

    assert sorted(asyncio.run(main())) == list(range(1, 21))
    assert record.read()[0]["weight"] == 20


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_leaves_nothing_of_a_command(
    env: Env, record: RecordSet, raised: type[BaseException]
) -> None:
    def stop(model: Any, cmd: Command) -> None:
        record.write({"weight": 1})
        env.emit("shipment.stopped", {})
        raise raised

    with pytest.raises(raised):
        do(env, stop, record.id)
    assert record.read()[0]["weight"] == 0
    assert queued(env) == []
    record.write({"weight": 2})  # its turn was given back


def test_what_a_cancelled_inner_command_did_is_taken_back(env: Env, record: RecordSet) -> None:
    def inner(model: Any, cmd: Command) -> None:
        record.write({"weight": 1})
        raise asyncio.CancelledError  # no Exception

    def outer(model: Any, cmd: Command) -> None:
        with pytest.raises(asyncio.CancelledError):
            do(env, inner)
        record.write({"reference": "changed"})

    do(env, outer)
    assert record.read(["reference", "weight"]) == [
        {"id": "S-1", "reference": "changed", "weight": 0}
    ]


# -- two envs -------------------------------------------------------------------------------------


def test_a_command_that_goes_through_another_env_and_back_is_one_unit_of_work(
    uri: str, env: Env, record: RecordSet
) -> None:
    with Env(uri, modules=[application()]) as other:

        def back(model: Any, cmd: Command) -> int:
            record.write({"reference": "changed"})
            weight: int = record.read()[0]["weight"]
            return weight

        def through(model: Any, cmd: Command) -> int:
            record.write({"weight": 3})
            seen: int = do(other, back)
            assert seen == 3
            raise LookupError("the outer one fails")

        with pytest.raises(LookupError):
            do(env, through, record.id)
    assert reference(env) == "first"


# -- one command object, several dispatches -------------------------------------------------------


def doubling() -> Any:
    """A model with a hook that changes what it is given."""

    def double(self: Any, cmd: Command) -> None:
        cmd.payload["by"] *= 2
        cmd.payload["log"].append("doubled")

    return model("units.doubling", double=api.hook("pre.shipment.weigh")(double))


def test_what_a_hook_changes_in_a_payload_is_changed_for_that_time(uri: str) -> None:
    with Env(uri, modules=[application(doubling())]) as env:
        record = env.models[KEY].create({"reference": "S"})
        weigh = Command("shipment.weigh", {"by": 1, "log": []}, KEY, record.id)

        assert [env.dispatch(weigh), env.dispatch(weigh)] == [2, 4]
        assert weigh.payload == {"by": 1, "log": []}


def test_a_request_is_the_same_however_often_hooks_changed_it(uri: str) -> None:
    with Env(uri, modules=[application(doubling())]) as env:
        record = env.models[KEY].create({"reference": "S"})
        weigh = Command("shipment.weigh", {"by": 1, "log": []}, KEY, record.id)

        assert env.dispatch(weigh, idempotency_key="k") == 2
        assert env.dispatch(weigh, idempotency_key="k") == 2
        assert record.read()[0]["weight"] == 2


def test_one_record_of_a_set_does_not_see_what_a_hook_did_for_another(uri: str) -> None:
    def tag(self: Any, cmd: Command) -> None:
        cmd.payload["tags"].append(cmd.model_id)

    hook = model("units.tagging", tag=api.hook(f"pre.{KEY}.update")(tag))
    with Env(uri, modules=[application(hook)]) as env:
        records = env.models[KEY].create(
            [{"id": "a", "reference": "S"}, {"id": "b", "reference": "S"}]
        )
        records.write({"tags": []})
        assert [each["tags"] for each in records.read()] == [["a"], ["b"]]


# -- what is read ---------------------------------------------------------------------------------


def test_what_a_command_read_stays_as_it_was_read(uri: str, env: Env, record: RecordSet) -> None:
    with Env(uri, modules=[application()]) as other:

        def look(model: Any, cmd: Command) -> list[int]:
            before = record.read()[0]["weight"]
            other.models[KEY].browse("S-1").write({"weight": 5})
            assert env.models[KEY].search([("weight", "=", 5)]).ids == ["S-1"]
            return [before, record.read()[0]["weight"]]

        assert do(env, look) == [0, 0]
    assert record.read()[0]["weight"] == 5


def test_what_a_search_found_stays_as_it_was_found(uri: str, env: Env, record: RecordSet) -> None:
    with Env(uri, modules=[application()]) as other:

        def look(model: Any, cmd: Command) -> Any:
            found = env.models[KEY].search()
            other.models[KEY].browse("S-1").write({"weight": 5})
            return found.read()[0]["weight"]

        assert do(env, look) == 0


def test_a_command_of_which_nothing_is_left_to_write_has_only_read(
    uri: str, env: Env, record: RecordSet
) -> None:
    """What it read need not be unchanged."""

    def fail(model: Any, cmd: Command) -> None:
        env.models["freight.note"].create({"id": "n"})
        raise LookupError("no")

    with Env(uri, modules=[application()]) as other:

        def outer(model: Any, cmd: Command) -> None:
            record.read()
            with pytest.raises(LookupError):
                do(env, fail)
            other.models[KEY].browse("S-1").write({"weight": 5})

        do(env, outer)
    assert env.models["freight.note"].count() == 0
