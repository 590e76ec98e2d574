"""`Field(unique=True)`: no two current objects of a type have the same value."""

from __future__ import annotations

import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from threading import Barrier
from typing import Any
from uuid import UUID

import pytest

from ontologia import Entity, Field, Relation, Session, upgrader
from ontologia.errors import (
    DefinitionError,
    SchemaOutdatedError,
    StateConflictError,
    UniqueViolationError,
)
from ontologia.runtime.stored import StoredTypes
from ontologia.runtime.transfer import export_state, import_state
from ontologia.schema import upgraders

Open = Callable[..., Session]


class Account(Entity):
    id: Field[str]
    email: Field[str | None] = Field(default=None, unique=True)
    number: Field[int | None] = Field(default=None, unique=True)
    note: Field[str] = Field(default="")


class Other(Entity):
    id: Field[str]
    email: Field[str] = Field(unique=True)


class Follows(Relation[Account, Account]):
    nth: Field[int] = Field(instance_key=True)
    code: Field[str] = Field(unique=True)


def emails(session: Session) -> dict[str, str | None]:
    return {each.id: each.email for each in session.query().entities(Account).collect()}


def test_a_value_that_another_object_has_is_refused_and_nothing_is_written(session: Session):
    session.ensure(Account(id="a1", email="ada@x"))
    session.commit()
    session.ensure([Account(id="a2", email="ada@x"), Account(id="a3", email="bob@x")])

    with pytest.raises(UniqueViolationError, match="nothing was written") as caught:
        session.commit()

    error = caught.value
    assert (error.type_name, error.field, error.value) == ("Account", "email", "ada@x")
    assert (error.key, error.holder) == ("a2", "a1")
    assert "Account 'a1'" in str(error)
    assert not isinstance(error, StateConflictError)
    assert (session.head, emails(session)) == (1, {"a1": "ada@x"})


def test_two_objects_of_one_commit_cannot_have_the_same_value(session: Session):
    session.ensure([Account(id="a1", email="ada@x"), Account(id="a2", email="ada@x")])

    with pytest.raises(UniqueViolationError, match="'ada@x' of Account 'a2'"):
        session.commit()

    assert session.head == 0


def test_null_is_not_a_value(session: Session):
    session.ensure([Account(id="a1"), Account(id="a2"), Account(id="a3", email="")])
    session.commit()
    session.ensure(Account(id="a4", email=""))

    with pytest.raises(UniqueViolationError):
        session.commit()


def test_the_same_object_keeps_and_changes_its_value(session: Session):
    for account in (
        Account(id="a1", email="ada@x"),
        Account(id="a1", email="ada@x", note="again"),
        Account(id="a1", email="ada@y"),
        Account(id="a2", email="ada@x"),  # it is free now
    ):
        session.ensure(account)
        session.commit()

    assert emails(session) == {"a1": "ada@y", "a2": "ada@x"}


def test_values_are_swapped_and_passed_on_in_one_commit(session: Session):
    session.ensure([Account(id=f"a{n}", email=f"{n}@x", number=n) for n in (1, 2, 3)])
    session.commit()

    session.ensure(Account(id="a1", email="2@x", number=2))
    session.ensure(Account(id="a2", email="1@x", number=1))
    session.delete(Account(id="a3"))
    session.ensure(Account(id="a4", email="3@x", number=3))
    session.commit()

    assert emails(session) == {"a1": "2@x", "a2": "1@x", "a4": "3@x"}


def test_an_object_that_is_deleted_and_made_again_conflicts_like_any_other(session: Session):
    session.ensure(Account(id="a1", email="ada@x"))
    session.commit()
    session.delete(Account(id="a1"))
    session.ensure(Account(id="a2", email="ada@x"))
    session.commit()
    session.ensure(Account(id="a1", email="ada@x"))

    with pytest.raises(UniqueViolationError) as caught:
        session.commit()

    assert caught.value.holder == "a2"


def test_other_types_have_values_of_their_own(session: Session):
    session.ensure([Account(id="a1", email="ada@x"), Other(id="o1", email="ada@x")])

    assert session.commit() == 1


