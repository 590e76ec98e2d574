"""`AsyncSession`: what `Session` promises, for tasks of an event loop that nothing holds up."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from contextvars import ContextVar

import pytest

from ontologia import AsyncSession, Entity, Event, Field, Relation, Session, on_event
from ontologia.errors import (
    ConfigTypeError,
    DefinitionError,
    InvalidTypeError,
    NotFoundError,
    ObjectExistsError,
    SessionClosedError,
    StateConflictError,
    UncommittedChangesError,
    UniqueViolationError,
)
from ontologia.query import count
from ontologia.query.async_builder import AsyncEntityQuery, AsyncGroupedQuery, AsyncPathQuery
from ontologia.query.builder import EntityQuery, GroupedQuery, PathQuery
from ontologia.runtime import threads as threads_module
from ontologia.runtime.reader import CheckedReader
from ontologia.runtime.session import core_of
from ontologia.runtime.unit import UnitOfWork
from tests.integration.running import PATIENCE, until
from tests.integration.test_writer import Blocker, Call, blocked, writer_of

pytestmark = pytest.mark.each_database


class Berth(Entity):
    id: Field[str] = Field(primary_key=True)
    depth: Field[int] = 0
    number: Field[int | None] = Field(default=None, unique=True)


class Vessel(Entity):
    id: Field[str] = Field(primary_key=True)


class MooredAt(Relation[Vessel, Berth]):
    pass


class Moored(Event):
    berth: Field[str]


@pytest.fixture
def session(open_session):
    session = open_session(entity_types=[Berth, Vessel], relation_types=[MooredAt])
    session.ensure([Berth(id="b0", depth=5), Berth(id="b1", depth=7)])
    session.commit()
    return session


def run(function, session):
    """Call an async function with an AsyncSession on this session, on a loop of its own."""

    async def main():
        async with asyncio.timeout(PATIENCE):
            return await function(AsyncSession(session))

    return asyncio.run(main())


async def ended(condition) -> None:
    """Wait until this is so, while the loop goes on."""
    while not condition():  # noqa: ASYNC110 - a thread does it
        await asyncio.sleep(0.001)


def depths(session):
    return {each.id: each.depth for each in session.query().entities(Berth).collect()}


# -- the same as a session ------------------------------------------------------------------------


def test_it_reads_changes_and_commits_as_a_session_does(session):
    async def work(s):
        berth = await s.get(Berth, "b0")
        berth.depth += 1
        s.ensure(berth)
        s.update(Berth, "b1", depth=70)
        s.create(Berth(id="b2"))
        moored = Moored(berth="b0")
        assert (await s.get(Berth, "b2")).depth == 0  # what is queued counts
        assert (await s.one(Berth, "b1")).depth == 70
        assert len(await s.commit(dry_run=True)) == 3
        assert await s.commit(event=moored) == 2 == await s.head
        assert berth.meta().commit_id == 2
        assert moored.id is not None
        assert await s.commit() is None
        assert await s.get(Berth, "none") is None
        assert (await s.one(Berth, "b0", as_of=1)).depth == 5
        with pytest.raises(NotFoundError):
            await s.one(Berth, "none")
        s.delete(berth)
        assert await s.commit() == 3
        assert [each["id"] for each in await s.list_commits()] == [3, 2, 1]
        assert len(await s.diff(1, 3)) == 3
        s.ensure(Berth(id="b9"))
        assert s.discard() == 1
        await s.validate()
        return moored.id

    moored = run(work, session)

    assert depths(session) == {"b1": 70, "b2": 0}
    [event] = session.event_store.list_events(session.namespace)
    assert event["id"] == moored


def test_queries_are_built_alike_and_awaited(session):
    session.ensure([Vessel(id="v1"), MooredAt(left_key="v1", right_key="b0")])
    session.commit()

    async def work(s):
        berths = s.query().entities(Berth)
        deep = berths.where(Berth.depth > 5)
        assert [each.id for each in await deep.collect()] == ["b1"]
        assert [each.id async for each in berths.order_by(Berth.depth.desc())] == ["b1", "b0"]
        assert (await berths.limit(1).offset(1).first()).id == "b1"
        assert await berths.where(Berth.depth > 50).first() is None
        assert await berths.count() == 2
        assert await berths.as_of(0).count() == 0
        assert await berths.count_where(Berth.depth > 5) == 1
        assert await berths.sum(Berth.depth) == 12
        assert await berths.avg(Berth.depth) == 6
        assert await berths.min(Berth.depth) == 5
        assert await berths.max(Berth.depth) == 7
        assert await berths.agg(n=count()) == [{"n": 2}]
        grouped = berths.group_by(Berth.depth).having(count() > 0).order_by(Berth.depth)
        assert await grouped.offset(1).limit(1).agg(n=count()) == [{"depth": 7, "n": 1}]
        assert [each.depth for each in await berths.with_history().collect()] == [5, 7]
        assert await berths.history_since(1).collect() == []
        [relation] = await s.query().relations(MooredAt).collect()
        assert relation.right.depth == 5
        ways = s.query().entities(Vessel).via(MooredAt)
        assert [way.source.id for way in await ways.collect()] == ["v1"]
        assert [len(way.relations) async for way in ways] == [1]
        assert (await ways.via(MooredAt).first()) is not None

    run(work, session)


@pytest.mark.parametrize(
    ("plain", "awaited", "without"),
    [
        (Session, AsyncSession, {"event_store", "bucket_events", "EVENT_REGISTRY"}),
        (EntityQuery, AsyncEntityQuery, set()),
        (PathQuery, AsyncPathQuery, set()),
        (GroupedQuery, AsyncGroupedQuery, set()),
    ],
)
def test_it_has_the_names_of_what_it_is_for_asyncio(plain, awaited, without):
    names = {name for name in dir(plain) if not name.startswith("_")}

    assert names - without <= set(dir(awaited))


def test_it_opens_and_closes_a_session_of_its_own(uri):
    async def work():
        unopened = AsyncSession(uri, entity_types=[Berth])
        with pytest.raises(SessionClosedError, match="async with"):
            unopened.ensure(Berth(id="b1"))
        async with unopened as s:
            s.ensure(Berth(id="b1"))  # committed at the end
        assert core_of(s.session).closed
        with pytest.raises(SessionClosedError):
            s.ensure(Berth(id="b2"))
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with AsyncSession(uri) as s:
                s.ensure(Berth(id="b2"))
                raise ZeroDivisionError
        async with AsyncSession(uri) as s:
            assert [each.id for each in await s.query().entities(Berth).collect()] == ["b1"]

    asyncio.run(work())


def test_a_session_that_is_given_stays_open_and_serves_one_event_loop_after_the_other(session):
    given = AsyncSession(session)

    async def work(id):
        async with given as s:
            s.ensure(Berth(id=id))
            await s.commit()
            s.ensure(Berth(id=f"{id} at the end"))

    for id in ("x", "y"):
        asyncio.run(work(id))

    assert set(depths(session)) == {"b0", "b1", "x", "x at the end", "y", "y at the end"}
    with pytest.raises(ConfigTypeError, match="namespace"):
        AsyncSession(session, "other")


# -- tasks ----------------------------------------------------------------------------------------


def test_no_task_commits_what_another_one_has_queued(session, caplog):
    async def child(s):
        s.ensure(Berth(id="child"))
        assert await s.commit() == 2

    async def forgetful(s):
        s.ensure(Berth(id="forgotten"))

    async def work(s):
        s.ensure(Berth(id="parent"))
        await asyncio.gather(child(s))
        await asyncio.create_task(forgetful(s), name="forgetful")
        assert await s.commit() == 3

    run(work, session)

    assert set(depths(session)) == {"b0", "b1", "child", "parent"}
    assert "task forgetful ended with 1 objects queued" in caplog.text


def test_a_call_belongs_to_the_task_that_makes_it_whichever_awaits_it(session):
    async def work(s):
        s.ensure(Berth(id="queued", depth=1))
        [found, _] = await asyncio.gather(s.get(Berth, "queued"), s.get(Berth, "b0"))
        assert found.depth == 1
        assert await asyncio.create_task(s.commit()) == 2

    run(work, session)


def test_tasks_that_commit_at_once_share_a_transaction(session, monkeypatch):
    writer, sizes = writer_of(session), []
    write_batch = writer._write_batch

    def counted(batch, own, deadline):
        write_batch(batch, own, deadline)
        sizes.append(len(batch.tickets))

    monkeypatch.setattr(writer, "_write_batch", counted)

    async def one(s, number):
        s.ensure(Berth(id=f"t{number}"))
        return await s.commit(event=Moored(berth=f"t{number}"))

    async def work(s):
        return await asyncio.gather(*(one(s, number) for number in range(100)))

    numbers = run(work, session)

    assert numbers == list(range(2, 102))
    assert sizes == [100]
    assert session.head == 101
    assert len(session.event_store.list_events(session.namespace, limit=200)) == 100


def test_events_alone_are_stored_too(session):
    async def one(s, number):
        event = Moored(berth=str(number))
        await s.commit(event=event, dedup_key="same" if number < 2 else None)
        return event.id

    async def work(s):
        return await asyncio.gather(*(one(s, number) for number in range(5)))

    ids = run(work, session)

    assert ids[0] == ids[1]
    stored = session.event_store.list_events(session.namespace)
    assert {each["id"] for each in stored} == set(ids)
    assert len(stored) == 4


def test_a_commit_that_fails_takes_no_other_along_and_leaves_its_queue(session):
    async def taken(s):
        s.ensure(Berth(id="t", number=1))
        return await s.commit()

    async def late(s):
        s.ensure(Berth(id="l", number=1))
        try:
            await s.commit()
        except UniqueViolationError:
            return s.discard()

    async def stale(s):
        async with s.unit() as unit:
            berth = await unit.one(Berth, "b0")
            async with s.unit() as other:
                other.update(Berth, "b0", depth=50)
            berth.depth = 51
            unit.ensure(berth)
            with pytest.raises(StateConflictError) as caught:
                await unit.commit()
            assert (caught.value.read, caught.value.found > 1) == (1, True)
            assert (await unit.one(Berth, "b0")).depth == 50  # what is stored, not what is stale

    async def work(s):
        return await asyncio.gather(taken(s), late(s), stale(s))

    [number, left, _] = run(work, session)

    assert number is not None
    assert left == 1
    assert depths(session) == {"b0": 50, "b1": 7, "t": 0}


def test_a_unit_has_one_commit_at_a_time(session):
    async def work(s):
        s.ensure(Berth(id="x"))
        return await asyncio.gather(s.commit(), s.commit(), return_exceptions=True)

    [number, refused] = run(work, session)

    assert number == 2
    assert isinstance(refused, RuntimeError)
    assert "under way" in str(refused)


def test_a_unit_is_isolated_and_commits_when_it_is_left(session, caplog):
    async def work(s):
        s.ensure(Berth(id="of the task"))
        async with s.unit() as unit:
            unit.ensure(Berth(id="of the unit"))
        assert set(depths(session)) == {"b0", "b1", "of the unit"}
        with pytest.raises(SessionClosedError):
            unit.ensure(Berth(id="late"))
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with s.unit() as unit:
                unit.ensure(Berth(id="dropped"))
                raise ZeroDivisionError
        with pytest.raises(UncommittedChangesError):  # noqa: PT012
            async with s.unit() as unit:
                unit.create(Berth(id="b0"))
                with pytest.raises(ObjectExistsError):
                    await unit.commit()
                unit.ensure(Berth(id="half"))
        s.discard()

    run(work, session)

    assert set(depths(session)) == {"b0", "b1", "of the unit"}


def test_checked_reads_are_checked(session):
    async def work(s):
        async with s.unit(reads="checked") as unit:
            assert await unit.query().entities(Berth).where(Berth.id == "b0").collect()
            assert await unit.get(Berth, "none") is None
            s.update(Berth, "b0", depth=6)
            await s.commit()
            unit.ensure(Berth(id="x"))
            with pytest.raises(StateConflictError):
                await unit.commit()
            unit.discard()

    run(work, session)


def test_what_a_unit_reads_while_its_commit_is_under_way_is_not_part_of_that(session):
    blocker = Blocker()
    first = blocked(session, blocker)

    async def work(s):
        unit = s.unit(reads="checked")
        unit.ensure(await unit.one(Berth, "b0"))
        unit.ensure(Berth(id="x"))
        task = asyncio.create_task(unit.commit())
        await ended(lambda: writer_of(session)._waiting)
        await unit.one(Berth, "b1")
        blocker.free.set()
        assert await task == 2

    run(work, session)
    first.join(PATIENCE)


def test_what_a_query_would_have_read_that_was_given_up_is_not_checked(session, monkeypatch):
    begun, go = threading.Event(), threading.Event()
    objects, returned = CheckedReader.objects, []

    def slow(self, question):
        begun.set()
        assert go.wait(PATIENCE)
        found = objects(self, question)
        returned.append(found)
        return found

    monkeypatch.setattr(CheckedReader, "objects", slow)

    async def work(s):
        unit = s.unit(reads="checked")
        task = asyncio.create_task(unit.query().entities(Berth).collect())
        await ended(begun.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        await ended(lambda: returned)
        s.update(Berth, "b0", depth=6)
        await s.commit()
        unit.ensure(Berth(id="x"))
        assert await unit.commit() == 3

    run(work, session)


# -- transact -------------------------------------------------------------------------------------


def test_transact_repeats_an_async_function_until_it_goes_through(session):
    async def deepen(unit):
        berth = await unit.one(Berth, "b0")
        berth.depth += 1
        unit.ensure(berth)
        return berth

    async def work(s):
        done = await asyncio.gather(*(s.transact(deepen, retries=50) for _ in range(5)))
        await s.transact(lambda unit: unit.update(Berth, "b1", depth=0))
        with pytest.raises(InvalidTypeError):
            await s.transact(deepen, retries=True)
        return sorted(each.depth for each in done)

    assert run(work, session) == [6, 7, 8, 9, 10]
    assert depths(session) == {"b0": 10, "b1": 0}


def test_calls_of_transact_after_a_conflict_take_turns(session, monkeypatch):
    """All tasks read the same version, and all but one conflict; of the others none does again."""
    monkeypatch.setattr("ontologia.runtime.async_session.TAKE_TURNS", PATIENCE)
    together, overlapping = asyncio.Barrier(4), asyncio.Event()
    calls, inside = [], []

    async def deepen(unit):
        calls.append(asyncio.current_task())
        first = len(calls) <= 4
        berth = await unit.one(Berth, "b0")
        if first:
            await together.wait()
        else:
            inside.append(1)
            if len(inside) > 1:
                overlapping.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await overlapping.wait()
        berth.depth += 1
        unit.ensure(berth)
        if not first:
            await unit.commit()
            inside.pop()

    async def work(s):
        await asyncio.gather(*(s.transact(deepen, retries=1) for _ in range(4)))

    run(work, session)

    assert len(calls) == 7
    assert not overlapping.is_set()
    assert depths(session)["b0"] == 9


def test_transact_gives_up_after_its_retries(session):
    calls = []

    async def overtaken(unit):
        calls.append(unit)
        berth = await unit.one(Berth, "b0")
        session.update(Berth, "b0", depth=len(calls) * 100)
        session.commit()
        berth.depth = 1
        unit.ensure(berth)

    async def work(s):
        with pytest.raises(StateConflictError) as caught:
            await s.transact(overtaken, retries=1)
        assert "called the function 2 times" in caught.value.__notes__[0]
        assert caught.value.hint.startswith("Raise retries=")

    run(work, session)

    assert len(calls) == 2
    assert depths(session)["b0"] == 200


# -- cancellation ---------------------------------------------------------------------------------


async def cancelled(task, *, times=1):
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_commit_that_is_cancelled_before_it_is_taken_writes_nothing_and_keeps_its_queue(
    session, caplog
):
    async def work(s):
        async with s.unit() as unit:
            unit.ensure(Berth(id="x"))
            task = asyncio.create_task(unit.commit(event=Moored(berth="x")))
            await asyncio.sleep(0)  # it is submitted, and no thread has it yet
            await cancelled(task)
            assert unit.discard() == 1
            unit.ensure(Berth(id="y"))
            task = asyncio.create_task(unit.commit(event=Moored(berth="y")))
            await asyncio.sleep(0)
            await cancelled(task)
            # Leaving does not write an object whose event is lost.

    run(work, session)

    assert set(depths(session)) == {"b0", "b1"}
    assert session.event_store.list_events(session.namespace) == []
    assert "1 objects are dropped that a commit failed to write" in caplog.text


@pytest.mark.parametrize("times", [1, 3])
def test_a_commit_that_is_cancelled_while_it_is_written_is_written_before_the_task_goes_on(
    session, times
):
    blocker = Blocker()
    first = blocked(session, blocker)

    async def work(s):
        unit, berth, moored = s.unit(), Berth(id="x"), Moored(berth="x")
        unit.ensure(berth)
        task = asyncio.create_task(unit.commit(event=moored))
        await ended(lambda: writer_of(session)._waiting)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.001)
        assert not task.done()  # what becomes of it is not known yet
        blocker.free.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert unit.discard() == 0
        assert berth.meta().commit_id == 2
        return moored.id

    id = run(work, session)
    first.join(PATIENCE)

    assert set(depths(session)) == {"b0", "b1", "x"}
    assert [each["id"] for each in session.event_store.list_events(session.namespace)] == [id]


def test_a_commit_that_fails_after_it_was_cancelled_leaves_its_queue(session):
    blocker = Blocker()
    first = blocked(session, blocker)

    async def work(s):
        unit = s.unit()
        unit.create(Berth(id="b0"))
        task = asyncio.create_task(unit.commit())
        await ended(lambda: writer_of(session)._waiting)
        task.cancel()
        await asyncio.sleep(0)
        blocker.free.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert unit.discard() == 1

    run(work, session)
    first.join(PATIENCE)

    assert session.head == 1


def test_a_unit_that_is_cancelled_while_it_is_left_is_written_as_a_whole(session):
    blocker = Blocker()
    first = blocked(session, blocker)

    async def leave(s):
        async with s.unit() as unit:
            unit.ensure([Berth(id="x"), Berth(id="y")])

    async def work(s):
        task = asyncio.create_task(leave(s))
        await ended(lambda: writer_of(session)._waiting)
        task.cancel()
        blocker.free.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(work, session)
    first.join(PATIENCE)

    assert set(depths(session)) == {"b0", "b1", "x", "y"}


def test_a_session_that_is_cancelled_while_it_opens_is_closed(uri, monkeypatch):
    begun, go, made = threading.Event(), threading.Event(), []
    init = Session.__init__

    def slow(self, *args, **options):
        begun.set()
        assert go.wait(PATIENCE)
        init(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(Session, "__init__", slow)

    async def use():
        async with AsyncSession(uri):
            raise AssertionError("it was cancelled before")

    async def main():
        task = asyncio.create_task(use())
        await ended(begun.is_set)
        task.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())

    assert [core_of(each).closed for each in made] == [True]


# -- threads --------------------------------------------------------------------------------------


def test_the_event_loop_goes_on_while_a_commit_waits(session):
    blocker = Blocker()
    first = blocked(session, blocker)

    async def work(s):
        s.ensure(Berth(id="x"))
        task = asyncio.create_task(s.commit())
        await ended(lambda: writer_of(session)._waiting)
        assert (await s.one(Berth, "b0")).depth == 5
        assert not task.done()
        blocker.free.set()
        assert await task == 2

    run(work, session)
    first.join(PATIENCE)


def test_a_function_in_a_thread_has_the_context_of_its_caller(session):
    told = ContextVar("told", default="nothing")

    async def work(s):
        told.set("something")
        return await s.run_sync(lambda: (told.get(), threading.current_thread().name))

    assert run(work, session) == ("something", "ontologia-io")


def test_a_commit_is_written_in_the_context_of_its_task(session, monkeypatch):
    told, seen = ContextVar("told", default="nothing"), []
    patched = core_of(session).commits._patched

    def noted(*args):  # where upgraders of the program are called
        seen.append(told.get())
        return patched(*args)

    monkeypatch.setattr(core_of(session).commits, "_patched", noted)

    async def one(s, id):
        told.set(id)
        s.update(Berth, id, depth=1)
        await s.commit()

    async def work(s):
        await asyncio.gather(one(s, "b0"), one(s, "b1"))

    run(work, session)

    assert seen == ["b0", "b1"]


def test_a_function_in_a_thread_comes_to_its_end_before_its_task_is_cancelled(session):
    begun, go, done = threading.Event(), threading.Event(), []

    def slow():
        begun.set()
        assert go.wait(PATIENCE)
        done.append(True)

    async def work(s):
        task = asyncio.create_task(s.run_sync(slow))
        await ended(begun.is_set)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return list(done)

    assert run(work, session) == [True]


def test_what_a_function_in_a_thread_raises_is_raised(session):
    def stop():
        raise StopIteration

    def leave():
        raise SystemExit(3)

    async def work(s):
        with pytest.raises(ZeroDivisionError):
            await s.run_sync(lambda: 1 // 0)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await s.run_sync(stop)
        with pytest.raises(RuntimeError, match="SystemExit"):
            await s.run_sync(leave)

    run(work, session)


def test_more_functions_than_threads_are_all_called(session):
    async def work(s):
        return await asyncio.gather(*(s.run_sync(lambda n=n: n) for n in range(200)))

    assert run(work, session) == list(range(200))


def test_functions_in_all_threads_may_wait_for_commits(session):
    together = threading.Barrier(16)  # as many as there are threads

    async def work(s):
        loop = asyncio.get_running_loop()

        async def write(number):
            async with s.unit() as unit:
                unit.ensure(Berth(id=f"x{number}"))

        def wait(number):
            together.wait(PATIENCE)
            asyncio.run_coroutine_threadsafe(write(number), loop).result(PATIENCE)

        await asyncio.gather(*(s.run_sync(wait, number) for number in range(16)))

    run(work, session)

    assert len(depths(session)) == 18


def test_a_session_that_is_closed_has_no_threads(uri, monkeypatch):
    monkeypatch.setattr(threads_module, "_IDLE", 10 * PATIENCE)
    before = set(threading.enumerate())

    def own():
        return [
            each
            for each in set(threading.enumerate()) - before
            if each.name in ("ontologia-io", "ontologia-commits")
        ]

    async def main():
        async with AsyncSession(uri, entity_types=[Berth]) as s:
            s.ensure(Berth(id="x"))
            await s.commit()
            assert len(own()) >= 2
        until(lambda: not own())
        with pytest.raises(DefinitionError):
            async with AsyncSession(uri, entity_types=[None]):
                pass
        until(lambda: not own())

    asyncio.run(main())


def test_a_session_that_was_given_can_be_used_after_it_was_closed(session):
    async def work(s):
        await s.close()
        s.ensure(Berth(id="x"))
        return await s.commit()

    assert run(work, session) == 2


@pytest.mark.parametrize("failure", [ZeroDivisionError, KeyboardInterrupt])
def test_a_commit_whose_outcome_cannot_be_noted_strands_no_other(session, monkeypatch, failure):
    settle, noted, tasks = UnitOfWork._settle, [], []

    def failing(self, request, written):
        if ("bad",) in request.queue["entity", "Berth"]:
            raise failure
        settle(self, request, written)
        noted.append(written.commit_id)

    monkeypatch.setattr(UnitOfWork, "_settle", failing)

    async def one(s, id):
        async with s.unit() as unit:
            unit.ensure(Berth(id=id))
            return await unit.commit()

    async def work(s):
        tasks.extend([asyncio.create_task(one(s, id)) for id in ("a", "bad", "c", "d")])
        await asyncio.gather(*tasks, return_exceptions=True)

    with suppress(KeyboardInterrupt):  # it ends the loop, as one in any callback does
        run(work, session)

    assert noted == [2, 4, 5]
    assert all(each.done() for each in tasks)
    if failure is ZeroDivisionError:
        outcomes = [type(each.exception() or each.result()) for each in tasks]
        assert outcomes == [int, ZeroDivisionError, int, int]


# -- handlers -------------------------------------------------------------------------------------


def test_async_handlers_run_on_the_loop_and_plain_ones_in_threads(session):
    where = {}

    async def work(s):
        @on_event(Moored, name="harbour.awaited")
        async def awaited(ctx):
            where["awaited"] = threading.current_thread()
            berth = await s.one(Berth, ctx.event.berth)
            berth.depth += 1
            s.ensure(berth)
            await s.commit()

        @on_event(Moored, name="harbour.plain")
        def plain(ctx):
            where["plain"] = threading.current_thread()

        await s.commit(event=Moored(berth="b0"))
        await s.run([awaited, plain], max_iterations=2)
        return await s.get_commit(2)

    commit = run(work, session)

    assert where["awaited"] is threading.current_thread()
    assert where["plain"] is not threading.current_thread()
    assert depths(session)["b0"] == 6
    # What a handler commits is its context's, and fenced by its claim.
    assert commit["metadata"]["handler_id"] == "harbour.awaited"
    assert session.event_store.check() == []


def test_a_run_that_is_cancelled_stops_when_its_handlers_have_come_to_their_end(session):
    seen = []

    async def work(s):
        begun, go = asyncio.Event(), asyncio.Event()

        @on_event(Moored, name="harbour.slow")
        async def slow(ctx):
            begun.set()
            await go.wait()
            seen.append(ctx.event.berth)

        await s.commit(event=Moored(berth="b0"))
        running = asyncio.create_task(s.run([slow]))
        await begun.wait()
        running.cancel()
        await asyncio.sleep(0.01)
        assert not running.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert core_of(session).engine is None

    run(work, session)

    assert seen == ["b0"]
    assert session.event_store.check() == []


@pytest.mark.parametrize("turns", range(3))
def test_a_run_is_stopped_however_early(session, turns):
    @on_event(Moored, name="harbour.idle")
    def idle(ctx): ...

    async def work(s):
        running = asyncio.create_task(s.run([idle]))
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        running = asyncio.create_task(s.run([idle]))
        await ended(lambda: core_of(session).engine is not None)
        s.stop()
        await running

    run(work, session)


def test_commits_of_tasks_and_of_threads_share_the_writer(session):
    async def work(s):
        async def one(number):
            s.ensure(Berth(id=f"task {number}"))
            return await s.commit()

        def plain(number):
            with session.unit() as unit:
                unit.ensure(Berth(id=f"thread {number}"))
                return unit.commit()

        calls = [Call(lambda n=n: plain(n)) for n in range(4)]
        for call in calls:
            call.start()
        numbers = await asyncio.gather(*(one(number) for number in range(20)))
        for call in calls:
            await asyncio.to_thread(call.join)
        return [*numbers, *(call.outcome for call in calls)]

    assert sorted(run(work, session)) == list(range(2, 26))
