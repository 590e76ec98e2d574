"""Names by which another process finds what was defined in this one.

`module:qualname`, as for consumers. What is defined in the script itself has the module `__main__`;
another process runs that script again under the name `__mp_main__`, as `multiprocessing` does, so
that what is guarded by `if __name__ == "__main__":` is not done there.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import types
from typing import Any

from ontologia.errors import InvalidValueError

_AGAIN = "__mp_main__"


def name_of(thing: Any) -> str:
    """The name of a class or function; InvalidValueError if nobody else could find it by that."""
    module, qualname = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        raise InvalidValueError(f"{thing!r} is not a class or function of a module")
    name = f"{module}:{qualname}"
    try:
        found = _within(sys.modules[module], qualname)
    except (KeyError, AttributeError):
        found = None
    if found is not thing:
        raise InvalidValueError(f"{name} is not at the top of a module, where it could be imported")
    if module == "__main__" and not any(main_module().values()):
        raise InvalidValueError(f"{name} is in no file; write it in a module")
    return name


def main_module() -> dict[str, str | None]:
    """How to run the script of this program again: the name of its module, or the path of its file."""
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    path = getattr(main, "__file__", None)
    if name or not isinstance(path, str) or not os.path.exists(path):
        return {"name": name, "path": None}
    return {"name": None, "path": os.path.abspath(path)}


def run_again(main: dict[str, str | None]) -> None:
    """Run the script of another process here, as the module `__main__`."""
    if main["name"]:
        found = runpy.run_module(main["name"], run_name=_AGAIN, alter_sys=True)
    else:
        found = runpy.run_path(main["path"] or "", run_name=_AGAIN)
    module = types.ModuleType(_AGAIN)
    module.__dict__.update(found)
    sys.modules["__main__"] = sys.modules[_AGAIN] = module


def named(name: str) -> Any:
    """What has this name."""
    module, _, qualname = name.partition(":")
    return _within(importlib.import_module(module), qualname)


def _within(module: types.ModuleType, qualname: str) -> Any:
    found: Any = module
    for each in qualname.split("."):
        found = getattr(found, each)
    return found
