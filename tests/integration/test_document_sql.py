"""The tables are the ones the storage document describes, and its SQL finds what the API finds.

The statements are those printed in sections 3 and 6 of the document, with values in place of `?`.
They know nothing of deletions: a version that says "deleted" has the JSON text `null` as fields.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import apsw
import pytest

from ontologia import Entity, Field, Relation, Session, left
from ontologia.errors import DatabaseError, IntegrityError
from ontologia.query import avg_len, sum
from ontologia.runtime.session import core_of
from tests.shop import Customer, Product, Subscription


@pytest.fixture(scope="session")
def backend(sqlite):
    """What is said here is about files of SQLite."""
    return sqlite


@pytest.fixture
def sql(path):
    """Ask the file as a program would that knows nothing of Ontologia: with what Python brings.

    In a process of its own, since two copies of SQLite in one drop each other's locks.
    """

    def ask(*statements: str) -> list[list[Any]]:
        program = (
            "import json, sqlite3, sys\n"
            "db = sqlite3.connect(sys.argv[1])\n"
            "for s in sys.argv[2:]: rows = db.execute(s).fetchall()\n"
            "db.commit(); print(json.dumps(rows))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(path), *statements],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        rows: list[list[Any]] = json.loads(done.stdout)
        return rows

    return ask


class Visit(Relation[Customer, Product]):
    number: Field[int] = Field(instance_key=True)
    pages: Field[int] = 1


class Page(Entity):
    id: Field[int] = Field(primary_key=True)
    hits: Field[int | None] = None
    data: Field[dict[str, object]] = Field(default_factory=dict)
    events: Field[list[object]] = Field(default_factory=list)


KEYS = ("ada", "bob", "cy")


def history(session):
    """Six commits: things change, go and come back."""
    for commit in (
        [Customer(id="ada", name="Ada", tier="gold"), Customer(id="bob", name="Bob")],
        [Product(sku="pen", price=1.5), Product(sku="ada", price=2.0)],
        [Subscription(left_key=key, right_key="pen", seats=1) for key in KEYS],
        [Customer(id="ada", name="Ada", tier="lead"), Customer(id="cy", name="Cy", tier="gold")],
        [Subscription(left_key="ada", right_key="pen", seats=9)],
        [Visit(left_key="ada", right_key="pen", number=n) for n in (1, 2)],
    ):
        session.ensure(commit)
        session.commit()
    session.ensure(Visit(left_key="ada", right_key="pen", number=2, pages=5))
    session.delete(
        [Customer(id="bob", name="Bob"), Subscription(left_key="cy", right_key="pen", seats=0)]
    )
    session.commit()
    return session


@pytest.fixture
def past(session):
    return history(session)


def found(rows):
    """Rows of the document's queries, deletions left out, fields as JSON."""
    return sorted(
        [*row[:-2], json.loads(row[-2]), row[-1]] for row in rows if row[-2] != "null"
    )  # fmt: skip


def entities(query):
    return sorted([c.meta().key, vars(c), c.meta().commit_id] for c in query.collect())


def relations(query, *fields):
    return sorted(
        [*relation_key(r), {name: getattr(r, name) for name in fields}, r.meta().commit_id]
        for r in query.collect()
    )


def relation_key(relation):
    meta = relation.meta()
    return [meta.left_key, meta.right_key, meta.instance_key]


LATEST = """
SELECT eh.entity_key, eh.fields_json, eh.commit_id
FROM entity_history eh
INNER JOIN (
    SELECT entity_key, MAX(commit_id) as max_cid
    FROM entity_history
    WHERE entity_type = '{type}' {as_of}
    GROUP BY entity_key
) latest ON eh.entity_key = latest.entity_key
    AND eh.commit_id = latest.max_cid
WHERE eh.entity_type = '{type}' {where}
"""
LATEST_RELATIONS = """
SELECT rh.left_key, rh.right_key, rh.instance_key, rh.fields_json, rh.commit_id
FROM relation_history rh
INNER JOIN (
    SELECT left_key, right_key, instance_key, MAX(commit_id) as max_cid
    FROM relation_history
    WHERE relation_type = '{type}'
    GROUP BY left_key, right_key, instance_key
) latest ON rh.left_key = latest.left_key
    AND rh.right_key = latest.right_key
    AND rh.instance_key = latest.instance_key
    AND rh.commit_id = latest.max_cid
WHERE rh.relation_type = '{type}' {where}
"""


