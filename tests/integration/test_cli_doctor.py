"""`ontologia doctor`: what is wrong is found and named, and what is derived can be made again."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from ontologia import Discard, Entity, Event, Field, Relation, Session, on_event
from ontologia.cli.main import app
from ontologia.clock import to_text
from ontologia.runtime.session import core_of
from ontologia.store.doctor import CHECKS, examine
from ontologia.store.postgres.doctor import OWN
from ontologia.store.sqlite.doctor import version
from ontologia.testing import ManualClock
from ontologia_conformance.backends import NAMES, POSTGRES, SQLITE
from ontologia_conformance.schemas import Postgres
from ontologia_conformance.test_event_check import BROKEN
from ontologia_conformance.test_event_check import world as states  # noqa: F401
from tests.integration.commands import ONTOLOGIA, at_a_terminal, invoke
from tests.servers import own_server

OLD = "'2020-01-01T00:00:00.000000+00:00'"


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]


class Order(Entity):
    id: Field[str] = Field(primary_key=True)


class Owns(Relation[Customer, Order]):
    pass


class DoctorCalled(Event):
    number: Field[int]


@on_event(DoctorCalled, name="answer")
def answer(ctx):
    pass


@pytest.fixture(scope="module", params=[name for name in NAMES if name != "postgres16"])
def backend(request):
    """Not the server of other tests: that syncs nothing, which would be the first finding."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite")
        return
    with own_server(durable=True) as server:
        schemas = Postgres(server.uri)
        yield schemas
        schemas.close(drop=False)


@pytest.fixture
def run(uri):
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, [*arguments, "--datastore-uri", uri])


@pytest.fixture
def found(run):
    """The findings of a call, as rows of severity, check, where and count."""

    def ask(*arguments):
        done = run("doctor", "--json", *arguments)
        assert done.exit_code in (0, 1), done.stderr
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return [
            (row["severity"], row["check"], row["where"], row["count"])
            for row in rows
            if "check" in row
        ]

    return ask


@pytest.fixture
def store(uri):
    """Two commits of entities and a relation, and one event that was handled."""
    with Session(uri) as session:
        session.ensure([Customer(id="c1", name="Ada"), Customer(id="c2", name="Bob")])
        session.commit(event=DoctorCalled(number=1))
        session.ensure([Customer(id="c1", name="Ada L."), Order(id="o1")])
        session.ensure(Owns(left_key="c1", right_key="o1"))
        session.commit()
        session.delete(Customer(id="c2", name=""))
        session.commit()
        session.run([answer], max_iterations=1)
    return uri


@pytest.fixture
def unconstrained(backend, store, sql):
    """A server enforces what SQLite only does for those who ask: history has its commit.

    Stores of other tests may be in the same tables later, so it is made again.
    """
    tables = ("entity_history", "relation_history") if backend.name != "sqlite" else ()
    for table in tables:
        sql(f"ALTER TABLE {table} DROP CONSTRAINT {table}_commit_id_fkey")
    yield
    for table in tables:
        sql(
            f"DELETE FROM {table}",
            f"ALTER TABLE {table} ADD FOREIGN KEY (commit_id) REFERENCES commits(id)",
        )


@pytest.mark.req("NEW-045")
def test_a_sound_store_has_nothing_wrong(store, run):
    done = run("doctor")

    assert (done.exit_code, done.stdout) == (0, "Nothing is wrong.\n")


def test_looking_writes_nothing(store, found, sql):
    before = sql("SELECT session_id, last_heartbeat FROM sessions"), sql("SELECT id FROM commits")

    found()

    after = sql("SELECT session_id, last_heartbeat FROM sessions"), sql("SELECT id FROM commits")
    assert after == before


LATEST = [
    "DELETE FROM entity_latest WHERE entity_key = 'c1'",
    "UPDATE entity_latest SET commit_id = 1 WHERE entity_key = 'c1'",
    "UPDATE entity_latest SET schema_version_id = NULL WHERE entity_key = 'c1'",
    "UPDATE entity_latest SET entity_key = 'c9' WHERE entity_key = 'o1'",
    "UPDATE entity_latest SET entity_key = 'c2' WHERE entity_key = 'o1'",
    "DELETE FROM relation_latest",
    "UPDATE relation_latest SET right_key = 'o9'",
]


