"""Every statement of the files can be prepared on a file of the current layout."""

from __future__ import annotations

import apsw
import apsw.ext
import pytest

from ontologia import Session
from ontologia.runtime.session import core_of
from ontologia.store.sqlite.notation import statements
from tests.unit.test_named_statements import FILES


@pytest.mark.parametrize("file", FILES)
def test_sqlite_understands_every_statement(file: str) -> None:
    refused: dict[str, str] = {}
    with Session("sqlite:///:memory:") as session:
        connection = core_of(session).store.database.writer
        for name, text in statements(file).items():
            try:
                apsw.ext.query_info(connection, text)
            except apsw.SQLError as error:
                refused[name] = str(error)

    assert refused == {}
