"""`ontologia schema export | history | drop`: the types of a store."""

from __future__ import annotations

import json

import pytest

from ontologia import Entity, Field, Relation, Session
from ontologia.errors import MigrationTokenError
from ontologia.migration.drop import TypeDrop
from ontologia.runtime.session import core_of
from tests.integration.commands import at_a_terminal, invoke, process
from tests.shop import Customer, Product, Subscription


@pytest.fixture
def shop(uri):
    with Session(uri, entity_types=[Customer, Product], relation_types=[Subscription]) as session:
        session.ensure([Customer(id="c1", name="Ada"), Customer(id="c2", name="Bob")])
        session.ensure(Product(sku="ink", price=3.0))
    return uri


@pytest.fixture
def schema(shop):
    return lambda *arguments: invoke("schema", *arguments, "--datastore-uri", shop)


def registered(uri):
    done = invoke("schema", "export", "--datastore-uri", uri, "--json")
    return [json.loads(line)["name"] for line in done.stdout.splitlines()]


# -- export -----------------------------------------------------------------------------------------


def test_the_registered_types_are_printed_as_json(schema):
    customer, product, subscription = json.loads(schema("export").stdout)

    assert (customer["kind"], customer["name"], customer["version"]) == ("entity", "Customer", 1)
    assert customer["schema"]["fields"]["name"] == {"type": "str"}
    assert product["schema"]["key"] == "sku"
    assert (subscription["schema"]["left"], subscription["schema"]["right"]) == (
        "Customer",
        "Product",
    )


def test_one_type_is_printed_when_it_is_asked_for(schema):
    [product] = schema("export", "--type", "Product", "--json").stdout.splitlines()

    assert json.loads(product)["name"] == "Product"


def test_a_type_that_is_not_there_is_not_found(schema):
    for command in (["export", "--type", "Nobody"], ["history", "Nobody"], ["drop", "Nobody"]):
        done = schema(*command)
        assert done.exit_code == 4
        assert "there is no type Nobody" in done.stderr
        assert "Customer, Product, Subscription" in done.stderr


# -- history ----------------------------------------------------------------------------------------


@pytest.fixture
def migrated(shop):
    """The store after a program with another Product."""

    class Product(Entity):
        sku: Field[str] = Field(primary_key=True)
        price: Field[int | None]
        colour: Field[str] = "black"

    with Session(
        shop,
        entity_types=[Product],
        upgraders={("Product", 1): lambda fields: fields | {"price": 3, "colour": "blue"}},
    ) as session:
        session.migrate(dry_run=False, token=session.migrate().token)
    return shop


def test_the_versions_of_a_type_are_listed_with_what_changed(migrated):
    done = invoke("schema", "history", "Product", "--datastore-uri", migrated)

    head, first, second = [line.split("\t") for line in done.stdout.splitlines()]
    assert head == ["Version", "When", "Reason", "By", "Changes"]
    assert (first[0], first[2]) == ("1", "initial")
    assert first[4] == "+ price: float, + sku: str, + (key): sku"
    assert (second[0], second[2]) == ("2", "migration")
    assert ", process " in second[3]
    assert second[4] == "~ price: float → int | null, + colour: str"


def test_a_program_gets_the_versions_as_json(migrated):
    done = invoke("schema", "history", "Product", "--datastore-uri", migrated, "--json")

    second = json.loads(done.stdout.splitlines()[1])
    assert second["version"] == 2
    assert second["changes"] == [
        {"name": "price", "before": "float", "after": "int | null"},
        {"name": "colour", "before": None, "after": "str"},
    ]


def test_a_name_that_an_entity_and_a_relation_have_needs_its_kind(shop, schema):
    class Product(Relation[Customer, Customer]):
        pass

    with Session(shop, relation_types=[Product]):
        pass

    assert schema("history", "Product").exit_code == 2
    done = schema("history", "Product", "--kind", "relation")
    assert "+ (left): Customer" in done.stdout


@pytest.mark.thorough
def test_a_real_process_lists_them_and_a_terminal_gets_a_table(migrated):
    done = process("schema", "history", "Product", "--datastore-uri", migrated)
    code, shown = at_a_terminal("schema", "history", "Product", "--datastore-uri", migrated)

    assert (done.returncode, code) == (0, 0)
    assert b"\x1b" not in done.stdout
    assert "──" in shown


