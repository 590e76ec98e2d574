"""Whether a session is over: only what is certain counts."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta

import pytest

from ontologia.clock import SYSTEM_CLOCK, to_text
from ontologia.extensions.bus import _started, process_metadata, session_is_dead

NOW = SYSTEM_CLOCK.now()
TTL = timedelta(seconds=60)
HEARD = to_text(NOW - timedelta(seconds=1))


def is_dead(**changes):
    return session_is_dead(HEARD, process_metadata() | changes, NOW, TTL)


def test_a_process_that_runs_is_alive():
    assert not is_dead()


def test_a_session_that_ended_or_is_silent_or_forgotten_is_over():
    assert is_dead(stopped_at=HEARD)
    assert session_is_dead(to_text(NOW - timedelta(seconds=61)), process_metadata(), NOW, TTL)
    assert session_is_dead(None, {}, NOW, TTL)


def test_a_process_that_is_gone_is_dead_and_so_is_one_whose_number_is_used_again():
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()

    assert is_dead(pid=gone.pid)
    if process_metadata()["process_started"] is not None:
        assert is_dead(process_started="1")


def test_a_process_that_ended_and_that_nobody_waited_for_is_dead():
    if process_metadata()["process_started"] is None:
        pytest.skip("only Linux tells")
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    started = _started(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert is_dead(pid=child.pid, process_started=started)
    child.wait()


def test_of_another_machine_or_container_nothing_is_known():
    assert not is_dead(machine="elsewhere", pid=2**22 + 1)
    assert not is_dead(machine=None, pid=2**22 + 1)
    assert not session_is_dead(HEARD, {"pid": 2**22 + 1, "hostname": "here"}, NOW, TTL)