def latest(type_name, where="", as_of=""):
    return LATEST.format(type=type_name, where=where, as_of=as_of)


# -- section 3: the printed queries and the API agree ---------------------------------------------


@pytest.mark.req("SQL-007", "SQL-003", "SQL-027")
@pytest.mark.parametrize("cls", [Customer, Product], ids=["Customer", "Product"])
def test_the_printed_query_for_the_latest_entities_agrees_with_the_api(past, sql, cls):
    rows = found(sql(latest(cls.__name__)))

    assert rows == entities(past.query().entities(cls))
    assert len(rows) == 2


@pytest.mark.req("SQL-007", "SQL-003", "SQL-115")
def test_the_printed_point_lookup_agrees_with_the_api_and_with_the_scan(past, sql):
    scanned = {row[0]: row[1:] for row in found(sql(latest("Customer")))}

    for key in KEYS:
        rows = sql(
            "SELECT fields_json, commit_id FROM entity_history WHERE entity_type = 'Customer' "
            f"AND entity_key = '{key}' ORDER BY commit_id DESC LIMIT 1"
        )
        [read] = entities(past.query().entities(Customer).where(Customer.id == key)) or [None]

        assert found(rows) == ([read[1:]] if read else [])
        assert scanned.get(key) == (read[1:] if read else None)
    assert sorted(scanned) == ["ada", "cy"]


@pytest.mark.req("SQL-007", "SQL-028")
@pytest.mark.parametrize("commit_id", range(8))
def test_the_printed_query_for_a_commit_of_the_past_agrees_with_as_of(past, sql, commit_id):
    rows = sql(latest("Customer", as_of=f"AND commit_id <= {commit_id}"))

    assert found(rows) == entities(past.query().entities(Customer).as_of(commit_id))


@pytest.mark.req("SQL-007", "SQL-030")
def test_the_printed_query_for_the_history_agrees_with_with_history(past, sql):
    rows = sql(
        "SELECT eh.entity_key, eh.fields_json, eh.commit_id FROM entity_history eh "
        "WHERE eh.entity_type = 'Customer' ORDER BY eh.commit_id ASC"
    )
    versions = past.query().entities(Customer).with_history().collect()

    assert [(row[0], row[2]) for row in rows] == [(v.id, v.meta().commit_id) for v in versions]
    assert [row[1] == "null" for row in rows] == [v.meta().deleted for v in versions]
    assert [json.loads(row[1]) for row in rows[:-1]] == [vars(v) for v in versions[:-1]]


@pytest.mark.req("SQL-007", "SQL-034", "SQL-015")
def test_the_printed_query_for_the_latest_relations_agrees_with_the_api(past, sql):
    subscriptions = found(sql(LATEST_RELATIONS.format(type="Subscription", where="")))
    visits = found(sql(LATEST_RELATIONS.format(type="Visit", where="")))

    assert subscriptions == relations(past.query().relations(Subscription), "seats")
    assert visits == relations(past.query().relations(Visit), "pages")
    assert [row[2:] for row in visits] == [["1", {"pages": 1}, 6], ["2", {"pages": 5}, 7]]


@pytest.mark.req("SQL-007", "SQL-035")
def test_the_printed_filter_on_an_end_agrees_with_the_api(past, sql):
    where = """AND EXISTS (
        SELECT 1 FROM entity_history le
        INNER JOIN (
            SELECT entity_key, MAX(commit_id) as max_cid
            FROM entity_history WHERE entity_type = 'Customer' GROUP BY entity_key
        ) le_latest ON le.entity_key = le_latest.entity_key
            AND le.commit_id = le_latest.max_cid
        WHERE le.entity_type = 'Customer' AND le.entity_key = rh.left_key
            AND json_extract(le.fields_json, '$.tier') = 'lead')"""
    rows = found(sql(LATEST_RELATIONS.format(type="Subscription", where=where)))
    query = past.query().relations(Subscription).where(left(Subscription).tier == "lead")

    assert rows == relations(query, "seats")
    assert [row[0] for row in rows] == ["ada"]


