"""Turns: a lock for each key, for as long as it is wanted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ontologia.errors import LockContentionError
from ontologia.store.turn import Turns


def in_a_thread(function) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result()


def test_threads_wait_for_each_other_at_one_key_and_not_at_two():
    turns, been = Turns(), []

    def elsewhere() -> None:
        with turns.taken("b", 60_000):
            been.append("b")

    def here() -> None:
        with turns.taken("a", 1):
            been.append("a")

    with turns.taken("a", 1), turns.taken("a", 1):  # a thread that has it may take it again
        in_a_thread(elsewhere)
        with pytest.raises(LockContentionError):
            in_a_thread(here)
    in_a_thread(here)
    assert been == ["b", "a"]


def test_a_preferred_turn_that_another_thread_keeps_is_done_without():
    turns, been = Turns(), []

    def impatient() -> None:
        with turns.preferred("a", 1):
            been.append("a")

    with turns.preferred("a", 1):
        in_a_thread(impatient)
    assert been == ["a"]
    in_a_thread(impatient)  # the one that did without has given nothing back
    with turns.taken("a", 1):
        assert len(turns._turns) == 1


def test_a_key_that_is_not_wanted_any_more_is_forgotten():
    turns = Turns()
    with turns.taken("a", 1), turns.taken("b", 1):
        assert len(turns._turns) == 2
    assert len(turns._turns) == 0
