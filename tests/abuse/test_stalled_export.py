"""An export whose reader stalls: it holds no transaction, and is of one commit all the same."""

from __future__ import annotations

import subprocess
from contextlib import closing

import apsw
import pytest

from ontologia import Entity, Field, Relation, Session
from ontologia.runtime.transfer import export_state
from ontologia_conformance.backends import NAMES
from tests.integration.commands import ONTOLOGIA
from tests.integration.running import until


class AbusePart(Entity):
    id: Field[str] = Field(primary_key=True)
    text: Field[str] = Field(default="")


class AbuseFits(Relation[AbusePart, AbusePart]):
    pass


@pytest.fixture(params=[name for name in NAMES if name != "postgres16"])
def backend(request):
    return request.getfixturevalue(request.param)


def checkpointed(path):
    """Whether all of the log could be moved into the file, and cut to nothing."""
    with closing(apsw.Connection(str(path))) as connection:
        [[busy, _, _]] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return not busy


@pytest.mark.each_database
@pytest.mark.parametrize("past", [False, True])
def test_what_is_written_meanwhile_is_not_in_it(uri, monkeypatch, past):
    monkeypatch.setattr("ontologia.store.inventory._PAGE", 2)
    with Session(uri, entity_types=[AbusePart], relation_types=[AbuseFits]) as session:
        session.ensure([AbusePart(id=f"p{number}") for number in range(7)])
        session.ensure([AbuseFits(left_key="p0", right_key=f"p{number}") for number in range(5)])
        session.commit()
        before = list(export_state(session).lines())
        if past:
            session.ensure(AbusePart(id="p8"))
            session.commit()

        export = export_state(session, as_of=1 if past else None)
        lines = export.lines()
        begun = [next(lines)]
        session.ensure([AbusePart(id="p5", text="changed"), AbusePart(id="p55")])
        session.delete(AbusePart(id="p6"))
        session.delete(AbuseFits(left_key="p0", right_key="p4"))
        session.commit()

        assert begun + list(lines) == before
        assert export.header.head == 1
        assert export.header.objects == len(before)


def test_the_log_is_cut_while_nobody_reads_the_export(sqlite, tmp_path):
    path = tmp_path / "parts.db"
    with Session(str(path), entity_types=[AbusePart]) as session:
        session.ensure([AbusePart(id=f"p{number}", text="x" * 500) for number in range(3)])
        session.commit()
        export = export_state(session)
        lines = export.lines()
        next(lines)
        session.ensure(AbusePart(id="p0", text="y"))
        session.commit()

        assert checkpointed(path)
        assert len(list(lines)) == 2


@pytest.mark.thorough
def test_a_program_that_stalls_holds_up_no_checkpoint(sqlite, tmp_path):
    path = tmp_path / "parts.db"
    with Session(str(path), entity_types=[AbusePart]) as session:
        session.ensure([AbusePart(id=f"p{number}", text="x" * 500) for number in range(3_000)])
        session.commit()
        with subprocess.Popen(
            [*ONTOLOGIA, "export", "--datastore-uri", f"sqlite:///{path}"],
            bufsize=0,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as program:
            assert program.stdout.read(1)  # and nothing after it: the pipe is full soon
            session.ensure(AbusePart(id="p0", text="y"))
            session.commit()

            until(lambda: checkpointed(path))
            rest, _ = program.communicate()

    assert rest.count(b"\n") == 3_001
    assert b'"text":"y"' not in rest
