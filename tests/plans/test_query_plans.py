"""The statements that really run use their indexes, and their number does not grow.

Every connection that a session opens is watched through apsw's own hooks: which statements run,
with which bindings, from which cursor, and how many steps SQLite's virtual machine takes. No
clock is involved.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum

import apsw
import pytest

from ontologia import Entity, Field, Relation, left, right
from ontologia.errors import DatabaseError
from ontologia.query import count
from ontologia.query import max as most
from ontologia.query import min as least
from tests.shop import Customer, Product, Subscription


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Item(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str] = Field(default="", index=True)
    size: Field[int | None] = Field(default=None, index=True)
    price: Field[Decimal] = Field(default=Decimal(0), index=True)
    made: Field[datetime] = Field(default=datetime(2026, 1, 1, tzinfo=UTC), index=True)
    color: Field[Color] = Field(default=Color.RED, index=True)
    plain: Field[int] = 0


class Box(Entity):
    number: Field[int] = Field(primary_key=True)


class Holds(Relation[Box, Item]):
    place: Field[int] = Field(instance_key=True)
    weight: Field[int] = Field(default=1, index=True)


class Watch:
    """What the connections of this process do while it looks."""

    def __init__(self):
        self.looking = False
        self.seen = []
        self.connections = {}
        self.steps = 0

    def __call__(self, connection):
        connection.exec_trace = self._began
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._ended)

    def _began(self, cursor, sql, bindings):
        if self.looking:
            # The cursor is kept, so that no other one gets its identity.
            self.connections[id(cursor)] = cursor.connection  # a cursor may be closed early
            self.seen.append((cursor, re.sub(r"^(\s*--.*\n)*\s*", "", sql), bindings))
        return True

    def _ended(self, event):
        if self.looking:
            self.steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    @contextmanager
    def at(self):
        self.seen, self.steps, self.looking = [], 0, True
        try:
            yield
        finally:
            self.looking = False

    def statements(self, action):
        """The texts of the statements, a prepared one that runs for many rows being one."""
        action()  # what is done once only is done here
        with self.at():
            action()
        return [
            sql for _, sql in {id(cursor): (cursor, sql) for cursor, sql, _ in self.seen}.values()
        ]

    def plan(self, action):
        """The steps of the plans of all statements that `action` runs."""
        self.statements(action)
        return [
            row[3].replace("INDEX sqlite_autoindex_entity_latest_1", "PRIMARY KEY")
            for cursor, sql, bindings in self.seen
            for row in self.connections[id(cursor)].execute(f"EXPLAIN QUERY PLAN {sql}", bindings)
        ]

    def work(self, action):
        """The steps of SQLite's machine."""
        self.statements(action)
        self.seen.clear()  # a cursor that is kept keeps the snapshot of its connection
        return self.steps


@pytest.fixture
def store(watch, open_session):
    session = open_session()
    session.ensure(Item(id=f"i{n}", name=f"n{n}", size=n) for n in range(5))
    session.ensure([Box(number=1), Box(number=2)])
    session.ensure(Holds(left_key=1, right_key=f"i{n}", place=n) for n in range(3))
    session.commit()
    return session


def scans(plan):
    """Steps that look at every row of a table; a list of values in a question is none."""
    return [step for step in plan if step.startswith("SCAN") and "VIRTUAL TABLE" not in step]


def sorts(plan):
    return [step for step in plan if "TEMP B-TREE" in step]


# -- reading by key -------------------------------------------------------------------------------


@pytest.mark.req("NEW-006")
@pytest.mark.parametrize(
    "condition", [Item.id == "i3", Item.id.in_(["i3", "i4"])], ids=["one", "several"]
)
def test_a_read_by_key_is_a_seek(store, watch, condition):
    plan = watch.plan(store.query().entities(Item).where(condition).collect)

    assert any("USING PRIMARY KEY (entity_type=? AND entity_key=?)" in step for step in plan)
    assert (scans(plan), sorts(plan)) == ([], [])


@pytest.mark.req("NEW-006")
@pytest.mark.parametrize(
    "condition", [Item.id == "i3", Item.id.in_(["i3", "i4"])], ids=["one", "several"]
)
def test_a_read_by_key_in_the_past_is_a_seek_in_the_lookup_index(store, watch, condition):
    plan = watch.plan(store.query().entities(Item).where(condition).as_of(1).collect)

    seek = "idx_entity_history_lookup (entity_type=? AND entity_key=? AND commit_id<?)"
    assert any(seek in step for step in plan)
    assert scans(plan) == []


