"""The lease on long writes: taken, renewed, waited for, lost."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from contextlib import closing
from datetime import datetime, timedelta
from random import Random

import apsw
import pytest

from ontologia import Entity, Field, OntologiaConfig
from ontologia.clock import SystemClock, to_text
from ontologia.errors import LockContentionError, LockLostError, UpgraderError
from ontologia.store.open import open_store
from ontologia.testing import ManualClock
from ontologia_conformance.backends import SQLITE
from ontologia_conformance.shop import Product


class Person(Entity):
    """The first version."""

    id: Field[str]


def person_with_name():
    """The second."""

    class Person(Entity):
        id: Field[str]
        name: Field[str]

    return Person


class Meanwhile:
    """An upgrader that does something while the lease is held."""

    def __init__(self, act):
        self.act = act

    def __call__(self, fields):
        self.act()
        return fields | {"name": "Ada"}


@pytest.fixture
def open_(uri, clock):
    """Open stores; they are closed at the end."""
    opened = []

    def open_one(*, clock=clock, random=None, **settings):
        store = open_store(uri, OntologiaConfig(**settings), clock, random or Random())
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def locks(direct):
    """The rows of the lock table, through a connection of their own."""
    return lambda: direct("SELECT * FROM locks")


@pytest.fixture
def change(direct):
    """Change the database by hand."""
    return direct


@pytest.fixture
def hold(change, clock):
    """Put somebody else's lease in the store."""

    def hold_(*, seconds, owner="an import"):
        change(
            "INSERT INTO locks VALUES ('ontology_write', ?, ?, ?)",
            (owner, to_text(clock.now()), to_text(clock.now() + timedelta(seconds=seconds))),
        )

    return hold_


@pytest.fixture
def migrating(open_session):
    """A session whose migration calls `act` while it holds the lease."""
    old = open_session(entity_types=[Person, Product])
    old.ensure(Person(id="p1"))
    old.commit()

    def make(act, **options):
        return open_session(
            entity_types=[person_with_name()],
            upgraders={("Person", 1): Meanwhile(act)},
            **options,
        )

    return make


def keepers():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lease")]


def eventually(condition):
    """Wait for another thread to have done something."""
    for _ in range(2000):
        if condition():
            return True
        time.sleep(0.005)
    return False


# -- the row ----------------------------------------------------------------------------------


@SQLITE
@pytest.mark.req("SQL-021")
def test_the_table_of_locks_holds_one_row_a_name(session, sql):
    columns = sql("SELECT name, type, \"notnull\", pk FROM pragma_table_info('locks')")

    assert columns == [
        ["lock_name", "TEXT", 0, 1],
        ["owner_id", "TEXT", 1, 0],
        ["acquired_at", "TEXT", 1, 0],
        ["expires_at", "TEXT", 1, 0],
    ]


@pytest.mark.req("SQL-021", "SQL-060", "SQL-065", "SQL-070")
def test_a_migration_holds_the_row_for_thirty_seconds_and_gives_it_back(migrating, locks, clock):
    seen = []
    session = migrating(lambda: seen.extend(locks()))

    session.migrate(dry_run=False, force=True)

    [(name, owner, acquired_at, expires_at)] = seen
    assert name == "ontology_write"
    assert owner == f"{session.session_id}:{threading.get_ident()}"
    assert acquired_at == to_text(clock.now())
    assert expires_at == to_text(clock.now() + timedelta(seconds=30))
    assert locks() == []


@pytest.mark.req("SQL-060")
def test_a_commit_writes_no_row_of_its_own(open_session, change, locks, backend):
    session = open_session(entity_types=[Product])
    if backend.name == "sqlite":
        refuse = "BEGIN SELECT RAISE(ABORT, 'locked'); END"
        change(f"CREATE TRIGGER no_locks BEFORE INSERT ON locks {refuse}")
    else:
        change("ALTER TABLE locks ADD CHECK (owner_id IS NULL)")
    session.ensure(Product(sku="s", price=1.0))

    assert session.commit() == 1
    assert locks() == []


# -- waiting ----------------------------------------------------------------------------------


@pytest.mark.req("SQL-061", "SQL-063", "SQL-064")
def test_a_commit_waits_five_seconds_for_the_lease_and_then_gives_up(open_session, hold, clock):
    session = open_session(entity_types=[Product])
    session.ensure(Product(sku="s", price=1.0))
    hold(seconds=60)
    started = clock.monotonic()

    with pytest.raises(LockContentionError) as caught:
        session.commit()

    assert clock.monotonic() - started == pytest.approx(5, abs=0.02)
    assert (caught.value.holder, caught.value.waited_ms) == (
        "an import",
        pytest.approx(5000, abs=20),
    )
    assert "lock_timeout_ms" in caught.value.hint
    assert session.head == 0


