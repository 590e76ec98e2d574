"""Lines that are too long: refused before they are in memory, and not written by an export."""

from __future__ import annotations

import os
import tracemalloc

import pytest

from ontologia import Entity, Field, Relation, Session
from ontologia.runtime.session import core_of
from ontologia.runtime.transfer.lines import LINE_LIMIT
from ontologia_conformance.backends import NAMES
from tests.integration.commands import invoke


class AbuseEntry(Entity):
    id: Field[str] = Field(primary_key=True)
    text: Field[str]


class AbuseLink(Relation[AbuseEntry, AbuseEntry]):
    text: Field[str]


@pytest.fixture(params=[name for name in NAMES if name != "postgres16"])
def backend(request):
    return request.getfixturevalue(request.param)


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


@pytest.mark.each_database
def test_an_object_that_no_import_would_read_is_not_exported_and_is_named(uri, tmp_path):
    with Session(uri, entity_types=[AbuseEntry]) as session:
        session.ensure(AbuseEntry(id="e1", text=""))
        session.commit()
    [_, line] = invoke("export", "--datastore-uri", uri).stdout.splitlines()
    room = LINE_LIMIT - len(line)
    target = tmp_path / "state.jsonl"
    exits = []
    for size in (room, room + 1):
        with Session(uri, entity_types=[AbuseEntry]) as session:
            session.ensure(AbuseEntry(id="e1", text="x" * size))
            session.commit()
        done = invoke("export", "-o", str(target), "--datastore-uri", uri)
        exits.append(done.exit_code)
        if size == room:
            again = invoke("import", str(target), "--dry-run", "--datastore-uri", uri)
            assert again.exit_code == 0, again.stderr
            target.unlink()

    assert exits == [0, 1]
    said = " ".join(done.stderr.split())
    assert "AbuseEntry 'e1' makes a line of 16,777,217 bytes" in said
    assert "the export is not complete" in said
    assert "ontologia copy" in said
    assert list(tmp_path.glob("state*")) == []


@pytest.mark.each_database
@pytest.mark.parametrize("past", [False, True])
def test_few_large_objects_are_in_memory_at_a_time(uri, past):
    """A page ends with the object that reaches the bound on its bytes."""
    sizes = [600, 600, 2_000, 10, 10, 10, 990, 10]
    with Session(uri, entity_types=[AbuseEntry], relation_types=[AbuseLink]) as session:
        for number, size in enumerate(sizes):
            session.ensure(AbuseEntry(id=f"e{number}", text="x" * size))
            session.ensure(AbuseLink(left_key="e0", right_key=f"e{number}", text="x" * size))
        session.commit()
        as_of = 1 if past else None
        pages: dict[str, list[int]] = {}
        for kind, name, empty in (
            ("entity", "AbuseEntry", ("",)),
            ("relation", "AbuseLink", ("", "", "")),
        ):
            after, pages[kind] = empty, []
            with core_of(session).store.inventory.read() as contents:
                while page := contents.page(kind, name, as_of, after, most_bytes=1_000):
                    pages[kind].append(len(page))
                    after = page[-1].key

    assert pages == {"entity": [2, 1, 4, 1], "relation": [2, 1, 4, 1]}
