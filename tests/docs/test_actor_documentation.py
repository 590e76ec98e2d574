"""What the page on actors says is so."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import threading

import pytest

from ontologia import actors
from ontologia.actors import Actor, ActorLoop, Adapter, Ingress
from ontologia.actors import observability as signals
from tests.docs.pages import commands
from tests.docs.test_documentation import DOCS, blocks, public_methods
from tests.integration.running import PATIENCE

PAGE = DOCS / "reference/actors.md"
HOWTO = DOCS / "howto/other-languages.md"
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


SHOP = """
from ontologia import Entity, Field


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    tier: Field[str]
"""
FILL = """
from ontologia import Session
from shop.models import Customer

with Session("app.db") as session:
    for tier in ("a", "b", "c", "d", "e", "f", "gold"):
        session.ensure(Customer(id="c1", tier=tier))
        session.commit()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("own", [False, True], ids=["the store", "actors of one's own, too"])
def test_a_store_is_served_and_asked_as_the_page_says(tmp_path, own):
    example, *_ = blocks(PAGE, "python")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/models.py").write_text(SHOP)
    (tmp_path / "shop/actors.py").write_text(example.partition("async def main")[0])
    subprocess.run([sys.executable, "-c", FILL], cwd=tmp_path, check=True, timeout=PATIENCE)
    plainly, [(asking, [answer])], beside = (commands(text) for text in blocks(HOWTO, "console"))
    [(serving, _)] = beside if own else plainly

    with subprocess.Popen(
        _words(serving), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        watchdog = threading.Timer(PATIENCE, server.kill)
        watchdog.start()
        try:
            assert any("run/ontologia.sock" in line for line in server.stdout)
            done = subprocess.run(
                _words(asking), cwd=tmp_path, capture_output=True, text=True, check=False
            )
        finally:
            server.terminate()
            server.communicate()
            watchdog.cancel()

    assert done.returncode == 0, done.stderr
    assert re.fullmatch(re.escape(answer).replace("…", ".*"), done.stdout.strip())


def _words(command):
    program, *words = shlex.split(command)
    assert program == "ontologia"
    return [sys.executable, "-u", "-m", "ontologia", *words]
