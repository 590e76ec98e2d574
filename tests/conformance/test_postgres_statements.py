"""Every statement of the files can be prepared on a server, in a schema of any name."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import pq

from ontologia.store.events.store import EventStore
from ontologia.store.postgres.notation import statements
from ontologia.store.postgres.place import qualified
from ontologia.store.postgres.wire import Statement
from tests.unit.test_named_statements import FILES


@pytest.mark.parametrize("file", FILES)
def test_the_server_understands_every_statement(
    event_store: EventStore, postgres_uri: str, file: str
) -> None:
    refused: dict[str, str] = {}
    with psycopg.connect(postgres_uri, autocommit=True) as connection:
        for name, text in qualified(statements(file), event_store._database.schema).items():
            for part in filter(None, text.split(";\n")):  # what mends may be several
                plan = Statement(part).plan
                found = connection.pgconn.prepare(b"", plan.text)
                if found.status != pq.ExecStatus.COMMAND_OK:
                    refused[name] = found.error_message.decode()
                elif connection.pgconn.describe_prepared(b"").nparams != len(plan.names):
                    refused[name] = f"has not all of {plan.names}"

    assert refused == {}
