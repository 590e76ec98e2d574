"""`ontologia events …`: what an operator sees. The words and columns are those of the documents."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from ontologia.cli.main import app
from ontologia.clock import to_text
from ontologia_conformance.event_world import (
    LOST,
    OTHER,
    POST,
    POSTED,
    ParcelLost,
    ParcelPosted,
    bury,
    claim,
    post,
)
from tests.integration.commands import ONTOLOGIA, at_a_terminal, events_of, two_hours_ago
from tests.integration.moving import contents


@pytest.fixture
def clock():
    return two_hours_ago()


@pytest.fixture
def run(uri):
    return events_of(uri)


def table(done) -> list[list[str]]:
    """The rows of a table that nobody looks at, the names of its columns first."""
    assert done.exit_code == 0, done.output
    return [line.split("\t") for line in done.stdout.splitlines()]


def lines(done) -> list[dict]:
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.req("ONT-187", "ONT-188", "ONT-189")
def test_namespaces_are_listed_with_their_sessions_and_what_waits(run, event_store, clock):
    first, *_ = post(event_store, 1, 2, 3)
    bury(event_store, first, clock)
    for name, namespace in (("s1", POST), ("s2", POST), ("dead", OTHER)):
        event_store.register_session(name, namespace, {})
    clock.advance(seconds=(datetime.now(UTC) - clock.now()).total_seconds())
    for name in ("s1", "s2"):
        event_store.heartbeat(name)

    assert table(run("list-namespaces")) == [
        ["Namespace", "Sessions", "Pending Events", "Unsubscribed", "Dead Letters"],
        [OTHER, "0", "0", "0", "0"],
        [POST, "2", "2", "1", "1"],  # the event about the dead letter has no consumer
    ]


@pytest.mark.req("ONT-190")
def test_sessions_are_listed_with_the_age_of_their_last_heartbeat(run, event_store, clock):
    event_store.register_session("dead", POST, {"hostname": "host-3", "pid": 9012})
    started = clock.now()
    clock.advance(seconds=7_100)  # two hours are 7,200 seconds
    event_store.register_session("ended", POST, {"hostname": "host-2"})
    event_store.end_session("ended")
    clock.advance(seconds=99)
    event_store.register_session("alive", POST, {"hostname": "host-1", "pid": 1234})

    columns, alive, ended, dead = table(run("sessions"))

    assert columns == ["Session ID", "Hostname", "PID", "Started At", "Last Heartbeat"]
    assert dead[:4] == ["dead", "host-3", "9012", started.strftime("%Y-%m-%d %H:%M:%S")]
    assert dead[4] == "2h ago (DEAD)"
    assert ended[:3] == ["ended", "host-2", "-"]
    assert ended[4] == "1m ago (stopped)"
    assert alive[4].endswith("s ago")


@pytest.mark.req("ONT-191", "ONT-192")
def test_events_are_shown_with_what_became_of_them(run, event_store, clock):
    event_store.enqueue(ParcelLost(number=0, priority=300), POST)
    pending, acked, dead = post(event_store, 1, 2, 3)
    claim(event_store, limit=2)
    event_store.abandon("ship", pending)
    event_store.ack("ship", acked)
    bury(event_store, dead, clock)

    columns, _, *rows, lost = table(run("show"))  # the newest is about the dead letter
    shown = {row[0]: row[1:] for row in rows}

    assert columns == ["Event ID", "Type", "Created At", "Priority", "Status", "Handler"]
    assert lost[1] == LOST
    assert lost[3:] == ["300", "unsubscribed", "-"]
    assert shown[acked][0] == POSTED
    assert shown[acked][2:] == ["100", "acked", "ship"]
    assert shown[dead][2:] == ["100", "dead_lettered", "ship"]
    assert shown[pending][2:] == ["100", "pending", "-"]
    assert len(table(run("show", "--limit", "2"))) == 3
    assert list(shown) == [dead, acked, pending]
    assert [row["id"] for row in lines(run("show", "--json"))][1:] == [*shown, lost[0]]


@pytest.mark.req("ONT-191")
def test_events_of_one_type_are_shown(run, event_store):
    first, second = post(event_store, 1, 2)
    event_store.enqueue(ParcelLost(number=3, priority=300), POST)
    [urgent] = post(event_store, 4, priority=200)

    shown = lines(run("show", "--type", POSTED, "--json"))

    assert [row["id"] for row in shown] == [urgent, second, first]
    assert len(lines(run("show", "--type", POSTED, "--limit", "2", "--json"))) == 2
    assert lines(run("show", "--type", "nobody", "--json")) == []
    assert run("show", "--type", "").exit_code == 1


@pytest.mark.req("ONT-191", "ONT-192")
def test_events_of_one_status_are_shown_from_the_newest_on(run, event_store):
    with event_store.transaction() as tx:  # more than one portion of them
        rows = [event_store.log.given_row(ParcelPosted(number=n), POST) for n in range(1_203)]
        event_store.log.add(tx, rows)
    ids = [row.id for row in rows]
    event_store.enqueue(ParcelLost(number=0, priority=300), POST)
    for event in claim(event_store, limit=3):
        event_store.ack("ship", event.id)

    def of(*arguments: str) -> list[str]:
        return [row["id"] for row in lines(run("show", "--json", *arguments))]

    assert of("--status", "acked") == ids[2::-1]
    assert of("--status", "acked", "--limit", "2") == ids[2:0:-1]
    assert of("--status", "pending", "--limit", "1") == ids[:-2:-1]
    assert len(of("--status", "unsubscribed")) == 1
    assert of("--status", "claimed") == of("--status", "acked", "--type", LOST) == []
    assert run("show", "--status", "lost").exit_code == 2


def test_deferred_events_are_listed_by_the_time_they_are_due(run, event_store, clock):
    clock.advance(seconds=7_200)
    numbers = [
        event_store.defer(ParcelPosted(number=n), POST, delay=delay, dedup_key=key)
        for n, delay, key in ((1, 90, "k"), (2, 30, None), (3, 60, None))
    ]
    late = ParcelLost(number=4)
    event_store.defer(late, POST, at=clock.now() + timedelta(days=900))
    event_store.defer(ParcelPosted(number=5), OTHER, delay=1)
    event_store.cancel_deferred(POST, numbers[2])

    columns, first, second, third = table(run("deferred"))
    [shown] = lines(run("deferred", "--type", LOST, "--json"))

    assert columns == ["Number", "Event ID", "Type", "Due At", "Dedup Key"]
    assert [first[0], second[0]] == [str(numbers[1]), str(numbers[0])]
    due = clock.now() + timedelta(seconds=90)
    assert second[2:] == [POSTED, due.strftime("%Y-%m-%d %H:%M:%S"), "k"]
    assert (third[1], third[4]) == (late.id, "-")
    assert (shown["id"], shown["type"], shown["payload"]["number"]) == (late.id, LOST, 4)
    assert shown["due_at"] == to_text(clock.now() + timedelta(days=900))
    assert len(table(run("deferred", "--limit", "2"))) == 3
    assert lines(run("deferred", "--type", "nobody", "--json")) == []


def test_a_terminal_shows_tracebacks_line_by_line(run, uri, event_store):
    [failed] = post(event_store, 1)
    claim(event_store)
    event_store.claims.release(
        "ship", failed, error="x", policy=event_store.policy, traceback="first\n  \x1bsecond\n"
    )

    [attempt] = json.loads(run("inspect", "--event-id", failed).stdout)["attempts"]
    _, shown = at_a_terminal("events", "inspect", "--event-id", failed, "--datastore-uri", uri)

    assert attempt["traceback"] == "first\n  \x1bsecond\n"
    below = shown.replace("\r", "").partition("\n}\n")[2]
    assert below == "\nship, attempt 1:\n    first\n      \\x1bsecond\n"


@pytest.mark.req("ONT-192")
def test_events_that_sessions_have_are_claimed(run, event_store, clock):
    clock.advance(seconds=7_200)
    post(event_store, 1)
    claim(event_store)

    assert table(run("show"))[1][4:] == ["claimed", "ship"]


def test_more_events_than_a_portion_are_shown_in_order(run, event_store):
    with event_store.transaction(durable=False) as tx:
        rows = []
        for number in range(1_200):
            event = (ParcelLost if number % 3 else ParcelPosted)(number=number)
            event.priority = 100 + number % 2
            rows.append(event_store.log.given_row(event, POST))
        event_store.log.add(tx, rows)
    newest = [row.id for row in rows[::-1]]
    urgent = [row.id for row in sorted(rows, key=lambda row: (-row.priority, row.created_at))]

    shown = lines(run("show", "--limit", "1100", "--json"))
    listed = event_store.list_events(POST, 1100)

    assert [each["id"] for each in shown] == newest[:1100]
    assert [each["id"] for each in listed] == urgent[:1100]


@pytest.mark.req("ONT-193")
def test_dead_letters_are_listed_and_chosen(run, event_store, clock):
    first, second, _ = post(event_store, 1, 2, 3)
    bury(event_store, first, clock)
    bury(event_store, second, clock, handler="bill")

    columns, *rows = table(run("dead-letters"))

    assert columns == ["Event ID", "Type", "Handler", "Attempts", "Last Error"]
    assert rows == [
        [second, POSTED, "bill", "10", "OSError: no van"],
        [first, POSTED, "ship", "10", "OSError: no van"],
    ]
    for more in ([], ["--error", "no van"], ["--error", ""]):
        chosen = lines(run("dead-letters", "--json", "--handler", "ship", *more))
        assert [row["event_id"] for row in chosen] == [first]
    for none in (["--type", LOST], ["--error", "no ship"], ["--newer-than", "1h"]):
        assert table(run("dead-letters", *none)) == [columns]
    assert len(table(run("dead-letters", "--older-than", "30m"))) == 3


@pytest.mark.req("ONT-198")
def test_an_event_is_inspected_in_whatever_namespace(run, event_store, clock):
    [found] = post(event_store, 1)
    bury(event_store, found, clock)

    done = run("inspect", "--event-id", found, namespace="elsewhere")
    shown = json.loads(done.stdout)

    assert done.stdout.startswith('{\n  "id": ')
    assert shown["payload"] == {"number": 1}
    assert (shown["id"], shown["namespace"], shown["type"]) == (found, POST, POSTED)
    assert (shown["priority"], shown["root_event_id"], shown["chain_depth"]) == (100, found, 0)
    [held] = shown["claims"]
    assert (held["handler_id"], held["session_id"], held["attempts"]) == ("ship", "s1", 10)
    assert held["last_error"] == "OSError: no van"
    assert held["dead_lettered_at"]
    assert len(shown["attempts"]) == 10
    assert json.loads(run("inspect", "--event-id", found, "--json").stdout) == shown


@pytest.mark.req("ONT-198")
@pytest.mark.parametrize("event_id", ["nobody", "\udcff", ""], ids=["unknown", "broken", "empty"])
def test_an_event_that_is_not_there_is_an_error(run, event_store, event_id):
    done = run("inspect", "--event-id", event_id)

    assert done.exit_code == (4 if event_id == "nobody" else 1)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")


@pytest.mark.req("NEW-027", "NEW-030")
def test_consumers_are_listed_with_what_waits_for_each(run, event_store, clock):
    post(event_store, 1, 2)
    event_store.consumers.register(POST, "bill", [POSTED, LOST])
    claim(event_store, limit=1)
    event_store.release("ship", claim_ids(event_store)[0], error="x")
    event_store.pause(POST, "bill")
    paused = to_text(clock.now())
    post(event_store, 3)  # which nobody has handed out

    columns, bill, ship = table(run("consumers"))

    assert columns[:6] == ["Name", "Types", "Waiting", "Oldest", "Claimed", "Backoff"]
    assert columns[6:] == ["Last Seen", "Paused"]
    assert bill[:6] == ["bill", f"{LOST}, {POSTED}", "3", "2h ago", "0", "0"]
    assert bill[7] == f"since {paused[:19].replace('T', ' ')}"
    assert ship[:3] == ["ship", POSTED, "3"]  # its backoff ended two hours ago
    assert ship[7] == "-"
    shown = lines(run("consumers", "--json"))
    assert shown[0]["types"] == [LOST, POSTED]
    assert shown[0]["paused_at"] == paused


def claim_ids(event_store) -> list[str]:
    return [row["id"] for row in event_store.list_events(POST) if row["status"] == "claimed"]


def test_figures_are_counted_by_type_and_handler(run, event_store, clock):
    post(event_store, 0)  # before the window
    clock.advance(seconds=7_100)
    acked, _, failed, dead = post(event_store, 1, 2, 3, 4)
    event_store.enqueue(ParcelLost(number=5), POST)
    claim(event_store)
    event_store.ack("ship", acked)
    event_store.release("ship", failed, error="x")
    event_store.claims.release(
        "ship", dead, error="y", policy=event_store.policy, final=True
    )  # fmt: skip
    post(event_store, 6)

    columns, dead_row, lost, posted = table(run("stats", "--window", "10m"))
    counted = lines(run("stats", "--json", "--window", "10m"))[2]

    assert columns[:5] == ["Type", "Handler", "Waiting", "Oldest", "Unsubscribed"]
    assert columns[5:9] == ["Claimed", "Overdue", "Backoff", "Came/min"]
    assert columns[9:] == ["Done/min", "Conflicts", "Failures", "Dead Letters"]
    assert dead_row[:5] == ["event.dead_letter", "-", "0", "-", "1"]
    assert lost[:2] == [LOST, "-"]  # nobody is subscribed
    assert posted[:2] == [POSTED, "ship"]
    assert counted["came_per_minute"] == 0.5
    assert counted["done_per_minute"] == 0.1
    assert (counted["failures"], counted["dead_letters"]) == (2, 1)
    assert counted["waiting"] >= 1
    assert lines(run("stats", "--json", "--window", "1s"))[-1]["came_per_minute"] == 0


def test_events_of_all_priorities_are_counted_together(run, event_store, clock):
    clock.advance(seconds=7_100)
    for priority in (50, 100, 100, 200):
        event_store.enqueue(ParcelPosted(number=1, priority=priority), POST)
    for event in claim(event_store):
        event_store.ack("ship", event.id)

    [counted] = lines(run("stats", "--json", "--window", "4m"))

    assert (counted["came_per_minute"], counted["done_per_minute"]) == (1.0, 1.0)


def test_what_has_no_subscription_is_counted_after_it_was_dispatched(run, event_store, clock):
    for number in (1, 2):
        event_store.enqueue(ParcelLost(number=number), POST)
    event_store.enqueue(ParcelLost(number=3), OTHER)
    post(event_store, 4)
    assert len(claim(event_store)) == 1  # which dispatches all that came

    lost, posted = lines(run("stats", "--json", "--window", "1m"))

    assert (lost["type"], lost["handler"], lost["waiting"]) == (LOST, None, 0)
    assert (lost["unsubscribed"], lost["oldest_waiting"]) == (2, None)
    assert (posted["handler"], posted["waiting"]) == ("ship", 1)
    assert [row["handler"] for row in event_store.activity.waiting(POST)] == ["ship"]


def test_what_a_consumer_of_all_types_has_finished_does_not_wait(run, event_store, clock):
    bus = event_store.consumers.register(POST, "bus", ["*"])
    event_store.enqueue(ParcelLost(number=1), POST)
    [found] = event_store.claims.claim(
        bus, ["*"], session_id="s1", limit=9, lease_ms=1_000, policy=event_store.policy
    )
    event_store.ack("bus", found.event.id)

    [row] = lines(run("stats", "--json", "--window", "1m"))

    assert (row["type"], row["handler"], row["waiting"]) == ("*", "bus", 0)


def test_an_event_waits_once_for_a_consumer_of_its_type_and_of_all(run, event_store):
    event_store.consumers.register(POST, "bus", ["*", POSTED])
    post(event_store, 1)

    [counted] = lines(run("consumers", "--json"))

    assert counted["waiting"] == 1


READERS = ("show", "dead-letters", "consumers", "stats")


@pytest.mark.parametrize("command", READERS)
def test_an_empty_namespace_names_others_that_have_events(run, event_store, command):
    for name in ("f", "e", "d", "c", "b"):
        post(event_store, 1, namespace=name)

    few = run(command, namespace="typo")
    post(event_store, 1, namespace="a\x1b[2J")
    many = run(command, namespace="typo")

    assert few.stderr == "nothing in namespace 'typo'; there are events in: b, c, d, e, f\n"
    assert many.stderr.endswith("there are events in: a\\x1b[2J, b, c, d, e, …\n")
    assert (few.exit_code, len(table(few))) == (0, 1)
    assert run(command, "--json", namespace="typo").output == ""


@pytest.mark.parametrize("command", READERS)
def test_a_namespace_that_is_in_use_is_taken_for_the_one_that_is_meant(run, event_store, command):
    post(event_store, 1, namespace=OTHER)
    assert run(command).stderr != ""

    event_store.consumers.register(POST, "ship", [POSTED])

    assert run(command).stderr == ""


def test_a_namespace_in_a_store_without_events_is_not_compared(run, event_store):
    assert [run(command).stderr for command in READERS] == [""] * 4


def test_conditions_that_no_dead_letter_fits_are_not_taken_for_an_empty_list(
    uri, run, event_store, clock
):
    [dead] = post(event_store, 1)
    bury(event_store, dead, clock)

    piped = run("dead-letters", "--handler", "shp")
    _, shown = at_a_terminal(
        *("--datastore-uri", uri, "--namespace", POST, "events", "dead-letters", "--type", LOST)
    )

    assert piped.stderr == f"there is no consumer shp in namespace {POST!r}; did you mean ship?\n"
    assert shown == f"There are no such dead letters in namespace {POST!r}.\r\n"


@pytest.mark.req("NEW-027")
def test_figures_of_a_paused_handler_say_so(run, event_store):
    event_store.consumers.register(POST, "ship", [POSTED])
    event_store.pause(POST, "ship")

    assert table(run("stats"))[1][:2] == [POSTED, "ship (paused)"]
    assert lines(run("stats", "--json"))[0]["paused"] is True


def test_what_is_leased_and_in_backoff_is_told_apart(event_store, clock):
    held, failed, ready = post(event_store, 1, 2, 3)
    claim(event_store, limit=2)
    event_store.release("ship", failed, error="x")

    [row] = event_store.activity.waiting(POST)
    assert (row["waiting"], row["claimed"], row["backoff"]) == (1, 1, 1)
    assert row["oldest_waiting"] == event_store.inspect_event(ready)["created_at"]

    clock.advance(seconds=31)
    [row] = event_store.activity.waiting(POST)
    assert (row["waiting"], row["claimed"], row["backoff"]) == (3, 0, 0)
    assert row["oldest_waiting"] == event_store.inspect_event(held)["created_at"]


@pytest.mark.parametrize("window", ["0s", "soon", "", "-5m"])
def test_a_window_that_is_none_is_a_usage_error(run, event_store, window):
    assert run("stats", "--window", window).exit_code == 2


@pytest.mark.req("ONT-199")
def test_commands_that_read_change_nothing(run, uri, event_store, clock, ask_store):
    [found] = post(event_store, 1)
    bury(event_store, found, clock)
    before = contents(ask_store, uri)

    for command in ("list-namespaces", "sessions", "show", "dead-letters", "consumers", "stats"):
        assert run(command).exit_code == 0
        assert run(command, "--json").exit_code == 0
    assert run("inspect", "--event-id", found).exit_code == 0
    assert run("retry", "--all", "--dry-run").exit_code == 0

    assert contents(ask_store, uri) == before


@pytest.mark.thorough
@pytest.mark.req("ONT-199")
def test_real_processes_read_beside_a_session_that_writes(uri, event_store):
    post(event_store, 1, 2)
    where = {**os.environ, "ONTOLOGIA_DATASTORE_URI": uri}

    for command in ("list-namespaces", "sessions", "show", "dead-letters", "consumers", "stats"):
        with event_store.transaction() as tx:  # short enough for the server's limit on idle ones
            tx.one(event_store._sql["last_commit"])
            done = subprocess.run(
                [*ONTOLOGIA, "events", command, "--namespace", POST],
                capture_output=True,
                text=True,
                check=False,
                env=where,
            )
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout


def test_a_terminal_gets_a_table_to_look_at(uri, event_store):
    [found] = post(event_store, 1)

    code, shown = at_a_terminal(
        *("--datastore-uri", uri, "events", "show", "--namespace", POST), columns=140
    )

    assert code == 0
    assert found in shown
    assert "Event ID" in shown
    assert "─" in shown
    assert "\t" not in shown


def test_a_store_that_is_not_there_is_not_made(tmp_path):
    missing = tmp_path / "missing.db"

    for command in (["show"], ["pause", "x"], ["cleanup", "--before", "7d"]):
        done = CliRunner().invoke(
            app, ["--datastore-uri", f"sqlite:///{missing}", "events", *command]
        )
        assert done.exit_code == 4, done.output
    assert not missing.exists()