VALUE = "json_extract(fields_json, '$.{}')"
HITS = VALUE.format("hits")
ANY = "EXISTS (SELECT 1 FROM json_each(json_extract(fields_json, '$.events')) je WHERE {})"
CLICK = ANY.format("json_extract(je.value, '$.kind') = 'click'")
FILTERS = [
    (Page.hits == 2, f"{HITS} = 2"),
    (Page.hits != 2, f"{HITS} <> 2"),
    (Page.hits > 1, f"{HITS} > 1"),
    (Page.data.path("a.b") == "x", f"{VALUE.format('data.a.b')} = 'x'"),
    (Page.hits.is_null(), f"{HITS} IS NULL"),
    (Page.hits.in_([1, 3]), f"{HITS} IN (1, 3)"),
    (Page.hits.in_([]), f"{HITS} IN ()"),
    (Page.data["a"]["b"].startswith("x"), f"{VALUE.format('data.a.b')} LIKE 'x%'"),
    (Page.events.any_path("kind") == "click", CLICK),
    ((Page.hits > 1) & (Page.hits < 3), f"({HITS} > 1) AND ({HITS} < 3)"),
    ((Page.hits == 2) | (Page.hits == 3), f"({HITS} = 2) OR ({HITS} = 3)"),
    (~(Page.hits == 2), f"NOT ({HITS} = 2)"),
    (~(Page.events.any_path("kind") == "click"), f"NOT ({CLICK})"),
]  # fmt: skip


@pytest.mark.req("SQL-040", "SQL-043", "SQL-044", "SQL-046", "SQL-048", "SQL-049")
def test_every_printed_filter_agrees_with_the_api(session, sql):
    session.ensure([
        Page(id=1, hits=1, data={"a": {"b": "x"}}, events=[{"kind": "view"}, {"kind": "click"}]),
        Page(id=2, hits=2, data={"a": {"b": "xy"}}, events=[{"kind": "view"}]),
        Page(id=3, hits=3, data={"a": "x"}),
        Page(id=4),
    ])  # fmt: skip
    session.commit()

    for condition, printed in FILTERS:
        rows = sql(latest("Page", where=f"AND ({printed})"))
        pages = session.query().entities(Page).where(condition).collect()
        assert sorted(row[0] for row in rows) == [str(page.id) for page in pages], printed


@pytest.mark.req("SQL-052", "SQL-053")
def test_the_printed_aggregates_agree_with_the_api(session, sql):
    session.ensure(
        Page(id=n, hits=hits, events=["x"] * n, data={"n": {"m": n}})
        for n, hits in enumerate([5, None, 7, 1])
    )
    session.commit()

    [[total, length, nested]] = sql(
        "SELECT SUM(CAST(json_extract(fields_json, '$.hits') AS REAL)), "
        "AVG(json_array_length(json_extract(fields_json, '$.events'))), "
        "SUM(CAST(json_extract(fields_json, '$.data.n.m') AS REAL)) "
        "FROM entity_history WHERE entity_type = 'Page'"
    )

    [found] = session.query().entities(Page).agg(
        total=sum(Page.hits), length=avg_len(Page.events), nested=sum(Page.data.path("n.m"))
    )  # fmt: skip
    assert found == {"total": total, "length": length, "nested": nested}
    assert (total, length, nested) == (13.0, 1.5, 6.0)


# -- section 2: the tables ------------------------------------------------------------------------


def columns(sql, table):
    """Name, type, NOT NULL, default, primary key of each column."""
    return [tuple(row[1:]) for row in sql(f"PRAGMA table_info({table})")]


@pytest.mark.req("SQL-008", "SQL-010", "SQL-013")
def test_the_tables_have_the_columns_of_the_document(session, sql):
    assert columns(sql, "commits") == [
        ("id", "INTEGER", 0, None, 1),
        ("created_at", "TEXT", 1, None, 0),
        ("metadata_json", "TEXT", 0, None, 0),
    ]
    common = [("fields_json", "TEXT", 1, None, 0), ("commit_id", "INTEGER", 1, None, 0),
              ("schema_version_id", "INTEGER", 0, None, 0)]  # fmt: skip
    assert columns(sql, "entity_history") == [
        ("id", "INTEGER", 0, None, 1), ("entity_type", "TEXT", 1, None, 0),
        ("entity_key", "TEXT", 1, None, 0), *common,
    ]  # fmt: skip
    assert columns(sql, "relation_history") == [
        ("id", "INTEGER", 0, None, 1), ("relation_type", "TEXT", 1, None, 0),
        ("left_key", "TEXT", 1, None, 0), ("right_key", "TEXT", 1, None, 0),
        ("instance_key", "TEXT", 1, "''", 0), *common,
    ]  # fmt: skip


