"""A server with a worker beside it, under load: what it has acknowledged is there, once."""

from __future__ import annotations

import pytest
from bench.goals.http import put_under_load


@pytest.mark.thorough
@pytest.mark.req("EDE-062")
def test_two_thousand_commands_from_32_connections_are_stored_and_handled_once(uri, tmp_path):
    load = put_under_load(uri, tmp_path, 2_000)

    assert {each.status for each in load.answers} == {200}
    assert len(load.answers) == len(load.stored) == len(load.handled) == 2_000
    assert load.lost() == []
