"""Relays and intakes that are killed at any moment: every committed event arrives, and once."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from ontologia import OntologiaConfig, Session, codec
from ontologia.relay import Intake, Relay
from ontologia_conformance.tiers import QUICK, TIER, samples
from tests.relay.world import FILLED, stored

_ROOT = Path(__file__).parents[2]
_LEASE = {"event_claim_lease_ms": 400}
_COMMITTER = """
import sys
from ontologia import OntologiaConfig, Session, codec
from ontologia.errors import LockContentionError
from tests.relay.world import BarrelFilled
from tests.shop import Customer

session = Session(sys.argv[1], "shop")
start = int(sys.argv[2])
for number in range(start, start + 2_000):
    if number % 3 == 2:  # this one is taken back
        session.ensure(Customer(id=f"gone-{number}", name="x"))
        session.discard()
        continue
    session.ensure(Customer(id=f"c-{number}", name="x"))
    session.commit(event=BarrelFilled(number=number))
    print(number, flush=True)
"""
_CARRIER = """
import sys
from ontologia import OntologiaConfig, Session, codec
from ontologia.relay import Intake, Relay, relay, intake

relay._BATCH = intake._BATCH = 7
kind = {"relay": Relay, "intake": Intake}[sys.argv[1]]
with Session(sys.argv[2], "shop", config=OntologiaConfig(event_claim_lease_ms=400)) as session:
    kind(session, sys.argv[3]).run()
"""


def start(program: str, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.req("NEW-120", "NEW-121", "NEW-122")
@pytest.mark.sampled
def test_every_committed_event_arrives_once_whatever_is_killed(tmp_path, place):
    here, there = (f"sqlite:///{tmp_path}/{name}.db" for name in ("here", "there"))
    config = OntologiaConfig(**_LEASE)
    chance = random.Random(4)
    committed: set[int] = set()
    for uri in (here, there):
        Session(uri, "shop").close()
    for each in range(1 if TIER == QUICK else samples(25)):
        programs = [
            start(_COMMITTER, here, each * 10_000),
            start(_CARRIER, "relay", here, place),
            start(_CARRIER, "intake", there, place),
        ]
        victims = chance.sample(programs, 3)
        assert programs[0].stdout is not None
        numbers: list[int] = []
        for _ in range(chance.randrange(1, 60)):
            numbers.append(int(programs[0].stdout.readline()))
        for victim in victims:
            try:
                victim.wait(chance.uniform(0, 0.3))
            except subprocess.TimeoutExpired:
                victim.kill()
        rest, _ = programs[0].communicate()
        # The last line may be cut off: that commit is there, and nobody was told.
        committed |= {*numbers, *(int(line) for line in rest.splitlines(keepends=True)[:-1])}
        for program in programs[1:]:
            program.communicate()

    with (
        Session(here, "shop", config=config) as source,
        Session(there, "shop", config=config) as target,
    ):
        Relay(source, place).run_until_empty()
        Intake(target, place).run_until_empty()
        sent, arrived = stored(source, FILLED), stored(target, FILLED)
        told = {int(row.payload.split(":")[1].rstrip("}")) for row in sent}

    assert committed <= told
    assert all(number % 3 != 2 for number in told)
    assert sorted(row.id for row in arrived) == sorted(row.id for row in sent)


@pytest.mark.req("NEW-128")
@pytest.mark.thorough
def test_what_commands_emitted_is_on_the_topic_whatever_was_killed(tmp_path, topic):
    """Two programs at a time carry what either of them left."""
    store = f"sqlite:///{tmp_path}/shop.db"
    Session(store, "shop").close()
    servers, _, name = topic.removeprefix("kafka://").partition("/")
    chance = random.Random(5)
    confirmed: set[str] = set()
    for each in range(samples(10)):
        programs = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.relay.dispatching", store, servers, name),
                    str(each * 10_000 + 5_000 * number),
                ],
                cwd=_ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for number in range(2)
        ]
        for program in programs:
            assert program.stdout is not None
            for _ in range(chance.randrange(1, 40)):
                confirmed.add(f"s{int(program.stdout.readline())}")
        for program in chance.sample(programs, 2):
            program.kill()
            rest, _ = program.communicate()
            confirmed |= {f"s{int(line)}" for line in rest.splitlines(keepends=True)[:-1]}

    there = f"sqlite:///{tmp_path}/there.db"
    config = OntologiaConfig(**_LEASE)
    with Session(store, "shop", config=config) as source, Session(there, "shop") as target:
        Relay(source, topic).run_until_empty()
        Intake(target, topic).run_until_empty()
        sent, arrived = stored(source), stored(target)

    assert confirmed <= {codec.decode(row.payload)["shipment_id"] for row in arrived}
    assert {row.type for row in arrived} == {"shipment.confirmed"}
    assert sorted(row.id for row in arrived) == sorted(row.id for row in sent)
