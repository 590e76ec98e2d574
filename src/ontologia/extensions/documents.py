"""YAML files, read so that nothing in them is lost or run (extra `extensions`).

PyYAML lets the last of two equal keys win; here that is an error, since one of them would be
ignored without a word.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from ontologia.errors import ConfigError
from ontologia.extensions.problems import Problem, one_line

_LARGEST = 1_000_000  # bytes
_REMEDIES = {
    "is there twice": "remove one of the two",
    "half of a letter": "write the letter itself",
    "found unhashable key": "quote text that begins with {",
}


def read_mapping(path: Path) -> dict[str, Any] | Problem:
    """The keys of a YAML file, or what keeps them from being read."""
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
    return _parsed(path, text)


def _parsed(path: Path, text: str) -> dict[str, Any] | Problem:
    yaml = _yaml()
    try:
        found = yaml.load(text, Loader=_loader(yaml))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        said = ", ".join(filter(None, [error.context, error.problem]))
        helps = [remedy for end, remedy in _REMEDIES.items() if said.endswith(end)]
        return Problem(path, where, f"is no YAML: {said}", helps[0] if helps else _remedy(text))
    except (yaml.YAMLError, ValueError) as error:  # a letter that YAML has not, a date that is none
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


def _loader(yaml: Any) -> Any:
    def mapping(loader: Any, node: Any, deep: bool = False) -> Any:
        seen: dict[str, Any] = {}
        for key, _ in node.value:
            if not isinstance(key.value, str):
                continue  # `{{ name }}`: a mapping as a key, which PyYAML itself refuses
            if key.value in seen and key.value != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value} is there twice", key.start_mark
                )
            seen[key.value] = key
        return original(loader, node, deep)

    def scalar(loader: Any, node: Any) -> Any:
        text = original_scalar(loader, node)
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            # Half a letter, written as "\\uD83D": it could be neither printed nor stored.
            raise yaml.constructor.ConstructorError(
                None, None, "there is half of a letter", node.start_mark
            )
        return text

    original, original_scalar = yaml.SafeLoader.construct_mapping, yaml.SafeLoader.construct_scalar
    own = {"construct_mapping": mapping, "construct_scalar": scalar}
    return type("_UniqueKeys", (yaml.SafeLoader,), own)
