"""The document index among the examples: what its demo shows, leaves behind, and survives."""

from __future__ import annotations

import pytest

from ontologia_conformance.backends import NAMES
from tests.docs.applications import Application, assert_told, objects

pytestmark = pytest.mark.thorough
TYPES = {"Document": "entities", "Chunk": "entities", "Occurrence": "relations"}


@pytest.fixture(scope="session", params=NAMES[:2])
def backend(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def app(tmp_path):
    return Application("indexing", tmp_path)


def demo(uri):
    return "-m", "indexing", "--datastore-uri", uri


def index(uri):
    return {name: objects(uri, name, kind=kind) for name, kind in TYPES.items()}


def check(uri):
    """23 texts are left, one of them with two paragraphs."""
    found = index(uri)
    assert sorted(found["Document"]) == [f"{n:02}.txt" for n in range(24) if n != 11]
    assert len(found["Chunk"]) == 22 * 30 + 2
    assert sum(each["chunks"] for each in found["Document"].values()) == len(found["Chunk"])
    for kind in ("Chunk", "Occurrence"):
        assert all(
            each["digest"] == found["Document"][each["document"]]["digest"]
            for each in found[kind].values()
        )
    assert {key.partition(" ")[2] for key in found["Occurrence"]} == found["Chunk"].keys()
    return found


def test_a_folder_is_indexed_and_only_what_changed_is_indexed_again(app, uri, open_session):
    lines = app.run(*demo(uri))
    assert_told("indexing", lines)

    assert sorted(lines[1:25]) == [f"{n:02}.txt: 30 chunks" for n in range(24)]
    assert lines[25] == "The index has 25 words in 7200 places. Captain and storm are in:"
    again = lines.index(
        "One text is written anew, and one is gone. Only those two are looked into:"
    )
    assert sorted(lines[again + 1 : again + 3]) == ["07.txt: 2 chunks", "11.txt is gone"]
    assert lines[again + 4] == "07.txt, 5 times: Captain! Captain! Captain! The storm, the storm!"
    assert lines[-3:] == lines[26:29]  # the past is as it was
    check(uri)
    assert open_session().event_store.check() == []

    assert app.run(*demo(uri), "search", "Captain", "STORM")[0].startswith("07.txt, 5 times: ")
    assert app.run(*demo(uri), "search", "storm", "--as-of", "0") == ["0 paragraphs"]


@pytest.mark.parametrize("moment", ["05.txt: 30 chunks", "07.txt: 2 chunks"])
def test_an_index_that_was_interrupted_ends_as_one_that_was_not(app, uri, tmp_path, moment):
    app.killed_at(moment, *demo(uri))
    app.run(*demo(uri))

    whole = f"sqlite:///{tmp_path / 'whole.db'}"
    app.run(*demo(whole))
    assert check(uri) == check(whole)


def test_the_index_passes_its_own_tests(app):
    app.passes_its_own_tests("indexing")
