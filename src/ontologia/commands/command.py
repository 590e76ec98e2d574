"""`Command`: an intent, as data."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ontologia.errors import InvalidTypeError, InvalidValueError

if TYPE_CHECKING:
    from ontologia.commands.env import Env
    from ontologia.commands.recordset import RecordSet


@dataclass(frozen=True, slots=True)
class Command:
    """Something that somebody wants done now: a name, a payload, and the record it is about.

    It is carried out by `env.dispatch(command)`. `payload` is always given, if only as `{}`; the
    command keeps a copy of it.
    """

    name: str
    payload: dict[str, Any]
    model_key: str | None = None
    model_id: str | None = None
    _env: Env | None = field(default=None, init=False, repr=False, compare=False)
    _given: dict[str, Any] = field(init=False, repr=False, compare=False)
    """The payload as it was given."""

    def __post_init__(self) -> None:
        if not isinstance(self.payload, Mapping):
            raise InvalidTypeError(
                f"{self.name}: a payload is a dict, got {self.payload!r:.200}",
                hint="Without anything to say it is {}.",
            )
        for what in ("name", "model_key", "model_id"):
            value = getattr(self, what)
            if (value is None and what == "name") or not (
                value is None or (isinstance(value, str) and value)
            ):
                raise (InvalidValueError if isinstance(value, str) else InvalidTypeError)(
                    f"a command's {what} is text, got {value!r:.200}"
                )
        object.__setattr__(self, "_given", _copied(dict(self.payload)))
        object.__setattr__(self, "payload", self._given)

    @property
    def record(self) -> RecordSet | Any:
        """The record that the command is about, as a set of one; None if it names none.

        Before a record is created there is none, after that it is the new one. RuntimeError
        outside of a dispatch: only a dispatch knows where records are.
        """
        from ontologia.commands.work import work_of  # which imports this module

        frame = None if self._env is None else work_of(self._env).frame_of(self)
        if frame is not None:
            return frame.record
        if self.model_key is None or self.model_id is None:
            return None
        raise RuntimeError(f"{self.name} is not being dispatched, so its record cannot be reached")


given_of: Callable[[Command], dict[str, Any]] = attrgetter("_given")
"""The payload of a command as it was given."""


@contextmanager
def carried_out(cmd: Command, env: Env) -> Generator[None]:
    """Have a payload that hooks may change, for this once: the next time it is as given."""
    before = cmd.payload
    object.__setattr__(cmd, "_env", env)
    object.__setattr__(cmd, "payload", _copied(given_of(cmd)))
    try:
        yield
    finally:
        object.__setattr__(cmd, "payload", before)


def _copied(value: Any) -> Any:
    """The same dicts and lists anew, with what is in them; a payload may hold anything."""
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value