@pytest.mark.req("NEW-045")
@pytest.mark.parametrize("statement", LATEST)
def test_current_state_that_differs_from_history_is_found_and_made_again(
    store, found, run, sql, statement
):
    sql(statement)

    [*findings] = found()
    repaired = run("doctor", "--repair", "--reason", "a test")

    table = "relation_latest" if "relation" in statement else "entity_latest"
    assert {(kind, check) for kind, check, _, _ in findings} == {("error", table)}
    assert repaired.exit_code == 0
    assert "Nothing is wrong." in repaired.stdout
    with Session(store) as session:
        assert [c.name for c in session.query().entities(Customer).collect()] == ["Ada L."]
        assert [o.id for o in session.query().entities(Order).collect()] == ["o1"]
        assert [r.right_key for r in session.query().relations(Owns).collect()] == ["o1"]


@pytest.mark.parametrize("table", ["entity_latest", "relation_latest"])
def test_fields_that_are_not_those_of_the_history_are_made_again(backend, store, found, sql, table):
    fields = "jsonb('{}')" if backend.name == "sqlite" else "'{\"x\": 1}'"
    sql(f"UPDATE {table} SET fields = {fields}")
    if table == "relation_latest" and backend.name == "sqlite":
        sql(f"UPDATE {table} SET fields = jsonb('{{\"x\":1}}')")

    before = found()
    after = found("--repair")

    assert [check for _, check, _, _ in before] == [table] * len(before)
    assert before
    assert after == []


@SQLITE
def test_bytes_that_are_no_json_do_not_end_the_search(backend, store, found, sql):
    sql("UPDATE entity_latest SET fields = x'ff00'")

    assert ("error", "entity_latest", "entity_latest Customer", 1) in found()
    assert found("--repair") == []


@pytest.mark.req("NEW-045")
def test_a_repair_is_a_commit_that_says_what_and_who_and_why(store, run, sql):
    sql(LATEST[0])

    done = run("doctor", "--repair", "--reason", "the disk was full")

    with Session(store) as session:
        [commit] = session.list_commits(limit=1)
        assert session.list_commit_changes(commit["id"]) == []
    assert f"Commit {commit['id']} says so." in done.stdout
    assert commit["metadata"]["mended"] == {"entity_latest": 1}
    assert commit["metadata"]["action"] == "doctor repair"
    assert commit["metadata"]["reason"] == "the disk was full"
    assert "@" in commit["metadata"]["operator"]


def test_where_nothing_is_to_be_repaired_nothing_is_written(store, run, sql):
    head = sql("SELECT MAX(id) FROM commits")

    done = run("doctor", "--repair")

    assert done.exit_code == 0
    assert done.stdout.startswith("Nothing was to be repaired.")
    assert sql("SELECT MAX(id) FROM commits") == head


@pytest.mark.req("NEW-045", "ONT-134")
@pytest.mark.parametrize(
    ("rule", "which", "statement"),
    BROKEN,
    ids=[f"{rule}: {which}, {statement.split(' ')[0]}" for rule, which, statement in BROKEN],
)
def test_what_breaks_a_rule_of_delivery_is_found_and_repaired(
    event_store,
    states,  # noqa: F811
    change,
    found,
    rule,
    which,
    statement,
):
    change(statement.format(id=states[which]))

    before = found()
    after = found("--repair")

    assert ("error", rule) in {(kind, check) for kind, check, _, _ in before}
    assert [row for row in after if row[0] == "error"] == []
    assert event_store.check() == []


def test_what_was_lost_on_the_way_is_delivered_after_a_repair(store, run, sql):
    with Session(store) as session:
        events = [DoctorCalled(number=n) for n in (2, 3)]
        for event in events:
            session.commit(event=event)
        sql("DELETE FROM incoming")

        run("doctor", "--repair")
        session.run([answer], max_iterations=1)

        claims = [session.event_store.inspect_event(event.id)["claims"] for event in events]
        assert [len(each) for each in claims] == [1, 1]
        assert all(each[0]["ack_at"] for each in claims)


