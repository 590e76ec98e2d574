"""`ontologia emit`: an event by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from ontologia import Session, on_event
from ontologia.cli.demo_shop import OrderPlaced
from ontologia.cli.main import app

SHOP = ["--models", "ontologia.cli.demo_shop"]
ORDER = '{"order_id": "o-7"}'


@pytest.fixture
def run(uri):
    Session(uri).close()  # which makes the store
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, [*arguments, "--datastore-uri", uri])


@pytest.fixture
def stored(uri):
    def ask(event_id, namespace="default"):
        with Session(uri, namespace) as session:
            return session.event_store.inspect_event(event_id, namespace)

    return ask


def test_an_event_is_stored_as_it_is_given_and_its_id_printed(run, stored):
    done = run("emit", "some.thing", '{"b": 1.50, "a": null}', "--namespace", "shop")

    found = stored(done.stdout.strip(), "shop")
    assert done.exit_code == 0
    assert found["type"] == "some.thing"
    assert found["payload"] == {"a": None, "b": 1.5}
    assert found["priority"] == 100
    assert found["source"] == "ontologia emit"
    assert found["root_event_id"] == found["id"]


def test_a_handler_gets_what_was_emitted(run, uri):
    seen = []

    @on_event(OrderPlaced, name="look")
    def look(ctx):
        seen.append((ctx.event.order_id, ctx.event.id))

    done = run("emit", "order.placed", ORDER)
    with Session(uri) as session:
        session.run([look], max_iterations=1)

    assert seen == [("o-7", done.stdout.strip())]


@pytest.mark.parametrize("name", ["order.placed", "OrderPlaced"])
def test_a_class_is_found_by_its_type_or_its_name(run, stored, name):
    done = run("emit", name, ORDER, *SHOP, "--priority", "7")

    found = stored(done.stdout.strip())
    assert (found["type"], found["priority"]) == ("order.placed", 7)


@pytest.mark.parametrize(
    ("name", "fields", "code", "said"),
    [
        ("order.placed", "{}", 1, "order_id"),
        ("order.placed", '{"order_id": 7}', 1, "order_id"),
        ("order.placed", '{"order_id": "o", "colour": 1}', 1, "OrderPlaced has no field colour"),
        ("order.place", ORDER, 4, "Did you mean order.placed?"),
        ("zzz", ORDER, 4, "It has event.dead_letter, order.paid, order.placed, stock.due."),
    ],
)
def test_what_does_not_fit_its_class_is_not_stored(run, sql, name, fields, code, said):
    done = run("emit", name, fields, *SHOP)

    assert done.exit_code == code
    assert said in done.stderr
    assert sql("SELECT COUNT(*) FROM events") == [[0]]


@pytest.mark.parametrize(
    "arguments",
    [
        ["order.placed", "{"],
        ["order.placed", "[1]"],
        ["order.placed", '"text"'],
        ["order.placed", '{"n": NaN}'],
        ["order.placed", "{}", "--delay", "soon"],
        ["order.placed", "{}", "--at", "tomorrow"],
        ["order.placed", "{}", "--at", "2026-12-24T18:00"],
        ["order.placed", "{}", "--at", "2026-12-24T18:00Z", "--delay", "1s"],
        ["order.placed"],
    ],
)
def test_what_cannot_be_understood_is_a_usage_error(run, sql, arguments):
    done = run("emit", *arguments)

    assert done.exit_code == 2
    assert sql("SELECT COUNT(*) FROM events") == [[0]]


@pytest.mark.parametrize("name", ["", "*", "x" * 201])
def test_a_type_that_no_event_can_have_is_refused(run, name):
    assert run("emit", name, "{}").exit_code == 1


def test_an_event_beyond_the_limits_is_refused(run, sql, monkeypatch):
    monkeypatch.setenv("ONTOLOGIA_MAX_PAYLOAD_BYTES", "20")

    done = run("emit", "order.placed", json.dumps({"order_id": "o" * 20}))

    assert done.exit_code == 1
    assert "max_payload_bytes is 20; nothing was stored" in done.stderr
    assert sql("SELECT COUNT(*) FROM events") == [[0]]


def test_an_event_can_wait(run, sql):
    later = run("emit", "order.placed", ORDER, "--delay", "2h", "--json")
    then = run("emit", "order.placed", ORDER, "--at", "2126-12-24T18:00+01:00")

    answer = json.loads(later.stdout)
    [[soon, topic], [far, _]] = sql("SELECT fire_at, topic FROM deferred_events ORDER BY fire_at")
    assert answer["deferred"] == 1
    assert topic == "order.placed"
    assert 7_100 < soon - datetime.now(UTC).timestamp() < 7_300
    assert datetime.fromtimestamp(far, UTC) == datetime(2126, 12, 24, 17, tzinfo=UTC)
    assert "deferred event 2" in then.stderr
    assert sql("SELECT COUNT(*) FROM events") == [[0]]


def test_with_a_key_it_is_stored_once(run, sql):
    first = run("emit", "order.placed", ORDER, "--dedup-key", "k")
    again = run("emit", "order.placed", ORDER, "--dedup-key", "k")
    told = json.loads(run("emit", "order.placed", ORDER, "--dedup-key", "k", "--json").stdout)

    assert again.exit_code == 0
    assert again.stdout == first.stdout
    assert "nothing was stored" in again.stderr
    assert (told["id"], told["stored"]) == (first.stdout.strip(), False)
    assert sql("SELECT COUNT(*) FROM events") == [[1]]


def test_a_real_process_finds_models_in_the_working_directory(uri, run, stored, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from ontologia import Event, Field\nclass Ping(Event):\n    n: Field[int]\n"
    )
    program = "import sys; from ontologia.cli.start import main; sys.path.remove(''); main()"
    options = ["--models", "mine", "--datastore-uri", uri]
    done = subprocess.run(
        [sys.executable, "-c", program, "emit", "Ping", '{"n": 1}', *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stderr
    assert stored(done.stdout.strip())["payload"] == {"n": 1}


@pytest.mark.req("NEW-213")
def test_with_a_reason_a_commit_records_it_and_is_its_source(run, stored, uri):
    done = run("emit", "order.placed", ORDER, *SHOP, "--reason", "lost by mail", "--json")
    plain = run("emit", "order.placed", ORDER, *SHOP)

    told = json.loads(done.stdout)
    [commit] = [json.loads(line) for line in run("commits", "--json").stdout.splitlines()]
    assert (told["stored"], told["type"]) == (True, "order.placed")
    assert stored(told["id"])["source"] == f"commit:{commit['id']}"
    assert commit["metadata"]["reason"] == "lost by mail"
    assert commit["metadata"]["action"] == "emit"
    assert commit["metadata"]["emitted"] == [told["id"]]
    assert plain.exit_code == 0
