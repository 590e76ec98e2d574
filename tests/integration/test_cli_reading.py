"""Commands that read: they wait for nobody who writes, and write nothing themselves."""

from __future__ import annotations

import logging

import pytest

from ontologia.runtime.session import core_of
from ontologia_conformance.event_world import POST, bury, claim, post
from tests.integration.commands import invoke
from tests.shop import Customer


@pytest.mark.req("ONT-199")
@pytest.mark.parametrize(
    "command", ["info", "events show", "events consumers", "commits", "query entities Customer"]
)
def test_a_reading_command_writes_nothing_while_somebody_else_writes(
    uri, open_session, command, monkeypatch, caplog
):
    session = open_session(entity_types=[Customer])
    session.ensure(Customer(id="c1", name="Ada"))
    session.commit()
    monkeypatch.setenv("ONTOLOGIA_LOCK_TIMEOUT_MS", "1")

    with caplog.at_level(logging.INFO, logger="ontologia"), core_of(session).store.write():
        done = invoke("--datastore-uri", uri, *command.split())

    assert done.exit_code == 0, done.output
    assert caplog.messages == []


@pytest.mark.req("ONT-199")
def test_a_dry_run_of_a_retry_only_looks(uri, open_session, clock, monkeypatch):
    session = open_session()
    claim(session.event_store)
    [event_id] = post(session.event_store, 1)
    bury(session.event_store, event_id, clock)
    monkeypatch.setenv("ONTOLOGIA_LOCK_TIMEOUT_MS", "1")

    with session.event_store.transaction() as tx:
        tx.run(
            "UPDATE event_claims SET attempts = attempts"
            if uri.startswith("sqlite")
            else f"UPDATE {uri.partition('schema=')[2]}.event_claims SET attempts = attempts"
        )
        done = invoke(
            "--datastore-uri", uri, "--namespace", POST, "events", "retry", "--all", "--dry-run"
        )

    assert done.exit_code == 0, done.output
    assert f"{event_id}\t" in done.stdout
