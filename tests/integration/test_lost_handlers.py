"""Two handlers of one name in a module: the second takes the place of the first, which is said."""

from __future__ import annotations

import importlib
import itertools
import sys

import pytest

from ontologia import Session
from ontologia.runtime.modules import load_module
from tests.integration.test_cli_run import Worker

pytestmark = pytest.mark.each_database

numbers = itertools.count(1)
HEAD = """
import functools
from ontologia import Event, on_event

class {event}(Event):
    pass

def again(function):
    @functools.wraps(function)
    def wrapper(ctx):
        function(ctx)
    return wrapper
"""
FIRST = """
@on_event({event})
def strike(ctx):
    pass
"""
SECOND = """
@on_event({event}, name="second")
def strike(ctx):
    print("second")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module; its name."""
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def write(*parts):
        name = f"bells_{next(numbers)}"
        text = "".join((HEAD, *parts)).replace("{event}", f"BellStruck{next(numbers)}")
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


def lost(name):
    found = load_module(name).lost_handlers()
    return [(lost.place.rpartition(" ")[2], kept.place.rpartition(" ")[2]) for lost, kept in found]


def lines(name):
    """Where handlers begin: at their decorator, as Python counts."""
    text = sys.modules[name].__loader__.get_source(name).splitlines()
    return [f"{n})" for n, each in enumerate(text, 1) if each.startswith("@on_event")]


def test_a_worker_warns_of_a_handler_that_it_does_not_have(uri, tmp_path, module):
    Session(uri).close()
    name = module(FIRST, SECOND)

    with Worker(tmp_path, uri, name) as worker:
        said = worker.hear("WARNING", "is not run")
        worker.hear("runs 1 handler")
        worker.stop()

    path = tmp_path / f"{name}.py"
    assert (
        f"{name}:strike ({path}, line 14) is not run, since {name}:strike ({path}, line 18) took its "
        f"name in the module; rename one of them"
    ) in said


@pytest.mark.parametrize(
    "parts",
    [
        (FIRST, SECOND),
        (FIRST, "if True:\n    pass\n", SECOND),
        ("@again", FIRST, "@again", SECOND),
        (FIRST.replace("def", "async def"), SECOND),
        (FIRST.replace("\ndef", "\n@again\ndef"), SECOND.replace("\ndef", "\n@again\ndef")),
    ],
    ids=["plain", "conditional", "wrapped", "async", "wrapping"],
)
def test_a_handler_whose_name_another_took_is_found(module, parts):
    name = module(*parts)
    found = lost(name)

    assert len(found) == 1
    if "@again" not in "".join(parts):
        assert found == [tuple(lines(name))]


def test_each_of_several_is_found(module):
    name = module(FIRST, SECOND, FIRST)
    load_module(name)
    one, two, three = lines(name)

    assert lost(name) == [(two, three), (one, two)]


@pytest.mark.parametrize(
    "parts",
    [
        (FIRST, SECOND.replace("strike", "toll")),
        ("if True:", FIRST.replace("\n", "\n    "), "\nelse:", SECOND.replace("\n", "\n    ")),
        (FIRST, "first = strike\n", SECOND),
        ("for n in range(3):", FIRST.replace("\n", "\n    ")),
        ("def make():", FIRST.replace("\n", "\n    "), "\n    return strike\n", SECOND),
        ("def strike(ctx):\n    pass\n", SECOND),
        (FIRST, "def strike(ctx):\n    pass\n"),
    ],
    ids=["other names", "one of two", "two names", "loop", "inner", "no handler", "taken away"],
)
def test_what_takes_nobodys_name_is_not_reported(module, parts):
    assert lost(module(*parts)) == []


def test_a_module_that_is_loaded_again_has_lost_nothing(module, tmp_path):
    name = module(FIRST)
    load_module(name)
    path = tmp_path / f"{name}.py"
    path.write_text(path.read_text().replace("@on_event", "\n\n\n@on_event"))

    importlib.reload(sys.modules[name])

    assert lost(name) == []


def test_a_cell_of_a_notebook_that_is_run_again_has_lost_nothing(module):
    """Each run of a cell is code of its own, in the same names."""
    name = module("\n")
    namespace = vars(importlib.import_module(name))
    event = next(each for each in namespace if each.startswith("BellStruck"))
    for cell in (FIRST, f"\n\n{FIRST}", SECOND):
        exec(compile(cell.replace("{event}", event), "<cell>", "exec"), namespace)  # noqa: S102

    assert lost(name) == []


def test_a_list_says_which_are_meant(uri, tmp_path, module):
    Session(uri).close()
    name = module(FIRST, "kept = [strike]\n", SECOND)

    with Worker(tmp_path, uri, f"{name}:kept") as worker:
        worker.hear("runs 1 handler")
        worker.stop()

    assert not any("is not run" in line for line in worker.lines)
