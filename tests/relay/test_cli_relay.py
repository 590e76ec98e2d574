"""`ontologia relay` and `ontologia intake`, as somebody at a terminal uses them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ontologia import Session
from ontologia.cli.main import app
from tests.integration.running import until
from tests.relay.world import EMPTIED, BarrelEmptied, emit, ids, stored

pytestmark = pytest.mark.req("NEW-125")


def call(*words: str):
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def stores(tmp_path):
    found = [f"sqlite:///{tmp_path}/{name}.db" for name in ("here", "there")]
    for uri in found:
        Session(uri).close()
    return found


def test_events_go_through_a_bucket_by_two_commands(stores, s3_uri):
    here, there = stores
    with Session(here, "shop") as session:
        emit(session, 1, 2)
        session.event_store.enqueue(BarrelEmptied(number=3), "shop")
    common = ("--until-empty", "--namespace", "shop", "--json")

    sent = call("relay", "--to", s3_uri, "--datastore-uri", here, "--type", EMPTIED, *common)
    took = call("intake", "--from", s3_uri, "--datastore-uri", there, *common)

    assert json.loads(sent.stdout) == {"sent": 1, "refused": 0, "lag": 0}, sent.output
    assert json.loads(took.stdout) == {"stored": 1, "known": 0, "refused": 0}, took.output
    with Session(there, "shop") as session:
        assert [row.type for row in stored(session)] == [EMPTIED]


def test_info_and_stats_show_the_lag(stores, s3_uri):
    here, there = stores
    for uri in stores:
        with Session(uri, "shop") as session:
            emit(session, 1)
    common = ("--namespace", "shop", "--datastore-uri")
    call("relay", "--to", s3_uri, "--until-empty", *common, here)
    call("intake", "--from", s3_uri, "--until-empty", *common, there)
    with Session(here, "shop") as session:
        emit(session, 2, 3)

    relays = json.loads(call("info", "--json", *common, here).stdout)["relays"]
    [intake] = json.loads(call("info", "--json", *common, there).stdout)["intakes"]
    stats = call("events", "stats", "--json", *common, here).stdout
    waiting = sum(row["waiting"] for row in map(json.loads, stats.splitlines()) if row["handler"])

    assert relays == [{"relay": s3_uri, "lag": 2}]
    assert (intake["intake"], intake["lag"]) == (s3_uri, 0)
    assert waiting == 2
    assert s3_uri in call("info", *common, there).stdout
    said = call("events", "stats", *common, there).output
    assert f"intake {s3_uri}: 0 messages were left at" in said


def test_a_signal_ends_both(stores, s3_uri, s3_server):
    here, there = stores
    words = [["relay", "--to", s3_uri], ["intake", "--from", s3_uri]]
    programs = [
        subprocess.Popen(
            [sys.executable, "-m", "ontologia", *command, "--datastore-uri", uri],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command, uri in zip(words, stores, strict=True)
    ]
    try:
        with Session(here) as session, Session(there) as other:
            emit(session, 1)
            until(lambda: len(ids(other)) == 1)
        for program, how in zip(programs, (signal.SIGINT, signal.SIGTERM), strict=True):
            program.send_signal(how)
        (sent, log), (took, _) = (program.communicate(timeout=60) for program in programs)
    finally:
        for program in programs:
            program.kill()

    assert [program.returncode for program in programs] == [0, 0], log
    assert "stopped: 1 sent, 0 refused, 0 wait" in sent
    assert "stopped: 1 stored, 0 known already, 0 refused" in took
    assert "are sent to s3://" in log


@pytest.mark.req("NEW-127")
def test_what_is_wrong_is_one_sentence_with_a_hint(stores):
    result = call("relay", "--to", "amqp://me:hunter2@host/q", "--datastore-uri", stores[0])

    assert result.exit_code == 1
    assert "there is no target of the scheme amqp://" in result.output
    assert "kafka://broker:9092/topic" in result.output
    assert "hunter2" not in result.output
