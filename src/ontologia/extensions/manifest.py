"""`manifest.yaml`: what an extension is, what it listens to, and what it may do.

    id: reminders
    events:
      subscribes:
        - {topic: reminder.due, handler: notify_user}

Nothing is guessed: a number where text should be, or a key that does not exist, is an error, since
an extension that silently does less than its manifest says is hard to find out about.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ontologia.errors import ManifestError
from ontologia.extensions.documents import read_mapping
from ontologia.extensions.problems import Problem, got, nearest

MANIFEST = "manifest.yaml"
HandlerName = Literal["notify_user", "invoke_agent", "custom"]
SettingType = Literal["string", "integer", "number", "boolean"]
_NO_VALUE = "has no value", "write one, or remove the line"
_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def checked_id(value: str) -> str:
    """ValueError, which says what helps, unless an extension can be called that."""
    if re.fullmatch(r"[a-z][a-z0-9_]{0,63}", value):
        return value
    better = re.sub(r"[^a-z0-9]+", "_", value.lower()).strip("_")[:64]
    helps = f"write {better}" if re.match("[a-z]", better) else "begin with a letter"
    raise ValueError(f"has a-z, 0-9 and _, and begins with a letter, got {got(value)}; {helps}")


def _topic(value: str) -> str:
    if 0 < len(value) <= 200 and value.isprintable() and not re.search(r"[\s*]", value):
        return value
    raise ValueError(
        f"is 1 to 200 characters without spaces and *, got {got(value)}; write it with dots: "
        f"reminder.due"
    )


def _entry_point(value: str) -> str:
    if re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", value):
        return value
    raise ValueError(f"is a module and a class, got {got(value)}; write main:Extension")


def _name(value: str) -> str:
    if "*" in value:
        raise ValueError(
            f"names are written out, got {got(value)}; list them, or allow everything by removing "
            f"the section permissions"
        )
    return value


Id = Annotated[str, AfterValidator(checked_id)]
Topic = Annotated[str, AfterValidator(_topic)]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_name)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Subscription(_Part):
    """One entry of `events.subscribes`."""

    topic: Topic
    handler: HandlerName
    max_attempts: Annotated[int, Field(ge=1, le=1_000)] = 1
    """How often it is tried before its event has failed."""


class Events(_Part):
    """What an extension listens to, and what it tells."""

    subscribes: list[Subscription] = []
    publishes: list[Topic] = []
    """For readers; what it may publish, `permissions` says."""


class Setting(_Part):
    """One value that whoever runs the extension may choose."""

    type: SettingType
    default: Any = None
    required: bool = False
    description: str = ""


class PermissionLists(_Part):
    """What an extension may do, and nothing else: topics, and names of entity types."""

    publish: list[Name] = []
    subscribe: list[Name] = []
    read: list[Name] = []
    write: list[Name] = []


class Manifest(_Part):
    """A manifest that fits."""

    id: Id
    version: str | None = None
    description: str = ""
    entry_point: Annotated[str, AfterValidator(_entry_point)] | None = None
    events: Events = Events()
    agent: dict[str, Any] | None = None
    """For the agent, as it is written."""
    settings: dict[Id, Setting] = {}
    depends_on: list[Id] = []
    permissions: PermissionLists | None = None
    """None: it may do everything."""


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file; ManifestError, with every problem, if it does not fit."""
    found = read_mapping(path)
    if isinstance(found, Problem):
        raise ManifestError([str(found)])
    # `permissions:` with nothing under it could be read as everything or as nothing.
    empty = [Problem(path, str(key), *_NO_VALUE) for key, value in found.items() if value is None]
    if empty:
        raise ManifestError(list(map(str, empty)))
    try:
        manifest = Manifest.model_validate(found)
    except ValidationError as error:
        raise ManifestError([str(each) for each in _explained(path, error)]) from None
    problems = [*_inconsistencies(path, manifest)]
    if problems:
        raise ManifestError(list(map(str, problems)))
    return manifest


