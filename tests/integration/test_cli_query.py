"""`ontologia query`: what a program with classes would be told, without any."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from decimal import Decimal

import pytest
from typer.testing import CliRunner

from ontologia import Entity, Field, Relation
from ontologia.cli.main import app
from ontologia.errors import NotFoundError
from ontologia.query.paging import stream
from ontologia.runtime.stored import StoredTypes
from tests.integration.explained import Customer, Product, fill
from tests.integration.test_cli_explain import on_a_terminal

ONTOLOGIA = [sys.executable, "-m", "ontologia"]


@pytest.fixture
def run(uri):
    runner = CliRunner()
    return lambda *words: runner.invoke(app, ["query", *words, "--datastore-uri", uri])


@pytest.fixture
def shop(session, clock):
    fill(session, clock)
    return session


@pytest.fixture
def ask(run, shop):
    """The keys of what is found."""

    def keys(*words):
        done = run(*words, "--json")
        assert done.exit_code == 0, done.stderr
        rows = map(json.loads, done.stdout.splitlines())
        return [row.get("key") or f"{row['left']}:{row['right']}" for row in rows]

    return keys


# -- classes from what is stored ------------------------------------------------------------------


def test_types_are_found_by_name_and_are_the_stored_ones(open_session, shop):
    other = open_session()
    types = StoredTypes.of(other)
    customer, buys = types.entity("Customer"), types.relation("Buys")

    [found] = other.query().relations(buys).where(buys.pieces == 7).collect()

    assert buys.__shape__.end("left").cls is customer
    assert (found.left.name, found.right.price) == ("Ada", Decimal(1))
    other.validate()


def test_an_object_written_with_such_a_class_is_the_same_object(open_session, shop):
    other = open_session()
    types = StoredTypes.of(other)
    for cls in (types.entity("Customer"), types.entity("Product")):
        other.ensure(other.query().entities(cls).collect())
    for cls in (types.relation("Buys"), types.relation("Note")):
        other.ensure(other.query().relations(cls).collect())

    assert other.commit() is None

    changed = types.entity("Product")(number=9, price="0.50", since=None)
    other.ensure(changed)
    assert other.commit() == 4
    assert shop.query().entities(Product).where(Product.number == 9).first().price == Decimal(
        "0.50"
    )


def test_a_session_that_knows_the_class_uses_it(shop):
    assert StoredTypes.of(shop).entity("Customer") is Customer


def test_a_relation_may_name_a_type_of_which_nothing_was_stored(open_session, session):
    class Phantom(Entity):
        id: Field[str]

    class Scares(Relation[Phantom, Phantom]):
        loud: Field[bool]

    session.ensure(Scares(left_key="a", right_key="b", loud=True))
    session.commit()
    other = open_session()

    haunts = StoredTypes.of(other).relation("Scares")

    [found] = other.query().relations(haunts).collect()
    assert (found.left_key, found.loud) == ("a", True)


def test_an_unknown_type_is_not_found(shop):
    types = StoredTypes.of(shop)

    with pytest.raises(NotFoundError, match="no entity Buy") as caught:
        types.entity("Buy")
    assert caught.value.hint == "There is Customer, Product."
    with pytest.raises(NotFoundError, match="no relation Customer"):
        types.relation("Customer")


# -- pages ----------------------------------------------------------------------------------------


class Thing(Entity):
    number: Field[int] = Field(primary_key=True)
    colour: Field[str]


class Near(Relation[Thing, Thing]):
    kind: Field[str] = Field(instance_key=True)


@pytest.fixture
def things(session):
    session.ensure([Thing(number=n, colour="br"[n % 2]) for n in range(23)])
    session.ensure(
        [Near(left_key=str(n % 3), right_key=str(n % 5), kind=str(n % 4)) for n in range(60)]
    )
    session.commit()
    session.ensure([Thing(number=n, colour="x") for n in range(0, 23, 5)])
    session.commit()
    return session


@pytest.mark.parametrize("size", [1, 3, 23, 100])
@pytest.mark.parametrize(
    "asked",
    [
        lambda q: q.entities(Thing),
        lambda q: q.entities(Thing).where(Thing.colour == "r").offset(2),
        lambda q: q.entities(Thing).limit(7).offset(3),
        lambda q: q.entities(Thing).limit(0),
        lambda q: q.entities(Thing).order_by(Thing.colour.desc()).limit(10),
        lambda q: q.entities(Thing).as_of(1),
        lambda q: q.entities(Thing).with_history(),
        lambda q: q.relations(Near),
        lambda q: q.relations(Near).where(Near.kind != "2").limit(17),
        lambda q: q.relations(Near).history_since(0),
        lambda q: q.entities(Thing).via(Near).limit(20),
    ],
)
def test_pages_are_what_would_be_collected(things, asked, size):
    query = asked(things.query())

    assert list(stream(query, things.head, page=size)) == query.collect()


def test_what_is_written_between_two_pages_moves_nothing(things):
    pages = stream(things.query().entities(Thing), things.head, page=5)
    begun = [next(pages) for _ in range(5)]
    things.delete([Thing(number=n, colour="") for n in (0, 1, 10)])
    things.ensure(Thing(number=100, colour="new"))
    things.commit()

    numbers = [thing.number for thing in (*begun, *pages)]

    # In the order of keys as text: 0, 1, 10, 11, 12 were there already.
    assert len(numbers) == len(set(numbers)) == 23


def test_a_history_ends_where_it_was_when_it_was_asked_for(things):
    pages = stream(things.query().entities(Thing).with_history(), things.head, page=5)
    begun = [next(pages)]
    things.ensure(Thing(number=100, colour="new"))
    things.commit()

    assert len([*begun, *pages]) == 28


def test_a_long_answer_is_never_in_memory_as_a_whole(open_session):
    session = open_session(settings={"max_batch_size": 30_000})
    session.ensure(Thing(number=n, colour="grey" * 20) for n in range(20_000))
    session.commit()
    query = session.query().entities(Thing)

    tracemalloc.start()
    assert sum(1 for _ in stream(query, session.head)) == 20_000
    _, streamed = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    assert len(query.collect()) == 20_000
    _, collected = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert streamed * 5 < collected


# -- the command ----------------------------------------------------------------------------------


def test_a_pipe_gets_tabs(shop, uri):
    done = subprocess.run(
        [*ONTOLOGIA, "query", "entities", "Customer", "--datastore-uri", uri],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "id\tname\tprofile\ttier",
        'c1\tAda\t{"city":{"name":"Bern"}}\tgold',
        "c2\tBob\t{}\t5",
    ]


def test_a_terminal_gets_a_table(shop, uri):
    shown = on_a_terminal("query", "relations", "Buys", uri=uri)

    assert "─────" in shown
    assert "\tc1" not in shown
    assert [line.split() for line in shown.splitlines() if "c1" in line] == [["c1", "10", "7"]]


def test_json_has_an_object_a_line(run, shop):
    [line] = run("relations", "Note", "--json").stdout.splitlines()
    first, *_ = run("entities", "Product", "--json").stdout.splitlines()

    assert json.loads(line) == {
        "kind": "relation",
        "type": "Note",
        "left": "c1",
        "right": "c:2",
        "instance": "friend",
        "commit_id": 1,
        "fields": {"role": "friend", "text": "met in Bern"},
    }
    assert json.loads(first) == {
        "kind": "entity",
        "type": "Product",
        "key": "10",
        "commit_id": 1,
        "fields": {"number": 10, "price": "1", "since": None},
    }


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("entities", "Customer", "--filter", "tier", "eq", "gold"), ["c1"]),
        (("entities", "Customer", "--filter", "$.tier", "eq", "gold"), ["c1"]),
        (("entities", "Customer", "--filter", "$.tier == gold"), ["c1"]),
        (("entities", "Customer", "--filter", "tier", "eq", "5"), ["c2"]),
        (("entities", "Customer", "--filter", "profile.my way", "eq", "5"), []),
        (("entities", "Customer", "--filter", "tier eq 5"), ["c2"]),
        (("entities", "Customer", "--filter", "profile.city.name", "startswith", "B"), ["c1"]),
        (("entities", "Customer", "--filter", "profile.city", "is_null"), ["c2"]),
        (("entities", "Customer", "--filter", "id", "in", "c1,c2", "--filter", "name", "ne", "Ada"),
         ["c2"]),
        (("entities", "Product", "--filter", "price", "lt", "0.95"), ["9"]),
        (("entities", "Product", "--filter", "price", "gt", "-1"), ["10", "9"]),
        (("entities", "Product", "--filter", "number", "ge", "10"), ["10"]),
        (("entities", "Product", "--order-by", "number"), ["9", "10"]),
        (("entities", "Product", "--order-by", "number:desc", "--limit", "1"), ["10"]),
        (("entities", "Customer", "--offset", "1"), ["c2"]),
        (("entities", "Customer", "--as-of", "1", "--filter", "tier", "eq", "gold"), []),
        (("entities", "Customer", "--with-history"), ["c1", "c2", "c1"]),
        (("entities", "Customer", "--history-since", "1"), ["c1"]),
        (("relations", "Buys", "--filter", "left.tier", "eq", "gold", "--filter", "pieces", "gt", "5"),
         ["c1:10"]),
        (("relations", "Buys", "--filter", "right.price", "gt", "5"), []),
        (("relations", "Note", "--filter", "role", "eq", "friend"), ["c1:c:2"]),
    ],
)  # fmt: skip
def test_filters_orders_and_times_are_understood(ask, words, found):
    assert ask(*words) == found


def test_a_deletion_is_shown_in_the_history(run, shop):
    shop.delete(Customer(id="c2", name=""))
    shop.commit()

    done = run("entities", "Customer", "--history-since", "3")
    row = json.loads(run("entities", "Customer", "--history-since", "3", "--json").stdout)

    assert done.stdout.splitlines()[1] == "4\tyes\tc2\tBob\t{}\t5"
    assert (row["deleted"], row["fields"]["name"]) == (True, "Bob")


def test_ways_are_shown_step_by_step(run, shop):
    words = ("traverse", "Customer", "--via", "Buys", "--filter", "Buys.right.price", "gt", "0.5")

    assert run(*words).stdout.splitlines() == ["Customer\tBuys\tProduct", "c1\tpieces=7\t10"]
    way = json.loads(run(*words, "--json").stdout)
    assert (way["source"]["key"], way["relations"][0]["fields"]) == ("c1", {"pieces": 7})
    back = run("traverse", "Product", "--via", "Buys", "--via", "Note", "--filter", "Note.role",
               "eq", "friend")  # fmt: skip
    assert back.stdout.splitlines()[1] == "10\tpieces=7\tc1\trole=friend text=met in Bern\tc:2"


def test_counting_says_how_many(run, shop):
    assert run("entities", "Product", "--count").stdout == "2\n"
    assert json.loads(run("relations", "Buys", "--count", "--json").stdout) == {"count": 1}
    assert run("traverse", "Customer", "--via", "Buys", "--count").stdout == "1\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("entities", "Custmer"), 4, "the store knows no entity Custmer"),
        (("entities", "Buys"), 4, "the store knows no entity Buys"),
        (("traverse", "Customer", "--via", "Bys"), 4, "the store knows no relation Bys"),
        (("traverse", "Product", "--via", "Note"), 2, "does not start at Product"),
        (("entities", "Customer", "--filter", "age", "eq", "5"), 2, "Customer has no field 'age'"),
        (("entities", "Customer", "--filter", "age"), 2, "PATH OP VALUE"),
        (("entities", "Customer", "--filter", "tier", "near", "x"), 2, "'near' compares nothing"),
        (("entities", "Product", "--filter", "price", "eq", "x"), 2, "Product.price is Decimal"),
        (("entities", "Customer", "--order-by", "tier:up"), 2, "tier:desc"),
        (("entities", "Customer", "--limit", "1", "--count"), 2, "leave out --limit and --offset"),
        (("traverse", "Customer", "--via", "Buys", "--offset", "1", "--count"), 2, "leave out"),
        (("entities", "Customer", "--as-of", "99"), 4, "there is no commit 99"),
        (("entities", "Customer", "--as-of", str(2**70)), 4, "there is no commit 1180"),
        (("entities", "Customer", "--limit", "-1"), 2, "--limit"),
    ],
)
def test_what_is_not_there_or_not_understood_has_its_exit_code(run, shop, words, code, said):
    done = run(*words)

    assert done.exit_code == code
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_a_reader_that_has_seen_enough_is_no_error(things, uri):
    command = [*ONTOLOGIA, "query", "entities", "Thing", "--datastore-uri", uri]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        process.stdout.close()
        said = process.stderr.read()

    assert (said, process.returncode) == (b"", 141)
