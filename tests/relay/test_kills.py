"""Relays and intakes that are killed at any moment: every committed event arrives, and once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from ontologia import OntologiaConfig, Session, codec
from ontologia.commands.outbox import Outbox
from ontologia.queues import DomainEvent
from ontologia.queues.kafka import KafkaEventQueue
from ontologia.relay import Intake, Relay
from ontologia.store.s3.bucket import Bucket
from ontologia.store.s3.layout import name_of
from ontologia_conformance.kafka_servers import Kafka
from ontologia_conformance.queue_world import real_kafka
from ontologia_conformance.tiers import QUICK, TIER, samples
from tests.integration.running import until
from tests.relay.world import FILLED, stored

_ROOT = Path(__file__).parents[2]
_LEASE = {"event_claim_lease_ms": 1_000}
_SPAN = 10_000  # numbers of one committer
_COMMITTER = """
import itertools, sys
from ontologia import Session
from tests.relay.world import BarrelFilled, emit
from tests.shop import Customer

session = Session(sys.argv[1], "shop")
for number, _ in zip(itertools.count(int(sys.argv[2])), sys.stdin):  # one for each line
    if number % 3 == 0:
        session.ensure(Customer(id=f"c-{number}", name="x"))
        session.commit(event=BarrelFilled(number=number))
    elif number % 3 == 1:
        emit(session, number, root_event_id=f"root-{number % 4}")
    else:  # this one is taken back
        session.ensure(Customer(id=f"gone-{number}", name="x"))
        session.discard()
        continue
    print(number, flush=True)
"""
_CARRIER = """
import sys, threading, time
from ontologia import OntologiaConfig, Session
from ontologia.relay import Intake, Relay, relay, intake

def tell():
    while not (carrier.done if sys.argv[1] == "relay" else carrier.stored):
        time.sleep(0.01)
    print("moved", flush=True)

relay._BATCH = intake._BATCH = 7
kind = {"relay": Relay, "intake": Intake}[sys.argv[1]]
with Session(sys.argv[2], "shop", config=OntologiaConfig(event_claim_lease_ms=1_000)) as session:
    carrier = kind(session, sys.argv[3])
    threading.Thread(target=tell, daemon=True).start()
    print("ready", flush=True)
    carrier.run()
"""
_WORKER = """
import os, sys
from ontologia.queues import EventWorker, open_queue
from ontologia_conformance.queue_world import Env
from tests.relay.world import FILLED

notes = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(event, env):
    os.write(notes, f"{event.event_id}\\n".encode())

queue = open_queue("kafka", bootstrap_servers=sys.argv[1], topic=sys.argv[2],
                   options={"group.protocol": "consumer"})
print("ready", flush=True)
EventWorker(Env(queue, {FILLED: [note]})).run_forever()
"""


class Program:
    """A process that is to be killed, and what it said before."""

    def __init__(self, *words: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *map(str, words)],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def tell(self, lines: int) -> None:
        """Let it do so much more."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n" * lines)
        self._process.stdin.flush()

    def hear(self) -> str:
        """Its next line; "" if it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip()

    def kill(self) -> list[str]:
        """End it, which it does not do on its own; the lines that it said and nobody read."""
        self._process.kill()
        assert self._process.wait() == -9
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._process.stdout, suppress(BrokenPipeError):
            rest = self._process.stdout.read()  # not communicate(): some may be in a buffer here
            self._process.stdin.close()
        # The last line may be cut off: nobody was told.
        return [line for line in rest.splitlines(keepends=True) if line.endswith("\n")]

    def end(self) -> None:
        """Leave nothing of it, whether it was killed or not."""
        if self._process.returncode is None:
            self.kill()


Start = Callable[..., Program]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start programs, of which none is left at the end."""
    with ExitStack() as started:

        def start_(*words: object) -> Program:
            program = Program(*words)
            started.callback(program.end)
            return program

        yield start_


def start_carriers(start: Start, here: str, there: str, place: str) -> list[Program]:
    carriers = [
        start("-c", _CARRIER, "relay", here, place),
        start("-c", _CARRIER, "intake", there, place),
    ]
    for carrier in carriers:
        assert carrier.hear() == "ready"
    return carriers


def assert_in_order(source: Session, target: Session, place: str) -> None:
    """The target has no event of a root without those before it. Programs may be at work."""
    if place.startswith("s3"):  # a bucket has no order, but there is no gap
        bucket = Bucket(place)
        found, later = ({name_of(each) for each in bucket.listing("shop/messages")} for _ in "12")
    else:
        listed = stored(target, FILLED)
    sent = stored(source, FILLED)
    for root in {row.root_event_id for row in sent}:
        ids = [row.id for row in sent if row.root_event_id == root]
        if place.startswith("s3"):
            # What is written while it is listed may be seen without what was written before.
            last = max((at for at, each in enumerate(ids) if each in found), default=-1)
            assert later.issuperset(ids[: last + 1])
        else:
            arrived = [row.id for row in listed if row.root_event_id == root]
            assert arrived == ids[: len(arrived)]