VERSION = "type_kind, type_name, schema_version_id, schema_json, schema_hash, created_at"
NEXT_VERSION = (
    f"INSERT INTO schema_versions({VERSION}) SELECT {VERSION.replace('schema_version_id', '2')} "
    "FROM schema_versions WHERE type_name = 'Order'"
)
ATTEMPT = (
    "INSERT INTO attempts(event_id, handler_id, attempt, ended_at, outcome) "
    f"VALUES ('gone', 'answer', 1, {OLD}, 'failed')"
)
LETTER = (
    "INSERT INTO dead_letters(event_id, handler_id, namespace, failed_at, attempts, last_error, "
    "event_type, event_payload, root_event_id, chain_depth) SELECT id, 'answer', namespace, "
    f"{OLD}, 1, 'x', type, payload, id, 0 FROM events"
)
FUTURE = OLD.replace("2020", "2999")
RENAMED = [
    "DELETE FROM event_claims",
    (
        "INSERT INTO ready(consumer_id, priority, created_at, event_id, type) "
        "SELECT c.id, e.priority, e.created_at, e.id, e.type FROM events e CROSS JOIN consumers c"
    ),
    (
        f"INSERT INTO sessions VALUES ('s', 'default', {OLD}, {FUTURE}, "
        """'{"consumers": ["answer"], "event_types": ["doctor.phoned"]}')"""
    ),
]
"""The class of the event was renamed, and its old events wait for a consumer that is run."""
FINDINGS = [
    (("error", "commit_gaps", "after commit 1", 1), ["DELETE FROM commits WHERE id = 2"]),
    (("error", "orphans", "entity_history Customer", 1),
     ["UPDATE entity_history SET commit_id = 77 WHERE commit_id = 3"]),
    (("error", "orphans", "relation_history Owns", 1),
     ["UPDATE relation_history SET commit_id = 77"]),
    (("warning", "duplicates", "entity_history Customer", 1),
     ["UPDATE entity_history SET commit_id = 2 WHERE entity_key = 'c1'"]),
    (("error", "unknown_versions", "entity Order version 9", 1),
     ["UPDATE entity_history SET schema_version_id = 9 WHERE entity_key = 'o1'"]),
    (("error", "unknown_versions", "relation Owns version 9", 1),
     ["UPDATE relation_history SET schema_version_id = 9"]),
    (("warning", "version_gaps", "entity Order", 1),
     ["UPDATE schema_versions SET schema_version_id = 2 WHERE type_name = 'Order'"]),
    (("error", "registry", "entity Order", 1),
     ["UPDATE schema_registry SET schema_json = '{}' WHERE type_name = 'Order'"]),
    (("warning", "old_versions", "entity Order", 1),
     [NEXT_VERSION]),
    (("warning", "stalled_migration", "begun at 2001 by a machine", 2),
     ["INSERT INTO pending_migration VALUES ('h', '[]', 's', 'a machine', '2001', '2001', '2001', 3, 1, 0, NULL)"]),
    (("info", "running_migration", "begun at 2001 by a machine", 1),
     ["INSERT INTO pending_migration VALUES ('h', '[]', 's', 'a machine', '2999', '2001', '2001', 3, 1, 0, 2)"]),
    (("info", "expired_locks", "ontology_write of somebody", 1),
     [f"INSERT INTO locks VALUES ('ontology_write', 'somebody', {OLD}, {OLD})"]),
    (("info", "dead_sessions", "shop", 1),
     [f"INSERT INTO sessions VALUES ('s', 'shop', {OLD}, {OLD}, '{{}}')"]),
    (("warning", "unconsumed", "default doctor.called", 1), ["DELETE FROM subscriptions"]),
    (("warning", "unclaimed_types", "default doctor.called of answer", 1), RENAMED),
    (("warning", "dead_letters", "default answer", 1), [LETTER]),
    (("warning", "unseen_consumers", "default answer", 0),
     [f"UPDATE consumers SET last_seen_at = {OLD}"]),
    (("error", "without_consumer", "subscriptions", 1), ["UPDATE subscriptions SET consumer_id = 77"]),
    (("error", "without_event", "attempts", 1),
     [ATTEMPT]),
    (("error", "without_event", "dedup", 1),
     ["INSERT INTO dedup VALUES ('default', 'doctor.called', 'k', 'gone')"]),
]  # fmt: skip
MENDED = ("expired_locks", "dead_sessions", "without_consumer", "without_event")