def test_relations_are_checked_too(session: Session):
    session.ensure([Follows(left_key="a", right_key="b", nth=n, code=f"c{n}") for n in (1, 2)])
    session.commit()
    session.ensure(Follows(left_key="a", right_key="b", nth=1, code="c2"))
    session.ensure(Follows(left_key="a", right_key="b", nth=2, code="c1"))
    session.commit()
    session.ensure(Follows(left_key="a", right_key="c", nth=1, code="c1"))

    with pytest.raises(UniqueViolationError) as caught:
        session.commit()

    assert (caught.value.key, caught.value.holder) == ("a:c:1", "a:b:2")


VALUES: list[tuple[Any, Any, Any]] = [
    (str, "x" * 600, "x" * 599 + "y"),
    (str, "A", "a"),
    (str, "\u00e9", "e\u0301"),
    (int, 2**63 - 1, 2**63 - 2),
    (float, 0.1, 0.1 + 2**-56),
    (bool, True, False),
    (Decimal, Decimal("1.10"), Decimal("1.1")),
    (Decimal, Decimal("1E+400"), Decimal("1E+401")),
    (UUID, UUID(int=1), UUID(int=2)),
]


@pytest.mark.parametrize(("kind", "value", "other"), VALUES)
def test_values_are_the_same_if_their_json_is(session: Session, kind: Any, value: Any, other: Any):
    body: dict[str, Any] = {
        "__annotations__": {"id": Field[str], "value": Field[kind]},
        "value": Field(unique=True),
    }
    Kept: Any = types.new_class(
        "Kept", (Entity,), exec_body=lambda namespace: namespace.update(body)
    )
    session.ensure([Kept(id="1", value=value), Kept(id="2", value=other)])
    session.commit()
    session.ensure(Kept(id="3", value=value))

    with pytest.raises(UniqueViolationError) as caught:
        session.commit()

    assert caught.value.holder == "1"


def test_many_objects_are_checked_in_one_commit(session: Session):
    session.ensure([Account(id=f"a{n}", email=f"{n}@x") for n in range(300)])
    session.commit()
    session.ensure([Account(id=f"a{n}", email=f"{(n + 1) % 300}@x") for n in range(300)])
    session.commit()
    session.ensure([Account(id=f"b{n}", email=f"{n + 299}@x") for n in range(300)])

    with pytest.raises(UniqueViolationError) as caught:
        session.commit()

    assert (caught.value.key, caught.value.value) == ("b0", "299@x")


def test_of_several_at_once_exactly_one_gets_the_value(open_session: Open):
    sessions = [open_session() for _ in range(6)]
    barrier = Barrier(len(sessions))

    def race(number: int) -> bool:
        session = sessions[number]
        session.ensure(Account(id=f"a{number}", email="ada@x"))
        barrier.wait()
        try:
            return session.commit() is not None
        except UniqueViolationError:
            return False

    with ThreadPoolExecutor(len(sessions)) as pool:
        won = list(pool.map(race, range(len(sessions))))

    assert won.count(True) == 1
    assert emails(sessions[0]) == {f"a{won.index(True)}": "ada@x"}


# -- the definition --------------------------------------------------------------------------------


def test_a_key_is_not_marked_unique():
    with pytest.raises(DefinitionError, match=r"Marked\.id: a key is not marked unique"):

        class Marked(Entity):
            id: Field[str] = Field(primary_key=True, unique=True)

    with pytest.raises(DefinitionError, match=r"Linked\.nth: a key is not marked unique"):

        class Linked(Relation[Account, Account]):
            nth: Field[int] = Field(instance_key=True, unique=True)


def test_unique_values_are_single_values():
    class Listed(Entity):
        id: Field[str]
        tags: Field[list[str]] = Field(unique=True)

    with pytest.raises(DefinitionError, match=r"Listed\.tags: an index needs single values"):
        Listed(id="1", tags=[])


# -- the schema --------------------------------------------------------------------------------------


def account(*, unique: bool, **more: Any) -> Any:
    """The type as it was, or as it becomes."""
    fields = {"id": Field[str], "email": Field[str | None], **dict.fromkeys(more, Field[str])}
    body = {"__annotations__": fields, "email": Field(default=None, unique=unique), **more}
    return types.new_class("Login", (Entity,), exec_body=lambda namespace: namespace.update(body))


