"""The code of an extension, imported under a name of its own.

Every extension may have its `main.py`: its folder becomes a package whose name nobody else has, so
that files beside it are imported with a dot (`from .texts import GREETING`), and a changed
extension is imported anew without touching any other.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
import types
from pathlib import Path
from typing import Any

from ontologia.extensions.manifest import MANIFEST
from ontologia.extensions.problems import Problem, nearest, of_error

_numbers = itertools.count(1)


class ImportedCode:
    """The modules of one extension, until they are forgotten."""

    def __init__(self, folder: Path, extension_id: str) -> None:
        self.folder = folder
        self._home = folder.absolute()
        self._package = f"_ontologia_extension_{next(_numbers)}_{extension_id}"

    def entry_point(self, target: str) -> Any | Problem:
        """What `module:name` names, or what keeps it from being imported."""
        module_name, _, name = target.partition(":")
        try:
            self._make_package()
            module = importlib.import_module(f"{self._package}.{module_name}")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a module may raise SystemExit, too
            return self._problem(error, target)
        if not hasattr(module, name):
            public = [each for each in vars(module) if not each.startswith("_")]
            close = nearest(name, public)
            helps = f"did you mean {module_name}:{close}?" if close else "write that class"
            what = f"{module_name} has no {name}"
            return Problem(self.folder / MANIFEST, "entry_point", what, helps)
        return getattr(module, name)

    def forget(self) -> None:
        """Drop the modules, so that the memory of an extension that was replaced can be freed."""
        for name in [*sys.modules]:
            if name == self._package or name.startswith(f"{self._package}."):
                del sys.modules[name]

    def _make_package(self) -> None:
        _drop_compiled(self._home)
        init = self._home / "__init__.py"
        if not init.is_file():
            package = types.ModuleType(self._package, f"The extension in {self.folder}.")
            package.__path__ = [str(self._home)]
            sys.modules[self._package] = package
            return
        spec = importlib.util.spec_from_file_location(
            self._package, init, submodule_search_locations=[str(self._home)]
        )
        assert spec is not None  # noqa: S101 - it is a .py file
        assert spec.loader is not None  # noqa: S101
        sys.modules[self._package] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)

    def _problem(self, error: BaseException, target: str) -> Problem:
        manifest, module = self.folder / MANIFEST, target.partition(":")[0]
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            if f"{self._package}.{module}.".startswith(f"{error.name}."):
                file = module.replace(".", "/") + ".py"
                return Problem(manifest, "entry_point", f"there is no {file}", "write it")
            missing = error.name.removeprefix(f"{self._package}.")
            if (self.folder / f"{missing}.py").exists() or (self.folder / missing).is_dir():
                what = f"{module} imports {missing}, which is beside it"
                return Problem(manifest, "entry_point", what, f"write: from . import {missing}")
            what = f"{module} imports {missing}, which is not there"
            return Problem(manifest, "entry_point", what, "install it")
        what = f"importing {module} raised {of_error(error)}{self.place_of(error)}"
        return Problem(manifest, "entry_point", what, "mend it")

    def place_of(self, error: BaseException) -> str:
        """Where in the extension's own files it was raised: ` (main.py, line 3)`, or nothing."""
        if isinstance(error, SyntaxError):  # it says so itself
            return ""
        found, step = "", error.__traceback__
        while step is not None:
            file = Path(step.tb_frame.f_code.co_filename)
            if self._home in file.parents:
                found = f" ({file.relative_to(self._home)}, line {step.tb_lineno})"
            step = step.tb_next
        return found


def _drop_compiled(folder: Path) -> None:
    """Compiled files are told by second and size: of two changes in one second, one is not seen."""
    for file in folder.rglob("*.py"):
        try:
            Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
        except OSError:  # a folder that may not be written to has no changes to miss
            continue
    importlib.invalidate_caches()