# -- drop -------------------------------------------------------------------------------------------


def token(done):
    return next(line for line in done.stdout.splitlines() if line.startswith("token: "))[7:]


def test_dropping_is_shown_first_and_writes_nothing(shop, schema):
    done = schema("drop", "Subscription")

    assert done.exit_code == 0
    assert "relation Subscription, version 1, would be dropped" in done.stdout
    assert "0 objects would be deleted" in done.stdout
    assert f"--apply --token {token(done)}" in done.stdout
    assert "Subscription" in registered(shop)


def test_a_type_without_objects_is_dropped_and_the_commit_says_who_did_it(shop, schema):
    done = schema(
        *("drop", "Subscription", "--apply", "--reason", "tidying"),
        *("--token", token(schema("drop", "Subscription"))),
    )

    assert done.stdout == "relation Subscription was dropped, in commit 2\n"
    assert registered(shop) == ["Customer", "Product"]
    with Session(shop) as session:
        said = session.get_commit(2)["metadata"]
        assert session.list_commit_changes(2) == []
    assert said["action"] == "schema drop"
    assert said["arguments"] == {"kind": "relation", "type": "Subscription", "with_objects": False}
    assert said["counts"] == {"deleted": 0}
    assert said["reason"] == "tidying"
    assert "@" in said["operator"]


def test_a_type_with_objects_is_refused_unless_they_go_too(shop, schema):
    schema("drop", "Subscription", "--apply", "--token", token(schema("drop", "Subscription")))

    refused = schema("drop", "Customer")
    shown = schema("drop", "Customer", "--with-objects", "--json")
    plan = json.loads(shown.stdout)
    other = schema("drop", "Customer", "--apply", "--token", plan["token"])
    done = schema("drop", "Customer", "--with-objects", "--apply", "--token", plan["token"])

    assert (refused.exit_code, other.exit_code) == (3, 3)
    assert "Customer has 2 current objects; nothing was changed" in refused.stderr
    assert plan["objects"] == 2
    assert done.stdout.splitlines()[1] == "deleted with it: 2 objects"
    with Session(shop) as session:
        assert session.query().entities(Customer).count() == 0
        assert session.query().entities(Customer).as_of(1).count() == 2
        assert [each["change_type"] for each in session.list_commit_changes(3)] == ["deleted"] * 2
    with Session(shop) as session:
        session.ensure(Product(sku="pen", price=1.0))  # who does not use it is not disturbed


def test_an_entity_type_that_a_relation_type_ends_at_is_refused(shop, schema):
    done = schema("drop", "Product", "--with-objects")

    assert done.exit_code == 3
    assert "Product is an end of Subscription" in done.stderr
    assert "Product" in registered(shop)


def test_a_token_is_for_the_store_as_it_was(shop, schema):
    old = token(schema("drop", "Subscription"))
    with Session(shop) as session:
        session.ensure(Product(sku="pen", price=1.0))

    done = schema("drop", "Subscription", "--apply", "--token", old)

    assert done.exit_code == 3
    assert "at commit 2; nothing was changed" in done.stderr
    assert "Subscription" in registered(shop)


@pytest.mark.parametrize("options", [["--apply"], ["--token", "x"]])
def test_apply_and_token_go_together(schema, options):
    assert schema("drop", "Subscription", *options).exit_code == 2


def test_a_type_that_was_dropped_says_so_and_can_be_used_again(shop, schema):
    schema("drop", "Subscription", "--apply", "--token", token(schema("drop", "Subscription")))

    lines = schema("history", "Subscription").stdout.splitlines()
    assert lines[-1].endswith("\tdropped")
    assert schema("drop", "Subscription").exit_code == 4

    with Session(shop, relation_types=[Subscription]) as session:
        session.validate()
        session.ensure(Subscription(left_key="c1", right_key="ink", seats=2))
        session.commit()
        assert session.query().relations(Subscription).count() == 1
    assert "Subscription" in registered(shop)
    assert len(schema("history", "Subscription").stdout.splitlines()) == 4


