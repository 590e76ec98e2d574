"""Opening, using and closing a session: one step, any thread, nothing left behind."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import socket
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib import resources

import apsw
import pytest

from ontologia import Entity, Field, OntologiaConfig, Relation, Session
from ontologia.clock import to_text
from ontologia.errors import (
    BatchSizeExceededError,
    DefinitionError,
    InvalidValueError,
    LockContentionError,
    OntologiaError,
    SessionClosedError,
    StoreOpenError,
)
from ontologia_conformance.backends import SQLITE
from tests.shop import Customer, Product, Subscription

pytestmark = pytest.mark.each_database


class Numbered(Entity):
    number: Field[int] = Field(primary_key=True)


def _ids(session):
    return [customer.id for customer in session.query().entities(Customer).collect()]


# -- opening -------------------------------------------------------------------------------------


@pytest.mark.req("ONT-002")
def test_a_uri_is_all_a_session_needs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    session = Session(datastore_uri="sqlite:///app.db")
    session.ensure(Customer(id="c1", name="Ada"))

    assert session.commit() == 1
    assert _ids(session) == ["c1"]
    session.close()


@pytest.mark.req("ONT-003")
def test_the_constructor_takes_two_arguments_by_place_and_the_rest_by_name(uri):
    parameters = list(inspect.signature(Session).parameters.values())

    places = [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    names = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    assert places == [("datastore_uri", inspect.Parameter.empty), ("namespace", None)]
    assert {"entity_types", "relation_types", "instance_metadata", "config"} <= names.keys()
    assert set(names.values()) == {None}
    with pytest.raises(TypeError, match="positional"):
        Session(uri, "tenant", [Customer])


@pytest.mark.req("ONT-006")
@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("sqlite:///app.db", "app.db"),
        ("sqlite:///deep/app.db", "deep/app.db"),
        ("app.db", "app.db"),
        ("deep/app.db", "deep/app.db"),
        ("sqlite:///a b.db", "a b.db"),
        ("SQLite:///app.db", "app.db"),
    ],
)
def test_three_slashes_or_a_bare_path_are_relative(tmp_path, monkeypatch, given, place):
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path)

    with Session(given) as session:
        session.ensure(Customer(id="c1", name="Ada"))

    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [tmp_path / place]


@pytest.mark.req("ONT-006")
def test_four_slashes_are_absolute(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    for number, given in enumerate((f"sqlite:///{tmp_path}/0.db", tmp_path / "1.db")):
        Session(given).close()
        assert (tmp_path / f"{number}.db").is_file()

    assert str(tmp_path).startswith("/")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.req("ONT-006")
@pytest.mark.parametrize("given", ["mysql://host/app", "s3://bucket/app", "sqlite+aio:///app.db"])
def test_a_scheme_nobody_handles_is_refused_at_once(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(StoreOpenError, match=re.escape(given.split("//")[0])):
        Session(given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", ["", "sqlite://app.db", "a\0b", ".", "missing/app.db"])
def test_what_names_no_database_is_refused_and_makes_no_file(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(StoreOpenError):
        Session(given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", ["sqlite://", "sqlite:///:memory:", ":memory:"])
def test_a_database_in_memory_is_the_session_s_own_and_makes_no_file(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)

    with Session(given) as one, Session(given) as other:
        one.ensure(Customer(id="c1", name="Ada"))
        one.commit()

        assert _ids(one) == ["c1"]
        assert _ids(other) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.req("ONT-005")
@SQLITE
def test_opening_makes_every_table_and_opening_again_keeps_everything(open_session, sql):
    layout = resources.files("ontologia.store.sqlite").joinpath("sql/layout.sql").read_text()
    tables = set(re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", layout))

    first = open_session(entity_types=[Customer])
    made = {name for [name] in sql("SELECT name FROM sqlite_master WHERE type = 'table'")}
    first.ensure(Customer(id="c1", name="Ada"))
    first.commit()
    first.close()
    again = open_session(entity_types=[Customer])

    assert {"commits", "entity_history", "relation_history", "sessions", "locks"} <= tables
    assert {"schema_registry", "schema_versions"} <= tables <= made
    assert (_ids(again), again.head) == (["c1"], 1)
    assert sql("SELECT count(*) FROM schema_versions") == [[1]]


def test_a_session_that_cannot_be_made_leaves_the_file_free(uri, path):
    for wrong in (
        {"entity_types": [Subscription]},
        {"relation_types": [Customer]},
        {"entity_types": [Entity]},
        {"instance_metadata": {"clock": object()}},
    ):
        with pytest.raises((DefinitionError, InvalidValueError)):
            Session(uri, **wrong)

    with Session(uri) as session:
        session.ensure(Customer(id="c1", name="Ada"))
    assert not path.with_name(path.name + "-wal").exists()


# -- who it is -----------------------------------------------------------------------------------


@pytest.mark.req("ONT-007")
def test_every_session_has_an_id_of_its_own(open_session):
    ids = [open_session().session_id for _ in range(5)]

    assert len(set(ids)) == 5
    assert [str(uuid.UUID(each)) for each in ids] == ids


@pytest.mark.req("ONT-008", "ONT-009")
def test_a_session_is_written_down_when_it_opens(open_session, clock, sql):
    session = open_session(namespace="tenant-a")

    [row] = sql("SELECT session_id, namespace, started_at, last_heartbeat, metadata FROM sessions")

    now = to_text(clock.now())
    assert row[:4] == [session.session_id, "tenant-a", now, now]
    metadata = json.loads(row[4])
    assert (metadata["hostname"], metadata["pid"]) == (socket.gethostname(), os.getpid())


@pytest.mark.req("ONT-009")
def test_metadata_of_the_caller_is_kept_and_wins(open_session, sql):
    open_session(instance_metadata={"hostname": "host-1", "pid": 1234, "zone": {"name": "eu"}})
    open_session(instance_metadata={"hostname": "host-2"})

    rows = [json.loads(row) for [row] in sql("SELECT metadata FROM sessions")]

    first, second = sorted(rows, key=lambda row: row["hostname"])
    assert first == {"hostname": "host-1", "pid": 1234, "zone": {"name": "eu"}}
    assert second == {"hostname": "host-2", "pid": os.getpid()}


def test_closing_marks_the_row_as_stopped_and_keeps_when_it_started(open_session, clock, sql):
    session = open_session()
    started = to_text(clock.now())
    clock.advance(seconds=60)

    session.close()

    [[at, beat, metadata]] = sql("SELECT started_at, last_heartbeat, metadata FROM sessions")
    assert (at, beat) == (started, to_text(clock.now()))
    assert json.loads(metadata)["stopped_at"] == to_text(clock.now())


@pytest.mark.req("ONT-010", "ONT-011")
def test_the_namespace_is_the_argument_else_the_setting_else_default(open_session, uri):
    tenant = {"default_namespace": "tenant-a"}

    with Session(uri) as plain:
        assert plain.namespace == "default"
    assert open_session(settings={}).namespace == "default"
    assert open_session(settings=tenant).namespace == "tenant-a"
    assert open_session(settings=tenant, namespace="tenant-b").namespace == "tenant-b"


@pytest.mark.parametrize("namespace", ["", "x" * 201, 5, "a\0b"])
def test_a_namespace_follows_the_rule_of_the_setting(uri, namespace):
    with pytest.raises(OntologiaError, match="namespace"):
        Session(uri, namespace).close()


# -- types ---------------------------------------------------------------------------------------


@pytest.mark.req("ONT-012")
def test_listed_types_are_registered_at_once_and_others_at_first_use(open_session, sql):
    registered = "SELECT type_kind, type_name FROM schema_registry ORDER BY 1, 2"

    session = open_session(entity_types=[Product], relation_types=[Subscription])
    listed = sql(registered)
    session.ensure(Customer(id="c1", name="Ada"))
    session.commit()

    assert listed == [["entity", "Product"], ["relation", "Subscription"]]
    assert sql(registered) == [["entity", "Customer"], *listed]


def test_two_classes_of_one_name_cannot_share_a_session(open_session):
    session = open_session(entity_types=[Customer])
    other = type(Entity)("Customer", (Entity,), {"__annotations__": {"id": Field[str]}})

    with pytest.raises(DefinitionError, match="two classes are called Customer"):
        session.ensure(other(id="c1"))


@pytest.mark.req("SQL-012")
def test_a_row_names_the_class_and_holds_the_key_as_text(session, sql):
    session.ensure([Numbered(number=1), Customer(id="c1", name="Ada")])
    session.commit()

    rows = sql(
        "SELECT entity_type, entity_key, fields_json FROM entity_history ORDER BY entity_type"
    )

    assert [row[:2] for row in rows] == [["Customer", "c1"], ["Numbered", "1"]]
    assert json.loads(rows[1][2])["number"] == 1


# -- leaving -------------------------------------------------------------------------------------


def test_leaving_commits_what_is_queued_and_closes(uri):
    with Session(uri) as session:
        session.ensure(Customer(id="c1", name="Ada"))

    with pytest.raises(SessionClosedError):
        session.commit()
    with Session(uri) as again:
        assert (_ids(again), again.head) == (["c1"], 1)


def test_leaving_by_an_exception_writes_nothing_and_closes(uri):
    def work(session):
        with session:
            session.ensure(Customer(id="c1", name="Ada"))
            raise KeyError("the reason")

    session = Session(uri)
    with pytest.raises(KeyError, match="the reason"):
        work(session)

    with pytest.raises(SessionClosedError):
        session.commit()
    with Session(uri) as again:
        assert (_ids(again), again.head) == ([], 0)


def test_a_commit_that_fails_on_leaving_is_heard_and_the_session_closed(uri):
    tight = OntologiaConfig(max_batch_size=1)

    with pytest.raises(BatchSizeExceededError), Session(uri, config=tight) as session:
        session.ensure([Customer(id="c1", name="Ada"), Customer(id="c2", name="Bob")])

    assert "closed" in repr(session)
    with pytest.raises(SessionClosedError):
        _ = session.head


def test_closing_twice_or_inside_the_block_is_nothing(uri):
    with Session(uri) as session:
        session.ensure(Customer(id="c1", name="Ada"))
        session.close()
        session.close()

    with Session(uri) as again:
        assert _ids(again) == []


USES = {
    "ensure": lambda session: session.ensure(Customer(id="c1", name="Ada")),
    "delete": lambda session: session.delete(Customer(id="c1", name="Ada")),
    "commit": lambda session: session.commit(),
    "dry run": lambda session: session.commit(dry_run=True),
    "query": lambda session: session.query(),
    "head": lambda session: session.head,
    "list_commits": lambda session: session.list_commits(),
    "get_commit": lambda session: session.get_commit(1),
    "commit_at": lambda session: session.commit_at(datetime.now(UTC)),
    "list_commit_changes": lambda session: session.list_commit_changes(1),
    "diff": lambda session: session.diff(0, 0),
    "validate": lambda session: session.validate(),
    "migrate": lambda session: session.migrate(),
    "with": lambda session: session.__enter__(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_closed_session_says_so(uri, use):
    session = Session(uri)
    session.close()

    with pytest.raises(SessionClosedError, match="closed"):
        use(session)


def test_a_question_put_before_closing_is_not_answered_after_it(uri):
    session = Session(uri)
    question = session.query().entities(Customer)
    session.close()

    with pytest.raises(SessionClosedError, match="closed"):
        question.collect()


@SQLITE
def test_closing_leaves_one_file_that_another_program_can_read(open_session, path, sql):
    session = open_session()
    session.ensure(Customer(id="c1", name="Ada"))
    session.commit()

    session.close()

    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert sql("SELECT count(*) FROM entity_history") == [[1]]


# -- settings ------------------------------------------------------------------------------------


@pytest.mark.req("ONT-113")
@SQLITE
def test_a_session_honours_the_settings_it_is_given(open_session, path):
    small = open_session(settings={"max_batch_size": 2, "lock_timeout_ms": 0})

    small.ensure([Customer(id=str(n), name="Ada") for n in range(3)])
    with pytest.raises(BatchSizeExceededError):
        small.commit()
    assert small.discard() == 3

    small.ensure(Customer(id="c1", name="Ada"))
    with contextlib.closing(apsw.Connection(str(path))) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LockContentionError) as caught:
            small.commit()

    assert caught.value.waited_ms < OntologiaConfig().lock_timeout_ms
    assert small.commit() == 1


# -- several at once -----------------------------------------------------------------------------


def test_a_session_is_used_from_threads_it_was_not_made_in(open_session):
    session = open_session()
    seen = []

    def work():
        session.ensure(Customer(id="c1", name="Ada"))
        seen.append((session.commit(), _ids(session), session.head))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert seen == [(1, ["c1"], 1)]
    assert _ids(session) == ["c1"]


def test_threads_of_one_session_lose_nothing(session):
    def work(thread):
        for number in range(20):
            session.ensure(Customer(id=f"{thread}-{number}", name="Ada"))
            session.commit()
            session.query().entities(Customer).count()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))

    assert session.query().entities(Customer).count() == 160
    changes = [len(session.list_commit_changes(n + 1)) for n in range(session.head)]
    assert sum(changes) == 160


def test_two_sessions_on_one_file_see_each_other_s_commits(open_session):
    one, other = open_session(namespace="a"), open_session(namespace="b")

    one.ensure(Customer(id="c1", name="Ada"))
    one.commit()
    before = _ids(other)
    other.delete(Customer(id="c1", name="Ada"))
    other.commit()

    assert before == ["c1"]
    assert (_ids(one), one.head) == ([], 2)
    assert [commit["metadata"]["namespace"] for commit in one.list_commits()] == ["b", "a"]


def test_sessions_of_different_namespaces_commit_at_once_without_a_locked_database(open_session):
    sessions = [open_session(namespace=f"n{number}") for number in range(4)]

    def work(session):
        for number in range(20):
            session.ensure(Customer(id=f"{session.namespace}-{number}", name="Ada"))
            session.commit()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, sessions))

    assert sessions[0].head == 80
    assert sessions[0].query().entities(Customer).count() == 80


def test_a_relation_s_class_may_be_used_without_listing_its_ends(session):
    class Rents(Relation[Customer, Product]):
        pass

    session.ensure([Customer(id="c1", name="Ada"), Product(sku="p1", price=1.0)])
    session.ensure(Rents(left_key="c1", right_key="p1"))
    session.commit()

    [rents] = session.query().relations(Rents).collect()

    assert (rents.left.name, rents.right.price) == ("Ada", 1.0)
    assert rents.meta().commit_id == 1
