"""The Dockerfile and the compose file: read by linters, and compared with the program they start.

No engine runs here. What the image does in its steps, building wheels and installing them without an
index, is what test_release.py does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from ontologia import OntologiaConfig, Session
from ontologia.runtime.session import core_of
from ontologia.store.postgres.place import place_of
from ontologia_conformance.servers import postgres_programs
from tests.docs.test_pages import understood

ROOT = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
DATASTORE = COMPOSE["x-ontologia"]["environment"]["ONTOLOGIA_DATASTORE_URI"]
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
        "${APPLICATION_PASSWORD:?}",
        "${ONTOLOGIA_TOKEN:?}",
    }


def test_the_application_is_no_superuser(postgres18):
    """The script of the database, on a real server; then the program, as the role of the compose file."""
    server = conninfo_to_dict(place_of(postgres18.unmade()).conninfo)
    where = {"PGHOST": server["host"], "PGPORT": str(server["port"])}
    script = COMPOSE["configs"]["application_role"]["content"].replace("$$", "$")
    path = f"{postgres_programs(18)}{os.pathsep}{os.environ['PATH']}"
    given = {"PATH": path, "APPLICATION_PASSWORD": "it's", "POSTGRES_USER": server["user"]}
    with psycopg.connect(**server, autocommit=True) as admin:
        try:
            subprocess.run(["sh", "-euc", script], env=given | where, check=True)
            role, database = urlsplit(DATASTORE).username, urlsplit(DATASTORE).path.strip("/")
            uri = f"postgresql://{role}:it's@{server['host']}:{server['port']}/{database}"
            with Session(uri) as session:
                session.event_store.list_events("default")
                assert core_of(session).store.inventory.about().layout
            [[rights]] = admin.execute(
                "SELECT rolsuper OR rolcreaterole OR rolcreatedb FROM pg_roles WHERE rolname = %s",
                [role],
            ).fetchall()
            assert rights is False
        finally:
            admin.execute("DROP DATABASE IF EXISTS ontologia WITH (FORCE)")
            admin.execute("DROP ROLE IF EXISTS ontologia")


def test_only_the_database_knows_the_password_of_its_superuser():
    knowing = [
        name
        for name, service in COMPOSE["services"].items()
        if "POSTGRES_PASSWORD" in str(service["environment"])
    ]

    assert knowing == ["db"]