@pytest.mark.req("SQL-008", "SQL-010", "SQL-013")
def test_ids_are_never_used_again_and_history_refers_to_its_commit(session, sql):
    for table in ("commits", "entity_history", "relation_history"):
        [[text]] = sql(f"SELECT sql FROM sqlite_master WHERE name = '{table}'")
        assert "id INTEGER PRIMARY KEY AUTOINCREMENT" in text
        keys = sql(f"PRAGMA foreign_key_list({table})")
        refers = [] if table == "commits" else [["commits", "commit_id", "id", "NO ACTION"]]
        assert [[*row[2:5], row[6]] for row in keys] == refers


@pytest.mark.req("SQL-011", "SQL-014", "SQL-107")
def test_the_lookup_indexes_are_there_with_the_newest_commit_first(session, sql):
    rows = sql(
        "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'index' "
        "AND tbl_name IN ('entity_history', 'relation_history')"
    )

    definitions = {name: (table, re.sub(r"\s+", " ", text)) for name, table, text in rows}

    table, text = definitions["idx_entity_history_lookup"]
    assert (table, text.partition("(")[2]) == (
        "entity_history", "entity_type, entity_key, commit_id DESC)",
    )  # fmt: skip
    table, text = definitions["idx_relation_history_lookup"]
    assert (table, text.partition("(")[2]) == (
        "relation_history", "relation_type, left_key, right_key, instance_key, commit_id DESC)",
    )  # fmt: skip


@pytest.mark.req("SQL-012", "SQL-013", "SQL-015")
def test_types_are_class_names_and_keys_are_text(session, sql):
    session.ensure([Page(id=1), Page(id=-20), Visit(left_key="ada", right_key="pen", number=7)])
    session.ensure(Subscription(left_key="ada", right_key="pen", seats=1))
    session.commit()

    pages = sql("SELECT entity_type, entity_key, typeof(entity_key) FROM entity_history")
    pairs = sql("SELECT relation_type, instance_key, fields_json FROM relation_history")

    assert sorted(pages) == [["Page", "-20", "text"], ["Page", "1", "text"]]
    assert sorted(pairs) == [["Subscription", "", '{"seats":1}'], ["Visit", "7", '{"pages":1}']]
    assert [p.id for p in session.query().entities(Page).where(Page.id == -20).collect()] == [-20]


@pytest.mark.req("SQL-008", "SQL-009", "SQL-059")
def test_a_commit_row_has_a_fixed_width_instant_and_a_json_object(session, sql, clock):
    assert core_of(session).store.get_head_commit_id() is None
    session.ensure(Page(id=1))
    session.commit()
    clock.advance(seconds=0.5)
    session.ensure(Page(id=2))
    session.commit()

    rows = sql("SELECT id, created_at, metadata_json FROM commits ORDER BY id ASC")

    assert [row[:2] for row in rows] == [
        [1, "2026-01-01T00:00:00.000000+00:00"], [2, "2026-01-01T00:00:00.500000+00:00"],
    ]  # fmt: skip
    assert [json.loads(row[2]) for row in rows] == [c["metadata"] for c in session.list_commits()][
        ::-1
    ]
    assert all(isinstance(json.loads(row[2]), dict) for row in rows)


@pytest.mark.req("SQL-059")
def test_a_commit_row_without_metadata_is_read_as_an_empty_object(session, sql):
    sql("INSERT INTO commits(created_at, metadata_json) VALUES ('2026-01-01T00:00:00Z', NULL)")

    assert session.get_commit(1)["metadata"] == {}


# -- section 6.1: nothing is ever torn ------------------------------------------------------------

