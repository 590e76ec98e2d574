"""Files from before: opened, brought up to date, and read like any other."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing

import apsw
import pytest

from ontologia import Entity, Event, Field, Relation, on_event
from ontologia.clock import to_text
from ontologia.errors import DatabaseError, SchemaOutdatedError
from ontologia.schema.typespec import schema_hash, spec_of


@pytest.fixture(scope="session")
def backend(sqlite):
    """What is said here is about files of SQLite."""
    return sqlite


COMMITS = """
CREATE TABLE commits (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    created_at TEXT NOT NULL,
    metadata_json TEXT
);"""
ENTITIES = """
CREATE TABLE entity_history (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    entity_type TEXT NOT NULL,
    entity_key TEXT NOT NULL,
    fields_json TEXT NOT NULL,
    commit_id INTEGER NOT NULL,{version}
    FOREIGN KEY (commit_id) REFERENCES commits(id)
);
CREATE INDEX idx_entity_history_lookup
    ON entity_history(entity_type, entity_key, commit_id DESC);"""
RELATIONS = """
CREATE TABLE relation_history (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    relation_type TEXT NOT NULL,
    left_key TEXT NOT NULL,
    right_key TEXT NOT NULL,{instance}
    fields_json TEXT NOT NULL,
    commit_id INTEGER NOT NULL,{version}
    FOREIGN KEY (commit_id) REFERENCES commits(id)
);
CREATE INDEX idx_relation_history_lookup
    ON relation_history(relation_type, left_key, right_key,{in_index} commit_id DESC);"""
REGISTRY = """
CREATE TABLE schema_registry (
    type_kind TEXT NOT NULL,
    type_name TEXT NOT NULL,
    schema_json TEXT NOT NULL,
    PRIMARY KEY (type_kind, type_name)
);"""
VERSIONS = """
CREATE TABLE schema_versions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    type_kind TEXT NOT NULL,
    type_name TEXT NOT NULL,
    schema_version_id INTEGER NOT NULL,
    schema_json TEXT NOT NULL,
    schema_hash TEXT NOT NULL,
    created_at TEXT NOT NULL,
    runtime_id TEXT,
    reason TEXT,
    UNIQUE(type_kind, type_name, schema_version_id)
);"""
LOCKS = """
CREATE TABLE locks (
    lock_name TEXT PRIMARY KEY,
    owner_id TEXT NOT NULL,
    acquired_at TEXT NOT NULL,
    expires_at TEXT NOT NULL
);"""
ROWS = """
INSERT INTO commits VALUES
    (1, '2025-03-01T10:00:00+00:00', NULL),
    (2, '2025-03-01T11:00:00.250000+00:00', '{"by": "hand"}'),
    (3, '2025-03-02T10:00:00Z', NULL);
INSERT INTO entity_history(entity_type, entity_key, fields_json, commit_id) VALUES
    ('Person', 'p1', '{"id":"p1","name":"Ada Byron"}', 1),
    ('Person', 'p2', '{"id":"p2","name":"Alan Turing"}', 1),
    ('Person', 'p1', '{"id":"p1","name":"Ada Lovelace"}', 2),
    ('Person', 'p2', 'null', 3);
