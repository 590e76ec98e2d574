"""Tests of the service: `python -m pytest signups`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError

import pytest

from ontologia import Session
from ontologia.testing import check_idempotent

from .__main__ import ask, served
from .handlers import welcome
from .models import User, UserSignedUp, Welcome


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    uri = f"sqlite:///{tmp_path / 'test.db'}"
    monkeypatch.setenv("ONTOLOGIA_DATASTORE_URI", uri)
    return uri


@pytest.fixture
def users(uri: str) -> Iterator[str]:
    """The address of users. A real server: the fixture starts it, and stops it cleanly."""
    with served() as address:
        yield f"{address}/users"


def test_a_user_is_stored_and_can_be_asked_for_as_of_then(users: str) -> None:
    first = ask("PUT", f"{users}/ada", {"email": "ada@example.com"})["commit"]
    ask("PUT", f"{users}/ada", {"email": "ada@example.org"})

    assert ask("GET", f"{users}/ada")["email"] == "ada@example.org"
    assert ask("GET", f"{users}/ada?as_of={first}")["email"] == "ada@example.com"
    with pytest.raises(HTTPError, match="404"):
        ask("GET", f"{users}/bob")
    for wrong in ("ada?as_of=-1", "ada?as_of=9223372036854775808"):
        with pytest.raises(HTTPError, match="422"):
            ask("GET", f"{users}/{wrong}")
    with pytest.raises(HTTPError, match="422"):
        ask("PUT", f"{users}/%00", {"email": "nobody@example.com"})


def test_requests_at_once_do_not_get_into_each_others_commits(users: str, uri: str) -> None:
    def sign_up(number: int) -> int:
        answer = ask("PUT", f"{users}/u{number}", {"email": f"{number}@example.com"})
        return int(answer["commit"])

    with ThreadPoolExecutor(8) as pool:
        commits = list(pool.map(sign_up, range(40)))

    with Session(uri) as session:
        for number, commit in enumerate(commits):
            [change] = session.list_commit_changes(commit)
            assert change["entity_id"] == f"User:u{number}"


def test_what_is_not_handled_when_the_service_stops_is_handled_by_the_next(uri: str) -> None:
    with Session(uri) as session:  # as if it had stopped right after the answer
        session.ensure(User(id="ada", email="ada@example.com"))
        session.commit(event=UserSignedUp(user_id="ada"))

    with served() as address:
        while not ask("GET", f"{address}/users/ada")["welcomed"]:
            time.sleep(0.01)

    with Session(uri) as session:
        assert session.query().entities(Welcome).count() == 1


def test_a_welcome_may_be_interrupted_anywhere() -> None:
    ada = User(id="ada", email="ada@example.com")
    check_idempotent(welcome, UserSignedUp(user_id="ada"), given=[ada])
