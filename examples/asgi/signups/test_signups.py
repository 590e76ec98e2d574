"""Tests of the service: `python -m pytest signups`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError

import pytest

from ontologia import Session

from .__main__ import ask, served
from .models import Welcome


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


def test_a_user_is_stored_and_waits_for_a_worker(users: str, uri: str) -> None:
    assert ask("PUT", f"{users}/ada", {"email": "ada@example.com"}) == {"id": "ada", "commit": 1}
    assert ask("PUT", f"{users}/ada", {"email": "ada@example.com"}) == {"id": "ada", "commit": None}

    assert ask("GET", f"{users}/ada")["welcomed"] is False
    with Session(uri) as session:
        [event] = session.event_store.list_events(session.namespace)
        assert (event["type"], event["status"]) == ("user.signed.up", "pending")
        session.ensure(Welcome(user_id="ada", email="ada@example.com"))  # as a worker would
    assert ask("GET", f"{users}/ada")["welcomed"] is True


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


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "bob", None, "404"),
        ("DELETE", "bob", None, "404"),
        ("PUT", "bob", {"mail": "bob@example.com"}, "400"),
        ("PUT", "bob", {"email": "x" * 20_000}, "400"),
        ("PUT", "%00", {"email": "nobody@example.com"}, "400"),
    ],
)
def test_what_makes_no_sense_is_refused(
    users: str, method: str, path: str, body: dict[str, str] | None, status: str
) -> None:
    with pytest.raises(HTTPError, match=status):
        ask(method, f"{users}/{path}", body)
