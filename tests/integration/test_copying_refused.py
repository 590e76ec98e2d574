"""Copies that are refused, with what was found and nothing changed."""

from __future__ import annotations

from contextlib import closing

import apsw
import pytest

from ontologia import Session
from ontologia.errors import CopyError, DatabaseError, StoreOpenError
from ontologia.store.copying import copy_store
from tests.integration.moving import contents, fill, tables
from tests.integration.test_copying import both_ways, every_route
from tests.shop import Customer, Subscription


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_source_that_does_not_exist_is_refused_and_nothing_is_made(
    kind, place, tmp_path, ask_store
):
    source, target = place(kind), place("sqlite")

    with pytest.raises(CopyError, match=r"no store to copy .* nothing was created"):
        copy_store(source, target)

    assert list(tmp_path.iterdir()) == []
    if kind == "postgres":
        schema = source.partition("schema=")[2]
        asked = f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema}'"
        assert ask_store(source, asked) == []


@pytest.mark.parametrize("uri", [":memory:", "sqlite://"])
def test_a_store_in_memory_is_neither_source_nor_target(uri, place, tmp_path, clock):
    with pytest.raises(CopyError, match="no store to copy"):
        copy_store(uri, place("sqlite"))
    source = place("sqlite")
    fill(source, clock, commits=1)

    with pytest.raises(CopyError, match="gone with this call"):
        copy_store(source, uri)


def test_somebody_elses_file_is_no_source_and_stays_as_it_is(tmp_path, place):
    theirs = tmp_path / "theirs.db"
    with closing(apsw.Connection(str(theirs))) as database:
        database.execute("CREATE TABLE notes(text)")
    before = theirs.read_bytes()

    with pytest.raises(CopyError, match="no tables of Ontologia"):
        copy_store(str(theirs), place("sqlite"))

    assert theirs.read_bytes() == before
    assert list(tmp_path.iterdir()) == [theirs]


def test_a_file_that_is_no_database_is_refused(tmp_path, place):
    (tmp_path / "letter.txt").write_text("Dear reader, " * 1000)

    with pytest.raises(StoreOpenError):
        copy_store(str(tmp_path / "letter.txt"), place("postgres"))


def test_a_damaged_file_is_an_error_of_ours(place, clock):
    source = place("sqlite")
    fill(source, clock)
    path = source.removeprefix("sqlite:///")
    with open(path, "r+b") as file:  # the first page is whole, so that it is taken for a store
        size = file.seek(0, 2)
        for page in range(8, size // 4096):
            file.seek(page * 4096)
            file.write(b"\xff" * 4096)

    with pytest.raises(DatabaseError):
        copy_store(source, place("sqlite"))


@every_route
def test_a_target_that_is_not_empty_is_refused_and_says_what_is_in_it(
    route, place, clock, ask_store
):
    source, target = place(route[0]), place(route[1])
    fill(source, clock, commits=1)
    fill(target, clock, commits=2, seed=8)
    before = contents(ask_store, target)

    with pytest.raises(CopyError, match=r"is not empty.* 2 in commits, .* 1 in dead_letters"):
        copy_store(source, target)

    assert contents(ask_store, target) == before
    assert "ontologia_copy" not in tables(ask_store, target)


@both_ways
def test_a_target_that_somebody_opened_and_left_is_empty_enough(route, place, clock, ask_store):
    source, target = place(route[0]), place(route[1])
    fill(source, clock, commits=1)
    Session(target).close()

    copy_store(source, target)

    assert contents(ask_store, target) == contents(ask_store, source)


def test_a_file_is_not_copied_into_itself_by_another_name(place, tmp_path, clock):
    source = place("sqlite")
    fill(source, clock, commits=1)
    link = tmp_path / "link.db"
    link.symlink_to(source.removeprefix("sqlite:///"))

    for target in (source, str(link)):
        with pytest.raises(CopyError, match="is the source and the target"):
            copy_store(source, target)


def test_a_schema_is_not_copied_into_itself_by_another_name(place, clock):
    source = place("postgres")
    fill(source, clock, commits=1)

    for target in (source, source.replace("127.0.0.1", "localhost")):
        with pytest.raises(CopyError, match="is the source and the target"):
            copy_store(source, target)


def test_another_schema_of_the_same_database_is_another_store(place, clock):
    source, target = place("postgres"), place("postgres")
    fill(source, clock, commits=1)

    assert copy_store(source, target).target != source


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_source_of_an_older_layout_is_to_be_opened_first(kind, place, clock, ask_store):
    source = place(kind)
    fill(source, clock, commits=1)
    ask_store(source, "UPDATE ontologia_layout SET version = version - 1")

    with pytest.raises(CopyError, match="layout") as refused:
        copy_store(source, place("sqlite"))

    assert "Session(uri)" in refused.value.hint


def test_what_postgresql_cannot_hold_is_named(place, clock, ask_store):
    """Files that others wrote may hold more than Ontologia lets in."""
    source, target = place("sqlite"), place("postgres")
    fill(source, clock, commits=1)
    ask_store(source, "UPDATE commits SET metadata_json = 'a' || char(0) || 'b' WHERE id = 1")

    with pytest.raises(CopyError, match="does not take a row of commits"):
        copy_store(source, target)


@pytest.mark.parametrize(
    "made",
    [
        Customer(id="界" * 700, name="Ada"),
        Subscription(left_key="l" * 1_500, right_key="r" * 600, seats=1),
    ],
    ids=["entity", "relation"],
)
def test_a_key_that_postgresql_may_not_hold_is_named_before_anything_is_made(
    place, ask_store, monkeypatch, made
):
    source, target = place("sqlite"), place("postgres")
    with monkeypatch.context() as earlier, Session(source) as session:
        earlier.setattr("ontologia.store.key_length.LONGEST_KEY", 10_000)
        session.ensure(made)
        session.commit()
        session.delete(made)
        session.commit()

    with pytest.raises(CopyError, match=r"more than 2,000 bytes.*nothing was changed"):
        copy_store(source, target)

    schema = target.partition("schema=")[2]
    assert ask_store(target, f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema}'") == []
    copy_store(source, place("sqlite"))


def test_a_value_that_is_no_text_is_named(place, clock, ask_store):
    source, target = place("sqlite"), place("postgres")
    fill(source, clock, commits=1)
    ask_store(source, "UPDATE sessions SET metadata = x'ff00'")

    with pytest.raises(CopyError, match="row 1 of sessions"):
        copy_store(source, target)