@pytest.mark.req("NEW-006")
def test_a_key_that_is_a_number_is_a_seek_as_well(store, watch):
    boxes = store.query().entities(Box)

    now = watch.plan(boxes.where(Box.number == 1).first)
    then = watch.plan(boxes.where(Box.number.in_([1, 2])).as_of(1).collect)

    assert any("PRIMARY KEY (entity_type=? AND entity_key=?)" in step for step in now)
    assert any("entity_key=? AND commit_id<?" in step for step in then)
    assert scans(now) == scans(then) == []


def grown(open_session, name, tmp_path, *, entities, versions):
    """A store with so many entities in so many versions each."""
    session = open_session(uri=str(tmp_path / f"{name}.db"))
    for version in range(versions):
        session.ensure(Item(id=f"i{n}", size=version) for n in range(entities))
        session.commit()
    return session.query().entities(Item)


@pytest.mark.req("NEW-006")
def test_a_read_by_key_costs_the_same_whatever_is_stored(watch, open_session, tmp_path):
    small = grown(open_session, "small", tmp_path, entities=3, versions=1)
    large = grown(open_session, "large", tmp_path, entities=300, versions=9)

    def costs(query):
        one = query.where(Item.id == "i1")
        return [
            watch.work(question.collect)
            for question in (one, one.as_of(1), query.where(Item.id.in_(["i1"])).as_of(1))
        ]

    assert costs(small) == costs(large)
    assert all(costs(small))
    assert large.where(Item.id == "i1").as_of(3).first().size == 2


@pytest.mark.req("NEW-007")
def test_the_current_state_costs_the_same_whatever_the_number_of_versions(
    watch, open_session, tmp_path
):
    young = grown(open_session, "young", tmp_path, entities=50, versions=1)
    old = grown(open_session, "old", tmp_path, entities=50, versions=9)

    def costs(query):
        return [
            watch.work(question)
            for question in (
                query.collect,
                query.where(Item.plain == 0).collect,
                query.count,
                lambda: query.sum(Item.plain),
                lambda: query.max(Item.price),
                lambda: query.group_by(Item.plain).agg(n=count()),
            )
        ]  # fmt: skip

    assert costs(young) == costs(old)
    assert all(costs(young))


# -- reading a type -------------------------------------------------------------------------------


@pytest.mark.req("NEW-007")
def test_a_type_is_read_in_the_order_of_its_primary_key(store, watch):
    entities = watch.plan(store.query().entities(Item).collect)
    relations = watch.plan(store.query().relations(Holds).collect)

    assert entities == ["SEARCH e USING PRIMARY KEY (entity_type=?)"]
    assert relations[0] == "SEARCH e USING PRIMARY KEY (relation_type=?)"
    assert sorts(relations) == scans(relations) == []


def test_a_prefix_or_range_of_keys_reads_only_that_part(store, watch):
    items = store.query().entities(Item)

    prefix = watch.plan(items.where(Item.id.startswith("i")).collect)
    above = watch.plan(items.where(Item.id > "i3").collect)

    assert prefix == [
        "SEARCH e USING PRIMARY KEY (entity_type=? AND entity_key>? AND entity_key<?)"
    ]
    assert above == ["SEARCH e USING PRIMARY KEY (entity_type=? AND entity_key>?)"]


# -- Field(index=True) ----------------------------------------------------------------------------

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
INDEXED = [
    ("name", Item.name == "n1", "="),
    ("name", Item.name.in_(["n1", "n2"]), "="),
    ("name", Item.name > "n1", ">"),
    ("name", (Item.name >= "n1") & (Item.name < "n3"), ">"),
    ("name", Item.name.startswith("n"), ">"),
    ("name", Item.name.like("n%_"), ">"),
    ("name", Item.name.is_null(), "="),
    ("size", Item.size == 1, "="),
    ("size", Item.size.in_([1, 2]), "="),
    ("size", Item.size < 3, "<"),
    ("size", (Item.size > 1) & (Item.plain == 0), ">"),
    ("price", Item.price == Decimal("1.5"), ">"),
    ("price", Item.price.in_([Decimal(1), Decimal(2)]), ">"),
    ("price", Item.price > Decimal(1), ">"),
    ("price", Item.price <= 5, "<"),
    ("made", Item.made == NOON, "="),
    ("made", Item.made.in_([NOON, NOON + timedelta(1)]), "="),
    ("made", Item.made > NOON, ">"),
    ("made", (Item.made >= NOON) & (Item.made < NOON + timedelta(1)), ">"),
    ("color", Item.color == Color.BLUE, "="),
    ("color", Item.color.in_([Color.BLUE]), "="),
]