@pytest.mark.each_database
@pytest.mark.req("NEW-045")
@pytest.mark.parametrize(
    ("finding", "statements"), FINDINGS, ids=[f"{f[1]} {n}" for n, (f, _) in enumerate(FINDINGS)]
)
def test_what_is_wrong_is_found(unconstrained, found, run, sql, finding, statements):
    sql(*statements)

    shown = run("doctor")
    findings = found()
    left = found("--repair")

    assert finding in findings
    assert shown.exit_code == (1 if any(row[0] == "error" for row in findings) else 0)
    assert (finding in left) is (finding[1] not in MENDED)


def test_every_question_is_seen_to_find_something():
    seen = {finding[1] for finding, _ in FINDINGS} | {"entity_latest", "relation_latest"}

    elsewhere = {"overdue", "abandoned_threads"}  # test_handler_timeouts
    assert {check.name for check in CHECKS} - seen - elsewhere == {"damage"}  # below


@SQLITE
def test_a_damaged_file_is_found(backend, store, path, found):
    """A page that says that its free block is where there is none."""
    with Session(store) as session:
        session.ensure([Customer(id=f"d{n}", name="x" * 300) for n in range(200)])
        session.commit()
    for_sure = path.read_bytes()
    middle = len(for_sure) // 4096 // 2 * 4096
    path.write_bytes(for_sure[: middle + 1] + b"\x7f\xff" + for_sure[middle + 3 :])

    assert ("error", "damage") in {(kind, check) for kind, check, _, _ in found()}


@POSTGRES
def test_a_constraint_that_is_not_enforced_is_found(backend, unconstrained, found, sql):
    sql(
        "ALTER TABLE entity_history ADD CONSTRAINT mine FOREIGN KEY (commit_id) "
        "REFERENCES commits(id) NOT VALID"
    )

    findings = found()
    sql("ALTER TABLE entity_history DROP CONSTRAINT mine")

    assert findings == [("error", "damage", "constraint mine", 1)]


@SQLITE
def test_a_long_log_is_found(backend, store, found, path):
    with Session(store):  # which keeps the log
        os.truncate(f"{path}-wal", 64 * 2**20)  # with a hole, which takes no room
        before = found()
        os.truncate(f"{path}-wal", 64 * 2**20 + 1)
        findings = found()

    assert before == []
    assert findings == [("info", "wal_size", f"{path}-wal", 1)]


@SQLITE
def test_a_reader_is_blamed_for_a_long_log_only_while_it_reads(backend, store, found, path):
    with Session(store) as session:
        with core_of(session).store.read() as reader:
            reader.head()
            session.ensure(Customer(id="c9", name="Ada"))
            session.commit()
            os.truncate(f"{path}-wal", 64 * 2**20 + 1)
            during = found()
        after = found()

    assert during == [("warning", "wal_size", f"{path}-wal", 1)]
    assert after == [("info", "wal_size", f"{path}-wal", 1)]


@SQLITE
@pytest.mark.req("NEW-045")
def test_a_long_log_is_found_through_a_link_to_the_file(backend, store, path, tmp_path):
    """The log is beside the file, and not beside the link."""
    link = tmp_path / "links" / "linked.db"
    link.parent.mkdir()
    link.symlink_to(path)
    with Session(str(link)) as session:
        with core_of(session).store.read() as reader:
            reader.head()
            session.ensure(Customer(id="c9", name="Ada"))
            session.commit()
            os.truncate(f"{path}-wal", 64 * 2**20 + 1)
            during = invoke("doctor", "--json", "--datastore-uri", str(link))
        after = invoke("doctor", "--json", "--datastore-uri", str(link))

    for done, severity in ((during, "warning"), (after, "info")):
        [finding] = [row for row in map(json.loads, done.stdout.splitlines()) if "check" in row]
        assert (finding["severity"], finding["check"]) == (severity, "wal_size")
        assert finding["where"] == f"{path}-wal"


def test_a_version_of_sqlite_that_loses_data_is_found():
    assert [each.check for each in version("3.51.2")] == ["sqlite_version"]
    assert list(version("3.51.3")) == []
    assert list(version("3.60.0")) == []


