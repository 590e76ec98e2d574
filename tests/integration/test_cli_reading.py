"""Commands that read: they wait for nobody who writes, and write nothing themselves."""

from __future__ import annotations

import logging

import pytest

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

    with caplog.at_level(logging.INFO, logger="ontologia"), session._store.write():
        done = invoke("--datastore-uri", uri, *command.split())

    assert done.exit_code == 0, done.output
    assert caplog.messages == []
