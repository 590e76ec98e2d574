"""The pages among the examples name what there is."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.docs.applications import EXAMPLES
from tests.docs.test_pages import understood

PAGES = sorted(page for page in EXAMPLES.rglob("README.md"))


def test_every_example_is_listed_and_says_how_it_is_run():
    page = (EXAMPLES / "README.md").read_text()
    files = [path for path in EXAMPLES.rglob("*.py") if path.parent.name in ("events", "actors")]
    folders = [path.parent for path in PAGES if path.parent != EXAMPLES]

    for path in [*EXAMPLES.glob("*.py"), *files]:
        assert f"]({path.relative_to(EXAMPLES)})" in page
    for folder in folders:
        assert f"]({folder.name}/)" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_what_a_page_names_is_there(page):
    text = page.read_text()
    commands = re.findall(r"^(?:\$ )?ontologia (.*)$", text, re.MULTILINE)
    links = re.findall(r"\]\((?!http)([^)#]+)", text)

    for link in links:
        assert (page.parent / link).exists(), link
    for command in commands:
        understood(shlex.split(command))
    assert commands or links
