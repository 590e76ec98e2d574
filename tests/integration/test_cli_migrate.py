"""`ontologia migrate`: a program's types against the store's."""

from __future__ import annotations

import json
import sys
from itertools import count

import pytest

from ontologia import Session
from ontologia.store import staging
from tests.integration.commands import invoke, process
from tests.shop import Product

names = count(1)
OTHER = """
from ontologia import Entity, Field


class Product(Entity):
    sku: Field[str] = Field(primary_key=True)
    cents: Field[int]


class Novelty(Entity):
    id: Field[str]
"""
SAME = """
from ontologia import Entity, Field


class Product(Entity):
    sku: Field[str] = Field(primary_key=True)
    price: Field[float]
"""
STEP = """
from ontologia import upgrader


@upgrader("Product", from_version=1)
def in_cents(fields):
    return {"sku": fields["sku"], "cents": int(fields["price"] * 100)}
"""

STOPPING = """
import builtins

from ontologia import upgrader


@upgrader("Product", from_version=1)
def in_cents(fields):
    if fields["sku"] == "pen" and builtins.stop_migrating:
        raise KeyboardInterrupt
    return {"sku": fields["sku"], "cents": int(fields["price"] * 100)}
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module; its name."""
    from ontologia.schema import upgraders

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(upgraders, "_registered", {})

    def write(text):
        name = f"migrate_models_{next(names)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


@pytest.fixture
def shop(uri):
    with Session(uri) as session:
        session.ensure([Product(sku="ink", price=3.0), Product(sku="pen", price=1.5)])
    return uri


def types_of(uri):
    done = invoke("schema", "export", "--datastore-uri", uri, "--json")
    return {each["name"]: each["version"] for each in map(json.loads, done.stdout.splitlines())}


def test_a_preview_shows_every_change_and_the_token_and_writes_nothing(shop, module):
    models = module(OTHER + STEP)

    done = invoke("migrate", "--models", models, "--datastore-uri", shop)

    assert done.exit_code == 3
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        "entity Product, version 1 → 2",
        "  - price: float (compatible)",
        "  + cents: int (breaking: a new field without a default)",
        "  2 objects to write anew",
    ]
    assert lines[4].startswith("token: ")
    place = shop if shop.startswith("sqlite") else "postgresql://…"
    assert lines[5] == (
        f"To apply it: ontologia migrate --models {models} --datastore-uri {place} "
        f"--apply --token {lines[4][7:]}"
    )
    assert types_of(shop) == {"Product": 1}


def test_the_token_applies_what_was_shown(shop, module):
    models = module(OTHER + STEP)
    shown = json.loads(
        invoke("migrate", "--models", models, "--datastore-uri", shop, "--json").stdout
    )

    done = invoke(
        *("migrate", "--models", models, "--apply", "--token", shown["token"]),
        *("--datastore-uri", shop),
    )

    assert shown["types"][0]["objects"] == 2
    assert shown["types"][0]["changes"] == [
        {"name": "price", "before": "float", "after": None, "verdict": "compatible"},
        {
            "name": "cents",
            "before": None,
            "after": "int",
            "verdict": "breaking: a new field without a default",
        },
    ]
    assert done.exit_code == 0
    assert done.stdout == (
        "Product is at version 2\nrecorded in commit 2, with 2 objects written anew\n"
    )
    assert types_of(shop) == {"Product": 2, "Novelty": 1}
    cls = sys.modules[models].Product
    with Session(shop) as session:
        assert [each.cents for each in session.query().entities(cls).collect()] == [300, 150]
    again = invoke("migrate", "--models", models, "--datastore-uri", shop)
    assert (again.exit_code, again.stdout) == (0, "nothing to migrate\n")


@pytest.mark.parametrize("objects", [2, 0])
def test_the_commit_says_who_migrated_and_why_also_if_it_changes_no_object(shop, module, objects):
    models = module(OTHER + STEP)
    where = ("--datastore-uri", shop)
    if not objects:
        with Session(shop) as session:
            session.delete([Product(sku="ink", price=3.0), Product(sku="pen", price=1.5)])
    plan = json.loads(invoke("migrate", "--models", models, *where, "--json").stdout)

    invoke(
        *("migrate", "--models", models, "--apply", "--token", plan["token"]),
        *("--reason", "cents are exact", *where),
    )

    with Session(shop) as session:
        said = session.list_commits(limit=1)[0]["metadata"]
    assert said["action"] == "migrate"
    assert "@" in said["operator"]
    assert said["reason"] == "cents are exact"
    assert said["arguments"] == {"models": models}
    assert said["counts"] == {"objects": objects}
    assert said["migration"] == {"Product": 2}