@pytest.mark.req("NEW-009")
@pytest.mark.parametrize(("field", "condition", "sign"), INDEXED)
def test_a_filter_on_an_indexed_field_uses_its_index(store, watch, field, condition, sign):
    plan = watch.plan(store.query().entities(Item).where(condition).collect)

    index = rf"USING INDEX idx_entity_Item_{field}_\w+ \(entity_type=\? AND <expr>{sign}\?"
    assert any(re.search(index, step) for step in plan), plan
    assert scans(plan) == []


@pytest.mark.req("NEW-009")
def test_an_indexed_filter_is_used_by_counts_and_sums_too(store, watch):
    items = store.query().entities(Item).where(Item.size > 2)

    counted, summed = watch.plan(items.count), watch.plan(lambda: items.sum(Item.plain))

    for plan in (counted, summed):
        seek = r"idx_entity_Item_size_\w+ \(entity_type=\? AND <expr>>\?"
        assert any(re.search(seek, step) for step in plan)


@pytest.mark.req("NEW-009")
@pytest.mark.parametrize(
    "ask",
    [
        lambda items: items.max(Item.plain),
        lambda items: items.sum(Item.plain),
        lambda items: items.count_where(Item.plain > 0),
        lambda items: items.where(Item.plain > 0).count(),
        lambda items: items.group_by(Item.plain).agg(n=count()),
        lambda items: items.order_by(Item.plain).collect(),
    ],
    ids=["max", "sum", "count-where", "count", "groups", "order"],
)
def test_a_question_about_other_fields_reads_the_table_and_no_index(store, watch, ask):
    items = store.query().entities(Item)

    plan = watch.plan(lambda: ask(items))

    assert "SEARCH e USING PRIMARY KEY (entity_type=?)" in plan


@pytest.mark.req("NEW-009")
def test_a_count_of_all_reads_the_shortest_index(store, watch):
    plan = watch.plan(store.query().entities(Item).count)

    assert any(step.startswith("SEARCH e USING COVERING") for step in plan)


@pytest.mark.req("NEW-009")
@pytest.mark.parametrize("field", ["name", "size", "made", "color"])
@pytest.mark.parametrize("condition", [None, Item.plain == 0], ids=["all", "filtered"])
def test_groups_by_an_indexed_field_come_from_its_index_in_order(store, watch, field, condition):
    items = store.query().entities(Item)
    items = items if condition is None else items.where(condition)
    groups = items.group_by(getattr(Item, field)).having(count() > 0)

    plan = watch.plan(lambda: groups.agg(n=count()))

    assert any(re.search(rf"idx_entity_Item_{field}_\w+ \(entity_type=\?\)", step) for step in plan)
    assert sorts(plan) == []


def pages(watch, action):
    """How many pages of the file the statements of `action` look at, one many times included."""
    watch.statements(action)
    [connection] = {cursor.connection for cursor, _, _ in watch.seen}
    connection.status(apsw.SQLITE_DBSTATUS_CACHE_HIT, True)
    action()
    return connection.status(apsw.SQLITE_DBSTATUS_CACHE_HIT)[0]


@pytest.mark.req("NEW-009")
@pytest.mark.parametrize(
    "ask",
    [
        lambda items: items.group_by(Item.size).agg(n=count()),
        lambda items: items.where(Item.size >= 0).group_by(Item.size).agg(n=count()),
        lambda items: items.where(Item.size >= 0).count(),
        lambda items: items.count_where(Item.size >= 0),
        lambda items: items.agg(a=least(Item.size), z=most(Item.size)),
    ],
    ids=["groups", "some-groups", "count", "count-where", "both-ends"],
)
def test_what_the_index_of_a_field_knows_is_answered_without_the_objects(
    watch, open_session, tmp_path, ask
):
    items = grown(open_session, "many", tmp_path, entities=300, versions=1)

    assert pages(watch, lambda: ask(items)) < 100  # and not one or more for each of them


