"""Text of clients in logs, tables and errors: it begins no line of its own, and moves no cursor."""

from __future__ import annotations

import json
import logging
import re

import pytest

from ontologia import Entity, Event, Field, Session, on_event
from ontologia.cli.call import Call
from ontologia.cli.output import show_facts
from ontologia.cli.worklog import logged
from tests.integration.commands import at_a_terminal, invoke

FORGED = "2026-01-01 00:00:00,000 INFO payments: approved"
EVIL = f"a\n{FORGED}\nhint: {FORGED}\r\x1b[2J\x1b]0;owned\x07\x9b2K\u2028{FORGED}"
UNIQUE_NOTES = """
from ontologia import Entity, Field


class AbuseNote(Entity):
    id: Field[str] = Field(primary_key=True)
    text: Field[str] = Field(unique=True)
"""
DATED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")


class AbuseNote(Entity):
    id: Field[str] = Field(primary_key=True)
    text: Field[str]


class AbuseNoted(Event):
    text: Field[str]


def is_harmless(text):
    return has_no_forged_line(text) and all(each.isprintable() or each in "\n\t" for each in text)


def has_no_forged_line(text):
    assert FORGED in text
    return not any(line.startswith(FORGED) for line in text.splitlines())


@pytest.fixture
def noted(uri):
    with Session(uri, entity_types=[AbuseNote]) as session:
        session.ensure(AbuseNote(id="n1", text=EVIL))
        session.commit(event=AbuseNoted(text=EVIL))
    return uri


def test_the_plain_log_has_one_dated_line_for_each_record(capsys):
    log = logging.getLogger("shop")
    with logged():
        log.warning("a note: %s", EVIL)
        try:
            raise ValueError(EVIL)
        except ValueError:
            log.exception("a note failed: %s", EVIL)

    written = capsys.readouterr().err
    dated = [line for line in written.splitlines() if DATED.match(line)]
    assert is_harmless(written)
    assert [line.split(": ")[1] for line in dated] == ["a note", "a note failed"]
    assert f"\n  ValueError: a\n  {FORGED}" in written


def test_what_a_handler_logs_is_one_line_with_its_event(noted, capsys):
    @on_event(AbuseNoted, name="copy")
    def copy(ctx):
        logging.getLogger("shop").info("noted %s", ctx.event.text)

    with logged(), Session(noted) as session:
        session.run([copy], max_iterations=1)

    written = capsys.readouterr().err
    [line] = [each for each in written.splitlines() if " shop: " in each]
    assert is_harmless(written)
    assert DATED.match(line)
    assert line.endswith(" handler=copy]")
    assert r"noted a\n2026" in line


def test_a_piped_table_has_a_line_for_each_row(noted):
    done = invoke("query", "entities", "AbuseNote", "--datastore-uri", noted)

    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 2
    assert is_harmless(done.stdout)
    assert r"\x1b[2J" in done.stdout


@pytest.mark.parametrize("columns", [10, 120])
def test_a_table_at_a_terminal_shows_it_in_its_place(noted, columns):
    where = ("--datastore-uri", noted)

    code, shown = at_a_terminal("query", "entities", "AbuseNote", *where, columns=columns)

    assert code == 0
    assert has_no_forged_line(shown)
    assert r"\x1b[2J" in shown


def test_facts_at_a_terminal_are_a_line_each(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    show_facts(Call(), {"note": EVIL, "next": "n2"})

    shown = capsys.readouterr().out
    assert is_harmless(shown)
    assert [line.split()[0] for line in shown.splitlines() if line[0] != " "] == ["note", "next"]


def test_what_a_migration_finds_begins_no_line(noted, tmp_path, monkeypatch):
    with Session(noted, entity_types=[AbuseNote]) as session:
        session.ensure(AbuseNote(id=EVIL, text=EVIL))
    (tmp_path / "unique_notes.py").write_text(UNIQUE_NOTES)
    monkeypatch.syspath_prepend(tmp_path)

    done = invoke("migrate", "--models", "unique_notes", "--datastore-uri", noted)

    assert done.exit_code == 3
    assert "not unique" in done.stdout
    assert is_harmless(done.stdout)


@pytest.mark.parametrize("options", [[], ["--debug"]], ids=["message", "traceback"])
def test_an_error_repeats_it_harmlessly(noted, tmp_path, options):
    where = ("--datastore-uri", noted, *options)
    header = invoke("export", *where).stdout.splitlines()[0]
    strange = {"kind": "entity", "type": EVIL, "key": "n1", "fields": {"id": "n1"}}
    file = tmp_path / "state.jsonl"
    file.write_text(f"{header}\n{json.dumps(strange)}\n")

    done = invoke("import", str(file), *where)

    assert done.exit_code == 1
    assert is_harmless(done.stderr)
    assert f"\n  hint: {FORGED}" not in done.stderr
    assert r"\x1b[2J" in done.stderr
    assert ("Traceback" in done.stderr) == bool(options)
