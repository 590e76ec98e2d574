"""The built-in commands: `ede.create`, `ede.update` and the others, for every model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from ontologia.commands.command import Command
from ontologia.commands.recordset import Records, RecordSet
from ontologia.commands.unit import CommandUnit, Frame
from ontologia.commands.work import work_of
from ontologia.errors import (
    CommandHandlerNotFound,
    InvalidValueError,
    RecordExists,
    RecordNotFound,
)

if TYPE_CHECKING:
    from ontologia.commands.env import Env
    from ontologia.commands.model import DomainModel

PREFIX = "ede."
Builtin: TypeAlias = "Callable[[Env, CommandUnit, Frame], Any]"


def resolve(cmd: Command) -> tuple[str, Builtin]:
    """The verb of a built-in command and what carries it out."""
    verb = cmd.name.removeprefix(PREFIX)
    found = MUTATING.get(verb) or READING.get(verb)
    if found is None:
        known = ", ".join(f"{PREFIX}{each}" for each in (*MUTATING, *READING))
        raise CommandHandlerNotFound(
            f"there is no built-in command {cmd.name!r}; there are {known}"
        )
    if cmd.model_key is None:
        raise InvalidValueError(
            f"{cmd.name} needs to know of which model", hint="Give model_key=..."
        )
    if verb in _ABOUT_ONE and cmd.model_id is None:
        raise InvalidValueError(f"{cmd.name} is about one record", hint="Give model_id=...")
    return verb, found


def _create(env: Env, unit: CommandUnit, frame: Frame) -> dict[str, Any]:
    cmd = frame.command
    model = env.registry.model(cmd.model_key or "")
    shape = model.__shape__
    values = cmd.payload
    if values.get("id") is None:
        values = {**values, "id": work_of(env).ids.new()}
    record = model.__new__(model)
    vars(record).update(shape.validate(values))
    if unit.knows(shape, record.id):
        raise RecordExists(shape.name, record.id)
    unit.create(record)
    frame.record = RecordSet(env, shape.name, [record.id])
    return vars(record)


def _update(env: Env, unit: CommandUnit, frame: Frame) -> dict[str, Any]:
    cmd = frame.command
    shape = env.registry.model(cmd.model_key or "").__shape__
    if cmd.payload.get("id", cmd.model_id) != cmd.model_id:
        raise InvalidValueError(f"{shape.name} {cmd.model_id!r}: the id of a record cannot change")
    record = _found(env, unit, cmd)
    for name in cmd.payload:
        if not shape.has(name):
            raise InvalidValueError(
                f"{shape.name}: {name!r} is not a field (it has {', '.join(shape.fields)})"
            )
    vars(record).update(shape.assigned(vars(record), cmd.payload))
    unit.ensure(record)
    return vars(record)


def _delete(env: Env, unit: CommandUnit, frame: Frame) -> dict[str, Any]:
    cmd = frame.command
    unit.delete(_found(env, unit, cmd))
    return {"id": cmd.model_id}


def _read_one(env: Env, unit: CommandUnit, frame: Frame) -> dict[str, Any]:
    return vars(_found(env, unit, frame.command))


def _found(env: Env, unit: CommandUnit, cmd: Command) -> DomainModel:
    """The record that a command is about; RecordNotFound if there is none."""
    shape, id = env.registry.model(cmd.model_key or "").__shape__, cmd.model_id or ""
    record: DomainModel | None = unit.records(shape, [id])[0]
    if record is None:
        raise RecordNotFound(shape.name, [id])
    return record


def _search(env: Env, unit: CommandUnit, frame: Frame) -> list[dict[str, Any]]:
    records, options = _asked(env, frame, "domain", "order", "limit", "offset")
    return records.search(options.pop("domain", None), **options).read()


def _count(env: Env, unit: CommandUnit, frame: Frame) -> int:
    records, options = _asked(env, frame, "domain")
    return records.count(options.get("domain"))


def _read_group(env: Env, unit: CommandUnit, frame: Frame) -> list[dict[str, Any]]:
    names = ("domain", "group_by", "aggregate", "order", "limit", "offset")
    records, options = _asked(env, frame, *names)
    if "group_by" not in options:
        raise InvalidValueError(f"{frame.command.name} needs group_by, a list of fields")
    return records.read_group(options.pop("domain", None), **options)


def _asked(env: Env, frame: Frame, *names: str) -> tuple[Records, dict[str, Any]]:
    cmd = frame.command
    if unknown := sorted(set(cmd.payload) - set(names)):
        raise InvalidValueError(
            f"{cmd.name} knows no {unknown[0]!r}; its payload has {', '.join(names)}"
        )
    options = {name: value for name, value in cmd.payload.items() if value is not None}
    return env.models[cmd.model_key or ""], options


MUTATING: dict[str, Builtin] = {"create": _create, "update": _update, "delete": _delete}
READING: dict[str, Builtin] = {
    "read_one": _read_one,
    "search": _search,
    "count": _count,
    "read_group": _read_group,
}
_ABOUT_ONE = ("update", "delete", "read_one")
