"""`Work`: the units of work of an env."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ontologia.commands.announcing import Announcing
from ontologia.commands.command import Command
from ontologia.commands.unit import CommandUnit, Frame
from ontologia.errors import SessionClosedError
from ontologia.ids import Ids
from ontologia.runtime.session import core_of
from ontologia.store.turn import Turns

if TYPE_CHECKING:
    from ontologia.commands.env import Env

_units: ContextVar[tuple[tuple[Work, CommandUnit], ...]] = ContextVar("ontologia_units", default=())


class Work:
    """What the parts of this package share of one env. Thread-safe."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.core = core_of(env.session)
        self.ids = Ids(self.core.clock, self.core.random)
        self.turns = Turns()
        self.announcing = Announcing(env, self.ids)
        self.closed = False

    def check_open(self) -> None:
        """SessionClosedError if the env or its session is closed."""
        if self.closed:
            raise SessionClosedError("the env is closed", hint="Make another Env.")
        self.core.check_open()

    def unit(self) -> CommandUnit | None:
        """The unit of work that is going on here."""
        for work, unit in _units.get():
            if work is self and unit.is_going_on():
                return unit
        return None

    def frame_of(self, cmd: Command) -> Frame | None:
        """The frame of a command that is being carried out here."""
        unit = self.unit()
        frames = [] if unit is None else reversed(unit.frames)
        return next((frame for frame in frames if frame.command is cmd), None)

    def reading(self) -> CommandUnit:
        """Through what to read: the unit of work, or one that lasts for this one query."""
        self.check_open()
        return self.unit() or CommandUnit(self, "")

    @contextmanager
    def working(self, cmd: Command | None = None) -> Generator[CommandUnit]:
        """A unit of work, or a part of the one that is going on."""
        unit = self.unit()
        if unit is not None:
            mark = unit.mark()
            try:
                yield unit
            except BaseException:
                unit.roll_back(mark)
                raise
        elif cmd is None or cmd.model_id is None:
            with self._beginning() as unit:
                yield unit
        else:
            place = (cmd.model_key, cmd.model_id)
            with (
                self.turns.taken(place, self.core.config.lock_timeout_ms),
                self._beginning() as unit,
            ):
                yield unit

    @contextmanager
    def _beginning(self) -> Generator[CommandUnit]:
        self.check_open()
        unit = CommandUnit(self, self.ids.new())
        token = _units.set(((self, unit), *_units.get()))
        try:
            yield unit
        finally:
            unit.end()
            _units.reset(token)
        unit.write()
        self.announcing.after([*unit.events, *unit.tracked], unit)

    def dispatch_all(self, commands: Sequence[Command]) -> list[Any]:
        """Carry out several commands as one unit of work."""
        if len(commands) == 1:
            return [self.env.dispatch(commands[0])]
        with self.working():
            return [self.env.dispatch(each) for each in commands]


work_of: Callable[[Env], Work] = attrgetter("_work")
"""The units of work of an env, for the package's own code."""