@pytest.mark.req("SQL-064", "SQL-109")
def test_what_was_queued_is_still_queued_and_goes_through_later(open_session, hold, change, locks):
    session = open_session(entity_types=[Product], settings={"lock_timeout_ms": 100})
    session.ensure(Product(sku="s", price=1.0))
    hold(seconds=60)
    with pytest.raises(LockContentionError):
        session.commit()
    [(name, owner, *_)] = locks()  # the row can be looked at

    change("DELETE FROM locks WHERE lock_name = 'ontology_write'")  # and removed by hand

    assert (name, owner) == ("ontology_write", "an import")
    assert session.commit() == 1
    assert session.query().entities(Product).count() == 1


@pytest.mark.req("SQL-061")
def test_a_commit_goes_on_as_soon_as_the_lease_has_run_out(open_session, hold, clock):
    session = open_session(entity_types=[Product])
    session.ensure(Product(sku="s", price=1.0))
    hold(seconds=2)
    started = clock.monotonic()

    assert session.commit() == 1
    assert clock.monotonic() - started == pytest.approx(2, abs=0.02)


class Interrupted(ManualClock):
    """Somebody presses Ctrl+C while a session waits."""

    slept = None

    def sleep(self, seconds):
        self.slept = seconds
        raise KeyboardInterrupt


@pytest.mark.req("SQL-061")
def test_waiting_goes_by_steps_of_ten_milliseconds_and_can_be_interrupted(
    open_session, hold, change
):
    clock = Interrupted()
    session = open_session(entity_types=[Product], settings={"clock": clock})
    session.ensure(Product(sku="s", price=1.0))
    hold(seconds=60)

    with pytest.raises(KeyboardInterrupt):
        session.commit()

    assert clock.slept == 0.01
    assert session.head == 0
    change("DELETE FROM locks")
    assert session.commit() == 1


@pytest.mark.req("SQL-063", "SQL-061", "SQL-092")
def test_a_migration_waits_ten_seconds_and_writes_nothing_when_it_gives_up(
    migrating, hold, clock, locks
):
    session = migrating(lambda: None)
    hold(seconds=60)
    started = clock.monotonic()

    with pytest.raises(LockContentionError, match="an import"):
        session.migrate(dry_run=False, force=True)

    assert clock.monotonic() - started == pytest.approx(10, abs=0.02)
    assert session.head == 1
    assert session.migrate()  # still to be done
    assert [row[1] for row in locks()] == ["an import"]


def test_the_waiting_times_are_settings(migrating, hold, clock):
    settings = {"lock_timeout_ms": 200, "migration_lock_timeout_ms": 700}
    session = migrating(lambda: None, settings=settings)
    hold(seconds=60)
    started = clock.monotonic()

    session.ensure(Product(sku="s", price=1.0))
    with pytest.raises(LockContentionError):
        session.commit()
    committed = clock.monotonic()
    with pytest.raises(LockContentionError):
        session.migrate(dry_run=False, force=True)

    assert committed - started == pytest.approx(0.2, abs=0.02)
    assert clock.monotonic() - committed == pytest.approx(0.7, abs=0.02)


@pytest.mark.req("SQL-060", "SQL-067")
@pytest.mark.parametrize("left", [0.001, 5.0])
def test_a_lease_left_by_a_dead_process_is_taken_over_when_it_ends_and_not_before(
    open_, hold, locks, clock, left
):
    store = open_()
    hold(seconds=30, owner="dead")
    clock.advance(seconds=30 - left)

    with pytest.raises(LockContentionError), store.long_write("next", timeout_ms=0):
        pass
    kept = locks()
    clock.advance(seconds=left)
    with store.long_write("next", timeout_ms=0):
        taken = locks()

    assert [row[1] for row in kept] == ["dead"]
    assert [row[1] for row in taken] == ["next"]


@pytest.mark.req("SQL-061")
def test_two_threads_of_one_session_are_two_owners(migrating):
    """One migrates; the other, on the same session, must wait like anybody else."""
    blocked = []

    def another_thread():
        try:
            session.migrate(dry_run=False, force=True)
        except LockContentionError as error:
            blocked.append(error)

    def act():
        thread = threading.Thread(target=another_thread)
        thread.start()
        thread.join()

    session = migrating(act, settings={"migration_lock_timeout_ms": 50})
    session.migrate(dry_run=False, force=True)

    [error] = blocked
    assert error.holder == f"{session.session_id}:{threading.get_ident()}"


