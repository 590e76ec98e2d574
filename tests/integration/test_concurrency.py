"""Many at once: threads, processes, locks that are held, commits that are killed or interrupted."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest

from ontologia import Entity, Field
from ontologia.clock import SystemClock
from ontologia.errors import HeadMismatchError, LockContentionError, SessionClosedError
from ontologia_conformance.backends import SQLITE
from tests.integration.processes import HOLD_A_COMMIT, PATIENCE, Process, run
from tests.shop import Customer, Product

pytestmark = pytest.mark.each_database

THREADS = 8
ROUNDS = 15


class Counter(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]


class Gate(SystemClock):
    """A commit looks at the clock inside its write transaction: there it can be stopped."""

    def __init__(self) -> None:
        self.closed = False
        self.reached, self.opened = threading.Event(), threading.Event()

    def now(self):
        if self.closed:
            self.closed = False
            self.reached.set()
            self.opened.wait(PATIENCE)
        return super().now()


def at_once(work: Callable[[int], Any], workers: int) -> list[Any]:
    """Run `work(0)`, `work(1)`, ... in threads that begin together; an error in one is raised."""
    start = threading.Barrier(workers)

    def begin(number: int) -> Any:
        start.wait()
        return work(number)

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(begin, range(workers)))


def customers(session) -> set[str]:
    return {customer.id for customer in session.query().entities(Customer).collect()}


@pytest.fixture
def assert_sound(backend, direct):
    """Nothing refers to what is not there, and commits are numbered from 1 on."""

    def check() -> None:
        if backend.name == "sqlite":
            assert direct("PRAGMA integrity_check") == [("ok",)]
            assert direct("PRAGMA foreign_key_check") == []
        for table in ("entity_history", "relation_history"):
            orphans = f"SELECT * FROM {table} WHERE commit_id NOT IN (SELECT id FROM commits)"
            assert direct(orphans) == []
        ids = [number for (number,) in direct("SELECT id FROM commits ORDER BY id")]
        assert ids == list(range(1, len(ids) + 1))

    return check


def assert_whole(direct, size: int) -> None:
    """Every commit wrote `size` customers of one name, and so is the current state."""
    versions = "SELECT commit_id, fields_json FROM entity_history"
    latest = "SELECT 0, {} FROM entity_latest".format("fields ->> 'name'")
    written: dict[int, list[str]] = {number: [] for [number] in direct("SELECT id FROM commits")}
    for number, fields in direct(versions):
        written[number].append(json.loads(fields)["name"])
    for names in (*written.values(), [name for _, name in direct(latest)]):
        assert (len(names), len(set(names))) == (size, 1)


# -- everybody writes ---------------------------------------------------------------------------


@pytest.mark.req("SQL-103")
def test_eight_threads_that_share_a_session_lose_nothing(session, assert_sound):
    def work(thread: int) -> list[int | None]:
        made = []
        for number in range(ROUNDS):
            session.ensure(Customer(id=f"{thread}-{number}", name="x"))
            made.append(session.commit())
        return made

    made = [commit for commits in at_once(work, THREADS) for commit in commits]

    # A thread may find that another one's commit took its object along: that gives None.
    written = sorted(commit for commit in made if commit is not None)
    assert written == list(range(1, session.head + 1))
    assert customers(session) == {f"{t}-{n}" for t in range(THREADS) for n in range(ROUNDS)}
    assert_sound()


@pytest.mark.req("SQL-005", "SQL-074", "SQL-103")
def test_eight_threads_with_a_session_each_all_get_a_commit_of_their_own(
    open_session, assert_sound
):
    sessions = [open_session() for _ in range(THREADS)]

    def work(thread: int) -> list[int]:
        made = []
        for number in range(ROUNDS):
            sessions[thread].ensure(Customer(id=f"{thread}-{number}", name="x"))
            made.append(sessions[thread].commit())
        return made

    made = at_once(work, THREADS)

    assert sorted(chain(*made)) == list(range(1, THREADS * ROUNDS + 1))
    assert all(commits == sorted(commits) for commits in made)
    assert customers(sessions[0]) == {f"{t}-{n}" for t in range(THREADS) for n in range(ROUNDS)}
    assert_sound()


@pytest.mark.thorough
@pytest.mark.req("SQL-005", "SQL-074", "SQL-101", "SQL-102", "SQL-103")
def test_four_processes_make_a_new_store_and_commit_to_it_at_once(uri, open_session, assert_sound):
    program = f"""
    Session(":memory:").close()
    say("ready")
    listen()
    made = []
    with Session(sys.argv[1], entity_types=[Customer]) as session:
        for number in range({ROUNDS}):
            session.ensure(Customer(id=f"{{sys.argv[2]}}-{{number}}", name="x"))
            made.append(session.commit())
    report(made)
    """
    processes = [Process(program, uri, number) for number in range(4)]
    try:
        for process in processes:
            process.hear("ready")
        for process in processes:
            process.tell()
        made = [process.report() for process in processes]
    finally:
        for process in processes:
            process.__exit__()

    assert sorted(chain(*made)) == list(range(1, 4 * ROUNDS + 1))
    assert customers(open_session()) == {f"{p}-{n}" for p in range(4) for n in range(ROUNDS)}
    assert_sound()


@pytest.mark.req("SQL-002", "SQL-004")
def test_a_reading_thread_never_sees_half_a_commit(session):
    session.ensure([Customer(id=str(n), name="0") for n in range(30)])
    session.commit()
    done = threading.Event()

    def work(thread: int) -> set[int]:
        if thread == 0:
            for turn in range(1, 40):
                session.ensure([Customer(id=str(n), name=str(turn)) for n in range(30)])
                session.commit()
            done.set()
            return {1}
        seen = set()
        while not done.is_set():
            found = session.query().entities(Customer).collect()
            seen.add(len({customer.name for customer in found}))
        return seen

    seen = at_once(work, 3)

    assert set().union(*seen) == {1}
    assert session.head == 40


@pytest.mark.req("SQL-074")
def test_of_two_sessions_that_change_one_entity_the_later_commit_wins(open_session):
    first, second = open_session(), open_session()
    first.ensure(Customer(id="c1", name="Ada"))
    first.commit()

    first.ensure(Customer(id="c1", name="first"))
    second.ensure(Customer(id="c1", name="second"))
    ids = second.commit(), first.commit()

    assert ids == (2, 3)
    [customer] = second.query().entities(Customer).collect()
    assert (customer.name, customer.meta().commit_id) == ("first", 3)
    versions = second.query().entities(Customer).with_history().collect()
    assert [version.name for version in versions] == ["Ada", "second", "first"]


@pytest.mark.req("SQL-071")
def test_a_counter_that_four_threads_raise_by_compare_and_swap_ends_exact(open_session):
    sessions = [open_session() for _ in range(4)]
    sessions[0].ensure(Counter(id="n", value=0))
    sessions[0].commit()

    def raise_by_one(session) -> None:
        while True:
            head = session.head
            counter = session.query().entities(Counter).as_of(head).first()
            session.ensure(Counter(id="n", value=counter.value + 1))
            try:
                session.commit(expected_head=head)
                return
            except HeadMismatchError:
                continue

    at_once(lambda thread: [raise_by_one(sessions[thread]) for _ in range(ROUNDS)], 4)

    assert sessions[0].query().entities(Counter).first().value == 4 * ROUNDS
    assert sessions[0].head == 1 + 4 * ROUNDS


@pytest.mark.req("SQL-071")
def test_a_commit_on_another_head_writes_nothing_and_keeps_the_queue(open_session):
    session, other = open_session(), open_session()
    session.ensure(Customer(id="c1", name="Ada"))
    other.ensure(Customer(id="c2", name="Bob"))
    other.commit(expected_head=0)

    with pytest.raises(HeadMismatchError, match="expected head 0, the store is at 1") as error:
        session.commit(expected_head=0)

    assert "commit again" in error.value.hint
    assert (session.head, customers(session)) == (1, {"c2"})
    assert session.commit(expected_head=1) == 2
    assert customers(session) == {"c1", "c2"}


# -- somebody holds the lock ----------------------------------------------------------------------


@pytest.mark.req("SQL-004")
@SQLITE
def test_readers_read_what_is_committed_while_another_process_writes(uri, open_session):
    session = open_session()
    session.ensure(Customer(id="c1", name="Ada"))
    session.commit()

    with Process(HOLD_A_COMMIT, uri) as writer:
        writer.hear("inside")
        during = (session.head, customers(session), len(session.diff(0, 1).created))
        writer.tell()
        commit_id = writer.report()

    assert during == (1, {"c1"}, 1)
    assert (commit_id, len(customers(session))) == (2, 21)


@pytest.mark.req("SQL-005", "SQL-064", "NEW-029")
@SQLITE
def test_a_commit_that_waits_too_long_says_for_whom_and_keeps_its_queue(uri, open_session):
    session = open_session(settings={"lock_timeout_ms": 50})
    session.ensure([Customer(id="c1", name="Ada"), Product(sku="p1", price=1.0)])

    with Process(HOLD_A_COMMIT, uri) as writer:
        writer.hear("inside")
        with pytest.raises(LockContentionError, match="nothing was written") as error:
            session.commit()
        left_behind = (session.head, session.query().entities(Product).count())
        writer.tell()
        writer.report()

    assert "another process" in error.value.holder
    assert error.value.waited_ms >= 50
    assert "lock_timeout_ms" in error.value.hint
    assert left_behind == (0, 0)
    assert (session.commit(), session.query().entities(Product).count()) == (2, 1)


@pytest.mark.req("SQL-062")
@SQLITE
def test_a_commit_waits_for_the_writer_of_another_process_and_then_goes_on(uri, session):
    unit = session.unit()
    unit.ensure(Customer(id="c1", name="Ada"))

    with Process(HOLD_A_COMMIT, uri) as writer, ThreadPoolExecutor(1) as pool:
        writer.hear("inside")
        commit = pool.submit(unit.commit)
        early = commit.done()
        writer.tell()

        assert not early
        assert (writer.report(), commit.result(PATIENCE)) == (1, 2)
        assert len(customers(session)) == 21


@pytest.mark.req("SQL-064")
def test_a_thread_waits_no_longer_for_another_than_for_another_process(open_session):
    gate = Gate()
    session = open_session(settings={"clock": gate, "lock_timeout_ms": 50})
    first, second = session.unit(), session.unit()
    first.ensure(Customer(id="c1", name="Ada"))
    second.ensure(Customer(id="c2", name="Bob"))

    with ThreadPoolExecutor(2) as pool:
        gate.closed = True
        slow = pool.submit(first.commit)
        gate.reached.wait(PATIENCE)
        quick = pool.submit(second.commit)
        try:
            error = quick.exception(PATIENCE)
        finally:
            gate.opened.set()

    assert isinstance(error, LockContentionError)
    assert "thread" in error.holder
    assert (slow.result(), second.commit()) == (1, 2)


@SQLITE
def test_opening_a_file_that_another_program_locked_whole_is_no_mystery(path, open_session):
    open_session().close()
    program = """
    import apsw
    db = apsw.Connection(sys.argv[1])
    db.execute("PRAGMA locking_mode=EXCLUSIVE")
    db.execute("BEGIN EXCLUSIVE; DELETE FROM sessions")
    say("locked")
    listen()
    """

    with Process(program, path) as other:
        other.hear("locked")
        with pytest.raises(LockContentionError) as error:
            open_session(settings={"lock_timeout_ms": 50})

    assert "another process" in error.value.holder
    assert error.value.waited_ms >= 50
    assert open_session().head == 0


HOLD = "INSERT INTO locks VALUES ('ontology_write', 'somebody', '{0}', '{1}')"
NOW, IN_A_SECOND, IN_AN_HOUR = (
    f"2026-01-01T{time}.000000+00:00" for time in ("00:00:00", "00:00:01", "01:00:00")
)


@pytest.mark.req("SQL-061", "SQL-063", "SQL-064")
def test_a_commit_waits_five_seconds_for_a_long_write_of_somebody_else(session, clock, sql):
    sql(HOLD.format(NOW, IN_AN_HOUR))
    session.ensure(Customer(id="c1", name="Ada"))

    with pytest.raises(LockContentionError) as error:
        session.commit()

    assert error.value.holder == "somebody"
    assert 5_000 <= error.value.waited_ms <= 5_010
    assert clock.monotonic() == pytest.approx(5, abs=0.011)
    assert session.head == 0
    sql("DELETE FROM locks")
    assert session.commit() == 1


@pytest.mark.req("SQL-061")
def test_a_commit_goes_on_as_soon_as_the_lease_of_a_long_write_is_over(session, clock, sql):
    sql(HOLD.format(NOW, IN_A_SECOND))
    session.ensure(Customer(id="c1", name="Ada"))

    commit_id = session.commit()

    assert commit_id == 1
    assert clock.monotonic() == pytest.approx(1, abs=0.011)


@pytest.mark.req("SQL-063")
def test_a_migration_waits_ten_seconds_for_a_long_write_of_somebody_else(open_session, sql):
    old = type("Thing", (Entity,), {"__annotations__": {"id": Field[str]}})
    new = type("Thing", (Entity,), {"__annotations__": {"id": Field[str], "n": Field[int]}})
    open_session(entity_types=[old]).close()
    session = open_session(entity_types=[new])
    sql(HOLD.format(NOW, IN_AN_HOUR))

    with pytest.raises(LockContentionError) as error:
        session.migrate(dry_run=False, force=True)

    assert error.value.holder == "somebody"
    assert 10_000 <= error.value.waited_ms <= 10_010


@pytest.mark.thorough
@pytest.mark.req("SQL-061")
@SQLITE
def test_a_wait_for_the_lock_can_be_interrupted(uri):
    waiting = """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    session = Session(sys.argv[1], config=OntologiaConfig(lock_timeout_ms=600_000))
    session.ensure(Customer(id="c1", name="Ada"))
    say("open")
    listen()
    try:
        say("waiting")
        session.commit()
    except KeyboardInterrupt:
        say("interrupted")
    listen()
    report([session.commit(), session.head])
    """

    with Process(waiting, uri) as waiter:
        waiter.hear("open")
        with Process(HOLD_A_COMMIT, uri) as writer:
            writer.hear("inside")
            waiter.tell()
            waiter.hear("waiting")
            waiter.interrupt()
            waiter.hear("interrupted")
            writer.tell()
            writer.report()
        waiter.tell()

        assert waiter.report() == [2, 2]


@pytest.fixture
def patience(backend) -> int:
    """Milliseconds to wait for whoever was killed or interrupted.

    On SQLite none: the lock goes with the process. PostgreSQL has to notice.
    """
    return 0 if backend.name == "sqlite" else 5_000


# -- the end, in all its ways ---------------------------------------------------------------------


@pytest.mark.req("SQL-002", "SQL-058")
@SQLITE
def test_after_a_kill_inside_a_commit_the_next_writer_goes_on_at_once(
    uri, open_session, assert_sound
):
    # No time to wait at all: whoever had to would get LockContentionError.
    session = open_session(settings={"lock_timeout_ms": 0})
    session.ensure(Customer(id="c1", name="Ada"))

    with Process(HOLD_A_COMMIT, uri) as writer:
        writer.hear("inside")
        with pytest.raises(LockContentionError):
            session.commit()
        writer.kill()

    assert session.commit() == 1
    assert customers(session) == {"c1"}
    assert_sound()


@pytest.mark.thorough
@pytest.mark.req("SQL-002", "SQL-058", "SQL-101", "SQL-102", "SQL-103")
def test_a_kill_at_any_moment_leaves_all_of_a_commit_or_nothing(
    uri, patience, assert_sound, direct
):
    size = 200
    program = f"""
    config = OntologiaConfig(lock_timeout_ms=int(sys.argv[2]))
    with Session(sys.argv[1], config=config) as session:
        for turn in range(1_000_000):
            name = f"{{os.getpid()}}-{{turn}}"
            session.ensure([Customer(id=str(n), name=name) for n in range({size})])
            say("committing")
            session.commit()
    """
    moments = random.Random(7)

    for _ in range(6):
        with Process(program, uri, patience) as writer:
            for _ in range(moments.randint(1, 3)):
                writer.hear("committing")
            time.sleep(moments.uniform(0, 0.01))  # somewhere between BEGIN and the next one
            writer.kill()

    assert_sound()
    assert_whole(direct, size)


@pytest.mark.thorough
@pytest.mark.req("SQL-002", "SQL-058", "SQL-103", "NEW-029")
def test_interrupts_leave_all_of_a_commit_or_nothing_and_the_session_usable(
    uri, patience, assert_sound, direct
):
    size, interrupts = 5, 300
    program = f"""
    hits = []

    def interrupt(*_):
        hits.append(1)
        raise KeyboardInterrupt

    def ensure(turn):
        session.ensure([Customer(id=str(n), name=str(turn)) for n in range({size})])

    def names():
        return {{c.name for c in session.query().entities(Customer).collect()}}

    # Nobody else is here, so nobody has to wait: a lock that is held was left behind.
    session = Session(sys.argv[1], config=OntologiaConfig(lock_timeout_ms=int(sys.argv[2])))
    turn = queued = 0
    ensure(0)
    session.commit()
    signal.signal(signal.SIGINT, interrupt)
    for expected in range(1, {interrupts} + 1):
        try:
            say("armed")
            while len(hits) < expected:
                turn += 1
                ensure(turn)
                queued = turn
                session.commit()
        except KeyboardInterrupt:
            pass
        session.commit()
        # What was queued is committed by now; so is what ensure() had just queued, perhaps.
        assert names() in ({{str(queued)}}, {{str(turn)}}), (names(), queued, turn)
    report(session.head)
    """
    moments = random.Random(3)

    with Process(program, uri, patience) as process:
        for _ in range(interrupts):
            process.hear("armed")
            time.sleep(moments.uniform(0, 0.003))
            process.interrupt()
        head = process.report()

    assert head > 0
    assert_sound()
    assert_whole(direct, size)


def test_a_forked_child_is_not_kept_waiting_by_locks_that_the_parents_threads_had(uri):
    """As in a server that forks its workers while a thread of the parent commits."""
    program = """
    import threading
    from contextlib import ExitStack
    from ontologia import clock
    from ontologia.runtime.session import core_of
    from ontologia.store.sqlite import watch as file_watch

    session = Session(sys.argv[1])
    session.commit()
    locks = [clock._shared_lock, file_watch._watches_lock]
    locks += [stamps._lock for stamps in clock._shared.values()]
    if sys.argv[1].startswith("postgres"):
        from ontologia.store.postgres import clock as server_clock, watch as server_watch
        locks += [server_clock._clocks_lock, server_watch._channels_lock]
        locks += [each._lock for each in server_clock._clocks.values()]

    held = threading.Event()

    def hold():
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            threading.Event().wait()

    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # seconds; only a hang takes that long
        with Session(sys.argv[1]) as own:
            own.ensure(Customer(id="c1", name="Ada"))
            watch = core_of(own).store.watch()
            own.commit()
            watch.close()
        os._exit(7)
    _, status = os.waitpid(child, 0)
    report([len(locks), os.waitstatus_to_exitcode(status)])
    os._exit(0)
    """

    locks, code = run(program, uri)

    assert locks >= 3
    assert code == 7  # and not killed by the alarm


def test_a_session_in_a_forked_child_says_so_and_leaves_the_parent_alone(uri):
    program = """
    session = Session(sys.argv[1])
    session.ensure(Customer(id="c1", name="Ada"))
    session.commit()
    session.ensure(Customer(id="c2", name="Bob"))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        seen = []
        for use in (session.commit, session.query().entities(Customer).collect, lambda: session.head):
            try:
                seen.append(repr(use()))
            except SessionClosedError as error:
                seen.append(str(error))
        session.close()
        with Session(sys.argv[1]) as own:
            own.ensure(Customer(id="c3", name="Cid"))
            seen.append(own.commit())
        os.write(writer, json.dumps(seen).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with open(reader) as pipe:
        seen = json.load(pipe)
    commit_id = session.commit()
    names = sorted(c.name for c in session.query().entities(Customer).collect())
    session.close()
    report([seen, commit_id, names])
    """

    (*refused, own), commit_id, names = run(program, uri)

    assert len(refused) == 3
    assert all("opened in another process" in text for text in refused)
    assert all("open a session in the child" in text for text in refused)
    assert (own, commit_id, names) == (2, 3, ["Ada", "Bob", "Cid"])


def test_an_async_session_in_a_forked_child_says_so_too(uri):
    program = """
    import asyncio
    from ontologia import AsyncSession

    plain = Session(sys.argv[1])
    session = AsyncSession(plain)

    async def read():
        return await session.get(Customer, "c1")

    async def write():
        session.ensure(Customer(id="c1", name="Ada"))
        return await session.commit()

    asyncio.run(write())
    asyncio.run(read())  # its thread is there for the next one
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # seconds; only a hang takes that long
        seen = []
        for use in (read, write, session.close):
            try:
                seen.append(repr(asyncio.run(use())))
            except SessionClosedError as error:
                seen.append(str(error))
        os.write(writer, json.dumps(seen).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with open(reader) as pipe:
        seen = json.loads(pipe.read() or "[]")
    report([seen, asyncio.run(read()).name])
    plain.close()
    """

    seen, name = run(program, uri)

    assert ["opened in another process" in text for text in seen] == [True, True, False]
    assert name == "Ada"


def test_a_forked_child_closes_its_parents_session_without_waiting_for_its_run(uri):
    program = """
    import signal, threading
    from ontologia import Event, on_event

    class Rung(Event):
        pass

    @on_event(Rung)
    def ring(ctx):
        rung.set()

    rung = threading.Event()
    session = Session(sys.argv[1])
    run = threading.Thread(target=session.run, args=([ring],))
    run.start()
    session.commit(event=Rung())
    rung.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        session.close()
        os._exit(7)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    session.close()
    run.join()
    report(code)
    """

    assert run(program, uri) == 7


def test_a_closed_session_refuses_everything_but_closing_again(open_session):
    session = open_session()
    session.ensure(Customer(id="c1", name="Ada"))
    query = session.query().entities(Customer)
    session.close()

    session.close()
    uses = (
        lambda: session.ensure(Customer(id="c2", name="Bob")),
        lambda: session.delete(Customer(id="c2", name="Bob")),
        session.commit,
        lambda: session.commit(dry_run=True),
        lambda: session.head,
        session.query,
        query.collect,
        session.list_commits,
        lambda: session.get_commit(1),
        lambda: session.list_commit_changes(1),
        lambda: session.diff(0, 0),
        session.validate,
        session.migrate,
        session.__enter__,
    )

    for use in uses:
        with pytest.raises(SessionClosedError, match="closed"):
            use()
    assert open_session().head == 0


def test_closing_a_session_under_the_hands_of_threads_loses_no_commit_they_were_told_of(
    open_session,
):
    session = open_session()
    busy = threading.Semaphore(0)

    def work(thread: int) -> set[str]:
        if thread == 0:
            for _ in range(10):
                busy.acquire()
            session.close()
            return set()
        kept: set[str] = set()
        try:
            while True:
                session.ensure(Customer(id=f"{thread}-{len(kept)}", name="x"))
                session.commit()
                kept.add(f"{thread}-{len(kept)}")
                assert kept <= customers(session)
                busy.release()
        except SessionClosedError:
            return kept

    kept = set().union(*at_once(work, 4))

    assert len(kept) >= 10
    assert kept <= customers(open_session())


@pytest.mark.req("SQL-108")
@SQLITE
def test_an_idle_session_does_not_keep_the_log_from_being_truncated(path, session, sql):
    session.ensure([Customer(id=str(n), name="x") for n in range(50)])
    session.commit()
    query = session.query().entities(Customer)
    query.collect(), query.first(), query.count(), session.head, session.diff(0, 1)

    [[busy, *_]] = sql("PRAGMA wal_checkpoint(TRUNCATE)")

    assert busy == 0
    assert path.with_name(path.name + "-wal").stat().st_size == 0
    session.ensure(Customer(id="more", name="x"))
    assert (session.commit(), len(query.collect())) == (2, 51)