def test_nothing_to_do_is_said_with_exit_code_0(shop, module, tmp_path):
    """Modules are looked for in the working directory."""
    name = module(SAME)

    done = process("migrate", "--models", name, "--datastore-uri", shop, cwd=tmp_path)

    assert (done.returncode, done.stdout) == (0, b"nothing to migrate\n"), done.stderr


def test_upgraders_may_be_in_a_module_of_their_own(shop, module):
    models, steps = module(OTHER), module(STEP)

    without = invoke("migrate", "--models", models, "--datastore-uri", shop)
    done = invoke("migrate", "--models", models, "--upgraders", steps, "--datastore-uri", shop)

    assert '  missing: @upgrader("Product", from_version=1)' in without.stdout
    assert "missing" not in done.stdout
    assert f"ontologia migrate --models {models} --upgraders {steps} " in done.stdout
    assert (without.exit_code, done.exit_code) == (3, 3)


def test_a_step_that_is_missing_is_an_error_and_nothing_is_written(shop, module):
    models = module(OTHER)
    shown = json.loads(
        invoke("migrate", "--models", models, "--datastore-uri", shop, "--json").stdout
    )

    done = invoke(
        *("migrate", "--models", models, "--apply", "--token", shown["token"]),
        *("--datastore-uri", shop),
    )

    assert shown["types"][0]["missing_upgraders"] == [1]
    assert done.exit_code == 3
    assert "no upgrader for Product from version 1; nothing was written" in done.stderr
    assert types_of(shop)["Product"] == 1


@pytest.mark.req("SQL-092")
def test_a_token_is_for_the_plan_whatever_else_was_committed(shop, module):
    models = module(OTHER + STEP)
    shown = json.loads(
        invoke("migrate", "--models", models, "--datastore-uri", shop, "--json").stdout
    )
    with Session(shop) as session:
        session.ensure(Product(sku="cap", price=1.0))

    done = invoke(
        *("migrate", "--models", models, "--apply", "--token", shown["token"]),
        *("--datastore-uri", shop),
    )

    assert done.exit_code == 0, done.stderr
    cls = sys.modules[models].Product
    with Session(shop) as session:
        assert session.query().entities(cls).collect()[0].cents == 100


def test_a_token_is_for_one_plan(shop, module):
    models = module(OTHER + STEP)
    shown = json.loads(
        invoke("migrate", "--models", models, "--datastore-uri", shop, "--json").stdout
    )
    with Session(shop) as session:
        session.ensure(Product(sku="cap", price=1.0))
    other = module(OTHER.replace("cents: Field[int]", "cents: Field[str]"))

    done = invoke(
        *("migrate", "--models", other, "--apply", "--token", shown["token"]),
        *("--datastore-uri", shop),
    )

    models = other
    assert done.exit_code == 3
    assert f"hint: See what it is now, with its token: ontologia migrate --models {models}" in (
        done.stderr
    )


@pytest.mark.req("SQL-091")
def test_force_applies_without_a_token(shop, module):
    models = module(OTHER + STEP)

    done = invoke("migrate", "--models", models, "--apply", "--force", "--datastore-uri", shop)

    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("Product is at version 2\nrecorded in commit 2")
    assert types_of(shop) == {"Product": 2, "Novelty": 1}


def test_the_schema_of_any_version_is_printed(shop, module):
    invoke(
        *("migrate", "--models", module(OTHER + STEP), "--apply", "--force"),
        *("--datastore-uri", shop),
    )

    def shown(*arguments: str):
        done = invoke("schema", "show", *arguments, "--datastore-uri", shop)
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    old, current = shown("Product", "--version", "1", "--json"), shown("Product")

    assert (old["kind"], old["name"], old["version"]) == ("entity", "Product", 1)
    assert set(old["schema"]["fields"]) == {"sku", "price"}
    assert (current["version"], set(current["schema"]["fields"])) == (2, {"sku", "cents"})
    assert shown("Product", "--version", "2") == current
    for arguments, said in ((("Product", "--version", "3"), "It has 1, 2."), (("Pen",), "Product")):
        done = invoke("schema", "show", *arguments, "--datastore-uri", shop)
        assert done.exit_code == 4
        assert said in done.stderr


@pytest.mark.parametrize(
    "options", [["--apply"], ["--token", "x"], ["--force"], ["--apply", "--token", "x", "--force"]]
)
def test_apply_and_token_go_together(shop, module, options):
    done = invoke("migrate", "--models", module(SAME), *options, "--datastore-uri", shop)

    assert done.exit_code == 2


