"""`why`, `trace` and `inspect` of events that are in an archive."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from ontologia.cli.main import app
from ontologia.errors import DatabaseError, NotFoundError
from ontologia.runtime.operator import Operator
from ontologia.store.s3.bucket import Bucket
from tests.integration.explained import HANDLERS, Customer, Ordered, Paid, fill

DAY = 24 * 3600
AGE = timedelta(days=1)


@pytest.fixture
def run(uri):
    return lambda *words: CliRunner().invoke(app, ["--datastore-uri", uri, *words])


@pytest.fixture
def before(session, clock) -> dict[str, Any]:
    """What is said before anything is archived."""
    fill(session, clock)
    why = session.why(Customer, "c1")
    assert why.event_id is not None
    trace = session.trace(why.event_id)
    paid = next(each for each in trace if each.type == Paid.__event_type__)
    return {
        "why": why,
        "trace": trace,
        "inspect": session.event_store.inspect_event(why.event_id),
        "root": why.event_id,
        "paid": paid.event_id,
    }


@pytest.fixture
def archive(session, clock, before, s3_uri):
    """Move what is old to the archive, all of it or one type."""

    def move(event_type: str | None = None) -> str:
        clock.advance(seconds=2 * DAY)
        done = Operator(session, "ada@host").archive(s3_uri, AGE, event_type=event_type)
        assert done.moved
        assert not done.left
        return s3_uri

    return move


@pytest.fixture
def looking(open_session, s3_uri):
    """A session that is told where the archive is."""
    return open_session(settings={"archive_uri": s3_uri})


def described(events) -> list[Any]:
    """All that is said of each event but where it was found."""
    return [
        (each.event_id, each.type, each.payload, each.causation_id, each.outcomes)
        for each in events
    ]


def where(events) -> set[str | None]:
    return {each.archived for each in events}


@pytest.mark.req("NEW-041", "NEW-042")
def test_archived_events_are_explained_as_before(before, archive, looking):
    uri = archive()

    why, trace = looking.why(Customer, "c1"), looking.trace(before["paid"])

    assert why.complete
    assert described_causes(why) == described_causes(before["why"])
    assert where(why.causes) == where(trace) == {uri}
    assert trace.root_event_id == before["root"]
    assert described(trace) == described(before["trace"])
    assert [each.event_id for each in trace.events] == [before["root"]]
    shown = looking.event_store.inspect_event(before["root"])
    assert shown == before["inspect"] | {"archived": uri}
    assert looking.event_store.inspect_event(before["root"], "elsewhere") is None


def described_causes(why) -> list[Any]:
    return [(each.event_id, each.payload, each.source, each.commit_id) for each in why.causes]


@pytest.mark.parametrize("kept", [Ordered, Paid])
def test_a_chain_that_is_archived_in_part_is_told_as_a_whole(
    session, before, archive, looking, kept, clock
):
    others = {each.type for each in before["trace"]} - {kept.__event_type__}
    for event_type in others:
        archive(event_type)

    trace = looking.trace(before["root"])

    assert described(trace) == described(before["trace"])
    assert {each.type for each in trace if each.archived is None} == {kept.__event_type__}
    last = looking.why(Customer, "c1")
    assert described_causes(last) == described_causes(before["why"])


def test_the_way_back_goes_on_through_what_is_archived(
    session, before, archive, looking, open_session
):
    from tests.integration.explained import Buys

    uri = archive(Ordered.__event_type__)

    why = looking.why(Buys, "c1:10")

    assert why.complete
    assert [(each.type, each.archived) for each in why.causes] == [("paid", None), ("ordered", uri)]
    told = session.why(Buys, "c1:10")
    assert not told.complete
    assert [each.type for each in told.causes] == ["paid"]
    assert told.archived_to == (uri,)


def test_without_the_setting_it_is_said_where_events_were_archived(
    session, before, archive, run, clock
):
    uri = archive()

    why = session.why(Customer, "c1")
    assert (why.causes, why.archived_to) == ((), (uri,))
    with pytest.raises(NotFoundError, match=f"archived to {uri}") as raised:
        session.trace(before["root"])
    assert f"ONTOLOGIA_ARCHIVE_URI={uri}" in str(raised.value.hint)
    for words in (("trace", before["root"]), ("events", "inspect", "--event-id", before["root"])):
        done = run(*words)
        assert done.exit_code == 4
        assert f"archived to {uri}" in done.stderr
    assert f"archived to {uri}" in run("why", "Customer", "c1").stdout
    assert json.loads(run("why", "Customer", "c1", "--json").stdout)["archived_to"] == [uri]


def test_an_event_from_after_what_was_archived_is_not_said_to_be_archived(
    session, before, archive, clock
):
    archive()
    clock.advance(seconds=DAY)
    young = session.event_store.log.ids.new()

    with pytest.raises(NotFoundError) as raised:
        session.trace(young)

    assert "archived" not in str(raised.value)


def test_where_the_archive_does_not_have_it_that_is_said(before, archive, looking, s3_uri):
    uri = archive()
    Bucket(s3_uri).delete(f"default/events/{before['root']}.json")

    with pytest.raises(NotFoundError, match=f"nor in the archive {uri}"):
        looking.trace(before["root"])
    why = looking.why(Customer, "c1")
    assert (why.causes, why.archived_to) == ((), ())


def test_commands_look_in_the_archive(before, archive, run, monkeypatch):
    uri = archive()
    monkeypatch.setenv("ONTOLOGIA_ARCHIVE_URI", uri)

    why, traced = run("why", "Customer", "c1"), run("trace", before["root"])
    shown = run("events", "inspect", "--event-id", before["root"], "--json")

    assert f"archived in {uri}" in why.stdout
    assert f"archived in {uri}" in traced.stdout
    assert json.loads(shown.stdout)["archived"] == uri


@pytest.fixture
def watched(proxy, open_session, s3_uri):
    """The same, through a proxy on which requests can fail."""
    return open_session(settings={"archive_uri": s3_uri})


def test_an_archive_that_refuses_hides_nothing_that_is_here(
    before, archive, watched, proxy, caplog
):
    archive(Ordered.__event_type__)
    for kind in ("GET", "LIST"):
        proxy.fail(kind, status=403, times=100)

    with caplog.at_level(logging.WARNING):
        trace = watched.trace(before["paid"])
        why = watched.why(Customer, "c1")

    assert {each.type for each in trace} == {"paid", "event.dead_letter"}
    assert trace.archived_to == why.archived_to != ()
    assert caplog.text.count("not looked up") == 2
    with pytest.raises(DatabaseError, match="do not allow"):
        watched.event_store.inspect_event(before["root"], "default")


def test_nothing_that_works_sends_a_request_to_the_archive(watched, before, archive, proxy):
    archive()
    proxy.seen.clear()

    watched.commit(event=Ordered(customer="c2"))
    watched.run(HANDLERS, max_iterations=1)
    watched.event_store.collect_events("default")

    assert proxy.seen == []
