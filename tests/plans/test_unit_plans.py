"""What a unit of work costs: a conditional write has the statements of an unconditional one."""

from __future__ import annotations

from ontologia import Entity, Field


class Barrel(Entity):
    id: Field[str]
    litres: Field[int]


def statements(watch, act) -> list[str]:
    """The statements of one call, without what is bound."""
    with watch.at():
        act()
    return [sql for _, sql, _ in watch.seen]


def test_a_conditional_write_has_the_statements_of_an_unconditional_one(watch, open_session):
    session = open_session()
    session.ensure([Barrel(id="a", litres=1), Barrel(id="b", litres=1)])
    session.commit()
    session.ensure(Barrel(id="c", litres=1))
    session.commit()  # the type is looked up once
    read, made = session.one(Barrel, "a"), Barrel(id="b", litres=2)
    read.litres = 2

    session.ensure(read)
    conditional = statements(watch, session.commit)
    session.ensure(made, overwrite=True)
    regardless = statements(watch, session.commit)

    assert read.meta().commit_id == 3
    assert conditional == regardless
    assert len([sql for sql in conditional if sql.startswith("SELECT")]) <= 2
    assert any("entity_latest" in sql for sql in conditional)


def test_an_update_reads_nothing_beforehand(watch, open_session):
    session = open_session()
    session.ensure([Barrel(id="a", litres=1), Barrel(id="b", litres=1)])
    session.commit()
    session.ensure(Barrel(id="c", litres=1))
    session.commit()  # the type is looked up once
    session.ensure(Barrel(id="a", litres=2))
    ensured = statements(watch, session.commit)

    assert statements(watch, lambda: session.update(Barrel, "b", litres=2)) == []
    assert statements(watch, session.commit) == ensured


def test_get_is_one_seek_by_key(watch, open_session):
    session = open_session()
    session.ensure(Barrel(id="a", litres=1))
    session.commit()
    session.get(Barrel, "a")  # whatever is looked up once

    plan = watch.plan(lambda: session.get(Barrel, "a"))

    assert len([sql for _, sql, _ in watch.seen if "entity_latest" in sql]) == 1
    assert all(step.startswith("SEARCH") for step in plan)