@pytest.mark.req("NEW-009")
def test_the_least_and_the_greatest_of_an_indexed_field_are_at_its_ends(
    watch, open_session, tmp_path
):
    small = grown(open_session, "small", tmp_path, entities=10, versions=1)
    large = grown(open_session, "large", tmp_path, entities=300, versions=1)

    for ask in (lambda query: query.min(Item.name), lambda query: query.max(Item.made)):
        cost = watch.work(lambda: ask(small))  # noqa: B023 - it is called at once
        assert watch.work(lambda: ask(large)) == cost  # noqa: B023


@pytest.mark.req("NEW-009")
def test_the_work_for_an_indexed_filter_follows_what_is_found(watch, open_session, tmp_path):
    small = grown(open_session, "small", tmp_path, entities=10, versions=1)
    large = grown(open_session, "large", tmp_path, entities=300, versions=1)
    conditions = [
        Item.size == -1, Item.size > 99, Item.name.startswith("x"), Item.price > 5,
        Item.price.in_([1, 2]), Item.made > NOON, Item.name.in_(["x", "y"]),
    ]  # fmt: skip

    for condition in conditions:
        cost = watch.work(small.where(condition).collect)
        assert watch.work(large.where(condition).collect) == cost, condition


@pytest.mark.req("NEW-009")
def test_an_index_is_used_by_a_session_that_did_not_make_it(store, watch, open_session):
    other = open_session()

    plan = watch.plan(other.query().entities(Item).where(Item.name == "n1").collect)

    assert any("idx_entity_Item_name" in step for step in plan)


@pytest.mark.req("NEW-009", "NEW-140")
@pytest.mark.parametrize("condition", ["name", "price", "made"])
def test_an_index_of_a_new_field_finds_the_objects_that_lack_it(watch, open_session, condition):
    older = type(Entity)("Item", (Entity,), {"__annotations__": {"id": Field[str]}})
    before = open_session(entity_types=[older])
    before.ensure(older(id=f"i{n}") for n in range(3))
    before.commit()
    session = open_session(entity_types=[Item])
    session.migrate(dry_run=False, force=True)
    field = getattr(Item, condition)
    asked = session.query().entities(Item).where(field == Item(id="x").__dict__[condition])

    plan = watch.plan(open_session(entity_types=[Item]).query().entities(Item).where(
        field == Item(id="x").__dict__[condition]
    ).collect)  # fmt: skip

    assert len(asked.collect()) == 3
    assert any(f"USING INDEX idx_entity_Item_{condition}" in step for step in plan), plan
    assert scans(plan) == []


# -- relations ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "seek"),
    [
        (Holds.right_key == "i1", "idx_relation_latest_right (relation_type=? AND right_key=?)"),
        (
            Holds.right_key.in_(["i1"]),
            "idx_relation_latest_right (relation_type=? AND right_key=?)",
        ),
        (right(Holds).id == "i1", "idx_relation_latest_right (relation_type=? AND right_key=?)"),
        (Holds.left_key == "1", "PRIMARY KEY (relation_type=? AND left_key=?)"),
        (left(Holds).number == 1, "PRIMARY KEY (relation_type=? AND left_key=?)"),
        (
            (Holds.left_key == "1") & (Holds.right_key == "i1") & (Holds.place == 1),
            "PRIMARY KEY (relation_type=? AND left_key=? AND right_key=? AND instance_key=?)",
        ),
        (Holds.weight > 1, "(relation_type=? AND <expr>>?)"),
        (right(Holds).name == "n1", "(entity_type=? AND <expr>=?)"),
    ],
    ids=["right", "right-in", "right-end", "left", "left-end", "all", "field", "field-of-end"],
)
def test_relations_are_found_by_either_end_and_by_indexed_fields(store, watch, condition, seek):
    plan = watch.plan(store.query().relations(Holds).where(condition).collect)

    assert any(seek in step for step in plan), plan
    assert scans(plan) == []


def test_a_step_of_a_walk_is_a_seek_in_both_directions(store, watch):
    boxes, items = store.query().entities(Box), store.query().entities(Item)

    forward = watch.plan(boxes.where(Box.number == 1).via(Holds).collect)
    backward = watch.plan(items.where(Item.id == "i1").via(Holds).collect)

    assert any("PRIMARY KEY (relation_type=? AND left_key=?)" in step for step in forward)
    assert any("idx_relation_latest_right" in step for step in backward)
    assert scans(forward) == scans(backward) == []


