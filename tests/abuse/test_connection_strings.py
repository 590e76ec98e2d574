"""Passwords that come where a path or a URI should be: refused, and never repeated."""

from __future__ import annotations

import pytest

from ontologia import OntologiaConfig, Session
from ontologia.errors import StoreOpenError
from ontologia.store.copying import copy_store
from tests.integration.commands import invoke

HIDDEN = "hunter2"
ALMOST = [
    '"postgresql://shop:hunter2@db/shop"',
    "'postgresql://shop:hunter2@db/shop'",
    " postgresql://shop:hunter2@db/shop",
    "\tpostgresql://shop:hunter2@db/shop\n",
    "\ufeffpostgresql://shop:hunter2@db/shop",
    "postgresql:/shop:hunter2@db/shop",
    "postgresql:shop:hunter2@db/shop",
    "postgresql//shop:hunter2@db/shop",
    "PostgreSQL:/shop:hunter2@db/shop",
    "//shop:hunter2@db/shop",
    "shop:hunter2@db/shop",
    "shop:hunter2/word@db/shop",
    "jdbc:postgresql://db/shop?user=shop&password=hunter2",
    " postgresql://shop:hunter2\0@db/shop",
    "host=db password=hunter2 dbname=shop",
    "dbname = shop password = hunter2",
    "'host=db password=hunter2'",
    "Server=db;Database=shop;Uid=shop;Pwd=hunter2",
    "service=shop password=hunter2",
    "sqlite://shop:hunter2@db/shop",
    "sqlite:///app.db?key=hunter2",
    "file:app.db?key=hunter2",
    "mysql://shop:hunter2@db/shop",
    "localhost/shop?user=shop&password=hunter2",
    "db.example.com:5432/shop?sslmode=require&password=hunter2",
    "PGPASSWORD=hunter2 psql shop",
    "psql shop PGPASSWORD=hunter2",
    "\u201cpostgresql://db/shop?password=hunter2\u201d",
    "\u200bpostgresql://db/shop?password=hunter2",
    "URL: postgresql://db/shop?password=hunter2",
    "export DATABASE_URL=postgresql://db/shop?password=hunter2",
    "sqlite://shop:a/hunter2@db/shop",
    "sqlite://shop:a/b?hunter2@db/shop",
    "sqlite://app.db;password=hunter2",
    "sqlite:///app.db;password=hunter2",
    "postgresql://shop:p@hunter2@db/shop",
    "postgresql://shop:pa?hunter2@db/shop",
    "postgresql://shop:12?hunter2@db/shop",
    "postgresql://shop:12?schema=hunter2@db/shop",
    "postgresql://shop:[hunter2]@db/shop",
    "sqlite:///postgresql://shop:hunter2@db/shop",
    "sqlite:///mysql://db/hunter2",
    "sqlite:///sqlite:///app.db?key=hunter2",
    "db:5432:shop:me:hunter2",
    "*:*:*:me:hunter2",
    "\\:\\:1:5432:shop:me:hunter2/word",
    "sqlite:///db:5432:shop:me:hunter2",
    "POSTGRES_PASSWORD=hunter2",
    "export POSTGRES_PASSWORD=hunter2",
    "DB_PASS=hunter2",
    "DBPASS=hunter2",
    "MYSQL_PWD = hunter2",
    "--password=hunter2",
    "password: hunter2",
    '{"user": "me", "password": "hunter2"}',
    "spring.datasource.password=hunter2",
    "sqlite:///DB_PASS=hunter2",
]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("uri", ALMOST)
def test_what_looks_like_a_connection_string_is_refused_and_not_repeated(here, uri):
    with pytest.raises(StoreOpenError) as refused:
        Session(uri)

    assert HIDDEN not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.hint
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("uri", ALMOST[:3])
def test_so_it_is_on_the_command_line_and_in_a_copy(here, uri):
    told = [
        invoke("init", uri),
        invoke("info", "--datastore-uri", uri),
        invoke("copy", uri, "other.db"),
    ]
    for done in told:
        assert done.exit_code != 0
        assert HIDDEN not in done.stdout + done.stderr
    with pytest.raises(StoreOpenError, match="looks like a connection string"):
        copy_store(uri, "other.db")
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("uri", [b"postgresql://shop:hunter2@db/shop", ["hunter2"], None])
def test_what_is_no_text_is_not_repeated_either(uri):
    with pytest.raises(StoreOpenError, match="names no database") as refused:
        Session(uri)

    assert HIDDEN not in str(refused.value)


@pytest.mark.parametrize("setting", ["datastore_uri", "archive_uri"])
def test_a_uri_in_a_settings_file_that_cannot_be_read_is_not_repeated(here, setting):
    (here / "ontologia.toml").write_text(f'{setting} = ["postgresql://shop:hunter2@db/shop"]')

    done = invoke("info")

    assert done.exit_code != 0
    assert f"{setting}: Input should be a valid string" in done.stderr
    assert HIDDEN not in done.stdout + done.stderr


def test_a_uri_in_place_of_the_settings_is_not_repeated(here):
    (here / "pyproject.toml").write_text('[tool]\nontologia = "postgresql://me:hunter2@db/shop"')

    done = invoke("info")

    assert "is a table, got a str" in " ".join(done.stderr.split())
    assert HIDDEN not in done.stdout + done.stderr


def test_settings_are_shown_without_uris():
    config = OntologiaConfig(
        datastore_uri="postgresql://shop:hunter2@db/shop", archive_uri="s3://me:hunter2@bucket/x"
    )

    assert HIDDEN not in repr(config) + str(config)
    assert config.datastore_uri == "postgresql://shop:hunter2@db/shop"


@pytest.mark.parametrize(
    "path",
    [
        "app.db",
        "./host=db",
        "my data.db",
        "a@b.db",
        "user.db",
        "10:30.db",
        "postgres.db",
        "a=b.db",
        "C:\\me@home.db",
        "compass=1.db",
        "passport.db",
        "a:1:b:2.db",
    ],
)
def test_a_plain_path_is_a_file(here, path):
    Session(path).close()

    assert (here / path).is_file()


def test_an_absolute_path_is_a_file_whatever_is_in_it(here):
    (here / "user=a:b@c").mkdir()

    Session(str(here / "user=a:b@c" / "app.db")).close()
    Session(f"sqlite:///{here}/user=a:b@c/other.db").close()

    assert len(list((here / "user=a:b@c").iterdir())) == 2
