"""`CommandBus`: from a command to what it sets off."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ontologia.commands import builtin
from ontologia.commands.command import Command, carried_out
from ontologia.commands.recordset import RecordSet
from ontologia.commands.registry import CommandTarget, Registry
from ontologia.commands.unit import CommandUnit, Frame
from ontologia.commands.work import work_of

if TYPE_CHECKING:
    from ontologia.commands.env import Env

_VETO = "__ontologia_veto__"


class CommandBus:
    """Carries out commands: hooks before, the one handler, hooks after, all in one unit of work."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def dispatch(self, cmd: Command, env: Env) -> Any:
        """Carry out a command now; what its handler returns.

        A command that is dispatched while another is carried out belongs to that one's unit of
        work. If it raises, what it wrote and announced is taken back, whoever catches that.
        """
        if not isinstance(cmd, Command):
            raise TypeError(f"dispatch takes a Command, got {cmd!r}")
        handle, keys = self._resolve(cmd)
        with work_of(env).working(cmd) as unit, carried_out(cmd, env):
            record = None
            if cmd.model_key is not None and cmd.model_id is not None:
                record = RecordSet(env, cmd.model_key, [cmd.model_id])
            frame = Frame(cmd, record)
            unit.enter(frame)
            try:
                self._hooks("pre", keys, env, unit, frame)
                result = handle(env, unit, frame)
                self._hooks("post", keys, env, unit, frame)
            finally:
                unit.frames.pop()
        return result

    def _resolve(self, cmd: Command) -> tuple[builtin.Builtin, list[str]]:
        """What carries it out, and the keys of its hooks."""
        if cmd.model_key is not None:
            self._registry.model(cmd.model_key)
        if cmd.name.startswith(builtin.PREFIX):
            verb, handle = builtin.resolve(cmd)
            mutating = verb in builtin.MUTATING
            return handle, [cmd.name, f"{cmd.model_key}.{verb}"] if mutating else []
        return _calling(self._registry.resolve_command(cmd.name)), [cmd.name]

    def _hooks(self, when: str, keys: list[str], env: Env, unit: CommandUnit, frame: Frame) -> None:
        cmd = frame.command
        targets = [target for key in keys for target in self._registry.hooks(f"{when}.{key}")]
        if not targets or frame.place in unit.hooking:
            return
        hooking = unit.hooking
        # A record that is yet to be made is another one each time, with hooks of its own.
        unit.hooking = hooking | {frame.place} if frame.record is not None else hooking
        try:
            for target in targets:
                target.call(env, cmd)
        except Exception as error:
            with suppress(AttributeError, TypeError):  # not every exception has room for it
                error.__dict__.setdefault(_VETO, f"{when}.{cmd.name}")
            raise
        finally:
            unit.hooking = hooking


def vetoed_by(error: BaseException) -> str | None:
    """The hook that raised this and so took the command back; None if it was no hook."""
    found: str | None = getattr(error, "__dict__", {}).get(_VETO)
    return found


def _calling(target: CommandTarget) -> builtin.Builtin:
    return lambda env, _unit, frame: target.call(env, frame.command)
