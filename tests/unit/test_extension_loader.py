"""Extensions in a folder: which are found, in which order, and why some cannot run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ontologia.errors import NotFoundError
from ontologia.extensions.loader import load_all
from tests.unit.extension_folders import extension

FINE = "class Extension:\n    async def initialize(self, context): ...\n"
AGENT = FINE + "    async def run(self, event): return 'yes'\n"
INVOKES = "events: {subscribes: [{topic: a.b, handler: invoke_agent}]}"


def states(folder):
    return {each.id: not each.broken for each in load_all(folder, {})}


def reason(folder, name):
    [found] = [each for each in load_all(folder, {}) if each.id == name]
    [line] = found.reasons
    assert "\n" not in line
    return line.removeprefix(f"{found.folder / 'manifest.yaml'}: ")


def test_folders_with_a_manifest_are_extensions_and_others_are_not(tmp_path):
    extension(tmp_path, "b", main=FINE)
    extension(tmp_path, "a")
    (tmp_path / "notes").mkdir()
    (tmp_path / "README.md").touch()

    found = load_all(tmp_path, {})

    assert [each.id for each in found] == ["a", "b"]
    assert found[0].instance is None
    assert type(found[1].instance).__name__ == "Extension"


def test_a_folder_that_may_not_be_looked_into_keeps_no_other_from_being_found(
    tmp_path, monkeypatch
):
    extension(tmp_path, "a")
    (tmp_path / "lost+found").mkdir()
    real = os.stat

    def stat(path, *args, **kwargs):
        if "lost+found/" in os.fspath(path):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", stat)  # whoever is root may look into everything

    assert states(tmp_path) == {"a": True}


def test_a_folder_with_a_manifest_is_itself_an_extension(tmp_path):
    assert states(extension(tmp_path, "one")) == {"one": True}


def test_no_extensions_at_all_are_an_error_that_says_how_to_begin(tmp_path):
    with pytest.raises(NotFoundError, match="ontologia extensions new"):
        load_all(tmp_path)
    with pytest.raises(NotFoundError, match="there is no folder"):
        load_all(tmp_path / "nowhere")


def test_every_extension_has_its_own_main_and_may_have_files_beside_it(tmp_path):
    for name in ("one", "two"):
        extension(
            tmp_path,
            name,
            main=f"from .texts import WHO\n{FINE}    who = WHO\n",
            texts=f"WHO = '{name}'",
        )
    before = {*sys.modules}

    found = load_all(tmp_path, {})

    assert [each.instance.who for each in found] == ["one", "two"]
    for each in found:
        each.discard()
    assert {name for name in sys.modules if name not in before and "extension" in name} == set()


def test_a_folder_that_is_a_package_is_imported_as_one(tmp_path):
    extension(tmp_path, "pack", "entry_point: inner.code:Thing\n", __init__="WHO = 'pack'")
    inner = tmp_path / "pack" / "inner"
    inner.mkdir()
    (inner / "code.py").write_text(f"from .. import WHO\n{FINE}    who = WHO\nThing = Extension\n")

    [found] = load_all(tmp_path, {})

    assert found.reasons == []
    assert found.instance.who == "pack"


def test_what_others_depend_on_comes_first(tmp_path):
    extension(tmp_path, "a", "depends_on: [c, b]")
    extension(tmp_path, "b", "depends_on: [c]")
    extension(tmp_path, "c")

    assert [each.id for each in load_all(tmp_path, {})] == ["c", "b", "a"]


def test_a_broken_extension_keeps_only_those_that_depend_on_it(tmp_path):
    extension(tmp_path, "broken", "nonsense: 1")
    extension(tmp_path, "child", "depends_on: [broken]")
    extension(tmp_path, "grandchild", "depends_on: [child]")
    extension(tmp_path, "fine", main=FINE)

    assert states(tmp_path) == {
        "broken": False,
        "child": False,
        "grandchild": False,
        "fine": True,
    }
    assert reason(tmp_path, "grandchild") == "depends_on: child is broken; mend child"


def test_a_dependency_that_is_not_there_is_named(tmp_path):
    extension(tmp_path, "a", "depends_on: [ghost]")

    assert reason(tmp_path, "a").startswith("depends_on: there is no extension ghost; add the")


def test_a_circle_is_told_to_those_in_it_and_the_others_wait_for_them(tmp_path):
    extension(tmp_path, "a", "depends_on: [b]")
    extension(tmp_path, "b", "depends_on: [c]")
    extension(tmp_path, "c", "depends_on: [a]")
    extension(tmp_path, "d", "depends_on: [a]")
    extension(tmp_path, "e")

    assert [name for name, fine in states(tmp_path).items() if fine] == ["e"]
    assert reason(tmp_path, "a") == (
        "depends_on: goes in a circle: a → b → c → a; remove one of them"
    )
    assert reason(tmp_path, "d") == "depends_on: a is broken; mend a"


def test_of_two_with_one_id_the_first_is_taken(tmp_path):
    extension(tmp_path, "one", "id: same")
    extension(tmp_path, "two", "id: same")

    first, second = load_all(tmp_path, {})

    assert not first.broken
    [line] = second.reasons
    assert f"id: same is also the id of {tmp_path / 'one' / 'manifest.yaml'}" in line


def test_a_folder_that_is_named_by_dots_has_its_own_name(tmp_path, monkeypatch):
    monkeypatch.chdir(extension(tmp_path, "mine", "nonsense: 1"))

    assert [each.id for each in load_all(Path(), {})] == ["mine"]


def test_a_manifest_under_another_name_is_told_of(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "manifest.yml").write_text("id: a")

    assert reason(tmp_path, "a").endswith("rename that to manifest.yaml")


@pytest.mark.parametrize(
    ("source", "said"),
    {
        "raises": ("\nraise ValueError('no\\nway')", "importing main raised ValueError: no way "),
        "where": ("\n1 / 0", "(main.py, line 2)"),
        "syntax": ("def", "importing main raised SyntaxError: invalid syntax (main.py, line 1)"),
        "exits": ("raise SystemExit(3)", "importing main raised SystemExit: 3"),
        "beside it": ("import helper", "main imports helper, which is beside it; write: from . "),
        "not installed": (
            "import nowhere_at_all",
            "main imports nowhere_at_all, which is not there",
        ),
        "no class": ("class Extensoin: ...", "main has no Extension; did you mean main:Extensoin?"),
        "not callable": ("Extension = 5", "main:Extension is no class; name a class"),
        "constructor": (
            "class Extension:\n    def __init__(self): 1 / 0",
            "main:Extension() raised ZeroDivisionError: division by zero (main.py, line 2); mend it",
        ),
        "a constructor that exits": (
            "class Extension:\n    def __init__(self): raise SystemExit(3)",
            "main:Extension() raised SystemExit: 3 (main.py, line 2); mend it",
        ),
        "no initialize": ("class Extension: ...", "main:Extension has no method initialize; write"),
        "health": (
            FINE + "    async def health(self): ...",
            "main:Extension has an async method health; write: def health(self)",
        ),
        "not async": (
            "class Extension:\n    def initialize(self, context): ...",
            "Extension.initialize is not async; write: async def initialize",
        ),
    }.values(),
)
def test_an_entry_point_that_cannot_be_used_is_a_line(tmp_path, source, said):
    extension(tmp_path, "a", main=source, helper="")
    extension(tmp_path, "fine")

    assert states(tmp_path) == {"a": False, "fine": True}
    line = reason(tmp_path, "a")
    assert line.startswith("entry_point: ")
    assert said in line


def test_an_entry_point_without_its_file_is_a_line(tmp_path):
    extension(tmp_path, "a", "entry_point: app.main:Extension")

    assert reason(tmp_path, "a") == "entry_point: there is no app/main.py; write it"


@pytest.mark.req("BUS-036")
def test_invoke_agent_needs_an_agent(tmp_path):
    extension(tmp_path, "without", INVOKES, main=FINE)
    extension(tmp_path, "bare", INVOKES)
    extension(tmp_path, "own", INVOKES, main=AGENT)
    extension(tmp_path, "section", INVOKES + "\nagent: {model: gpt-5-mini}")

    assert states(tmp_path) == {"without": False, "bare": False, "own": True, "section": True}
    assert reason(tmp_path, "bare") == (
        "events.subscribes[0].handler: bare is no agent: it has neither an agent section nor async "
        "def run(event); write one of the two"
    )


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{}", "agent: model is missing; name the model that is asked"),
        ("{model: 5}", "agent: model must be text; write it in quotes"),
        ("{model: m, timeout: long}", "agent: timeout must be a number of seconds; write 60"),
        ("{model: m, base_url: here}", "agent: an agent's endpoint is a URL, https://host/v1, got"),
        ("{model: m, base_url: 'http://[x'}", "agent: an agent's endpoint is a URL, https://host/"),
        ("{model: m, base_url: 'http://x:y'}", "agent: an agent's endpoint is a URL, https://host"),
        ("{model: m, api_key: k}", "agent: api_key: a manifest is passed on, and a key should not"),
    ],
)
def test_an_agent_section_that_is_not_enough_is_a_line(tmp_path, section, said):
    extension(tmp_path, "a", f"{INVOKES}\nagent: {section}")

    assert reason(tmp_path, "a").startswith(said)


def test_an_agent_whose_run_is_not_async_is_told_so(tmp_path):
    extension(tmp_path, "a", INVOKES, main=FINE + "    def run(self, event): return 'yes'\n")

    assert any("Extension.run is not async" in line for line in load_all(tmp_path, {})[0].reasons)


def test_custom_without_code_is_told_of(tmp_path):
    extension(tmp_path, "a", "events: {subscribes: [{topic: a.b, handler: custom}]}")

    assert reason(tmp_path, "a").startswith("events.subscribes[0].handler: custom needs code")


def test_a_change_within_a_second_of_the_same_size_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    folder = extension(tmp_path, "a", main=FINE + "    n = 1\n")
    os.utime(folder / "main.py", (1_000_000_000, 1_000_000_000))
    [first] = load_all(tmp_path, {})

    extension(tmp_path, "a", main=FINE + "    n = 2\n")
    os.utime(folder / "main.py", (1_000_000_000, 1_000_000_000))
    [second] = load_all(tmp_path, {})

    assert (first.instance.n, second.instance.n) == (1, 2)