@POSTGRES
def test_a_clock_that_is_off_by_more_than_a_tenth_of_a_lease_is_found(backend, store, uri):
    with Session(uri) as session:
        core_of(session).clock.skew = 3.0
        within = list(examine(core_of(session).store, core_of(session).clock, session.config))
        core_of(session).clock.skew = -3.1
        findings = list(examine(core_of(session).store, core_of(session).clock, session.config))

    assert "clock_skew" not in [each.check for each in within]
    [skewed] = [each for each in findings if each.check == "clock_skew"]
    assert skewed.what == "this machine's clock is 3.1 s ahead of the server's"


@POSTGRES
def test_dead_rows_and_long_transactions_are_asked_for(backend, store, found, sql, monkeypatch):
    """The questions with limits that a test can reach; of the real ones none has an answer."""
    from ontologia.store.postgres.notation import statements

    real = statements("doctor.sql")
    low = real | {
        "bloat": real["bloat"].replace("n_dead_tup > 100000 AND n_dead_tup > n_live_tup", "true"),
        "long_transactions": real["long_transactions"]
        .replace("< clock_timestamp() - interval '1 minute'", "IS NOT NULL")
        .replace("pid <> pg_backend_pid()", "true"),
        "unsafe_settings": real["unsafe_settings"].replace("= 'off'", "= 'on'"),
        "soft_commits": real["soft_commits"].replace("= 'off'", "= 'on'"),
    }
    monkeypatch.setattr("ontologia.store.postgres.doctor.statements", lambda *_: low)

    checks = {check for _, check, _, _ in found()}

    assert checks == {check.name for check in OWN}


def test_a_server_that_keeps_less_than_it_confirms_is_found():
    off = ("fsync=off", "full_page_writes=off", "synchronous_commit=off")
    with own_server(durable=True, settings=off) as server:
        Session(server.uri).close()
        doctor = invoke("doctor", "--datastore-uri", server.uri, "--json")
        info = invoke("info", "--datastore-uri", server.uri, "--json")

    assert doctor.exit_code == 0
    rows = [json.loads(line) for line in doctor.stdout.splitlines()]
    assert [(row["severity"], row["where"]) for row in rows] == [
        ("warning", "fsync is off"),
        ("warning", "full_page_writes is off"),
        ("info", "synchronous_commit is off"),
    ]
    assert json.loads(info.stdout)["durability"] == (
        "fsync off, full_page_writes off, synchronous_commit off"
    )


def test_announcements_of_dead_letters_are_collected_and_no_finding(store, found, sql):
    sql("UPDATE events SET type = 'event.dead_letter'", "DELETE FROM subscriptions")

    assert "unconsumed" not in {check for _, check, _, _ in found()}


class DoctorIgnored(Event):
    number: Field[int]


@on_event(DoctorCalled, name="decline")
def decline(ctx):
    raise Discard("not today")


@pytest.mark.req("NEW-045")
def test_dead_letters_are_told_by_namespace_and_handler_and_are_no_error(store, run):
    for namespace, count in (("my shop", 2), ("yours", 1)):
        with Session(store, namespace=namespace) as session:
            for number in range(count):
                session.commit(event=DoctorCalled(number=number))
            session.run([decline], max_iterations=1)

    done = run("doctor")

    what = "dead letters: events that a handler could not process"
    remedy = (
        "        ontologia events dead-letters --namespace {} says why; events retry gives them "
        "back, events dismiss takes them off the list."
    )
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        f"warning {what} (my shop decline: 2)",
        remedy.format("'my shop'"),
        f"warning {what} (yours decline)",
        remedy.format("yours"),
        "2 warnings.",
    ]


def test_a_repair_does_not_count_attempts_from_before_an_operators_retry(store, run, sql):
    with Session(store) as session:
        session.commit(event=DoctorCalled(number=2))
        session.run([decline], max_iterations=1)
    assert run("events", "retry", "--all").exit_code == 0

    done = run("doctor", "--repair")

    assert sql("SELECT attempt FROM attempts WHERE handler_id = 'decline'") == [[0]] * 2
    assert sql("SELECT attempts FROM event_claims WHERE handler_id = 'decline'") == [[0]] * 2
    assert done.stdout.startswith("Nothing was to be repaired.")


