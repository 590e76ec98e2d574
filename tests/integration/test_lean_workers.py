"""What a worker has in memory: nothing that it does not need."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
from ontologia import Event, Field, HandlerContext, Session, on_event

class LeanOrderPlaced(Event):
    number: Field[int]

handled = []

@on_event(LeanOrderPlaced)
def plain(ctx: HandlerContext[LeanOrderPlaced]) -> None:
    handled.append(ctx.event.number)

@on_event(LeanOrderPlaced)
async def awaited(ctx: HandlerContext[LeanOrderPlaced]) -> None:
    handled.append(-ctx.event.number)

with Session(sys.argv[1]) as session:
    session.commit(event=LeanOrderPlaced(number=7))
    session.run([plain if sys.argv[2] == "plain" else awaited], max_iterations=1)
print(json.dumps([handled, sorted(sys.modules)]))
"""
UNNEEDED = {"asyncio", "ssl", "argparse", "pydantic_settings", "typer", "rich", "psycopg"}


@pytest.fixture
def run(tmp_path):
    """Let a worker handle an event; what it did, and which modules it has then."""

    def ran(kind):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, tmp_path / "shop.db", kind],
            capture_output=True,
            check=True,
            cwd=tmp_path,
        )
        handled, modules = json.loads(done.stdout)
        return handled, set(modules)

    return ran


def test_a_worker_has_no_event_loop_no_tls_and_no_command_line_in_memory(run):
    handled, modules = run("plain")

    assert handled == [7]
    assert UNNEEDED & modules == set()


def test_the_first_coroutine_brings_the_event_loop(run):
    handled, modules = run("awaited")

    assert handled == [-7]
    assert "asyncio" in modules