@pytest.fixture
def logins(open_session: Open) -> Any:
    """A store of a type whose values are not unique yet; the class in which they are."""
    Login = account(unique=False)
    with open_session(entity_types=[Login]) as session:
        session.ensure(
            Login(id=f"l{n}", email=e) for n, e in enumerate(["a", "b", "a", None, None])
        )
    return account(unique=True)


def test_values_become_unique_by_a_migration_without_an_upgrader(logins: Any, open_session: Open):
    session = open_session(entity_types=[logins])
    with pytest.raises(SchemaOutdatedError, match=r"email \(unique\): false → true"):
        session.validate()
    assert len(session.query().entities(logins).where(logins.email == "a").collect()) == 2

    preview = session.migrate()

    assert preview.objects == {"Login": 0}
    assert preview.missing_upgraders == {}
    [found] = preview.duplicates["Login"]
    assert (found.field, found.values, found.examples) == ("email", 1, [("a", ["l0", "l2"])])
    assert 'Login.email: 1 value of more than one object, for example "a" of l0, l2' in str(preview)


def test_applying_is_refused_while_there_are_duplicates(logins: Any, open_session: Open):
    session = open_session(entity_types=[logins])

    for options in ({"force": True}, {"token": session.migrate().token}):
        with pytest.raises(UniqueViolationError, match="nothing was written") as caught:
            session.migrate(dry_run=False, **options)
        assert (caught.value.value, caught.value.holder, caught.value.key) == ("a", "l0", "l2")
    assert session.migrate()

    plain = account(unique=False)
    with open_session(entity_types=[plain]) as before:
        before.ensure(plain(id="l2", email="c"))
    preview = session.migrate()
    assert preview.duplicates == {}
    session.migrate(dry_run=False, token=preview.token)
    session.validate()
    session.ensure(logins(id="l9", email="b"))
    with pytest.raises(UniqueViolationError):
        session.commit()
    session.discard()
    assert session.query().entities(logins).as_of(1).where(logins.email == "a").count() == 2


def test_values_need_not_be_unique_any_more_without_an_upgrader(open_session: Open):
    unique, plain = account(unique=True), account(unique=False)
    with open_session(entity_types=[unique]) as session:
        session.ensure(unique(id="l1", email="a"))
    session = open_session(entity_types=[plain])

    session.migrate(dry_run=False, token=session.migrate().token)
    session.ensure(plain(id="l2", email="a"))

    assert session.commit() == 2


def test_what_upgraders_make_is_unique_too(
    logins: Any, open_session: Open, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(upgraders, "_registered", {})
    wider = account(unique=True, name=Field(default=""))

    @upgrader("Login", from_version=1)
    def same_for_all(fields: dict[str, Any]) -> dict[str, Any]:
        return fields | {"email": "same", "name": "x"}

    session = open_session(entity_types=[wider])

    assert session.migrate().duplicates["Login"][0].examples == [("same", ["l0", "l1", "l2"])]
    with pytest.raises(UniqueViolationError):
        session.migrate(dry_run=False, force=True)
    assert session.head == 1


def test_a_program_without_the_class_keeps_values_unique(open_session: Open):
    with open_session(entity_types=[Account]) as session:
        session.ensure(Account(id="a1", email="ada@x"))
    session = open_session()
    stored: Any = StoredTypes.of(session).entity("Account")
    session.ensure(stored(id="a2", email="ada@x", number=1, note=""))

    with pytest.raises(UniqueViolationError):
        session.commit()


def test_what_is_imported_is_unique_too(open_session: Open, fresh_uri: Callable[[], str]):
    with open_session(entity_types=[Account]) as session:
        session.ensure([Account(id="a1", email="ada@x"), Account(id="a2", email="bob@x")])
        session.commit()
        export = export_state(session)
        lines = [export.header.line(), *export.lines()]
    with Session(fresh_uri()) as target:
        target.ensure(Account(id="a9", email="bob@x"))
        target.commit()

        with pytest.raises(UniqueViolationError) as caught:
            import_state(target, lines)

        assert (caught.value.key, caught.value.holder) == ("a2", "a9")
        assert emails(target) == {"a9": "bob@x"}
    with Session(fresh_uri()) as empty:
        assert import_state(empty, lines).created == 2
        empty.ensure(Account(id="a3", email="bob@x"))
        with pytest.raises(UniqueViolationError):
            empty.commit()
        empty.discard()
