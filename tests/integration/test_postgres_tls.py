"""TLS, as the URI asks for it, with a server that has it.

The wheel's server is built without; one that the machine has is used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ontologia import Session
from ontologia.errors import StoreOpenError
from ontologia.runtime.session import core_of
from tests.servers import ask, own_server

if TYPE_CHECKING:
    from ontologia_conformance.servers import Postgres

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
pytestmark = pytest.mark.skipif(
    not PROGRAMS or shutil.which("openssl") is None, reason="no server with TLS, or no openssl"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A server with a certificate for localhost, which takes encrypted connections only."""
    with own_server(programs=PROGRAMS[-1].parent) as server:
        ask(server.uri, "CREATE ROLE app LOGIN PASSWORD 's3cret'")
        ask(server.uri, "CREATE SCHEMA mine AUTHORIZATION app")
        data = server.folder / "data"
        _sign("CN=localhost", data / "server.key", data / "server.crt")
        (data / "postgresql.auto.conf").write_text("ssl = on\n")
        (data / "pg_hba.conf").write_text(
            "host all postgres 127.0.0.1/32 trust\nhostssl all app all scram-sha-256\n"
        )
        server.halt()
        server.start()
        yield server


def _sign(subject: str, key: Path, certificate: Path) -> None:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/{subject}", "-addext", "subjectAltName=DNS:localhost"),
            "-keyout",
            key,
            "-out",
            certificate,
        ],
        check=True,
        capture_output=True,
    )
    owner = key.parent.stat()
    for path in (key, certificate):
        os.chown(path, owner.st_uid, owner.st_gid)
        path.chmod(0o600)


def as_app(server: Postgres, **options: object) -> str:
    rest = "&".join(f"{name}={value}" for name, value in options.items())
    return f"postgresql://app:s3cret@localhost:{server.port}/postgres?schema=mine&{rest}"


def is_encrypted(session: Session) -> bool:
    ssl = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    [[encrypted]] = core_of(session).store.database.all(ssl)  # type: ignore[attr-defined]
    return bool(encrypted)


@pytest.mark.thorough
def test_connections_are_encrypted_and_the_certificate_is_checked(server: Postgres) -> None:
    trusted = server.folder / "data" / "server.crt"

    with Session(as_app(server, sslmode="verify-full", sslrootcert=trusted)) as session:
        assert is_encrypted(session)
    with Session(as_app(server, sslmode="require")) as session:
        assert is_encrypted(session)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sslmode": "verify-full", "sslrootcert": "{stranger}"}, "certificate verify failed"),
        ({"sslmode": "verify-full", "sslrootcert": "/nowhere/ca.crt"}, "does not exist"),
        ({"sslmode": "verify-full", "sslrootcert": "{trusted}", "host": "127.0.0.1"}, "match"),
    ],
    ids=["signed by another", "nobody to trust", "another host"],
)
def test_a_server_that_is_not_who_it_should_be_is_refused(
    server: Postgres, tmp_path: Path, options: dict[str, str], said: str
) -> None:
    _sign("CN=localhost", tmp_path / "stranger.key", tmp_path / "stranger.crt")
    places = {"stranger": tmp_path / "stranger.crt", "trusted": server.folder / "data/server.crt"}
    given = {name: value.format(**places) for name, value in options.items()}
    uri = as_app(server, **{name: value for name, value in given.items() if name != "host"})

    with pytest.raises(StoreOpenError, match=said) as error:
        Session(uri.replace("localhost", given.get("host", "localhost")))

    assert "sslrootcert" in (error.value.hint or "")
    assert "s3cret" not in str(error.value)


def test_a_server_that_takes_encrypted_connections_only_says_so(server: Postgres) -> None:
    with pytest.raises(StoreOpenError, match="no encryption") as error:
        Session(as_app(server, sslmode="disable"))

    assert "pg_hba.conf" in (error.value.hint or "")
