"""Links that somebody else has put where a file or a socket is to be made: none is followed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import stat
from contextlib import asynccontextmanager

import pytest

from ontologia import Session
from ontologia.actors import ActorLoop, UnixSocketAdapter
from ontologia.errors import ConfigError
from tests.integration.commands import invoke


@pytest.fixture
def victim(tmp_path):
    """A file of this user that others want overwritten."""
    found = tmp_path / "victim"
    found.write_text("precious")
    found.chmod(0o644)
    return found


@pytest.fixture
def shared(tmp_path):
    """A folder that others can write to."""
    found = tmp_path / "shared"
    found.mkdir()
    return found


@pytest.mark.parametrize("end", [".part", ".aaaaaaaaaaaaaaaa.part"])
def test_an_export_follows_no_link(uri, victim, shared, monkeypatch, end):
    Session(uri).close()
    target = shared / "state.jsonl"
    (shared / f"{target.name}{end}").symlink_to(victim)
    if end != ".part":  # even if the name could be guessed
        monkeypatch.setattr("secrets.token_hex", lambda size: "a" * 2 * size)

    done = invoke("export", "-o", str(target), "--datastore-uri", uri)

    assert victim.read_text() == "precious"
    assert done.exit_code == (0 if end == ".part" else 1)
    assert target.exists() is (end == ".part")
    assert (shared / f"{target.name}{end}").is_symlink()


def test_an_export_replaces_a_link_and_not_what_it_points_to(uri, victim, shared):
    Session(uri).close()
    target = shared / "state.jsonl"
    target.symlink_to(victim)

    victim.chmod(0o666)

    done = invoke("export", "-o", str(target), "--datastore-uri", uri)

    assert done.exit_code == 0
    assert (
        not stat.S_IMODE(target.lstat().st_mode) & 0o022
    )  # the mode of the victim is not taken over
    assert victim.read_text() == "precious"
    assert not target.is_symlink()
    assert [each.name for each in shared.iterdir()] == ["state.jsonl"]


@asynccontextmanager
async def listening(path):
    async with ActorLoop([], adapters=[UnixSocketAdapter(path)]):
        yield


@pytest.mark.parametrize("mask", [0o077, 0])
def test_a_socket_is_for_its_user_alone(shared, mask):
    async def main():
        async with listening(shared / "o.sock"):
            return stat.S_IMODE(os.lstat(shared / "o.sock").st_mode)

    before = os.umask(mask)
    try:
        assert asyncio.run(main()) == 0o600
    finally:
        os.umask(before)


def test_a_link_in_the_place_of_a_new_socket_changes_no_mode(shared, victim, monkeypatch):
    path, bind = shared / "o.sock", socket.socket.bind

    def bind_and_be_replaced(listener, address):
        bind(listener, address)
        path.unlink()
        path.symlink_to(victim)

    async def main():
        async with listening(path):
            pass

    monkeypatch.setattr(socket.socket, "bind", bind_and_be_replaced)
    asyncio.run(main())

    assert stat.S_IMODE(victim.stat().st_mode) == 0o644
    assert victim.read_text() == "precious"


def test_a_folder_that_another_user_has_locked_is_an_error_and_no_endless_wait(shared, monkeypatch):
    monkeypatch.setattr("ontologia.actors.sockets._LOCK_PATIENCE", 0.0)

    async def main():
        async with listening(shared / "o.sock"):
            pass

    handle = os.open(shared, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        with pytest.raises(ConfigError, match="another program has locked the folder") as raised:
            asyncio.run(main())
        assert "no other user can read" in raised.value.hint
        assert list(shared.iterdir()) == []
    finally:
        os.close(handle)
    asyncio.run(main())
