"""What the page on the bus and the context says is so."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys

import pytest

from ontologia.extensions import Event, EventBus, EventJournal, ExtensionContext
from ontologia.extensions.context import ACTIONS
from ontologia.extensions.state import StateQuery
from tests.docs.test_documentation import DOCS, blocks, public_methods

PAGE = DOCS / "reference/extensions.md"
WORDS = PAGE.read_text()


@pytest.mark.parametrize("cls", [EventBus, EventJournal, ExtensionContext, StateQuery])
def test_every_method_is_documented(cls):
    assert [name for name in public_methods(cls) if not re.search(rf"\b{name}\b", WORDS)] == []


@pytest.mark.parametrize("cls", [EventBus, ExtensionContext])
def test_the_signatures_are_those_of_the_code(cls):
    for name in ("__init__", *public_methods(cls)):
        function = getattr(cls, name)
        if name == "health" or not inspect.isfunction(function):
            continue
        said = re.search(rf"\b{cls.__name__ if name == '__init__' else name}\((.*?)\)[`:]", WORDS)
        assert said is not None, name
        if name in ("query", "ensure", "delete"):
            continue  # shown as they are called
        section = WORDS.split(f"\n## {cls.__name__}\n")[1].split("\n## ")[0]
        assert f"{cls.__name__ if name == '__init__' else name}({_shown(function)})" in section


def _shown(function):
    """The parameters as the page writes them."""
    shown, starred = [], False
    for name, each in list(inspect.signature(function).parameters.items())[1:]:
        if each.kind is each.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        default = repr(each.default).replace("'", '"')
        shown.append(name if each.default is each.empty else f"{name}={default}")
    return ", ".join(shown)


def test_the_fields_of_an_event_and_the_permissions_are_listed():
    assert f"Event({', '.join(each.name for each in dataclasses.fields(Event))})" in WORDS
    assert [name for name in ACTIONS if f"`{name}`" not in WORDS] == []


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

    assert (done.stdout, done.stderr) == ("reminder.due reminders Drink water\n", "")
