"""What the page on commands says is so."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

from ontologia import commands
from ontologia.commands import Command, Env, Records, RecordSet, api, builtin, domain
from tests.docs.test_documentation import DOCS, blocks, public_methods

PAGE = DOCS / "reference/commands.md"
WORDS = PAGE.read_text()


def test_every_name_is_documented():
    # Whoever needs these has read the code: where a command goes, and who knows it.
    hardly = {"CommandBus", "CommandTarget", "Records", "Registry", "get_current_tenant_id"}
    missing = {name for name in commands.__all__ if not re.search(rf"\b{name}\b", WORDS)}

    assert missing <= hardly


@pytest.mark.parametrize("cls", [Env, RecordSet, Records])
def test_every_method_is_documented(cls):
    names = public_methods(cls)

    assert [name for name in names if not re.search(rf"\b{name}\b", WORDS)] == []


def test_the_signatures_are_those_of_the_code():
    for function in (Env.emit, Records.search, Records.read_group, RecordSet.read, RecordSet.write):
        parameters = inspect.signature(function).parameters.values()
        words = [str(each.replace(annotation=inspect.Parameter.empty)) for each in parameters][1:]
        keywords = [each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters][1:]
        if True in keywords:
            words.insert(keywords.index(True), "*")

        assert f"{function.__name__}({', '.join(words)})" in WORDS
    assert f"Command({', '.join(api_fields())})" in WORDS


def api_fields() -> list[str]:
    parameters = inspect.signature(Command).parameters.values()
    return [str(each.replace(annotation=inspect.Parameter.empty)) for each in parameters]


def test_every_decorator_operator_and_built_in_command_is_documented():
    for name in ("on_command", "on_event", "hook"):
        assert f"@api.{name}(" in WORDS
        assert getattr(api, name).__doc__
    for verb in (*builtin.MUTATING, *builtin.READING):
        assert f"| `ede.{verb}`" in WORDS
    for operator in domain._COMPARISONS:
        assert re.search(rf"[` ]{re.escape(operator)}[` ]", WORDS)


@pytest.mark.req("EDE-020")
def test_the_convention_of_names_is_documented():
    assert "`{app}.{verb}`" in WORDS


def test_the_example_runs(tmp_path):
    [program] = blocks(PAGE, "python")
    program += "\nprint(env.models['logistics.shipment'].browse(shipment.id).read())\nenv.close()\n"
    (tmp_path / "shop.py").write_text(program)

    done = subprocess.run(
        [sys.executable, "-W", "error", "shop.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.stderr == ""
    assert "'status': 'confirmed'" in done.stdout