def _inconsistencies(path: Path, manifest: Manifest) -> Iterator[Problem]:
    for name, setting in manifest.settings.items():
        yield from _bad_default(path, f"settings.{name}", setting)
    if manifest.id in manifest.depends_on:
        yield Problem(path, "depends_on", "names the extension itself", "remove it")
    if manifest.permissions is None:
        return
    for number, each in enumerate(manifest.events.subscribes):
        if each.topic not in manifest.permissions.subscribe:
            key = f"events.subscribes[{number}].topic"
            yield _not_permitted(path, key, "subscribe", each.topic)
    for number, topic in enumerate(manifest.events.publishes):
        if topic not in manifest.permissions.publish:
            yield _not_permitted(path, f"events.publishes[{number}]", "publish", topic)


def _not_permitted(path: Path, key: str, right: str, topic: str) -> Problem:
    what = f"{topic} is not among permissions.{right}"
    return Problem(path, key, what, f"add it there: - {topic}")


def _bad_default(path: Path, key: str, setting: Setting) -> Iterator[Problem]:
    if setting.default is None:
        return
    if setting.required:
        yield Problem(path, key, "is required and has a default", "remove one of the two")
    fits = isinstance(setting.default, _KINDS[setting.type])
    if not fits or (setting.type != "boolean" and isinstance(setting.default, bool)):
        what = f"is no {setting.type}: {got(setting.default)}"
        yield Problem(path, f"{key}.default", what, "write one, or change the type")


# -- what pydantic found, in the words of this project ------------------------------------------


def _explained(path: Path, error: ValidationError) -> Iterator[Problem]:
    for each in error.errors(include_url=False):
        loc = [part for part in each["loc"] if part != "[key]"]
        what, remedy = _words(each["type"], each["msg"], each["input"], loc, each.get("ctx", {}))
        yield Problem(path, _key(loc), what, remedy)


def _words(
    kind: str, message: str, value: Any, loc: Sequence[int | str], context: dict[str, Any]
) -> tuple[str, str]:
    """What is wrong, and what helps."""
    name = str(loc[-1]) if loc else ""
    match kind:
        case "missing":
            return "is missing", f"add {name}: and its value"
        case "extra_forbidden":
            known = sorted(_model_at(loc[:-1]).model_fields)
            close = nearest(name, known)
            helps = f"did you mean {close}?" if close else f"there are {', '.join(known)}"
            return "is no key of a manifest", helps
        case "literal_error":
            words = get_args(HandlerName if name == "handler" else SettingType)
            close = nearest(value, words)
            helps = f"did you mean {close}?" if close else "choose one of them"
            return f"is one of {', '.join(words)}, got {got(value)}", helps
        case "value_error":
            what, _, remedy = message.removeprefix("Value error, ").rpartition("; ")
            return what, remedy
        case _ if value is None:
            return _NO_VALUE
        case "string_type":
            helps = "write text" if isinstance(value, list | dict) else "write it in quotes"
            return f"must be text, got {got(value)}", helps
        case "list_type":
            return f"must be a list, got {got(value)}", "begin each line under it with - "
        case "model_type" | "dict_type":
            return f"must have keys, got {got(value)}", "write key: value under it"
        case "int_type" | "bool_type":
            said = "a whole number" if kind == "int_type" else "true or false"
            return f"must be {said}, got {got(value)}", "write it without quotes"
        case _:
            said = f"{message[:1].lower()}{message[1:]}, got {got(value)}"
            return said, "choose another value"


def _key(loc: Sequence[int | str]) -> str:
    said = ""
    for part in loc:
        said += f"[{part}]" if isinstance(part, int) else f".{part}" if said else part
    return said


def _model_at(loc: Sequence[int | str]) -> type[_Part]:
    """The part of a manifest that has these keys over it."""
    match [part for part in loc if not isinstance(part, int)]:
        case ["events"]:
            return Events
        case ["events", "subscribes"]:
            return Subscription
        case ["settings", _]:
            return Setting
        case ["permissions"]:
            return PermissionLists
        case _:
            return Manifest
