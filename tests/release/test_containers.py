"""The Dockerfile and the compose file: read by linters, and compared with the program they start.

No engine runs here. What the image does in its steps, building wheels and installing them without an
index, is what test_release.py does.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ontologia import OntologiaConfig
from tests.docs.test_pages import understood

ROOT = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
OURS = [name for name in COMPOSE["services"] if name != "db"]


def test_the_dockerfile_has_nothing_that_a_linter_minds():
    done = subprocess.run(
        [TOOLS / "hadolint", ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (0, "")


def test_the_compose_file_is_one():
    done = subprocess.run(
        [
            TOOLS / "check-jsonschema",
            "--builtin-schema",
            "vendor.compose-spec",
            ROOT / "compose.yaml",
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_is_small_and_not_root_and_is_the_program():
    last = DOCKERFILE.split("\nFROM ")[-1]

    assert last.startswith("python:3.13-slim\n")
    assert re.search(r"^USER \d+$", last, re.MULTILINE)
    assert 'ENTRYPOINT ["ontologia"]' in last


def test_what_the_image_is_built_from_is_not_ignored():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        word
        for line in re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE, re.MULTILINE)
        for word in line.split()
    }

    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize("name", OURS)
def test_a_service_is_a_command_that_there_is_with_settings_that_there_are(name):
    service = COMPOSE["services"][name]
    words = [re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in service["command"]]
    settings = {
        variable.removeprefix("ONTOLOGIA_").lower()
        for variable in service["environment"]
        if variable.startswith("ONTOLOGIA_")
    }

    understood(words)
    assert settings - {"token"} <= OntologiaConfig.model_fields.keys()
    assert "datastore_uri" in settings


def test_the_module_that_runs_by_default_is_there():
    [folder] = COMPOSE["x-ontologia"]["volumes"]
    path, module = re.findall(r":-([^}]*)\}", folder + COMPOSE["services"]["worker"]["command"][1])

    assert (ROOT / path / f"{module}.py").exists()


def test_no_password_stands_in_the_compose_file():
    text = (ROOT / "compose.yaml").read_text()

    assert set(re.findall(r"(?:PASSWORD|TOKEN): (.*)", text)) == {
        "${POSTGRES_PASSWORD:?}",
        "${ONTOLOGIA_TOKEN:?}",
    }