@SQLITE
@pytest.mark.req("SQL-062")
def test_a_busy_database_counts_as_held_until_the_deadline(migrating, path):
    session = migrating(lambda: None, settings={"migration_lock_timeout_ms": 50})

    with closing(apsw.Connection(str(path))) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LockContentionError):
            session.migrate(dry_run=False, force=True)
        other.execute("ROLLBACK")

    assert session.migrate(dry_run=False, force=True)


class Watched(Random):
    """Randomness that says when it is asked for: the busy handler draws before each new try."""

    def __init__(self):
        super().__init__(1)
        self.asked = threading.Event()

    def random(self):
        self.asked.set()
        return super().random()


@SQLITE
@pytest.mark.req("SQL-062")
def test_a_database_that_is_free_again_in_time_is_waited_for(migrating, path):
    waiting = Watched()
    session = migrating(lambda: None, settings={"random": waiting})
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    waiting.asked.clear()

    def let_go():
        waiting.asked.wait(30)
        other.execute("ROLLBACK")

    helper = threading.Thread(target=let_go)
    helper.start()
    result = session.migrate(dry_run=False, force=True)
    helper.join()
    other.close()

    assert waiting.asked.is_set()
    assert result.commit_id == 2


# -- a migration and the commits of others ----------------------------------------------------


class Waiting(SystemClock):
    """The machine's clock, which says when somebody begins to wait."""

    def __init__(self):
        self.began = threading.Event()

    def sleep(self, seconds):
        self.began.set()
        super().sleep(seconds)


@pytest.mark.req("SQL-061")
def test_a_commit_waits_for_the_migration_of_another_thread_and_then_goes_on(
    migrating, open_session
):
    waiting, inside = Waiting(), threading.Event()

    def act():
        inside.set()
        waiting.began.wait(30)  # until the commit below has met the lease

    session = migrating(act, settings={"clock": SystemClock()})
    migration = threading.Thread(target=session.migrate, kwargs={"dry_run": False, "force": True})
    committer = open_session(settings={"clock": waiting, "lock_timeout_ms": 30_000})
    committer.ensure(Product(sku="s", price=1.0))
    migration.start()
    inside.wait(30)

    commit_id = committer.commit()
    migration.join()

    assert waiting.began.is_set()
    assert commit_id == 3  # after the migration's
    assert committer.get_commit(2)["metadata"]["migration"] == {"Person": 2}


ANOTHER_PROCESS = """
import sys
from ontologia import Entity, Field, Session

class Person(Entity):
    id: Field[str]
    name: Field[str]

def upgrade(fields):
    print("inside", flush=True)
    sys.stdin.readline()
    return fields | {"name": "Ada"}

with Session(sys.argv[1], entity_types=[Person], upgraders={("Person", 1): upgrade}) as session:
    print(session.migrate(dry_run=False, force=True).commit_id, flush=True)
"""


