"""What the page on actors says is so."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from ontologia import actors
from ontologia.actors import Actor, ActorLoop, Adapter, Ingress
from ontologia.actors import observability as signals
from tests.docs.test_documentation import DOCS, blocks, public_methods

PAGE = DOCS / "reference/actors.md"
WORDS = PAGE.read_text()


@pytest.mark.parametrize("name", ["Actor", "ActorLoop", "Capability", "Message", "Worker"])
def test_the_names_are_documented(name):
    assert name in actors.__all__
    assert re.search(rf"\b{name}\b", WORDS)


@pytest.mark.parametrize("cls", [Actor, ActorLoop, Adapter, Ingress])
def test_every_method_is_documented(cls):
    hardly = {"dispatch", "remove_event_listener", "on_done"}
    missing = {name for name in public_methods(cls) if not re.search(rf"\b{name}\b", WORDS)}

    assert missing - hardly == set()


def test_every_signal_is_documented():
    named = [each for each in vars(signals).values() if str(each).startswith("Sys.")]

    assert len(named) == 9
    assert [each for each in named if each not in WORDS] == []


def test_the_example_runs(tmp_path):
    example, *_ = blocks(PAGE, "python")

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("reply {'value': 1}\n", "")