# -- looking back ---------------------------------------------------------------------------------


def test_changes_between_commits_are_found_by_commit_and_by_key(store, watch):
    store.ensure(Item(id="i1", size=9))
    store.commit()

    for plan in (
        watch.plan(lambda: store.diff(1, 2)),
        watch.plan(lambda: store.list_commit_changes(2)),
    ):
        for kind in ("entity", "relation"):
            assert any(f"idx_{kind}_history_commit (commit_id>?" in step for step in plan)
            assert any(f"idx_{kind}_history_lookup" in step for step in plan)
        assert [step for step in scans(plan) if "history" in step] == []


def test_a_diff_costs_what_changed_and_not_what_is_stored(watch, open_session, tmp_path):
    def cost(name, entities):
        session = open_session(uri=str(tmp_path / f"{name}.db"))
        session.ensure(Item(id=f"i{n}") for n in range(entities))
        session.commit()
        session.ensure(Item(id="i1", size=1))
        session.commit()
        return watch.work(lambda: session.diff(1, 2))

    assert cost("small", 3) == cost("large", 300)


# -- the printed queries --------------------------------------------------------------------------


@pytest.fixture
def explain(store, path):
    def ask(sql, *bindings):
        connection = apsw.Connection(str(path))
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)]
        connection.close()
        return plan

    return ask


@pytest.mark.req("SQL-105")
def test_the_printed_query_for_the_latest_entities_uses_the_lookup_index(explain):
    plan = explain(
        """SELECT eh.entity_key, eh.fields_json, eh.commit_id
        FROM entity_history eh
        INNER JOIN (
            SELECT entity_key, MAX(commit_id) as max_cid
            FROM entity_history WHERE entity_type = ? GROUP BY entity_key
        ) latest ON eh.entity_key = latest.entity_key AND eh.commit_id = latest.max_cid
        WHERE eh.entity_type = ?""",
        "Item", "Item",
    )  # fmt: skip

    assert any("idx_entity_history_lookup" in step for step in plan)
    assert not any(re.match("SCAN (eh|entity_history)", step) for step in plan)


@pytest.mark.req("SQL-106")
def test_the_printed_point_lookup_is_a_seek_without_a_sort(explain):
    plan = explain(
        "SELECT fields_json, commit_id FROM entity_history "
        "WHERE entity_type = ? AND entity_key = ? ORDER BY commit_id DESC LIMIT 1",
        "Item", "i1",
    )  # fmt: skip

    [step] = plan
    assert step.startswith("SEARCH entity_history USING INDEX idx_entity_history_lookup")


# -- how many statements --------------------------------------------------------------------------


def connected(session, number):
    """So many relations, each with ends of its own."""
    session.ensure(Customer(id=f"c{n}", name=str(n)) for n in range(number))
    session.ensure(Product(sku=f"p{n}", price=n) for n in range(number))
    session.ensure(
        Subscription(left_key=f"c{n}", right_key=f"p{n}", seats=1) for n in range(number)
    )
    session.commit()
    return session


@pytest.mark.req("NEW-008")
@pytest.mark.parametrize("rows", [1, 60])
@pytest.mark.parametrize("as_of", [None, 1], ids=["now", "then"])
def test_relations_and_their_ends_are_read_in_one_statement(watch, open_session, rows, as_of):
    query = connected(open_session(), rows).query().relations(Subscription)
    query = query if as_of is None else query.as_of(as_of)

    def read():
        return [(r.left.name, r.right.price) for r in query.collect()]

    assert len(watch.statements(read)) == 1
    assert len(read()) == rows


@pytest.mark.req("NEW-008")
@pytest.mark.parametrize("rows", [1, 60])
@pytest.mark.parametrize("as_of", [None, 1], ids=["now", "then"])
def test_a_walk_is_one_statement(watch, open_session, rows, as_of):
    query = connected(open_session(), rows).query().entities(Customer).via(Subscription)
    query = query if as_of is None else query.as_of(as_of)

    def read():
        return [
            (p.source.name, p.relations[0].left.id, p.relations[0].right.sku)
            for p in query.collect()
        ]

    assert len(watch.statements(read)) == 1
    assert len(read()) == rows


