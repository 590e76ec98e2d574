"""`manifest.yaml`: what an extension is, what it subscribes to, what it may do, and its settings.

    id: reminders
    events:
      subscribes:
        - {topic: reminder.due, handler: notify_user}

Validation is strict: a number where text should be, or an unknown key, is an error, since an
extension that silently does less than its manifest says is hard to debug.
"""

from __future__ import annotations

import difflib
import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ontologia.errors import ConfigError, ManifestError

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
_LARGEST = 1_000_000  # bytes
_LONGEST = 80  # characters of a value in a message
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 2 * _LONGEST
_VARIABLE_PREFIX = "ONTOLOGIA_EXT_"
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


# -- problems ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why an extension cannot be loaded."""

    file: Path
    key: str
    """Position in the file: `events.subscribes[0].topic`, `line 3`; may be empty."""
    what: str
    remedy: str

    def __str__(self) -> str:
        parts = [str(self.file), self.key, f"{self.what}; {self.remedy}"]
        return one_line(": ".join(filter(None, parts)))


def one_line(text: str) -> str:
    """The text without line breaks."""
    return " ".join(text.split())


def describe_exception(error: BaseException) -> str:
    """`ValueError: bad number`, on one line."""
    text = one_line(str(error.args[0] if error.args and hasattr(error, "hint") else error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shown(value: Any) -> str:
    """A value as a message shows it."""
    if value is None:
        return "nothing"
    try:
        text = _SHORT.repr(value)  # bounded: aliases make a few lines of YAML endless
    except ValueError:  # Python refuses to format integers of more than 4,300 digits
        text = f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def closest(name: object, known: Iterable[str]) -> str | None:
    """The known name that is most similar; None if none is."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return close[0] if close else None


# -- sections ---------------------------------------------------------------------------------------


def checked_id(value: str) -> str:
    """ValueError, with a remedy, unless this can be the id of an extension."""
    if re.fullmatch(r"[a-z][a-z0-9_]{0,63}", value):
        return value
    better = re.sub(r"[^a-z0-9]+", "_", value.lower()).strip("_")[:64]
    helps = f"write {better}" if re.match("[a-z]", better) else "begin with a letter"
    raise ValueError(f"has a-z, 0-9 and _, and begins with a letter, got {shown(value)}; {helps}")


def _topic(value: str) -> str:
    if 0 < len(value) <= 200 and value.isprintable() and not re.search(r"[\s*]", value):
        return value
    raise ValueError(
        f"is 1 to 200 characters without spaces and *, got {shown(value)}; write it with dots: "
        f"reminder.due"
    )


def _entry_point(value: str) -> str:
    if re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", value):
        return value
    raise ValueError(f"is a module and a class, got {shown(value)}; write main:Extension")


def _name(value: str) -> str:
    if "*" in value:
        raise ValueError(
            f"names are written out, got {shown(value)}; list them, or allow everything by "
            f"removing the section permissions"
        )
    return value


Id = Annotated[str, AfterValidator(checked_id)]
Topic = Annotated[str, AfterValidator(_topic)]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_name)]


class _Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Subscription(_Section):
    """One entry of `events.subscribes`."""

    topic: Topic
    handler: HandlerName
    max_attempts: Annotated[int, Field(ge=1, le=1_000)] = 1
    """Attempts before the event has failed."""


class Events(_Section):
    """The topics that an extension subscribes to and publishes."""

    subscribes: list[Subscription] = []
    publishes: list[Topic] = []
    """For readers; `permissions` decides what it may publish."""


class Setting(_Section):
    """One value that the operator may choose."""

    type: SettingType
    default: Any = None
    required: bool = False
    description: str = ""


class PermissionLists(_Section):
    """The only topics and entity types that an extension may use, by action."""

    publish: list[Name] = []
    subscribe: list[Name] = []
    read: list[Name] = []
    write: list[Name] = []


class Manifest(_Section):
    """A valid manifest."""

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
    """Read and validate a manifest; ManifestError lists every problem."""
    found = _read_yaml(path)
    if isinstance(found, Problem):
        raise ManifestError([str(found)])
    # `permissions:` with nothing under it could mean everything or nothing.
    empty = [Problem(path, str(key), *_NO_VALUE) for key, value in found.items() if value is None]
    if empty:
        raise ManifestError(list(map(str, empty)))
    try:
        manifest = Manifest.model_validate(found)
    except ValidationError as error:
        raise ManifestError([str(each) for each in _problems_of(path, error)]) from None
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
        what = f"is no {setting.type}: {shown(setting.default)}"
        yield Problem(path, f"{key}.default", what, "write one, or change the type")


# -- errors of pydantic as problems -----------------------------------------------------------------


def _problems_of(path: Path, error: ValidationError) -> Iterator[Problem]:
    for each in error.errors(include_url=False):
        loc = [part for part in each["loc"] if part != "[key]"]
        what, remedy = _explain(each["type"], each["msg"], each["input"], loc)
        yield Problem(path, _key(loc), what, remedy)


def _explain(kind: str, message: str, value: Any, loc: Sequence[int | str]) -> tuple[str, str]:
    """What is wrong, and the remedy."""
    name = str(loc[-1]) if loc else ""
    match kind:
        case "missing":
            return "is missing", f"add {name}: and its value"
        case "extra_forbidden":
            known = sorted(_section_at(loc[:-1]).model_fields)
            close = closest(name, known)
            helps = f"did you mean {close}?" if close else f"there are {', '.join(known)}"
            return "is no key of a manifest", helps
        case "literal_error":
            words = get_args(HandlerName if name == "handler" else SettingType)
            close = closest(value, words)
            helps = f"did you mean {close}?" if close else "choose one of them"
            return f"is one of {', '.join(words)}, got {shown(value)}", helps
        case "value_error":
            what, _, remedy = message.removeprefix("Value error, ").rpartition("; ")
            return what, remedy
        case _ if value is None:
            return _NO_VALUE
        case "string_type":
            helps = "write text" if isinstance(value, list | dict) else "write it in quotes"
            return f"must be text, got {shown(value)}", helps
        case "list_type":
            return f"must be a list, got {shown(value)}", "begin each line under it with - "
        case "model_type" | "dict_type":
            return f"must have keys, got {shown(value)}", "write key: value under it"
        case "int_type" | "bool_type":
            wanted = "a whole number" if kind == "int_type" else "true or false"
            return f"must be {wanted}, got {shown(value)}", "write it without quotes"
        case _:
            what = f"{message[:1].lower()}{message[1:]}, got {shown(value)}"
            return what, "choose another value"


def _key(loc: Sequence[int | str]) -> str:
    key = ""
    for part in loc:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else part
    return key


def _section_at(loc: Sequence[int | str]) -> type[_Section]:
    """The section of a manifest under these keys."""
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


# -- YAML (extra `extensions`) ----------------------------------------------------------------------

_YAML_REMEDIES = {
    "is there twice": "remove one of the two",
    "half of a letter": "write the letter itself",
    "found unhashable key": "quote text that begins with {",
}


def _read_yaml(path: Path) -> dict[str, Any] | Problem:
    try:
        content = path.read_bytes()
    except OSError as error:
        remedy = "make it a file that this user may read"
        return Problem(path, "", f"cannot be read: {error.strerror or error}", remedy)
    if len(content) > _LARGEST:
        return Problem(path, "", f"has more than {_LARGEST:,} bytes", "is it the right file?")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        return Problem(path, "", f"is no UTF-8 at byte {error.start}", "save it as UTF-8")
    return _parse_yaml(path, text)


def _parse_yaml(path: Path, text: str) -> dict[str, Any] | Problem:
    yaml = _yaml()
    try:
        found = yaml.load(text, Loader=_strict_loader(yaml))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = ", ".join(filter(None, [error.context, error.problem]))
        helps = [remedy for end, remedy in _YAML_REMEDIES.items() if what.endswith(end)]
        return Problem(path, where, f"is no YAML: {what}", helps[0] if helps else _remedy(text))
    except (yaml.YAMLError, ValueError) as error:  # a control character, an impossible date
        return Problem(path, "", f"is no YAML: {one_line(str(error))}", _remedy(text))
    except RecursionError:
        return Problem(path, "", "is nested too deeply", "a manifest has a few levels")
    if not isinstance(found, dict):
        kind = "is empty" if found is None else f"is a {type(found).__name__}, no mapping"
        return Problem(path, "", kind, "begin with id: and the name of the extension")
    return found


def _remedy(text: str) -> str:
    if "\t" in text:
        return "indent with spaces, not with tabs"
    return "quote text that has any of : # { } [ ] & * ! | > ' \" % @, and mind the indentation"


def _yaml() -> Any:
    try:
        return import_module("yaml")
    except ImportError as error:
        raise ConfigError(
            f"extensions need the package pyyaml, which cannot be imported: {error}",
            hint="pip install 'ontologia[extensions]'",
        ) from error


def _strict_loader(yaml: Any) -> Any:
    """A safe loader that refuses duplicate keys, of which PyYAML silently keeps the last."""

    def mapping(loader: Any, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key.value, str):
                continue  # `{{ name }}`: a mapping as a key, which PyYAML itself refuses
            if key.value in seen and key.value != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value} is there twice", key.start_mark
                )
            seen.add(key.value)
        return original(loader, node, deep)

    def scalar(loader: Any, node: Any) -> Any:
        text = original_scalar(loader, node)
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            # A lone surrogate, written as "\\uD83D": it can be neither printed nor stored.
            raise yaml.constructor.ConstructorError(
                None, None, "there is half of a letter", node.start_mark
            )
        return text

    original, original_scalar = yaml.SafeLoader.construct_mapping, yaml.SafeLoader.construct_scalar
    own = {"construct_mapping": mapping, "construct_scalar": scalar}
    return type("_StrictLoader", (yaml.SafeLoader,), own)


# -- settings ---------------------------------------------------------------------------------------

# The value of a setting is the variable ONTOLOGIA_EXT_<EXTENSION>_<SETTING>, else its default: values
# that differ between machines, and secrets, do not belong in a file distributed with the extension.


def variable(extension_id: str, name: str) -> str:
    """The environment variable of a setting."""
    return f"{_VARIABLE_PREFIX}{extension_id}_{name}".upper()


def settings_of(manifest: Manifest, folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """The value of each setting; ManifestError if one is missing or does not fit."""
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, setting in manifest.settings.items():
        where = variable(manifest.id, name)
        text = environment.get(where)
        problem: tuple[str, str] | None = None
        if text is None:
            values[name] = setting.default
            if setting.required:
                problem = "is required and has no value", f"set the variable {where}"
        else:
            try:
                values[name] = _value(setting, text)
            except ValueError:
                # Without the value: it may be a secret that was given to the wrong setting.
                problem = f"{where} is no {setting.type}", f"give {_expected(setting)}"
        if problem is not None:
            problems.append(Problem(folder / MANIFEST, f"settings.{name}", *problem))
    if problems:
        raise ManifestError(list(map(str, problems)))
    return values


def _value(setting: Setting, text: str) -> Any:
    match setting.type:
        case "string":
            return text
        case "integer":
            return int(text)
        case "number":
            number = float(text)
            if not math.isfinite(number):
                raise ValueError(text)
            return number
        case "boolean":
            if text.strip().lower() not in _BOOLEANS:
                raise ValueError(text)
            return _BOOLEANS[text.strip().lower()]


def _expected(setting: Setting) -> str:
    examples = {"integer": "a whole number, as 3", "number": "a number, as 0.5"}
    return examples.get(setting.type, "true or false")


def unknown_variables(
    manifests: Iterable[Manifest], environment: Mapping[str, str]
) -> Iterable[str]:
    """A warning for each variable with the prefix of settings that is no extension's setting."""
    known = {variable(each.id, name) for each in manifests for name in each.settings}
    for name in sorted(environment):
        if name.startswith(_VARIABLE_PREFIX) and name not in known:
            close = closest(name, known)
            helps = f"; did you mean {close}?" if close else ""
            yield f"{name} is no setting of these extensions{helps}"
