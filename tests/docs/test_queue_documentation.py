"""What the page on queues says is so."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys

import pytest

from ontologia import queues
from ontologia.queues import (
    CarefulQueue,
    DeadLetter,
    Delivered,
    DomainEvent,
    EventDelivery,
    EventQueue,
    EventWorker,
    RetryPolicy,
    StoreEventQueue,
)
from ontologia.queues.kafka import KafkaEventQueue
from tests.docs.test_documentation import DOCS, blocks, public_methods

PAGE = DOCS / "reference/queues.md"
WORDS = PAGE.read_text()


def test_every_name_is_documented():
    hardly = {"DeadLetter"}  # what the list of dead letters holds
    missing = [name for name in queues.__all__ if not re.search(rf"\b{name}\b", WORDS)]

    assert set(missing) - hardly == set()
    assert DeadLetter._fields == ("event", "reason", "attempt_number")


@pytest.mark.parametrize(
    "cls",
    [EventQueue, CarefulQueue, EventWorker, KafkaEventQueue, StoreEventQueue, RetryPolicy],
)
def test_every_method_is_documented(cls):
    names = public_methods(cls) - {"group", "topic"}

    assert [name for name in names if not re.search(rf"\b{name}\b", WORDS)] == []


def test_the_signatures_are_those_of_the_code():
    policy = ", ".join(f"{f.name}={f.default}" for f in dataclasses.fields(RetryPolicy))
    delivery = ", ".join(field.name for field in dataclasses.fields(EventDelivery))

    assert f"RetryPolicy({policy})" in WORDS
    assert f"EventDelivery({delivery})" in WORDS
    assert f"Delivered({', '.join(Delivered._fields)})" in WORDS
    for field in dataclasses.fields(DomainEvent):
        assert field.name in WORDS


def test_the_snapshot_is_the_documented_one():
    env = type("Env", (), {"queue": queues.InMemoryEventQueue(), "registry": None})()

    assert [k for k in EventWorker(env).health_snapshot() if f"`{k}`" not in WORDS] == []


def test_the_example_runs(tmp_path):
    [program] = blocks(PAGE, "python")

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.stdout, done.stderr) == ("shipment.confirmed {'shipment_id': 's1'}\n", "")