CHECKS = {
    "PRAGMA foreign_key_check": [],
    "SELECT COUNT(*) FROM entity_history eh "
    "WHERE NOT EXISTS (SELECT 1 FROM commits c WHERE c.id = eh.commit_id)": [[0]],
    "SELECT COUNT(*) FROM relation_history rh "
    "WHERE NOT EXISTS (SELECT 1 FROM commits c WHERE c.id = rh.commit_id)": [[0]],
    """SELECT entity_type, entity_key, COUNT(*) as version_count
    FROM (
        SELECT eh.entity_type, eh.entity_key, eh.commit_id
        FROM entity_history eh
        INNER JOIN (
            SELECT entity_key, MAX(commit_id) as max_cid
            FROM entity_history WHERE entity_type = 'Customer' GROUP BY entity_key
        ) latest ON eh.entity_key = latest.entity_key AND eh.commit_id = latest.max_cid
        WHERE eh.entity_type = 'Customer'
    )
    GROUP BY entity_type, entity_key HAVING version_count > 1""": [],
}


def fail_in_the_middle(session, sql, *objects):
    """A commit that the database refuses after some of its rows are written."""
    sql(
        "CREATE TRIGGER refuse BEFORE INSERT ON relation_history "
        "BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    session.ensure(objects)
    session.ensure(Subscription(left_key="ada", right_key="pen", seats=session.head + 100))
    with pytest.raises(DatabaseError):
        session.commit()
    sql("DROP TRIGGER refuse")


@pytest.mark.req("SQL-002", "SQL-058", "NEW-029", "SQL-103")
def test_a_commit_that_fails_in_the_middle_leaves_no_trace_and_no_gap(past, sql):
    tables = ("commits", "entity_history", "relation_history", "schema_versions")
    before = [sql(f"SELECT * FROM {table}") for table in tables]
    state = past.query().entities(Customer).collect()

    fail_in_the_middle(past, sql, Customer(id="ada", name="Torn"), Page(id=1))

    assert [sql(f"SELECT * FROM {table}") for table in tables] == before
    assert (past.head, past.query().entities(Customer).collect()) == (7, state)
    assert past.commit() == 8  # the queue was kept, and the number was not used up
    assert past.query().entities(Customer).first().name == "Torn"


@pytest.mark.req("SQL-101", "SQL-102", "SQL-103", "SQL-104")
def test_the_printed_checks_find_nothing_after_commits_failures_and_a_migration(past, sql, uri):
    for n in range(3):
        past.ensure([Customer(id="dup", name=str(n)), Customer(id="dup", name=str(n + 1))])
        fail_in_the_middle(past, sql)
        past.commit()
    past.close()
    customer = {"id": Field[str], "name": Field[str], "tier": Field[str], "vip": Field[bool]}
    changed = type("Customer", (Entity,), {"__annotations__": customer})
    upgraders = {
        ("Customer", 1): lambda f: {k: f[k] for k in ("id", "name", "tier")} | {"vip": False}
    }
    with Session(uri, entity_types=[changed]) as session:
        assert session.migrate(dry_run=False, force=True, upgraders=upgraders).commit_id == 11
        session.ensure(changed(id="new", name="New", tier="gold", vip=True))

    for check, good in CHECKS.items():
        assert sql(check) == good
    assert [row[0] for row in sql("SELECT id, created_at FROM commits ORDER BY id")] == [
        *range(1, 13)
    ]


@pytest.mark.req("SQL-001")
def test_no_row_of_the_history_is_ever_changed_or_removed(past, sql):
    def rows(table):
        return sql(f"SELECT * FROM {table} WHERE commit_id <= 7 ORDER BY id")

    before = [rows("entity_history"), rows("relation_history")]

    past.delete(
        [Customer(id="ada", name=""), Subscription(left_key="ada", right_key="pen", seats=0)]
    )
    past.commit()
    past.ensure(
        [Customer(id="ada", name="New"), Subscription(left_key="ada", right_key="pen", seats=3)]
    )
    past.commit()

    assert [rows("entity_history"), rows("relation_history")] == before
    assert sql("SELECT COUNT(*) FROM entity_history WHERE commit_id > 7") == [[2]]
    assert sql("SELECT COUNT(*) FROM relation_history WHERE commit_id > 7") == [[2]]


# -- what is current is derived from the history --------------------------------------------------

SIDE_TABLES = {
    "entity": "SELECT entity_type, entity_key, commit_id, schema_version_id, json({}) FROM {} "
    "ORDER BY 1, 2",
    "relation": "SELECT relation_type, left_key, right_key, instance_key, commit_id, "
    "schema_version_id, json({}) FROM {} ORDER BY 1, 2, 3, 4",
}


@pytest.mark.req("SQL-003")
@pytest.mark.parametrize("kind", ["entity", "relation"])
def test_the_side_table_is_the_newest_version_of_each_key_and_nothing_else(past, path, kind):
    past.close()
    keys = "entity_key" if kind == "entity" else "left_key, right_key, instance_key"
    newest = (
        f"(SELECT *, MAX(commit_id) FROM {kind}_history GROUP BY {kind}_type, {keys}) "
        "WHERE fields_json <> 'null'"
    )
    connection = apsw.Connection(str(path))

    kept = connection.execute(SIDE_TABLES[kind].format("fields", f"{kind}_latest")).fetchall()
    derived = connection.execute(SIDE_TABLES[kind].format("fields_json", newest)).fetchall()

    connection.close()
    assert kept == derived
    assert len(kept) == 4


@pytest.mark.req("SQL-003")
def test_the_side_tables_can_be_made_again_from_the_history_alone(past, path, uri):
    query = past.query()
    before = [query.entities(Customer).collect(), query.relations(Visit).collect()]
    past.close()
    connection = apsw.Connection(str(path))
    connection.execute("DELETE FROM entity_latest; DELETE FROM relation_latest")
    connection.execute("DELETE FROM ontologia_layout")  # as in a file from before they existed
    connection.close()

    with Session(uri) as session:
        after = [
            session.query().entities(Customer).collect(),
            session.query().relations(Visit).collect(),
        ]
        assert after == before
        assert [obj.meta() for obj in after[0]] == [obj.meta() for obj in before[0]]


# -- connections ----------------------------------------------------------------------------------


@pytest.fixture
def connections():
    """Every connection that the process opens from here on."""
    opened = []
    hook = opened.append
    apsw.connection_hooks.append(hook)
    yield opened
    apsw.connection_hooks.remove(hook)


@pytest.mark.req("SQL-023")
def test_every_connection_is_in_wal_mode_and_keeps_foreign_keys(connections, open_session, path):
    session = history(open_session())

    settings = [(c.pragma("journal_mode"), c.pragma("foreign_keys")) for c in connections]

    assert set(settings) == {("wal", 1)}
    assert len(connections) >= 2  # one that writes, others that read
    assert path.with_name("test.db-wal").exists()
    assert path.with_name("test.db-shm").exists()
    assert session.head == 7


@pytest.mark.req("SQL-024")
def test_a_commit_that_history_refers_to_cannot_be_deleted(past):
    with pytest.raises(IntegrityError), core_of(past).store.database.write() as tx:
        tx.run("DELETE FROM commits WHERE id = 1")

    assert past.get_commit(1) is not None


@pytest.mark.req("SQL-025")
@pytest.mark.parametrize("kind", ["entity", "relation"])
def test_a_version_of_a_commit_that_does_not_exist_cannot_be_inserted(past, sql, kind):
    keys = ("entity_key",) if kind == "entity" else ("left_key", "right_key")
    values = ", ".join(f"'{key}'" for key in keys)

    with pytest.raises(IntegrityError), core_of(past).store.database.write() as tx:
        tx.run(
            f"INSERT INTO {kind}_history({kind}_type, {', '.join(keys)}, fields_json, commit_id) "
            f"VALUES ('Customer', {values}, '{{}}', 99)"
        )

    assert sql(f"SELECT COUNT(*) FROM {kind}_history WHERE commit_id = 99") == [[0]]


@pytest.mark.req("SQL-108")
def test_the_log_can_be_truncated_while_a_session_is_idle(past, sql, path):
    before = path.with_name("test.db-wal").stat().st_size

    [[busy, *_]] = sql("PRAGMA wal_checkpoint(TRUNCATE)")

    after = path.with_name("test.db-wal").stat().st_size
    assert (before > 0, busy, after) == (True, 0, 0)
    past.ensure(Customer(id="later", name="Later"))
    assert past.commit() == 8


def test_versions_are_counted_by_type_as_the_document_prints_it(past, sql):
    rows = sql(
        "SELECT entity_type, COUNT(*) as total_versions FROM entity_history "
        "GROUP BY entity_type ORDER BY total_versions DESC"
    )

    counted = {
        cls.__name__: past.query().entities(cls).with_history().count()
        for cls in (Customer, Product)
    }
    assert dict(rows) == counted == {"Customer": 5, "Product": 2}