def test_a_module_without_types_is_a_usage_error(shop, module):
    done = invoke("migrate", "--models", module(""), "--datastore-uri", shop)

    assert done.exit_code == 2
    assert "defines no types" in done.stderr


def test_metadata_is_shown_as_json(shop, module):
    models = module(OTHER + STEP)
    where = ("--datastore-uri", shop)
    plan = json.loads(invoke("migrate", "--models", models, *where, "--json").stdout)
    invoke("migrate", "--models", models, "--apply", "--token", plan["token"], *where)

    assert 'migration={"Product":2}' in invoke("commits", *where).stdout
    assert '    migration: {"Product":2}\n' in invoke("commits", "show", "2", *where).stdout
    assert 'migration={"Product":2}' in invoke("why", "Product", "ink", *where).stdout


def test_no_token_is_offered_while_an_upgrader_is_missing(shop, module):
    done = invoke("migrate", "--models", module(OTHER), "--datastore-uri", shop)

    assert done.exit_code == 3
    assert "missing: @upgrader" in done.stdout
    assert "token: " not in done.stdout
    assert "Write what is missing first" in done.stdout


@pytest.mark.thorough
def test_the_past_of_a_migrated_type_can_be_asked_for_with_its_upgraders(
    shop,
    module,
    tmp_path,
):
    models = module(OTHER + STEP)
    where = ("--datastore-uri", shop)
    plan = json.loads(invoke("migrate", "--models", models, *where, "--json").stdout)
    invoke("migrate", "--models", models, "--apply", "--token", plan["token"], *where)
    past = ("query", "entities", "Product", "--as-of", "1", *where)

    # Processes of their own: this one has the upgraders already.
    without = process(*past, cwd=tmp_path)
    with_them = process(*past, "--upgraders", models, cwd=tmp_path)

    assert without.returncode == 3
    assert b"import its module (--upgraders on the command line)" in without.stderr
    assert with_them.returncode == 0, with_them.stderr
    assert with_them.stdout.decode().splitlines() == ["sku\tcents", "ink\t300", "pen\t150"]


UNIQUE = SAME.replace("Field[float]", "Field[float] = Field(unique=True)")


def test_values_that_are_not_unique_yet_are_shown_before_there_is_a_token(shop, module):
    models = module(UNIQUE)
    with Session(shop) as session:
        session.ensure(Product(sku="nib", price=1.5))

    done = invoke("migrate", "--models", models, "--datastore-uri", shop)
    shown = json.loads(
        invoke("migrate", "--models", models, "--datastore-uri", shop, "--json").stdout
    )
    refused = invoke(
        *("migrate", "--models", models, "--apply", "--token", shown["token"]),
        *("--datastore-uri", shop),
    )

    assert done.exit_code == 3
    assert done.stdout.splitlines() == [
        "entity Product, version 1 → 2",
        "  ~ price: float → float, unique (compatible)",
        "  0 objects to write anew",
        "  not unique: price: 1 value of more than one object, for example 1.5 of nib, pen",
        "Change these values first; then this command gives the token that applies it.",
    ]
    assert shown["types"][0]["duplicates"] == [
        {"field": "price", "values": 1, "examples": [[1.5, ["nib", "pen"]]]}
    ]
    assert refused.exit_code == 6
    assert "Product.price is unique" in refused.stderr
    assert types_of(shop) == {"Product": 1}


def test_values_that_are_unique_become_so_and_the_history_says_it(shop, module):
    models = module(UNIQUE)
    token = json.loads(
        invoke("migrate", "--models", models, "--datastore-uri", shop, "--json").stdout
    )["token"]

    done = invoke(
        *("migrate", "--models", models, "--apply", "--token", token, "--datastore-uri", shop)
    )

    assert done.exit_code == 0
    history = invoke("schema", "history", "Product", "--datastore-uri", shop, "--json").stdout
    assert json.loads(history.splitlines()[-1])["changes"] == [
        {"name": "price", "before": "float", "after": "float, unique"}
    ]


