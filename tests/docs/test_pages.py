"""Every program of every page runs; every command of every page is one that there is."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from ontologia import OntologiaConfig
from ontologia.cli.main import app
from tests.docs import pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Pages that need more than a folder, each with the test that does what they say.
ELSEWHERE = {
    "tutorial.md": "test_tutorial.py::test_everything_in_the_tutorial_happens_as_it_says",
    "howto/extensions.md": "test_extension_documentation.py::test_the_program_of_the_page_runs",
    "howto/kafka.md": "test_kafka_documentation.py::test_the_program_runs_with_the_settings_of_the_page",
    "reference/messages.md": "test_kafka_documentation.py::"
    "test_what_another_program_sends_is_an_event",
    "howto/move.md": "test_moving_documentation.py::test_the_program_that_moves_a_store_moves_it",
    "howto/other-languages.md": "test_actor_documentation.py::test_a_store_is_served_and_asked_as_the_page_says",
    "howto/postgres.md": "test_postgres_documentation.py::"
    "test_the_program_runs_on_a_database_that_was_set_up_as_the_page_says",
    "howto/s3.md": "test_s3_documentation.py::test_the_programs_of_the_page_run",
    "howto/web.md": "test_web_documentation.py::test_the_application_of_the_page_answers_as_it_says",
    "howto/test-handlers.md": "test_testing_documentation.py::test_the_tests_of_the_page_pass",
    "howto/serve.md": "test_http_documentation.py::"
    "test_the_shipping_of_the_howto_can_be_served_and_asked",
}


def _name(page: Path) -> str:
    return str(page.relative_to(DOCS)) if page.is_relative_to(DOCS) else page.name


PAGES = {
    _name(page): page.read_text()
    for page in [*ROOT.glob("*.md"), *sorted(DOCS.rglob("*.md"))]
    if page.name != "requirements.md"
}
PROGRAMS = [
    name
    for name, text in PAGES.items()
    if name not in ELSEWHERE and re.search(r"^ *```(python|console)$", text, re.MULTILINE)
]


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_page_can_be_done_from_top_to_bottom(name, tmp_path):
    page = DOCS / name if (DOCS / name).exists() else ROOT / name
    places = [str(ROOT), os.environ.get("PYTHONPATH", "")]

    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "tests/docs/pages.py"), str(page)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr


def test_pages_that_are_done_elsewhere_are_done_there():
    for name, test in ELSEWHERE.items():
        file, _, function = test.partition("::")
        assert name in PAGES
        assert f"\ndef {function}(" in (Path(__file__).parent / file).read_text()


def test_what_is_said_of_a_line_is_compared_with_what_it_gives(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = [1, 2]\nx  # [1, 2]: two\nx[0]  # not compared\nx  # [1, ...]\n```\n"
    )
    pages.Reader(page).reads()

    page.write_text(page.read_text().replace("# [1, 2]", "# [1, 3]"))
    with pytest.raises(AssertionError, match="it gives"):
        pages.Reader(page).reads()


def test_what_is_said_of_a_line_that_prints_is_compared_with_what_it_prints(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint([1, 2])  # [1, 2]\n```\n")
    pages.Reader(page).reads()
    assert capsys.readouterr().out == "[1, 2]\n"

    page.write_text(page.read_text().replace("# [1, 2]", "# [1, 3]"))
    with pytest.raises(AssertionError, match="it gives"):
        pages.Reader(page).reads()


def _lines():
    """Each `ontologia …` in a block of commands, with the page that it is on."""
    for name, text in PAGES.items():
        for kind, block in re.findall(r"^ *```(\w+)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
            if kind not in ("sh", "console", "shell", "text"):
                continue
            prompt = r"\$ " if kind in ("console", "text") else r"(?:\w+=\S+ )*"
            for line in re.findall(rf"^ *{prompt}(ontologia .*)$", block, re.MULTILINE):
                yield name, line


@pytest.mark.thorough
def test_every_command_on_every_page_is_one_that_there_is():
    asked = list(_lines())

    for name, line in asked:
        words = shlex.split(re.split(r" [>|&] ?| #", line)[0])[1:]
        try:
            understood(words)
        except Exception as error:
            raise AssertionError(f"{name}: {line}: {error}") from error
    assert len(asked) > 50


def understood(words):
    """Raise unless the program would take these words; nothing is carried out."""
    _taken(typer.main.get_command(app), words, None)


def _taken(command, words, parent):
    if "--version" in words or "--help" in words:
        return
    context = command.make_context(command.name, list(words), parent=parent)
    if hasattr(command, "commands"):
        rest = [*context._protected_args, *context.args]
        if rest or not command.invoke_without_command:
            _, below, further = command.resolve_command(context, rest)
            _taken(below, further, context)


def test_the_units_and_manifests_start_what_there_is():
    page = DOCS / "howto/deploy.md"
    text = page.read_text()
    lines = re.findall(r"^ExecStart\w*=/srv/shop/.venv/bin/ontologia (.*)$", text, re.MULTILINE)
    manifests = [each for block in _blocks(text, "yaml") for each in yaml.safe_load_all(block)]
    containers = [
        container
        for each in manifests
        if each["kind"] != "Service"
        for kind in ("containers", "initContainers")
        for container in each["spec"]["template"]["spec"].get(kind, [])
    ]
    asked = [line.split() for line in lines] + [c["args"] for c in containers if "args" in c]

    assert len(asked) == 7
    for words in asked:
        understood(words)
    variables = set(re.findall(r"\bONTOLOGIA_([A-Z_]+)", text)) - {"TOKEN"}
    assert {name.lower() for name in variables} <= OntologiaConfig.model_fields.keys()


def _blocks(text, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
