"""`ontologia why` and `trace`, as somebody at a terminal and as a script use them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ontologia import Event, Field, on_event
from ontologia.cli.main import app
from tests.integration.explained import Customer, fill

ONTOLOGIA = [sys.executable, "-m", "ontologia"]


@pytest.fixture
def run(uri):
    runner = CliRunner()
    return lambda *words: runner.invoke(app, ["--datastore-uri", uri, *words])


@pytest.fixture
def shop(session, clock):
    fill(session, clock)
    return session


@pytest.fixture
def first(shop):
    return shop.why(Customer, "c1").event_id


def on_a_terminal(*words, uri):
    """What a terminal shows."""
    mine, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"}
    environment.pop("NO_COLOR", None)
    command = [*ONTOLOGIA, *words, "--datastore-uri", uri]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        while chunk := _read(mine):
            shown += chunk
    os.close(mine)
    assert process.returncode == 0, shown
    return shown.decode()


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


# -- why ------------------------------------------------------------------------------------------


@pytest.mark.req("NEW-041")
def test_why_draws_the_way_back(shop, uri):
    done = subprocess.run(
        [*ONTOLOGIA, "why", "Buys", "c1:10", "--field", "pieces", "--datastore-uri", uri],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    value, commit, paid, ordered, announced = done.stdout.splitlines()
    assert value == "Buys c1:10.pieces = 7"
    assert commit.startswith(
        "└─ set by commit 3 of 2026-01-01 00:01:00 UTC, handler ship, attempt 1"
    )
    assert paid.startswith("   └─ for event paid ")
    assert paid.endswith(' {"customer":"c1"}, announced by pay')
    assert ordered.startswith("      └─ for event ordered ")
    assert announced == "         └─ announced by commit 1"
    assert "\x1b" not in done.stdout


@pytest.mark.req("NEW-041")
def test_why_in_json_has_the_whole_answer(run, shop, first):
    done = run("why", "Customer", "c1", "--json")

    answer = json.loads(done.stdout)
    assert done.exit_code == 0
    assert (answer["kind"], answer["type"], answer["key"]) == ("entity", "Customer", "c1")
    assert answer["value"]["tier"] == "gold"
    assert (answer["commit_id"], answer["handler_id"], answer["attempt"]) == (2, "pay", 2)
    assert answer["event_id"] == first
    assert [each["commit_id"] for each in answer["causes"]] == [1]


def test_values_are_shown_as_they_are_stored(run, shop):
    assert run("why", "Product", "10", "--field", "price").stdout.startswith(
        'Product 10.price = "1"\n'
    )
    assert json.loads(run("why", "Note", "c1:c:2:friend", "--json").stdout)["value"] == {
        "role": "friend",
        "text": "met in Bern",
    }


def test_what_no_handler_did_and_what_is_deleted_is_said(run, shop):
    shop.delete(Customer(id="c2", name=""))
    shop.commit()

    deleted = run("why", "Customer", "c2").stdout.splitlines()

    assert deleted[0] == "Customer c2 is deleted"
    assert deleted[1].startswith("└─ set by commit 4 of ")
    assert deleted[1].endswith(", namespace=default")


def test_an_event_that_is_retained_no_more_is_named(run, shop, first, sql):
    sql(f"DELETE FROM events WHERE id = '{first}'")

    assert (
        f"for event {first}, which is not retained any more" in run("why", "Customer", "c1").stdout
    )
    assert (
        f"for event {first}, which is not retained any more" in run("why", "Buys", "c1:10").stdout
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("Custmer", "c1"), "the store knows no type Custmer\n  hint: Did you mean Customer?"),
        (("Customer", "c9"), "there is no Customer c9, and there never was"),
        (("Customer", "c1", "--field", "age"), "Customer has no field 'age'\n  hint: It has id, "),
    ],
)
def test_what_is_not_there_is_exit_code_4(run, shop, words, said):
    done = run("why", *words)

    assert done.exit_code == 4
    assert said in done.stderr


def test_why_writes_nothing(run, shop, sql):
    tables = ("sessions", "schema_versions", "commits", "events")
    before = [sql(f"SELECT COUNT(*) FROM {table}") for table in tables]

    run("why", "Customer", "c1")
    run("query", "traverse", "Customer", "--via", "Buys")

    assert [sql(f"SELECT COUNT(*) FROM {table}") for table in tables] == before


# -- trace ----------------------------------------------------------------------------------------


@pytest.mark.req("NEW-042")
def test_trace_draws_the_tree(shop, first, uri):
    done = subprocess.run(
        [*ONTOLOGIA, "trace", first, "--datastore-uri", uri],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    ordered, pay, failed, paid, ship, write, discarded, dead = done.stdout.splitlines()
    assert ordered.startswith(f"event ordered {first} of 2026-01-01 00:00:00 ")
    assert ordered.endswith(", announced by commit 1  ◀")
    assert pay == "└─ pay: done, attempt 2, 0 ms, commit 2"
    assert failed == "   ├─ attempt 1 failed after 0 ms: RuntimeError: card \\x1b[31mdeclined"
    assert paid.startswith("   └─ event paid ")
    assert ship == "      ├─ ship: done, attempt 1, 0 ms, commit 3"
    assert write == "      └─ write: dead letter, attempt 1, 0 ms"
    assert discarded == "         ├─ attempt 1 discarded after 0 ms: no address"
    assert dead.startswith("         └─ event event.dead_letter ")


@pytest.mark.req("NEW-042")
def test_trace_in_json_is_an_event_a_line(run, first):
    done = run("trace", first, "--json")

    ordered, paid, dead = map(json.loads, done.stdout.splitlines())
    assert (ordered["event_id"], ordered["commit_id"]) == (first, 1)
    assert paid["causation_id"] == first
    assert [each["handler_id"] for each in paid["outcomes"]] == ["ship", "write"]
    assert ordered["outcomes"][0]["failures"][0]["outcome"] == "failed"
    assert dead["type"] == "event.dead_letter"


def test_a_terminal_gets_colours_and_no_control_characters_of_the_data(first, uri):
    shown = on_a_terminal("trace", first, uri=uri)

    assert "\x1b[32mdone\x1b[0m" in shown
    assert "\x1b[31mdead letter\x1b[0m" in shown
    assert "\\x1b[31mdeclined" in shown


def test_an_event_that_is_not_there_is_exit_code_4(run, shop):
    done = run("trace", "nobody")

    assert done.exit_code == 4
    assert done.stderr.startswith("error: there is no event nobody\n  hint: ")


def test_a_long_chain_is_shown(open_session, run):
    session = open_session(settings={"max_event_chain_depth": 5000})

    class Step(Event):
        number: Field[int]

    @on_event(Step, name="next")
    def follow(ctx):
        if ctx.event.number < 400:
            ctx.emit(Step(number=ctx.event.number + 1))

    event = Step(number=1)
    session.commit(event=event)
    session.run([follow], max_iterations=1)

    assert len(run("trace", event.id).stdout.splitlines()) == 800
    assert len(run("trace", event.id, "--json").stdout.splitlines()) == 400