@pytest.mark.each_database
@pytest.mark.req("NEW-140")
def test_after_a_compatible_change_doctor_finds_nothing_and_an_export_is_complete(shop, module):
    models = module("""
from ontologia import Entity, Field


class Product(Entity):
    sku: Field[str] = Field(primary_key=True)
    price: Field[float | None]
    tags: Field[list[str]] = Field(default_factory=lambda: ["new"])
""")
    shown = invoke("migrate", "--models", models, "--datastore-uri", shop)
    token = shown.stdout.splitlines()[4].removeprefix("token: ")

    done = invoke(
        "migrate", "--models", models, "--apply", "--token", token, "--datastore-uri", shop
    )

    assert shown.stdout.splitlines()[:4] == [
        "entity Product, version 1 → 2",
        "  ~ price: float → float | null (compatible)",
        '  + tags: list[str] (compatible: ["new"] in objects that lack it)',
        "  0 objects to write anew",
    ]
    assert done.exit_code == 0, done.stderr
    assert "old_versions" not in invoke("doctor", "--datastore-uri", shop, "--json").stdout
    lines = invoke("export", "--datastore-uri", shop).stdout.splitlines()
    assert [json.loads(line)["fields"] for line in lines[1:]] == [
        {"price": 3.0, "sku": "ink", "tags": ["new"]},
        {"price": 1.5, "sku": "pen", "tags": ["new"]},
    ]
    past = invoke("export", "--as-of", "1", "--datastore-uri", shop).stdout.splitlines()
    assert past[1:] == lines[1:]


# -- in the background ------------------------------------------------------------------------------


@pytest.fixture
def broken_off(shop, module, monkeypatch):
    """A store whose migration was broken off by Ctrl-C, its module, and what was said."""
    monkeypatch.setenv("ONTOLOGIA_MIGRATION_AT_ONCE", "0")
    models = module(OTHER + STOPPING)
    import builtins

    monkeypatch.setattr(staging, "PAGE", 1)
    monkeypatch.setattr(builtins, "stop_migrating", True, raising=False)
    stopped = invoke("migrate", "--models", models, "--apply", "--force", "--datastore-uri", shop)
    monkeypatch.setattr(builtins, "stop_migrating", False)
    return shop, models, stopped


@pytest.mark.req("NEW-146")
def test_a_migration_that_was_broken_off_says_how_to_go_on(broken_off):
    shop, models, stopped = broken_off

    assert stopped.exit_code == 130
    assert "upgrading: 1 of 2 objects" in stopped.stderr
    assert "Broken off: a migration of Product is pending: 1 of 2 objects are" in stopped.stderr
    assert "The same command goes on with it.\n" in stopped.stderr
    assert "ontologia migrate --abort takes it back.\n" in stopped.stderr

    seen = invoke("migrate", "--models", models, "--datastore-uri", shop)
    assert seen.exit_code == 3
    assert "a migration of Product is pending: 1 of 2 objects are upgraded" in seen.stdout
    shown = json.loads(
        invoke("migrate", "--models", models, "--datastore-uri", shop, "--json").stdout
    )
    assert (shown["pending"]["objects"], shown["pending"]["staged"]) == (2, 1)

    done = invoke("migrate", "--models", models, "--apply", "--force", "--datastore-uri", shop)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "Product is at version 2",
        "recorded in commit 2, with 2 objects written anew",
    ]
    assert types_of(shop)["Product"] == 2


@pytest.mark.req("NEW-146")
def test_a_migration_that_was_broken_off_can_be_taken_back(broken_off):
    shop, models, _ = broken_off

    done = invoke("migrate", "--abort", "--datastore-uri", shop)

    assert done.exit_code == 0
    assert done.stdout == "the migration of Product was taken back, with 1 upgraded object\n"
    assert invoke("migrate", "--abort", "--datastore-uri", shop).stdout == (
        "no migration is pending\n"
    )
    assert types_of(shop)["Product"] == 1
    assert "pending" not in invoke("migrate", "--models", models, "--datastore-uri", shop).stdout


@pytest.mark.req("NEW-146")
def test_commands_say_that_a_migration_is_pending(broken_off):
    shop, models, _ = broken_off
    said = "a migration of Product is pending: 1 of 2 objects are upgraded"

    found = invoke("doctor", "--datastore-uri", shop)
    assert found.exit_code == 0
    assert "a migration was broken off, and no session continues it" in found.stdout
    assert said in invoke("info", "--datastore-uri", shop).stdout
    assert said in invoke("schema", "history", "Product", "--datastore-uri", shop).stderr
    assert said in invoke("preflight", models, "--datastore-uri", shop).stdout


@pytest.mark.parametrize(
    "wrong",
    [["--abort", "--apply"], ["--abort", "--models", "m"], ["--rate", "5"], []],
    ids=["abort and apply", "abort and models", "a rate without apply", "no models"],
)
def test_options_that_do_not_go_together_are_refused(shop, wrong):
    models = ["--models", "tests.shop"] if wrong[:1] == ["--rate"] else []

    assert invoke("migrate", *wrong, *models, "--datastore-uri", shop).exit_code == 2
