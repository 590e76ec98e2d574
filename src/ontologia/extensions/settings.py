"""The values of an extension's settings: the environment's, else the manifest's default.

The variable of a setting is `ONTOLOGIA_EXT_<EXTENSION>_<SETTING>`: what differs from one machine to
the next, and what is secret, has no place in a file that is passed on with the extension.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ontologia.errors import ManifestError
from ontologia.extensions.manifest import MANIFEST, Manifest, Setting
from ontologia.extensions.problems import Problem, nearest

_PREFIX = "ONTOLOGIA_EXT_"
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def variable(extension_id: str, name: str) -> str:
    """The environment variable of a setting."""
    return f"{_PREFIX}{extension_id}_{name}".upper()


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
                # Not the value: it may be a secret that was given to the wrong setting.
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
    """A sentence for each variable that looks like a setting of an extension and is none."""
    known = {variable(each.id, name) for each in manifests for name in each.settings}
    for name in sorted(environment):
        if name.startswith(_PREFIX) and name not in known:
            close = nearest(name, known)
            helps = f"; did you mean {close}?" if close else ""
            yield f"{name} is no setting of these extensions{helps}"