@pytest.mark.req("NEW-010")
def test_a_commit_of_many_objects_takes_as_many_statements_as_one_of_few(watch, open_session):
    session = open_session()

    def commit(number, seats):
        connected(session, 1)  # so that types and indexes are there
        session.ensure(Customer(id=f"c{n}", name="x", tier=str(seats)) for n in range(number))
        session.ensure(Product(sku=f"q{seats}-{n}", price=1) for n in range(number))
        session.ensure(
            Subscription(left_key=f"c{n}", right_key="p", seats=seats) for n in range(number)
        )
        session.delete(Product(sku=f"q{seats - 1}-{n}", price=1) for n in range(number))
        with watch.at():
            session.commit()
        return len({id(cursor) for cursor, _, _ in watch.seen}), len(watch.seen)

    commit(5, seats=1)
    few, rows_few = commit(5, seats=2)
    many, rows_many = commit(400, seats=3)

    assert few == many
    assert rows_few < rows_many  # rows are written one by one, with one prepared statement


@pytest.mark.req("NEW-010")
def test_a_commit_of_unchanged_objects_takes_as_many_statements_as_one_of_few(watch, open_session):
    session = connected(open_session(), 300)

    def commit(number):
        session.ensure(Customer(id=f"c{n}", name=str(n)) for n in range(number))
        with watch.at():
            assert session.commit() is None
        return len(watch.seen)

    commit(1)  # the first one looks at the types; after it only a change of any schema is seen
    assert commit(5) == commit(300)
    # Up to four objects are looked up one by one, which is faster than a list of them.
    assert [commit(n) - commit(1) for n in (2, 3, 4)] == [1, 2, 3]


# -- a commit is one transaction ------------------------------------------------------------------


@pytest.mark.req("SQL-057")
def test_a_commit_begins_immediate_writes_its_row_and_then_the_history(store, watch):
    store.ensure([Item(id="new"), Holds(left_key=1, right_key="new", place=1)])
    with watch.at():
        store.commit()
    texts = [sql.partition("(")[0].strip() for _, sql, _ in watch.seen]

    writes = [text for text in texts if re.match("BEGIN|COMMIT|ROLLBACK|INSERT", text)]

    assert writes[:2] == ["BEGIN IMMEDIATE", "INSERT INTO commits"]
    assert writes.index("INSERT INTO entity_history") < writes.index("INSERT INTO relation_history")
    assert writes[-1] == "COMMIT"
    assert [text for text in writes if not text.startswith("INSERT")] == [
        "BEGIN IMMEDIATE",
        "COMMIT",
    ]


@pytest.mark.req("SQL-057")
def test_a_commit_that_fails_is_rolled_back(store, watch, sql):
    sql(
        "CREATE TRIGGER refuse BEFORE INSERT ON relation_history "
        "BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    store.ensure([Item(id="new"), Holds(left_key=1, right_key="new", place=1)])

    with watch.at(), pytest.raises(DatabaseError):
        store.commit()

    texts = [text for _, text, _ in watch.seen]
    assert (texts[0], texts[-1]) == ("BEGIN IMMEDIATE", "ROLLBACK")
    assert any(text.startswith("INSERT INTO commits") for text in texts)


# -- what a caller gives is bound -----------------------------------------------------------------


class Loose(Entity):
    __open__ = True

    id: Field[str]


@pytest.mark.req("SQL-039")
def test_no_value_and_no_path_of_a_caller_stands_in_the_text_of_a_statement(watch, open_session):
    session = connected(open_session(), 2)
    query = session.query().entities(Customer)
    unusual = "zq9x"
    conditions = [
        Customer.id == unusual, Customer.name == unusual, Customer.tier.in_([unusual]),
        Customer.name.startswith(unusual), Customer.name.endswith(unusual),
        Customer.name.contains(unusual), Customer.name.like(unusual), Customer.name.ilike(unusual),
        Customer.profile[unusual] == unusual, Customer.profile.path(f"a.{unusual}") > 1,
        Customer.profile["list"].any_path(unusual) == unusual, Customer.profile[unusual].is_null(),
    ]  # fmt: skip

    loose = session.query().entities(Loose)
    questions = [
        *(query.where(condition) for condition in conditions),
        loose.where(Loose.__shape__.expression(unusual) == 1),
        loose.order_by(Loose.__shape__.expression(unusual)),
    ]

    for asked in questions:
        for question in (asked, asked.as_of(1)):
            texts = watch.statements(question.collect)
            assert not any(unusual in text for text in texts)
            assert any(unusual in str(bindings) for _, _, bindings in watch.seen)