def test_a_program_that_was_open_when_its_type_was_dropped_registers_it_again(shop):
    with Session(shop) as session:
        session.ensure(Product(sku="pen", price=1.0))
        session.commit()
        with Session(shop) as other:
            other.delete([Product(sku="pen", price=1.0), Product(sku="ink", price=3.0)])
            drop = TypeDrop(core_of(other).store)
            other.commit()
            plan = drop.plan("relation", "Subscription")
            drop.apply("me", "relation", "Subscription", token=plan.token, metadata={})
            plan = drop.plan("entity", "Product")
            with pytest.raises(MigrationTokenError):
                drop.apply("me", "entity", "Product", token=plan.name, metadata={})
            drop.apply("me", "entity", "Product", token=plan.token, metadata={})

        session.ensure(Product(sku="pen", price=2.0))
        session.commit()

        assert [each.price for each in session.query().entities(Product).collect()] == [2.0]
        assert core_of(session).store.get_current_schema_version("entity", "Product")[
            "schema_version_id"
        ] == 3  # fmt: skip


def test_the_past_of_a_dropped_type_stays_readable_when_it_is_there_again(shop, schema):
    """Its two lives have one schema, so no upgrader is asked for."""
    schema("drop", "Subscription", "--apply", "--token", token(schema("drop", "Subscription")))
    shown = token(schema("drop", "Product", "--with-objects"))
    schema("drop", "Product", "--with-objects", "--apply", "--token", shown)

    with Session(shop) as session:
        session.ensure(Product(sku="pen", price=1.0))
        session.commit()
        query = session.query().entities(Product)
        assert [each.sku for each in query.as_of(1).where(Product.price > 2.0).collect()] == ["ink"]
        assert len(query.with_history().collect()) == 3


@pytest.mark.thorough
def test_the_past_of_a_dropped_type_can_be_asked_for_by_its_name(shop, schema):
    where = ("--datastore-uri", shop)
    schema("drop", "Subscription", "--apply", "--token", token(schema("drop", "Subscription")))
    shown = token(schema("drop", "Product", "--with-objects"))
    schema("drop", "Product", "--with-objects", "--apply", "--token", shown)

    past = invoke("query", "entities", "Product", "--as-of", "1", *where)
    now = invoke("query", "entities", "Product", *where)
    why = invoke("why", "Product", "ink", *where)
    never = invoke("query", "entities", "Prodct", *where)

    assert past.stdout.splitlines()[1:] == ["ink\t3.0"]
    assert (now.exit_code, len(now.stdout.splitlines())) == (0, 1)
    assert why.stdout.startswith("Product ink is deleted\n└─ set by commit 3 ")
    assert never.exit_code == 4


def test_the_preview_of_a_drop_gives_the_whole_command(shop):
    uri = shop if shop.startswith("sqlite") else "postgresql://…"

    done = invoke(
        *("schema", "drop", "Customer", "--kind", "entity", "--with-objects"),
        *("--datastore-uri", shop),
    )
    assert done.exit_code == 3  # a relation ends there
    done = invoke(
        *("schema", "drop", "Subscription", "--kind", "relation", "--with-objects"),
        *("--datastore-uri", shop),
    )

    assert (
        "To do it: ontologia schema drop Subscription --kind relation --with-objects "
        f"--datastore-uri {uri} --apply --token "
    ) in done.stdout


def test_the_past_of_a_dropped_type_takes_the_steps_that_a_new_schema_asks_for(shop, schema):
    class Product(Entity):
        sku: Field[str] = Field(primary_key=True)
        cents: Field[int]

    def in_cents(fields):
        return {"sku": fields["sku"], "cents": int(fields["price"] * 100)}

    schema("drop", "Subscription", "--apply", "--token", token(schema("drop", "Subscription")))
    shown = token(schema("drop", "Product", "--with-objects"))
    schema("drop", "Product", "--with-objects", "--apply", "--token", shown)

    steps = {("Product", 1): in_cents, ("Product", 2): lambda fields: fields}
    with Session(shop, entity_types=[Product], upgraders=steps) as session:
        [ink] = session.query().entities(Product).as_of(1).collect()
        assert ink.cents == 300