INSERT INTO relation_history(relation_type, left_key, right_key, fields_json, commit_id) VALUES
    ('Knows', 'p1', 'p2', '{"since":1936}', 1),
    ('Knows', 'p1', 'p1', '{"since":1815}', 1),
    ('Knows', 'p1', 'p2', '{"since":1937}', 2),
    ('Knows', 'p1', 'p1', 'null', 3);"""
VERSION_COLUMN = "\n    schema_version_id INTEGER,"
INSTANCE_COLUMN = "\n    instance_key TEXT NOT NULL DEFAULT '',"


def layout(*, version=True, instance=True):
    """The tables as they were printed, or as they were before these columns."""
    column = VERSION_COLUMN if version else ""
    return (
        COMMITS
        + ENTITIES.format(version=column)
        + RELATIONS.format(
            version=column,
            instance=INSTANCE_COLUMN if instance else "",
            in_index=" instance_key," if instance else "",
        )
        + REGISTRY
        + LOCKS
    )


LAYOUTS = {
    "as printed": layout() + VERSIONS,
    "without schema versions": layout(),
    "without schema_version_id": layout(version=False) + VERSIONS,
    "without instance_key": layout(instance=False) + VERSIONS,
    "without either": layout(version=False, instance=False),
}


class Person(Entity):
    id: Field[str]
    name: Field[str]


class Knows(Relation[Person, Person]):
    since: Field[int]


@pytest.fixture
def write(path):
    """Make a database with plain SQL, in a process of its own."""

    def run(*scripts):
        program = (
            "import sqlite3, sys\n"
            "db = sqlite3.connect(sys.argv[1])\n"
            "for script in sys.argv[2:]: db.executescript(script)\n"
            "db.commit()"
        )
        subprocess.run([sys.executable, "-c", program, str(path), *scripts], check=True)

    return run


@pytest.fixture
def everything(path):
    """Every table and every row of it, sessions apart."""

    def read():
        with closing(apsw.Connection(str(path))) as db:
            made = db.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
            tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            rows = {name: db.execute(f"SELECT * FROM {name}").fetchall() for (name,) in tables}
        rows.pop("sessions", None)
        return made, rows

    return read


# -- every layout -----------------------------------------------------------------------------


@pytest.mark.req("SQL-084", "SQL-085")
@pytest.mark.parametrize("old", LAYOUTS)
def test_what_an_old_file_holds_is_read_like_anything_else(write, open_session, old):
    write(LAYOUTS[old], ROWS)

    session = open_session()

    people, known = session.query().entities(Person), session.query().relations(Knows)
    assert people.collect() == [Person(id="p1", name="Ada Lovelace")]
    assert [p.name for p in people.as_of(1).collect()] == ["Ada Byron", "Alan Turing"]
    assert [(r.since, r.meta().instance_key) for r in known.collect()] == [(1937, "")]
    assert [r.since for r in known.as_of(1).collect()] == [1815, 1936]
    assert [(p.id, p.meta().deleted) for p in people.history_since(2).collect()] == [("p2", True)]
    assert session.head == 3


@pytest.mark.req("SQL-084")
@pytest.mark.parametrize("old", LAYOUTS)
def test_an_old_file_is_written_like_any_other(write, open_session, old):
    write(LAYOUTS[old], ROWS)
    session = open_session(entity_types=[Person], relation_types=[Knows])
    session.ensure([Person(id="p1", name="Ada Lovelace"), Person(id="p3", name="Grace Hopper")])
    session.ensure(Knows(left_key="p1", right_key="p3", since=1944))

    commit_id = session.commit()

    assert commit_id == 4
    assert [change["entity_id"] or change["relation_id"] for change in
            session.list_commit_changes(4)] == ["Person:p3", "Knows:p1:p3"]  # fmt: skip
    assert session.query().entities(Person).count() == 2


@pytest.mark.req("SQL-085")
@pytest.mark.parametrize("old", LAYOUTS)
def test_opening_again_changes_nothing(write, open_session, everything, old):
    write(LAYOUTS[old], ROWS)
    open_session().close()
    once = everything()

    open_session().close()

    assert everything() == once


@pytest.mark.req("SQL-085")
def test_no_row_of_the_history_is_touched(write, open_session, everything):
    write(LAYOUTS["without either"], ROWS)
    _, before = everything()

    open_session().close()

    _, after = everything()
    assert after["commits"] == before["commits"]
    assert [row[:5] for row in after["entity_history"]] == before["entity_history"]
    assert [row[:6] for row in after["relation_history"]] == before["relation_history"]


def test_the_commits_of_an_old_file_have_moments_with_a_zone(write, open_session):
    write(LAYOUTS["as printed"], ROWS)

    commits = open_session().list_commits()

    assert [to_text(commit["created_at"]) for commit in commits] == [
        "2025-03-02T10:00:00.000000+00:00",
        "2025-03-01T11:00:00.250000+00:00",
        "2025-03-01T10:00:00.000000+00:00",
    ]
    assert [commit["metadata"] for commit in commits] == [{}, {"by": "hand"}, {}]


# -- columns ----------------------------------------------------------------------------------


@pytest.mark.req("SQL-082")
def test_a_missing_version_column_is_added_and_old_rows_have_none(write, open_session, sql):
    write(LAYOUTS["without schema_version_id"], ROWS)

    open_session()

    for table in ("entity_history", "relation_history"):
        added = sql(
            f"SELECT type, \"notnull\" FROM pragma_table_info('{table}') "
            "WHERE name = 'schema_version_id'"
        )
        assert added == [["INTEGER", 0]]
        assert sql(f"SELECT DISTINCT schema_version_id FROM {table}") == [[None]]


@pytest.mark.req("SQL-083")
def test_a_missing_instance_key_is_added_and_the_index_made_anew(write, open_session, sql):
    write(LAYOUTS["without instance_key"], ROWS)

    open_session()

    assert sql(
        "SELECT type, \"notnull\", dflt_value FROM pragma_table_info('relation_history') "
        "WHERE name = 'instance_key'"
    ) == [["TEXT", 1, "''"]]
    assert sql("SELECT name FROM pragma_index_info('idx_relation_history_lookup')") == [
        ["relation_type"],
        ["left_key"],
        ["right_key"],
        ["instance_key"],
        ["commit_id"],
    ]
    assert sql("SELECT DISTINCT instance_key FROM relation_history") == [[""]]


def test_keyed_relations_can_be_kept_in_a_file_that_had_no_instance_key(write, open_session):
    class Works(Relation[Person, Person]):
        role: Field[str] = Field(instance_key=True)

    write(LAYOUTS["without instance_key"], ROWS)
    session = open_session()
    session.ensure([Works(left_key="p1", right_key="p1", role=role) for role in ("a", "b")])

    session.commit()

    assert [work.role for work in session.query().relations(Works).collect()] == ["a", "b"]


@pytest.mark.req("SQL-084")
def test_the_latest_versions_are_made_from_the_history(write, open_session, sql):
    write(LAYOUTS["without either"], ROWS)

    open_session()

    assert sql("SELECT entity_key, commit_id FROM entity_latest") == [["p1", 2]]
    assert sql("SELECT left_key, right_key, instance_key, commit_id FROM relation_latest") == [
        ["p1", "p2", "", 2]
    ]


# -- schema versions --------------------------------------------------------------------------


def registered(cls, schema_json=None):
    schema_json = schema_json or spec_of(cls.__shape__).to_json()
    kind = cls.__shape__.kind
    return f"INSERT INTO schema_registry VALUES ('{kind}', '{cls.__name__}', '{schema_json}');"


@pytest.mark.req("SQL-081", "SQL-020", "SQL-019")
@pytest.mark.parametrize("old", ["as printed", "without schema versions"])
def test_a_registry_without_versions_becomes_version_one(write, open_session, sql, clock, old):
    spaced = json.dumps(json.loads(spec_of(Person.__shape__).to_json()), indent=1)
    write(LAYOUTS[old], ROWS, registered(Person, spaced), registered(Knows))

    open_session().close()
    open_session().close()

    assert sql(
        "SELECT type_kind, type_name, schema_version_id, reason, created_at FROM schema_versions "
        "ORDER BY type_kind"
    ) == [
        ["entity", "Person", 1, "bootstrap", to_text(clock.now())],
        ["relation", "Knows", 1, "bootstrap", to_text(clock.now())],
    ]
    assert sql("SELECT schema_json, schema_hash FROM schema_versions ORDER BY type_kind") == [
        [spaced, spec_of(Person.__shape__).hash],
        [spec_of(Knows.__shape__).to_json(), spec_of(Knows.__shape__).hash],
    ]


@pytest.mark.req("SQL-081")
def test_where_versions_are_kept_already_nothing_is_added(write, open_session, sql):
    schema = spec_of(Person.__shape__).to_json()
    write(
        LAYOUTS["as printed"],
        registered(Person),
        registered(Knows),
        "INSERT INTO schema_versions VALUES (7, 'entity', 'Person', 3, "
        f"'{schema}', '{schema_hash(schema)}', '2025', NULL, 'migration');",
    )

    open_session()

    assert sql("SELECT id, type_name, schema_version_id, reason FROM schema_versions") == [
        [7, "Person", 3, "migration"]
    ]


@pytest.mark.req("SQL-081")
def test_a_program_with_the_bootstrapped_schema_commits_at_once(write, open_session, sql):
    write(LAYOUTS["without either"], ROWS, registered(Person))
    session = open_session(entity_types=[Person])
    session.ensure(Person(id="p4", name="Edsger Dijkstra"))

    assert session.commit() == 4
    assert sql("SELECT schema_version_id FROM entity_history WHERE commit_id = 4") == [[1]]


@pytest.mark.parametrize(
    "schema_json",
    ["{}", "[]", "null", '{"fields":["id","name"]}', '{"fields":{"id":"str","name":"str"}}'],
)
def test_a_schema_in_words_that_are_not_ours_is_another_schema(write, open_session, schema_json):
    write(LAYOUTS["without either"], ROWS, registered(Person, schema_json))
    session = open_session(entity_types=[Person])
    session.ensure(Person(id="p4", name="Edsger Dijkstra"))

    with pytest.raises(SchemaOutdatedError):
        session.commit()

    session.migrate(dry_run=False, force=True, upgraders={("Person", 1): dict})
    assert session.commit() == 5
    assert [p.id for p in session.query().entities(Person).collect()] == ["p1", "p4"]


# -- old files and the rest of the system -----------------------------------------------------


def person_in_parts():
    class Person(Entity):
        id: Field[str]
        first: Field[str]
        last: Field[str]

    return Person


def split_name(fields):
    first, last = fields["name"].split()
    return {"id": fields["id"], "first": first, "last": last}


@pytest.fixture
def migrated(write, open_session):
    """An old file, migrated at commit 4; its rows before that carry no version."""
    write(LAYOUTS["without either"], ROWS, registered(Person))
    Newer = person_in_parts()
    session = open_session(entity_types=[Newer], upgraders={("Person", 1): split_name})
    session.migrate(dry_run=False, token=session.migrate().token)
    return session, Newer


def test_rows_without_a_version_pass_through_the_upgraders_of_the_first(migrated):
    session, Newer = migrated
    question = session.query().entities(Newer)

    assert question.collect() == [Newer(id="p1", first="Ada", last="Lovelace")]
    assert [p.last for p in question.as_of(1).collect()] == ["Byron", "Turing"]
    assert question.where(Newer.last == "Byron").with_history().count() == 1


def test_a_difference_passes_through_them_too(migrated):
    session, _ = migrated

    [change] = [c for c in session.diff(1, 2).updated if c.type_name == "Person"]

    assert change.fields == {"last": ("Byron", "Lovelace")}
    assert not session.diff(3, 4)  # the migration changed how Ada is written, not who she is


@pytest.mark.parametrize(
    "fields_json",
    ['{"name": "Zoë Q", "id": "z"}', '{"id": "z", "name": "Zo\\u00eb Q"}'],
    ids=["in another order", "with escapes"],
)
def test_an_object_that_was_written_in_another_form_has_not_changed(
    write, open_session, fields_json
):
    row = f"INSERT INTO entity_history VALUES (9, 'Person', 'z', '{fields_json}', 3, NULL);"
    write(LAYOUTS["as printed"], ROWS, row)
    session = open_session()
    session.ensure(Person(id="z", name="Zoë Q"))

    assert not session.commit(dry_run=True)
    assert session.commit() is None


def test_of_two_rows_for_one_key_in_one_commit_the_last_counts(write, open_session):
    twice = """INSERT INTO entity_history(entity_type, entity_key, fields_json, commit_id) VALUES
        ('Person', 'p5', '{"id":"p5","name":"first"}', 3),
        ('Person', 'p5', '{"id":"p5","name":"last"}', 3);"""
    write(LAYOUTS["as printed"], ROWS, twice)
    question = open_session().query().entities(Person).where(Person.id == "p5")

    assert [p.name for p in question.collect()] == ["last"]
    assert [p.name for p in question.as_of(3).collect()] == ["last"]


def test_a_file_that_cannot_be_brought_up_to_date_is_left_as_it_was(
    write, open_session, everything
):
    write(
        LAYOUTS["without either"], ROWS, "UPDATE entity_history SET fields_json = '{' WHERE id = 3"
    )
    before = everything()

    with pytest.raises(DatabaseError):
        open_session()

    assert everything() == before


def test_two_processes_may_open_an_old_file_at_once(write, path, sql):
    write(LAYOUTS["without either"], ROWS, registered(Person))
    program = (
        "import sys; from ontologia import Session\n"
        "sys.stdin.readline(); s = Session(sys.argv[1]); print(s.head); s.close()"
    )
    command = [sys.executable, "-W", "ignore", "-c", program, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in both:
        process.stdin.write("now\n")
        process.stdin.flush()

    answers = [process.communicate()[0] for process in both]

    assert answers == ["3\n", "3\n"]
    assert sql("SELECT type_name, reason FROM schema_versions") == [["Person", "bootstrap"]]
    assert sql("SELECT COUNT(*) FROM entity_latest") == [[1]]


# -- the event bus as printed -----------------------------------------------------------------

EVENTS = """
CREATE TABLE IF NOT EXISTS events (
    id TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    type TEXT NOT NULL,
    payload TEXT NOT NULL,
    created_at TEXT NOT NULL,
    priority INTEGER NOT NULL DEFAULT 100,
    root_event_id TEXT NOT NULL,
    chain_depth INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS idx_events_namespace_type_order
    ON events(namespace, type, priority DESC, created_at ASC, id ASC);"""
CLAIMS = """
CREATE TABLE IF NOT EXISTS event_claims (
    event_id TEXT NOT NULL,
    handler_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    claimed_at TEXT NOT NULL,
    lease_until TEXT NOT NULL,
    ack_at TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    available_at TEXT NOT NULL,
    last_error TEXT,
    dead_lettered_at TEXT,
    PRIMARY KEY (event_id, handler_id)
);
CREATE INDEX IF NOT EXISTS idx_event_claims_handler_state
    ON event_claims(handler_id, ack_at, dead_lettered_at, lease_until, available_at);
CREATE INDEX IF NOT EXISTS idx_event_claims_event
    ON event_claims(event_id);"""
DEAD_LETTERS = """
CREATE TABLE IF NOT EXISTS dead_letters (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id TEXT NOT NULL,
    handler_id TEXT NOT NULL,
    namespace TEXT NOT NULL,
    failed_at TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    last_error TEXT NOT NULL,
    event_type TEXT NOT NULL,
    event_payload TEXT NOT NULL,
    root_event_id TEXT NOT NULL,
    chain_depth INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS idx_dead_letters_namespace_failed
    ON dead_letters(namespace, failed_at DESC);"""
SESSIONS = """
CREATE TABLE IF NOT EXISTS sessions (
    session_id TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    started_at TEXT NOT NULL,
    last_heartbeat TEXT NOT NULL,
    metadata TEXT
);
CREATE INDEX IF NOT EXISTS idx_sessions_heartbeat
    ON sessions(last_heartbeat);
CREATE INDEX IF NOT EXISTS idx_sessions_namespace
    ON sessions(namespace);"""
FILED = """
INSERT INTO events VALUES
    ('e2', 'default', 'letter.filed', '{"number": 2}', '2025-03-01T10:00:00.5Z', 100, 'e2', 0),
    ('e1', 'default', 'letter.filed', '{"number": 1}', '2025-03-01T10:00:00+00:00', 100, 'e1', 0),
    ('e3', 'default', 'letter.filed', '{"number": 3}', '2025-03-01T10:00:01', 200, 'e1', 1);"""
HANDLED = """
INSERT INTO event_claims VALUES
    ('e1', 'post.file', 's1', '2025-03-01T10:01:00Z', '2025-03-01T10:01:30Z',
     '2025-03-01T10:01:01Z', 0, '2025-03-01T10:01:00Z', NULL, NULL),
    ('e2', 'post.file', 's1', '2025-03-01T10:01:00Z', '2025-03-01T10:01:02Z', NULL, 2,
     '2025-03-01T10:01:04.250000+00:00', 'jammed', NULL),
    ('e3', 'post.file', 's1', '2025-03-01T10:01:00Z', '2025-03-01T10:01:02Z', NULL, 5,
     '2025-03-01T10:01:02Z', 'torn', '2025-03-01T10:01:02Z'),
    ('gone', 'post.file', 's1', '2025-03-01T10:01:00Z', '2025-03-01T10:01:02Z', NULL, 0,
     '2025-03-01T10:01:02Z', NULL, NULL);
INSERT INTO dead_letters VALUES
    (7, 'e3', 'post.file', 'default', '2025-03-01T10:01:02Z', 5, 'torn', 'letter.filed',
     '{"number": 3}', 'e1', 1);
INSERT INTO sessions VALUES
    ('s1', 'default', '2025-03-01T10:00:00', '2025-03-01T10:02:00Z', NULL);"""
PRINTED = EVENTS + CLAIMS + DEAD_LETTERS + SESSIONS
RETAINED = {"event_retention_ms": 10 * 365 * 24 * 3600 * 1000}  # they are from 2025


class LetterFiled(Event):
    number: Field[int]


def filing(name):
    """A handler of that name, and what it was given: the number and the attempt."""
    given = []

    @on_event(LetterFiled, name=name)
    def file(ctx):
        given.append((ctx.event.number, ctx.attempt))

    return file, given


@pytest.mark.req("ONT-005")
@pytest.mark.parametrize(
    "tables", [PRINTED, EVENTS, CLAIMS, EVENTS + CLAIMS], ids=["all", "events", "claims", "both"]
)
def test_a_file_with_the_event_tables_as_printed_works(write, open_session, tables):
    write(tables)
    session = open_session(settings=RETAINED)
    file, given = filing("post.file")
    session.commit(event=LetterFiled(number=1))

    session.run([file], max_iterations=3)

    assert given == [(1, 1)]
    [listed] = session.event_store.list_events("default")
    assert (listed["type"], listed["status"]) == ("letter.filed", "acked")
    assert session.event_store.check() == []


@pytest.mark.req("ONT-005")
def test_events_that_were_in_it_are_delivered_to_a_new_consumer(write, open_session):
    write(EVENTS, FILED)
    session = open_session(settings=RETAINED)
    file, given = filing("post.file")

    session.run([file], max_iterations=3)

    assert given == [(3, 1), (1, 1), (2, 1)]  # by priority, then by age
    found = session.event_store.inspect_event("e3")
    assert (found["root_event_id"], found["chain_depth"]) == ("e1", 1)
    assert found["created_at"] == "2025-03-01T10:00:01.000000+00:00"


@pytest.mark.req("ONT-005")
def test_claims_that_were_in_it_are_kept_and_what_was_unfinished_is_tried_again(
    write, open_session
):
    write(PRINTED, FILED, HANDLED)
    session = open_session(settings=RETAINED)
    known, given = filing("post.file")
    new, all_of_them = filing("post.copy")

    session.run([known, new], max_iterations=3)

    assert given == [(2, 3)]  # one was acked, one is a dead letter
    assert sorted(all_of_them) == [(1, 1), (2, 1), (3, 1)]
    assert session.event_store.list_dead_letters("default") == [
        {
            "event_id": "e3",
            "type": "letter.filed",
            "handler": "post.file",
            "attempts": 5,
            "last_error": "torn",
            "failed_at": "2025-03-01T10:01:02.000000+00:00",
        }
    ]
    assert session.event_store.check() == []


def test_sessions_that_were_in_it_are_listed(write, open_session):
    write(PRINTED, FILED, HANDLED)

    listed = open_session(settings=RETAINED).event_store.list_sessions("default")

    assert [(s["session_id"], s["is_dead"]) for s in listed][1:] == [("s1", True)]


def test_a_view_over_the_events_still_works(write, open_session, sql):
    write(EVENTS, FILED, "CREATE VIEW urgent AS SELECT id FROM events WHERE priority > 100")

    open_session(settings=RETAINED)

    assert sql("SELECT id FROM urgent") == [["e3"]]
