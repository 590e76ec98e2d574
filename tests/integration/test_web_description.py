"""The server's own description: it is true, and whatever it allows can be asked."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ontologia.commands import Env
from tests.integration.web_world import AUTHORIZED, TOKEN, client, served

WORLD = "tests.integration.quay_world"
# A command may refuse what it is told: to say so is up to its docstring.
UNKNOWN = "positive_data_acceptance"


@pytest.fixture(scope="session")
def backend(sqlite):
    """What this is about does not depend on the database."""
    return sqlite


@pytest.fixture
def env(uri):
    with Env(uri, modules=[WORLD]) as made:
        yield made


@pytest.fixture
def description(env):
    with served(env) as server, client(server) as http:
        return http.get("/openapi.json").json()


def test_every_command_has_a_path_with_what_its_docstring_says(description):
    paths = description["paths"]

    note = paths["/commands/quay.note"]["post"]

    assert list(paths) == sorted(paths)
    assert set(paths) == {
        "/health",
        "/openapi.json",
        "/commands/quay.echo",
        "/commands/quay.note",
        "/commands/quay.tear",
        "/commands/quay%20%7Bof%7D%20stones%2F%26%3F",
    }
    assert note["summary"] == "Write a note."
    assert note["description"] == "It has a `text`, and may have a number of `pages`."
    assert note["tags"] == ["quay.note"]


def test_who_is_let_in_is_described(description):
    assert description["security"] == [{"token": []}]
    assert description["paths"]["/health"]["get"]["security"] == []
    assert description["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


def test_without_a_token_the_refusal_of_other_names_is_described(env):
    with served(env, token=None, only_local=True) as server, client(server, headers={}) as http:
        paths = http.get("/openapi.json").json()["paths"]

    for path in ("/health", "/openapi.json"):
        assert {"400", "403"} <= set(paths[path]["get"]["responses"])


def test_every_kind_of_problem_of_a_command_is_described(description):
    from ontologia.web.problems import KINDS

    described = description["components"]["responses"]
    answers = description["paths"]["/commands/quay.echo"]["post"]["responses"]

    for kind in KINDS:
        if kind.status == 405:
            continue  # of another method than the one that is described
        assert answers[str(kind.status)] == {"$ref": f"#/components/responses/{kind.status}"}
        content = described[str(kind.status)]["content"]["application/problem+json"]
        assert kind.type in content["schema"]["allOf"][1]["properties"]["type"]["enum"]


@pytest.mark.thorough
def test_the_server_survives_whatever_its_description_allows(env):
    """About four hundred requests: with every member missing, of another type, or too long."""
    with served(env) as server:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"),
                *("--header", f"Authorization: {AUTHORIZED['Authorization']}"),
                *("--exclude-checks", UNKNOWN, "--max-examples", "25", "--seed", "1"),
                *("--generation-database", "none", "--request-timeout", "20", "--no-color"),
                *("--warnings", "off", "--output-sanitize", "false"),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-2_000:]
    assert TOKEN not in done.stderr
    assert "Tested: 5" in done.stdout, done.stdout
