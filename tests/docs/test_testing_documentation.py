"""The page on testing handlers: its code runs, and it names what there is."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

from ontologia.testing import check_idempotent, fixtures, plugin
from tests.docs.test_documentation import DOCS, blocks

PAGE = DOCS / "howto/test-handlers.md"
WORDS = PAGE.read_text()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run code as the tests of a project beside its module `shop`."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    module, *_ = blocks(PAGE, "python")
    (tmp_path / "shop.py").write_text(module)

    def tests(code: str) -> str:
        (tmp_path / "test_shop.py").write_text(code)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "ontologia.testing.plugin", "-W", "error"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        return done.stdout

    return tests


def test_the_tests_of_the_page_pass(run):
    _, first, second, _, fourth = blocks(PAGE, "python")

    assert re.search(r"\b5 passed in ", run(f"{first}\n\n{second}\n\n{fourth}"))


def test_the_handler_that_counts_fails_with_the_words_of_the_page(run):
    counting = blocks(PAGE, "python")[3]
    [words] = blocks(PAGE, "text")

    said = run(counting)

    assert re.search(r"\b1 failed in ", said)
    shown = re.sub(r"^E +", "", said, flags=re.MULTILINE)
    for line in words.splitlines():
        assert line.strip() in shown


def test_every_fixture_and_keyword_is_named():
    made = [name for name, it in vars(plugin).items() if "fixture" in type(it).__name__.lower()]
    keywords = list(inspect.signature(check_idempotent).parameters)[2:]

    assert len(made) == 5
    assert [name for name in made if f"| `{name}" not in WORDS] == []
    assert [name for name in keywords if f"**`{name}=`**" not in WORDS] == []
    assert [name for name in fixtures.Drained._fields if f"`{name}`" not in WORDS] == []