def test_the_remedy_for_events_that_nobody_consumes_deletes_those_alone(store, run, sql):
    with Session(store, namespace="my shop") as session:
        session.commit(event=DoctorIgnored(number=1))
        session.commit(event=DoctorCalled(number=2))
        sql(f"UPDATE events SET created_at = {OLD} WHERE namespace = 'my shop'")
        session.event_store.consumers.register("my shop", "answer", [DoctorCalled.__event_type__])
    found = [json.loads(line) for line in run("doctor", "--json").stdout.splitlines()]
    [remedy] = [row["remedy"] for row in found if row["check"] == "unconsumed"]

    _, command = remedy.split(": ontologia ")
    done = run(*shlex.split(command))

    assert done.exit_code == 0, done.output
    left = sql("SELECT type FROM events WHERE namespace = 'my shop'")
    assert left == [[DoctorCalled.__event_type__]]


def test_sessions_of_late_are_kept_by_a_repair(store, run, sql):
    lately = to_text(datetime.now(UTC) - timedelta(hours=1))
    sql(f"INSERT INTO sessions VALUES ('s', 'shop', '{lately}', '{lately}', '{{}}')")

    done = run("doctor", "--repair")

    assert done.stdout.startswith("Nothing was to be repaired.")
    assert sql("SELECT COUNT(*) FROM sessions WHERE session_id = 's'") == [[1]]


SILENT = [
    ("dead_sessions", timedelta(minutes=1), "UPDATE sessions SET metadata = '{}', last_heartbeat"),
    ("unseen_consumers", timedelta(days=7), "UPDATE consumers SET last_seen_at"),
    (
        "abandoned_threads",
        timedelta(minutes=1),
        """UPDATE sessions SET metadata = '{"abandoned_threads": 1}', last_heartbeat""",
    ),
]


@pytest.mark.req("NEW-045")
@pytest.mark.parametrize(("check", "silence", "update"), SILENT, ids=[each[0] for each in SILENT])
def test_who_was_silent_for_longer_than_the_settings_say_is_gone(
    store, sql, check, silence, update
):
    """Threads of a process that is gone are no finding; it is one itself."""
    last = datetime(2999, 1, 1, tzinfo=UTC)
    with Session(store) as session:
        core = core_of(session)
        sql(f"{update} = '{to_text(last)}'")  # also of this session

        def checks(late):
            clock = ManualClock(last + silence + timedelta(microseconds=late))
            return {each.check for each in examine(core.store, clock, core.config)}

        found = [check in checks(late) for late in (0, 1)]

    assert found == [check == "abandoned_threads", check != "abandoned_threads"]


def test_each_finding_comes_with_a_remedy(store, run, sql):
    sql("DELETE FROM relation_latest")

    done = run("doctor")

    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "error   current relations are not what history says (relation_latest Owns)",
        "        ontologia doctor --repair",
        "1 error.",
    ]


def test_a_reason_without_a_repair_is_a_mistake(store, run):
    assert run("doctor", "--reason", "none").exit_code == 2


def test_a_store_that_is_not_there_is_not_made(run, tmp_path):
    done = CliRunner().invoke(app, ["doctor", "--datastore-uri", str(tmp_path / "none.db")])

    assert done.exit_code in (1, 4, 5)
    assert not (tmp_path / "none.db").exists()


@pytest.mark.thorough
def test_a_real_process_says_it_with_its_exit_code(store, sql):
    command = [*ONTOLOGIA, "doctor", "--datastore-uri", store]
    sound = subprocess.run(command, capture_output=True, text=True, check=False)
    sql("DELETE FROM relation_latest")
    broken = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (sound.returncode, sound.stdout, sound.stderr) == (0, "Nothing is wrong.\n", "")
    assert broken.returncode == 1
    assert "\x1b" not in broken.stdout


@pytest.mark.parametrize("reason", ["", "x" * 2_001], ids=["empty", "long"])
def test_a_reason_that_cannot_be_kept_is_refused_before_anything_is_mended(store, sql, reason):
    sql("DELETE FROM relation_latest")

    done = CliRunner().invoke(
        app, ["doctor", "--repair", "--reason", reason, "--datastore-uri", store]
    )

    assert done.exit_code == 1
    assert "a reason is text of 1 to 2000 characters" in done.stderr
    assert sql("SELECT COUNT(*) FROM relation_latest") == [[0]]


def test_a_terminal_sees_what_is_looked_for(store):
    code, shown = at_a_terminal("doctor", "--datastore-uri", store)

    assert code == 0
    assert "looking for" in shown
    assert "Nothing is wrong." in shown