@pytest.mark.req("NEW-120", "NEW-121", "NEW-122")
@pytest.mark.sampled
def test_every_committed_event_arrives_once_whatever_is_killed(tmp_path, place, start):
    """Each relay and intake has moved something when it is killed, and another takes over."""
    here, there = (f"sqlite:///{tmp_path}/{name}.db" for name in ("here", "there"))
    config = OntologiaConfig(**_LEASE)
    chance = random.Random(4)
    committed: set[int] = set()
    with (
        Session(here, "shop", config=config) as source,
        Session(there, "shop", config=config) as target,
    ):
        carriers = start_carriers(start, here, there, place)
        for each in range(1 if TIER == QUICK else samples(10)):
            committer = start("-c", _COMMITTER, here, each * _SPAN)
            committer.tell(30)
            for carrier in carriers:
                assert carrier.hear() == "moved"
            successors = start_carriers(start, here, there, place)
            committer.tell(120)
            committed |= {int(committer.hear()) for _ in range(chance.randrange(20, 60))}
            victims = [committer, *carriers]
            for victim in chance.sample(victims, 3):
                said = victim.kill()
                if victim is committer:
                    committed |= {int(line) for line in said}
                time.sleep(chance.uniform(0, 0.05))
            assert_in_order(source, target, place)
            carriers = successors
        committer = start("-c", _COMMITTER, here, samples(10) * _SPAN)
        committer.tell(30)
        for carrier in carriers:
            assert carrier.hear() == "moved"
        assert_in_order(source, target, place)
        for program in (committer, *carriers):
            program.kill()

        Relay(source, place).run_until_empty()
        Intake(target, place).run_until_empty()
        assert_in_order(source, target, place)
        sent, arrived = stored(source, FILLED), stored(target, FILLED)

    told = {codec.decode(row.payload)["number"] for row in sent}
    assert committed <= told
    assert all(number % 3 != 2 for number in told)
    assert sorted(row.id for row in arrived) == sorted(row.id for row in sent)


@pytest.mark.req("NEW-120", "NEW-121", "NEW-122", "EDE-049")
@pytest.mark.thorough
def test_nothing_is_lost_though_the_broker_is_killed_as_well(tmp_path, start):
    """And a worker on the topic, which handles each event at least once."""
    here, there = (f"sqlite:///{tmp_path}/{name}.db" for name in ("here", "there"))
    notes = tmp_path / "notes"
    notes.touch()
    config = OntologiaConfig(**_LEASE)
    chance = random.Random(6)
    committed: set[int] = set()
    settings = {"group.consumer.session.timeout.ms": "3000"}  # of members that are killed
    with (
        real_kafka(settings=settings) as broker,
        Session(here, "shop", config=config) as source,
        Session(there, "shop", config=config) as target,
    ):
        made = DomainEvent.build(name="topics.made", payload={})
        with closing(KafkaEventQueue(broker.servers, "barrels")) as queue:
            queue.enqueue(made)
        place = f"kafka://{broker.servers}/barrels"

        def start_all() -> list[Program]:
            worker = start("-c", _WORKER, broker.servers, "barrels", notes)
            assert worker.hear() == "ready"
            return [*start_carriers(start, here, there, place), worker]

        for each in range(samples(3)):
            programs = start_all()
            committer = start("-c", _COMMITTER, here, each * _SPAN)
            committer.tell(30)
            for carrier in programs[:2]:
                assert carrier.hear() == "moved"
            committer.tell(120)
            committed |= {int(committer.hear()) for _ in range(chance.randrange(20, 60))}
            victims: list[Program | Kafka] = [committer, *programs, broker]
            for victim in chance.sample(victims, len(victims)):
                said = victim.kill()
                if victim is committer:
                    committed |= {int(line) for line in said or ()}
                time.sleep(chance.uniform(0, 0.05))
            broker.start()
            assert_in_order(source, target, place)

        Relay(source, place).run_until_empty()
        Intake(target, place).run_until_empty()
        assert_in_order(source, target, place)
        sent, arrived = stored(source, FILLED), stored(target, FILLED)
        start_all()
        until(lambda: {row.id for row in sent} <= set(notes.read_text().split()))

    assert committed <= {codec.decode(row.payload)["number"] for row in sent}
    assert all(codec.decode(row.payload)["number"] % 3 != 2 for row in sent)
    assert sorted(row.id for row in arrived) == sorted(row.id for row in sent)


@pytest.mark.req("NEW-128")
@pytest.mark.thorough
def test_what_commands_emitted_is_on_the_topic_whatever_was_killed(tmp_path, topic, start):
    """Two programs at a time carry what they and those before them left."""
    store = f"sqlite:///{tmp_path}/shop.db"
    servers, _, name = topic.removeprefix("kafka://").partition("/")
    chance = random.Random(5)
    confirmed: set[str] = set()
    config = OntologiaConfig(**_LEASE)
    there = f"sqlite:///{tmp_path}/there.db"
    with Session(store, "shop", config=config) as source, Session(there, "shop") as target:

        def on_topic() -> set[str]:
            """The shipments of which the topic has the event, by its messages alone."""
            Intake(target, topic).run_until_empty()
            return {codec.decode(row.payload)["shipment_id"] for row in stored(target)}

        for each in range(samples(10)):
            programs = [
                start("-m", "tests.relay.dispatching", store, servers, name, number)
                for number in (each * _SPAN, each * _SPAN + _SPAN // 2)
            ]
            own: set[str] = set()
            for program in programs:
                program.tell(9)
                own |= {f"s{int(program.hear())}" for _ in range(6)}
            until(lambda own=own: own & on_topic())
            for program in programs:
                program.tell(90)
            for program in chance.sample(programs, 2):
                own |= {f"s{int(program.hear())}" for _ in range(chance.randrange(1, 40))}
                own |= {f"s{int(line)}" for line in program.kill()}
            confirmed |= own

        with closing(KafkaEventQueue(servers, name, session=source)) as queue:
            outbox = Outbox(source, queue)
            assert outbox.flush(60)
            outbox.close()
        assert confirmed <= on_topic()
        sent, arrived = stored(source), stored(target)

    assert {row.type for row in arrived} == {"shipment.confirmed"}
    assert sorted(row.id for row in arrived) == sorted(row.id for row in sent)
