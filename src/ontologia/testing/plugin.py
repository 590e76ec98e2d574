"""The fixtures for pytest: `session`, `clock`, `drain`, `emitted`, `dead_letters`.

pytest loads this module in every run where Ontologia is installed (`-p no:ontologia` says no). So
it imports nothing: what a fixture needs is imported when a test asks for it. A fixture of the same
name in a `conftest.py` takes the place of one of these, and the others then work with that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ontologia import Session
    from ontologia.testing import ManualClock
    from ontologia.testing.fixtures import DeadLetters, Drain, Emitted


@pytest.fixture
def clock() -> ManualClock:
    """The clock of `session`: it stands still until it is moved."""
    from ontologia.testing import ManualClock

    return ManualClock()


@pytest.fixture
def session(tmp_path: Path, clock: ManualClock) -> Iterator[Session]:
    """A session on an empty SQLite file, with `clock`, and with the same ids in each run."""
    from contextlib import closing

    from ontologia.testing.fixtures import open_session

    with closing(open_session(tmp_path / "ontologia.db", clock)) as opened:
        yield opened


@pytest.fixture
def drain(session: Session) -> Drain:
    """Run handlers until nothing is left to do: `drain([charge, ship])`."""
    from ontologia.testing.fixtures import Drain

    return Drain(session)


@pytest.fixture
def emitted(session: Session) -> Emitted:
    """The stored events of a class, in order: `emitted(OrderPlaced)`."""
    from ontologia.testing.fixtures import Emitted

    return Emitted(session)


@pytest.fixture
def dead_letters(session: Session) -> DeadLetters:
    """The events that handlers gave up, as `list_dead_letters` has them: `dead_letters()`."""
    from ontologia.testing.fixtures import DeadLetters

    return DeadLetters(session)
