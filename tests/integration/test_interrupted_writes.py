"""Ctrl-C in a thread that writes: wherever it comes, the threads beside it get their answers.

A tracer raises KeyboardInterrupt at each point at which CPython could: when a function begins, after
a call and at the end of a loop.
"""

from __future__ import annotations

import dis
import sys
import threading
from functools import partial
from types import FrameType
from typing import Any, Literal

import pytest

from ontologia import Entity, Field
from ontologia.store import writer as writer_module
from ontologia.store.postgres import database
from ontologia_conformance.tiers import samples
from tests.integration.running import until
from tests.integration.test_writer import PATIENCE, Blocker, Call, blocked, writer_of

_CHECKED = {
    dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD") if name in dis.opmap
}
_POINTS = 600  # of a thread that leads on PostgreSQL
_PLACES = ("/ontologia/store/", "contextlib.py", "/runtime/commits.py")


class Berth(Entity):
    id: Field[str] = Field(primary_key=True)


@pytest.fixture
def step(backend):
    """From one point to the next that is tried: on PostgreSQL there are more, and each takes longer."""
    return 1 if backend.name == "sqlite" else _POINTS // samples(_POINTS)


class Interrupt:
    """Raises KeyboardInterrupt at the n-th point from the first call of `begins` on."""

    def __init__(self, point: int, begins: str) -> None:
        self._left = point
        self._begins = begins
        self._on = False
        self._last: dict[int, int] = {}
        self.raised = False
        self.wrote = False
        """Whether a request was written by the thread, and not by another one that led before it."""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not any(place in frame.f_code.co_filename for place in _PLACES):
            return None
        frame.f_trace_opcodes = True
        self._on = self._on or frame.f_code.co_name == self._begins
        self.wrote = self.wrote or (self._on and frame.f_code.co_name == "write")
        self._point()
        return self._trace

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            if self._last.get(id(frame)) in _CHECKED:
                self._point()
            self._last[id(frame)] = frame.f_code.co_code[frame.f_lasti]
        return self._trace

    def _point(self) -> None:
        if self._on:
            self._left -= 1
            if self._left < 0 and not self.raised:
                self.raised = True
                sys.settrace(None)
                raise KeyboardInterrupt


def commit(session, id: str) -> int:
    with session.unit() as unit:
        unit.ensure(Berth(id=id))
        return unit.commit()


def interrupted(
    session, point: int, begins: str, id: str
) -> KeyboardInterrupt | Literal[False] | None:
    """Commit, and be interrupted at this point.

    None if there are not so many, and False if another thread wrote in place of this one.
    """
    interrupt = Interrupt(point, begins)
    sys.settrace(interrupt)
    try:
        commit(session, id)
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.settrace(None)
    if interrupt.raised:
        return KeyboardInterrupt()  # one that came at the very end
    return None if interrupt.wrote else False


def elsewhere(function) -> Any:
    """Call it in a thread of its own: a tracer that raises can leave traces in a thread."""
    call = Call(function)
    call.start()
    call.join(PATIENCE)
    assert not call.is_alive()
    if isinstance(call.outcome, BaseException) and not isinstance(call.outcome, KeyboardInterrupt):
        raise call.outcome
    return call.outcome


@pytest.mark.each_database
def test_an_interrupt_of_a_lone_thread_keeps_nothing_from_others(open_session, monkeypatch):
    monkeypatch.setattr(
        database, "_SILENT_COMMIT_MS", 60_000
    )  # no server ends a transaction for us
    monkeypatch.setattr(database, "_SILENT_SHARE", 12)
    session = open_session(settings={"lock_timeout_ms": int(PATIENCE * 1000)})
    point = 0

    def be_interrupted() -> bool:
        error = interrupted(session, point, "_write_at_once", f"main{point}")
        # Its traceback keeps what the thread was doing, as within `except KeyboardInterrupt:`.
        assert isinstance(elsewhere(partial(commit, session, f"other{point}")), int)
        assert isinstance(commit(session, f"again{point}"), int)
        return error is not None

    while elsewhere(be_interrupted):
        assert isinstance(elsewhere(partial(commit, session, f"after{point}")), int)
        point += 1
    assert point > 50


@pytest.mark.sampled
@pytest.mark.each_database
def test_an_interrupt_of_a_thread_that_writes_for_others_leaves_none_waiting(
    open_session, step, monkeypatch
):
    monkeypatch.setattr(writer_module, "_LOST", 0.02)  # seconds until a follower looks
    session = open_session(settings={"lock_timeout_ms": int(PATIENCE * 1000)})
    writer = writer_of(session)
    point = missed = 0
    while True:
        blocker, name = Blocker(), f"{point}.{missed}"
        first, followers, over = blocked(session, blocker), [], threading.Event()

        def follow(name=name, blocker=blocker, followers=followers, over=over) -> None:
            """Wait behind the thread that leads, unless that was interrupted before it waited itself."""
            for number in range(2):
                until(lambda number=number: len(writer._waiting) > number or over.is_set())
                followers.append(Call(lambda n=number: commit(session, f"follower{name}-{n}")))
                followers[-1].start()
            until(lambda: len(writer._waiting) > 2 or over.is_set())
            blocker.free.set()

        helper = threading.Thread(target=follow)
        helper.start()
        raised = elsewhere(partial(interrupted, session, point, "_lead", f"main{name}"))
        over.set()
        helper.join(PATIENCE)
        for call in [first, *followers]:
            call.join(PATIENCE)
            assert not call.is_alive(), point
        assert [type(each.outcome) for each in followers] == [int, int], point
        assert isinstance(elsewhere(partial(commit, session, f"other{name}")), int)
        if raised is None:
            break
        if raised:
            point, missed = point + step, 0
        else:
            missed += 1  # on a busy machine a follower may lead in its place
    assert point > 100
    stored = {each.id for each in session.query().entities(Berth).collect()}
    assert {
        f"follower{n}.0-{number}" for n in range(0, point + 1, step) for number in range(2)
    } <= stored
