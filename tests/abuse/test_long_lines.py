"""A line of an import that never ends: refused before it is in memory, and nothing is written."""

from __future__ import annotations

import os
import tracemalloc

import pytest

from ontologia import Entity, Field, Session
from ontologia.runtime.transfer.lines import LINE_LIMIT
from tests.integration.commands import invoke


class AbuseEntry(Entity):
    id: Field[str] = Field(primary_key=True)
    text: Field[str]


@pytest.fixture
def exported(uri, tmp_path):
    """A file of one object, and the store it is of."""
    with Session(uri, entity_types=[AbuseEntry]) as session:
        session.ensure(AbuseEntry(id="e1", text="TEXT"))
        session.commit()
    file = tmp_path / "state.jsonl"
    file.write_text(invoke("export", "--datastore-uri", uri).stdout.replace('"objects":1,', ""))
    return file


@pytest.mark.parametrize("line", [1, 3])
def test_a_line_of_a_gigabyte_is_refused_and_was_never_in_memory(exported, uri, line):
    if line == 1:
        exported.write_bytes(b"")
    else:
        exported.write_text(exported.read_text().replace("TEXT", "changed"))
    os.truncate(exported, 2**30)  # with a hole, which takes no room

    tracemalloc.start()
    try:
        done = invoke("import", str(exported), "--on-conflict", "replace", "--datastore-uri", uri)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert done.exit_code == 1
    assert (
        f"state.jsonl, line {line}: a line has at most 16,777,216 bytes, and this one has more; "
        "nothing was written"
    ) in " ".join(done.stderr.split())
    assert most < 4 * LINE_LIMIT
    with Session(uri, entity_types=[AbuseEntry]) as session:
        assert session.get(AbuseEntry, "e1").text == "TEXT"


@pytest.mark.parametrize("end", ["\n", ""])
def test_the_longest_line_is_read(exported, uri, end):
    *before, line = exported.read_text().splitlines()
    text = "x" * (LINE_LIMIT - len(line) + len("TEXT"))
    exported.write_text("\n".join([*before, line.replace("TEXT", text)]) + end)

    done = invoke("import", str(exported), "--on-conflict", "replace", "--datastore-uri", uri)

    assert done.exit_code == 0, done.stderr
    with Session(uri, entity_types=[AbuseEntry]) as session:
        assert session.get(AbuseEntry, "e1").text == text
