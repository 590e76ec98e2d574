"""Copies that are broken off: the same call goes on, and half a store is never opened."""

from __future__ import annotations

import re

import pytest

from ontologia import Session
from ontologia.errors import CopyError, DatabaseError, StoreOpenError
from ontologia.store.copying import copy_store, transfer
from ontologia_conformance.servers import Postgres
from tests.integration.moving import contents, fill, open_post, tables
from tests.integration.processes import Process
from tests.integration.test_copying import both_ways, every_route
from tests.shop import Customer

COPY = """
from ontologia.store.copying import copy_store, transfer

transfer._MOST_ROWS = 3
copy_store(sys.argv[1], sys.argv[2], progress=lambda now: say(now.step, now.table))
say("finished")
"""


class Stop(Exception):
    """What breaks off a copy in these tests."""


def stop_at(table, step="copying"):
    def progress(now):
        if (now.step, now.table) == (step, table):
            raise Stop

    return progress


@pytest.fixture
def source(route, place, clock):
    uri = place(route[0])
    fill(uri, clock)
    return uri


@pytest.fixture
def target(route, place):
    return place(route[1])


# -- killed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "portions", [4, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 20, 45))]
)
@both_ways
def test_a_copy_that_was_killed_goes_on_where_it_stopped(
    source, target, portions, ask_store, monkeypatch
):
    with Process(COPY, source, target) as copying:
        for _ in range(portions):
            copying.hear("copying")
        copying.kill()  # wherever it is by now
    there = sum(map(len, contents(ask_store, target).values()))
    written = []
    monkeypatch.setattr(transfer, "_portions", _noting(transfer._portions, written))

    report = copy_store(source, target)

    assert report.resumed
    assert there > 0
    assert sum(written) == report.rows - there  # nothing is written twice
    assert contents(ask_store, target) == contents(ask_store, source)
    assert "ontologia_copy" not in tables(ask_store, target)


def _noting(portions, written):
    def noted(rows, seen):
        for portion in portions(rows, seen):
            written.append(len(portion))
            yield portion

    return noted


@pytest.mark.thorough
@both_ways
def test_a_copy_that_was_killed_while_comparing_is_compared_again(source, target, ask_store):
    with Process(COPY, source, target) as copying:
        while copying.popen.stdout.readline().split()[0] == "copying":
            pass
        copying.kill()

    report = copy_store(source, target)

    assert report.resumed
    assert contents(ask_store, target) == contents(ask_store, source)


@pytest.mark.thorough
@both_ways
def test_a_copy_goes_on_after_the_server_has_crashed(route, place, clock, monkeypatch):

    monkeypatch.setattr(transfer, "_MOST_ROWS", 5)
    with Postgres(durable=True) as server:
        ends = {"postgres": server.uri, "sqlite": place("sqlite")}
        source, target = (ends[kind] for kind in route)
        fill(source, clock)

        def crash(now):
            if now.table == "relation_history":
                server.kill()

        with pytest.raises(DatabaseError) as lost:
            copy_store(source, target, progress=crash)
        server.start()
        report = copy_store(source, target)

        assert "holds an unfinished copy" in lost.value.__notes__[0]
        assert report.resumed
        with open_post(target, clock) as session:
            assert session.event_store.check() == []


# -- unfinished -----------------------------------------------------------------------------------


@pytest.mark.thorough
@both_ways
def test_an_unfinished_copy_cannot_be_opened(source, target, ask_store):
    with pytest.raises(Stop):
        copy_store(source, target, progress=stop_at("events"))
    before = contents(ask_store, target)

    with pytest.raises(StoreOpenError, match="unfinished copy of") as refused:
        Session(target)

    assert "ontologia copy" in refused.value.hint
    assert contents(ask_store, target) == before
    copy_store(source, target)
    Session(target).close()


@both_ways
def test_an_unfinished_copy_cannot_be_copied(source, target, place):
    with pytest.raises(Stop):
        copy_store(source, target, progress=stop_at("events"))
    third = place("sqlite")

    with pytest.raises(StoreOpenError, match="unfinished copy of"):
        copy_store(target, third)

    with pytest.raises(CopyError, match="no store to copy"):
        copy_store(third, target)


@both_ways
def test_what_breaks_off_a_copy_says_what_is_left_behind(source, target):
    with pytest.raises(Stop) as stopped:
        copy_store(source, target, progress=stop_at("events"))

    [note] = stopped.value.__notes__
    assert re.search("holds an unfinished copy.*goes on with it", note)


@both_ways
def test_a_source_that_only_grew_is_caught_up_with(source, target, clock, ask_store):
    """What was copied is still what comes first: the copy is of the moment it went on."""
    with pytest.raises(Stop):
        copy_store(source, target, progress=stop_at("relation_history"))
    with open_post(source, clock) as session:
        session.ensure(Customer(id="c1", name="Ada"))
        session.commit()

    copy_store(source, target)

    assert contents(ask_store, target) == contents(ask_store, source)


@every_route
def test_a_source_that_changed_is_copied_anew_when_told_to(source, target, clock, ask_store):
    with pytest.raises(Stop):
        copy_store(source, target, progress=stop_at("dead_letters"))
    with open_post(source, clock) as session:
        session.ensure(Customer(id="c1", name="Ada"))  # comes before the others
        session.commit()

    with pytest.raises(CopyError, match=r"has changed since .* rows of \w+ are no longer") as error:
        copy_store(source, target)
    assert "restart=True" in error.value.hint
    report = copy_store(source, target, restart=True)

    assert not report.resumed
    assert contents(ask_store, target) == contents(ask_store, source)


@pytest.mark.thorough
@both_ways
def test_beginning_anew_where_nothing_is_unfinished_empties_nothing(source, target, ask_store):
    copy_store(source, target)
    before = contents(ask_store, target)

    with pytest.raises(CopyError, match="is not empty"):
        copy_store(source, target, restart=True)

    assert contents(ask_store, target) == before


@both_ways
def test_somebody_who_writes_into_the_target_meanwhile_is_found_out(source, target, ask_store):
    def meddle(now):
        if now.table == "commits":
            ask_store(target, "INSERT INTO dedup VALUES ('post', 'parcel.posted', 'once', 'e')")

    with pytest.raises(CopyError, match="has rows in dedup that this copy did not write"):
        copy_store(source, target, progress=meddle)
