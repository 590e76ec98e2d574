"""What the pages on moving, roles and the command line say is so."""

from __future__ import annotations

import re
import shlex

import psycopg
import pytest
import typer
from typer.testing import CliRunner

from ontologia import Session
from ontologia.cli.main import app
from ontologia.store.postgres.place import place_of
from ontologia_conformance.backends import NAMES
from tests.docs.test_documentation import DOCS, blocks
from tests.shop import Customer

MOVE = DOCS / "howto/move.md"
ROLES = DOCS / "howto/postgres-roles.md"
CLI = (DOCS / "reference/cli.md").read_text()


@pytest.fixture
def target(request):
    return request.getfixturevalue(NAMES[1]).unmade()


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """The working directory, with an app.db in it."""
    monkeypatch.chdir(tmp_path)
    with Session("app.db") as session:
        session.ensure(Customer(id="c1", name="Ada"))
        session.commit()


def _arguments(line):
    words = shlex.split(line)
    assert words[0] == "ontologia"
    return words[1:]


def test_the_command_that_moves_a_store_moves_it(shop, target):
    [line] = "".join(blocks(MOVE, "sh")).splitlines()
    arguments = [target if "db.example.com" in word else word for word in _arguments(line)]

    done = CliRunner().invoke(app, arguments)

    assert done.exit_code == 0, done.stderr
    with Session(target) as session:
        assert session.head == 1


def test_the_program_that_moves_a_store_moves_it(shop, target, capsys):
    [program] = blocks(MOVE, "python")

    exec(program, {"target": target})  # noqa: S102

    assert "the source has not changed meanwhile" in capsys.readouterr().out


def test_the_statements_for_roles_can_be_applied(target):
    printed, applied = "".join(blocks(ROLES, "sh")).splitlines()
    schema = place_of(target).schema
    arguments = [*_arguments(printed.partition(">")[0]), "--schema", schema]
    text = CliRunner().invoke(app, arguments).stdout
    [grants] = blocks(ROLES, "sql")
    grants = grants.replace("ontologia_", f"{schema}_")
    logins = {"app": f"{schema}_app", "dashboard": f"{schema}_dashboard"}
    for name, login in logins.items():
        grants = grants.replace(f"TO {name};", f"TO {login};")

    assert applied.startswith("psql ")
    with psycopg.connect(place_of(target).conninfo, autocommit=True) as connection:
        connection.execute(text.encode())
        try:
            for login in logins.values():
                connection.execute(f"CREATE ROLE {login}".encode())
            connection.execute(grants.encode())
        finally:
            for role in (f"{schema}_worker", f"{schema}_reader", *logins.values()):
                connection.execute(f"DROP OWNED BY {role}".encode())
                connection.execute(f"DROP ROLE {role}".encode())


def _commands(group, *above):
    for name, command in group.commands.items():
        if getattr(command, "invoke_without_command", False):
            yield " ".join((*above, name)), command
        if hasattr(command, "commands"):
            yield from _commands(command, *above, name)
        else:
            yield " ".join((*above, name)), command


def _words(heading):
    return set(re.findall(r"[a-z-]+", heading.lower()))


def _told(name):
    """What the manual says of a command: its own section, what its chapter and the page begin with."""
    head, *chapters = re.split(r"^## ", CLI, flags=re.MULTILINE)
    told = [head]
    for chapter in chapters:
        intro, *sections = re.split(r"^### ", chapter, flags=re.MULTILINE)
        mine = [each for each in sections if set(name.split()) <= _words(each.splitlines()[0])]
        if mine or set(name.split()) <= _words(intro.splitlines()[0]):
            told += [intro, *mine]
    return "".join(told)


def test_every_command_and_option_is_in_the_manual():
    for name, command in _commands(typer.main.get_command(app)):
        assert f"`ontologia {name}" in CLI
        assert "Example: ontologia" in (command.help or ""), name
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("--") and option != "--help":
                    assert f"`{option}`" in _told(name), (name, option)


def test_every_command_in_the_manual_exists():
    found = set(re.findall(r"`ontologia ([a-z]+(?: [a-z][a-z-]*)*)", CLI))

    assert {name.strip() for name in found} == {
        name for name, _ in _commands(typer.main.get_command(app))
    }
