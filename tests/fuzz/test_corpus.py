"""What was found once is tried again in every run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
FOUND = sorted(path for path in CORPUS.glob("*/*") if path.parent.name != "http")


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_once_is_not_found_again(path):
    TARGETS[path.parent.name](path.read_bytes())


def test_every_folder_is_one_of_a_target():
    assert {path.name for path in CORPUS.iterdir()} <= {*TARGETS, "http"}
