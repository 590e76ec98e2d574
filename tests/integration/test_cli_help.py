"""What `--help` shows to somebody who has 80 columns and has read nothing yet."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import pairwise

import pytest
import typer

from ontologia.cli.main import app
from tests.integration.commands import at_a_terminal, invoke


def _commands(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every command, with the words that call it and the first paragraph of its help."""
    text = inspect.cleandoc(getattr(command, "help", "") or "")
    yield path, " ".join(text.partition("\n\n")[0].split())
    for name, each in getattr(command, "commands", {}).items():
        yield from _commands(each, (*path, name))


COMMANDS = dict(_commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_is_plain_text_that_fits_a_terminal(path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    done = invoke(*path, "--help")

    assert done.exit_code == 0
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    assert "<bool>" not in done.stdout, "a flag takes no value"
    if COMMANDS[path]:
        assert COMMANDS[path] in " ".join(done.stdout.split())


@pytest.mark.thorough
def test_the_list_of_commands_has_a_whole_sentence_for_each():
    for path in COMMANDS:
        below = {each[-1] for each in COMMANDS if each[:-1] == path and each}
        listed = invoke(*path, "--help").stdout.partition("\nCommands:\n")[2]
        shown = f" {' '.join(listed.split())} "
        assert "..." not in shown, path
        assert [name for name in below if f" {name} " not in shown] == []


@pytest.mark.thorough
def test_lines_of_the_source_are_not_lines_of_the_help(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    filled = 0

    for path in COMMANDS:
        prose = invoke(*path, "--help").stdout.partition("\n\n")[2].partition("\nOptions:")[0]
        for paragraph in prose.partition("\nArguments:")[0].split("\n\n"):
            lines = paragraph.splitlines()
            for line, after in pairwise(lines):
                filled += 1
                assert len(line) + 1 + len(after.split()[0]) > 78, path

    assert filled > 30


def test_a_command_that_was_not_understood_is_told_in_plain_text(tmp_path):
    code, shown = at_a_terminal("why", "Order", columns=80, cwd=tmp_path)

    assert code == 2
    assert "error: Missing argument 'KEY'." in shown
    assert "╭" not in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nope"], "error: No such command 'nope'."),
        (["--nope"], "error: No such option"),
        (["commits", "nope"], "error: No such command 'nope'."),
        (["commits", "--since", "x"], "error: Invalid value for '--since'"),
        (["commits", "--meta", "x", "--datastore-uri", "no.db"], "error: Invalid value: 'x' is no"),
        (["info", "--datastore-uri", "no.db"], "error: there is no store at "),
    ],
)
def test_an_error_begins_with_the_same_word_wherever_it_comes_from(words, said):
    done = invoke(*words)

    assert done.exit_code == (4 if words[0] == "info" else 2)
    assert [line for line in done.stderr.splitlines() if line.startswith(said)] != []
    assert "Error:" not in done.stderr


def test_a_group_without_a_command_shows_its_help_and_no_error():
    done = invoke("events")

    assert "Commands:" in done.output
    assert "rror:" not in done.output
