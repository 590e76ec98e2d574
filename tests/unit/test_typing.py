"""A strict type checker catches the mistakes that it can, and no others."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BAD = ROOT / "tests/typing/bad.py"


def _marked():
    lines = BAD.read_text().splitlines()
    return {number for number, line in enumerate(lines, start=1) if line.endswith("  # E")}


def _run(*command):
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )


def _amiss(reported):
    """Marked lines that were not reported, and reported ones that are not marked."""
    text = BAD.read_text().splitlines()
    return [text[number - 1].strip() for number in sorted(_marked() ^ reported)]


@pytest.mark.req("ONT-204")
def test_the_package_says_that_it_is_typed():
    assert files("ontologia").joinpath("py.typed").is_file()


@pytest.mark.req("ONT-030", "ONT-204")
@pytest.mark.parametrize(
    "mistake",
    [
        "ctx.event.unknown  # E",
        "OrderPlaced(order_id=5)  # E",
        'OrderPlaced(order_id="o1", totl=9.5)  # E',
        'ctx.emit(Product(sku="p1", price=1.0))  # E',
        "@on_event(OrderPlaced)  # E\ndef of_another_event(ctx: HandlerContext[Cleanup])",
        "@on_event(OrderPlaced)  # E\nasync def of_another_event_async(ctx: HandlerContext[Cleanup])",
    ],
)
def test_the_mistakes_one_makes_with_events_are_marked(mistake):
    assert mistake in BAD.read_text()


@pytest.mark.req("ONT-030", "ONT-204")
def test_mypy_reports_exactly_the_marked_lines():
    done = _run("mypy", "--no-error-summary", "--hide-error-context", str(BAD))

    assert done.stderr == ""
    found = {int(line) for line in re.findall(r"bad\.py:(\d+): error: ", done.stdout)}
    assert _amiss(found) == []


@pytest.mark.thorough
@pytest.mark.req("ONT-030", "ONT-204")
def test_pyright_reports_exactly_the_marked_lines(tmp_path):
    settings = {
        "typeCheckingMode": "strict",
        "extraPaths": [str(ROOT / "src")],
        "reportUnusedExpression": False,  # else every line here would be reported for that
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    shutil.copy(BAD, tmp_path)

    done = _run("pyright", "-p", str(tmp_path), "--pythonpath", sys.executable, "--outputjson")

    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    found = {
        each["range"]["start"]["line"] + 1
        for each in report["generalDiagnostics"]
        if each["severity"] == "error"
    }
    assert _amiss(found) == []