@pytest.fixture
def migration_elsewhere(migrating, uri):
    """A process that is in the middle of a migration, until it reads a line."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", ANOTHER_PROCESS, uri],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "inside\n"
        yield process
        process.kill()


@pytest.mark.req("SQL-061")
def test_a_commit_waits_for_the_migration_of_another_process(migration_elsewhere, open_session):
    class GoOn(Waiting):
        def sleep(self, seconds):
            if not self.began.is_set():
                migration_elsewhere.stdin.write("go on\n")
                migration_elsewhere.stdin.flush()
            super().sleep(seconds)

    session = open_session(settings={"clock": GoOn(), "lock_timeout_ms": 30_000})
    session.ensure(Product(sku="s", price=1.0))

    commit_id = session.commit()

    assert commit_id == 3
    assert migration_elsewhere.stdout.readline() == "2\n"


@pytest.mark.req("SQL-064", "SQL-067")
def test_a_migration_that_was_killed_blocks_others_until_its_lease_ends(
    migration_elsewhere, open_session, clock, locks
):
    migration_elsewhere.kill()
    migration_elsewhere.wait()
    clock.advance(seconds=time.time() - clock.now().timestamp())  # its lease is in real time
    session = open_session(entity_types=[Product])
    session.ensure(Product(sku="s", price=1.0))
    with pytest.raises(LockContentionError):
        session.commit()
    [(_, _, _, expires_at)] = locks()

    clock.advance(seconds=(datetime.fromisoformat(expires_at) - clock.now()).total_seconds())

    assert session.commit() == 2


# -- keeping and losing it --------------------------------------------------------------------


@pytest.mark.req("SQL-065")
def test_a_lease_is_renewed_as_long_as_the_write_goes_on(open_, clock, locks):
    lease = timedelta(milliseconds=300)
    store = open_(lock_lease_ms=300)

    with store.long_write("me"):
        for _ in range(4):  # twice the lease in all
            clock.advance(seconds=0.15)
            renewed = to_text(clock.now() + lease)
            assert eventually(lambda end=renewed: locks()[0][3] == end)
        with store.write(owner_id="me") as tx:
            tx.verify_lock("me")

    assert locks() == []


@pytest.mark.req("SQL-065")
def test_no_renewal_comes_before_a_third_of_the_lease_has_passed(open_, locks):
    began = time.monotonic()

    class Slow(ManualClock):
        """A hundred times as slow as time, so that no lease ends while a thread waits for the processor."""

        def now(self):
            return super().now() + timedelta(seconds=(time.monotonic() - began) / 100)

    store = open_(clock=Slow(), lock_lease_ms=600)
    ends = []

    def three_renewals():
        ends.extend(row[3] for row in locks() if row[3] not in ends)
        return len(ends) > 3

    with store.long_write("me"):
        assert eventually(three_renewals)

    moments = [datetime.fromisoformat(end) for end in ends]
    steps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert min(steps) >= timedelta(milliseconds=199) / 100


@pytest.mark.req("SQL-066")
def test_release_and_renewal_touch_only_the_row_of_their_owner(open_, change, hold, locks):
    store = open_(lock_lease_ms=60)

    with store.long_write("me"):
        change("DELETE FROM locks")
        hold(seconds=7, owner="somebody else")
        before = locks()
        assert eventually(lambda: not keepers())  # it has tried to renew, and found it lost

    assert [row[1] for row in before] == ["somebody else"]
    assert locks() == before


@pytest.mark.req("SQL-068")
@pytest.mark.parametrize("end", ["well", "with an error"])
def test_the_thread_that_renews_ends_with_the_write(migrating, locks, end):
    during = []

    def act():
        during.extend(keepers())
        if end == "with an error":
            raise LookupError(end)

    session = migrating(act)
    if end == "well":
        session.migrate(dry_run=False, force=True)
    else:
        with pytest.raises(UpgraderError):
            session.migrate(dry_run=False, force=True)

    assert len(during) == 1
    assert keepers() == []
    assert locks() == []


@pytest.mark.req("SQL-068")
def test_a_commit_that_fails_leaves_no_thread(open_session, hold):
    session = open_session(settings={"lock_timeout_ms": 50})
    session.ensure(Product(sku="s", price=1.0))
    hold(seconds=60)
    before = threading.active_count()

    with pytest.raises(LockContentionError):
        session.commit()

    assert threading.active_count() == before


def removed(change, hold, clock):
    change("DELETE FROM locks")


def taken_over(change, hold, clock):
    change("DELETE FROM locks")
    hold(seconds=1, owner="somebody else")
    clock.advance(seconds=2)  # and has let it run out, so that nobody is in the way


def run_out(change, hold, clock):
    clock.advance(seconds=30)


@pytest.mark.req("SQL-069")
@pytest.mark.parametrize("accident", [removed, taken_over, run_out], ids=lambda f: f.__name__)
def test_a_migration_that_lost_its_lease_writes_nothing(
    migrating, change, hold, clock, sql, accident
):
    session = migrating(lambda: accident(change, hold, clock))
    plan = session.migrate()

    with pytest.raises(LockLostError) as caught:
        session.migrate(dry_run=False, token=plan.token)

    assert caught.value.lock_name == "ontology_write"
    assert session.migrate() == plan
    assert sql("SELECT COUNT(*), MAX(schema_version_id) FROM entity_history") == [[1, 1]]
    assert sql("SELECT MAX(schema_version_id) FROM schema_versions") == [[1]]


@pytest.mark.req("SQL-069")
def test_a_commit_that_came_in_between_survives_the_migration_that_lost_its_lease(
    migrating, open_session, clock
):
    other = open_session(entity_types=[Person])

    def act():
        clock.advance(seconds=31)
        other.ensure(Person(id="p2"))
        other.commit()

    session = migrating(act)
    with pytest.raises(LockLostError):
        session.migrate(dry_run=False, force=True)

    assert [person.id for person in other.query().entities(Person).collect()] == ["p1", "p2"]
    assert other.head == 2


@pytest.mark.req("SQL-069")
def test_a_renewal_that_finds_the_lease_lost_ends_the_thread_and_says_so(
    open_, change, caplog, locks
):
    store = open_(lock_lease_ms=60)

    with store.long_write("me"):
        change("DELETE FROM locks")
        assert eventually(lambda: not keepers())
        with pytest.raises(LockLostError), store.write(owner_id="me") as tx:
            tx.verify_lock("me")

    assert "me was lost" in caplog.text
    assert locks() == []
