"""Loading extensions from a folder: manifests are read, ordered by dependency, code is imported.

An extension that is broken is kept with its reasons, and so are those that depend on it; the others
are not affected. Nothing here starts an extension: the host does.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import os
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ontologia.errors import ConfigError, ExtensionError, ManifestError, NotFoundError
from ontologia.extensions.contract import AgentProvider
from ontologia.extensions.manifest import (
    MANIFEST,
    Manifest,
    Problem,
    closest,
    describe_exception,
    read_manifest,
    settings_of,
)
from ontologia.extensions.openai import OpenAIChatAgent

_DEFAULT_ENTRY = "main:Extension"
_SKELETON = Path(__file__).parent / "skeleton"
_SKELETON_NAME = "my_extension"
_package_numbers = itertools.count(1)


@dataclass(eq=False)
class LoadedExtension:
    """A folder with a manifest, and what was loaded from it."""

    folder: Path
    id: str
    """As in the manifest; the folder's name if that cannot be read."""
    manifest: Manifest | None = None
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    instance: Any = None
    """The object that the entry point made; None without code."""
    agent: AgentProvider | None = None
    code: ImportedCode | None = None
    reasons: list[str] = field(default_factory=list[str])
    """Why it cannot run, a line each."""
    waits_for: str | None = None
    """The missing or broken extension that it depends on, if nothing else is wrong."""
    has_duplicate_id: bool = False
    """Whether another extension has its id."""

    @property
    def broken(self) -> bool:
        """Whether it cannot run."""
        return bool(self.reasons)

    def fail(self, key: str, what: str, remedy: str) -> None:
        """Add a reason why it cannot run."""
        self.reasons.append(str(Problem(self.folder / MANIFEST, key, what, remedy)))

    def discard(self) -> None:
        """Drop its code. Idempotent."""
        if self.code is not None:
            self.code.forget()
        self.instance = self.agent = self.code = None


def load_all(folder: Path, environment: Mapping[str, str] = os.environ) -> list[LoadedExtension]:
    """Every extension in a folder, dependencies first, with its instance unless it is broken.

    A folder that has a manifest itself is one extension. NotFoundError if there are none.
    """
    ordered = _read_folder(folder)
    for each in ordered:
        instantiate(each, environment)
        check_dependencies(each, ordered)
        if each.broken:
            each.discard()
    return ordered


def read_all(folder: Path, environment: Mapping[str, str] = os.environ) -> list[LoadedExtension]:
    """The same from the manifests alone: no code is imported, and what is wrong with it not found."""
    ordered = _read_folder(folder)
    for each in ordered:
        _read_settings(each, environment)
        _entry_point_of(each)
        check_dependencies(each, ordered)
    return ordered


def _read_folder(folder: Path) -> list[LoadedExtension]:
    found = [read_one(each) for each in _folders(folder)]
    if not found:
        raise NotFoundError(
            f"there are no extensions in {folder}: no folder in it has a {MANIFEST}",
            hint=f"ontologia extensions new NAME --into {folder} writes one.",
        )
    _check_ids(found)
    return in_order(found)


def is_extension(folder: Path) -> bool:
    """Whether this folder is meant to be an extension."""
    # os.path: a folder without permission, as `lost+found`, is none, and raises nothing.
    return any(os.path.exists(folder / name) for name in (MANIFEST, "manifest.yml"))


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise NotFoundError(f"there is no folder {folder}")
    if (folder / MANIFEST).exists():
        return [folder]
    return [each for each in sorted(folder.iterdir()) if is_extension(each)]


def read_one(folder: Path) -> LoadedExtension:
    """The extension in a folder, with its manifest unless that is broken."""
    extension = LoadedExtension(folder, folder.resolve().name)
    if not (folder / MANIFEST).exists():
        extension.fail("", "is not there; there is a manifest.yml", f"rename that to {MANIFEST}")
        return extension
    try:
        extension.manifest = read_manifest(folder / MANIFEST)
        extension.id = extension.manifest.id
    except ManifestError as error:
        extension.reasons += error.problems
    return extension


# -- instances --------------------------------------------------------------------------------------


def instantiate(extension: LoadedExtension, environment: Mapping[str, str] = os.environ) -> None:
    """Import the code of an extension and call its entry point, unless it is broken."""
    _read_settings(extension, environment)
    target = _entry_point_of(extension)
    if target is not None:
        _call_entry_point(extension, target)
    _find_agent(extension, environment)


def _read_settings(extension: LoadedExtension, environment: Mapping[str, str]) -> None:
    if extension.broken or extension.manifest is None:
        return
    try:
        extension.settings = settings_of(extension.manifest, extension.folder, environment)
    except ManifestError as error:
        extension.reasons += error.problems


def _entry_point_of(extension: LoadedExtension) -> str | None:
    """`module:name`; None without code, or if it is broken."""
    manifest = extension.manifest
    if extension.broken or manifest is None:
        return None
    target = manifest.entry_point
    if target is None and (extension.folder / "main.py").is_file():
        target = _DEFAULT_ENTRY
    if target is None:
        for number, each in enumerate(manifest.events.subscribes):
            if each.handler == "custom":
                key = f"events.subscribes[{number}].handler"
                extension.fail(key, "custom needs code, and there is none", "write main.py")
    return target


def _call_entry_point(extension: LoadedExtension, target: str) -> None:
    extension.code = ImportedCode(extension.folder, extension.id)
    entry_point = extension.code.entry_point(target)
    if isinstance(entry_point, Problem):
        extension.reasons.append(str(entry_point))
        return
    if not callable(entry_point):
        extension.fail("entry_point", f"{target} is no class", "name a class")
        return
    try:
        extension.instance = entry_point()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - an extension may raise anything
        where = extension.code.line_of(error)
        what = f"{target}() raised {describe_exception(error)}{where}"
        extension.fail("entry_point", what, "mend it")
        return
    _check_methods(extension, target)


def _check_methods(extension: LoadedExtension, target: str) -> None:
    if getattr(extension.instance, "initialize", None) is None:
        helps = "write: async def initialize(self, context): ..."
        extension.fail("entry_point", f"{target} has no method initialize", helps)
    for method in ("initialize", "start", "stop"):
        _check_async(extension, method)
    if inspect.iscoroutinefunction(getattr(extension.instance, "health", None)):
        what = f"{target} has an async method health"
        extension.fail("entry_point", what, "write: def health(self)")


def _check_async(extension: LoadedExtension, method: str) -> None:
    found = getattr(extension.instance, method, None)
    if found is not None and not inspect.iscoroutinefunction(found):
        what = f"{type(extension.instance).__name__}.{method} is not async"
        extension.fail("entry_point", what, f"write: async def {method}")


def _find_agent(extension: LoadedExtension, environment: Mapping[str, str]) -> None:
    """Set the agent: the instance if it has `async def run(event)`, else that of the section."""
    manifest = extension.manifest
    if extension.broken or manifest is None:
        return
    wanted = [
        number
        for number, each in enumerate(manifest.events.subscribes)
        if each.handler == "invoke_agent"
    ]
    if not wanted:
        return
    _check_async(extension, "run")
    if inspect.iscoroutinefunction(getattr(extension.instance, "run", None)):
        extension.agent = extension.instance
    elif manifest.agent is not None:
        try:
            extension.agent = OpenAIChatAgent.from_section(
                manifest.agent, extension.settings, environment
            )
        except ConfigError as error:
            extension.fail("agent", error.args[0], error.hint or "mend it")
    else:
        for number in wanted:
            extension.fail(
                f"events.subscribes[{number}].handler",
                f"{extension.id} is no agent: it has neither an agent section nor async def "
                f"run(event)",
                "write one of the two",
            )


# -- dependencies -----------------------------------------------------------------------------------


def _check_ids(extensions: Iterable[LoadedExtension]) -> None:
    first: dict[str, LoadedExtension] = {}
    for each in extensions:
        if each.manifest is None:
            continue
        other = first.setdefault(each.id, each)
        if other is not each:
            what = f"{each.id} is also the id of {other.folder / MANIFEST}, which is taken"
            each.has_duplicate_id = True
            each.fail("id", what, "give one of them another")


def in_order(extensions: list[LoadedExtension]) -> list[LoadedExtension]:
    """Dependencies first, else in the given order."""
    by_id = _by_id(extensions)
    ordered: list[LoadedExtension] = []
    seen: set[LoadedExtension] = set()

    def visit(each: LoadedExtension) -> None:
        if each not in seen:
            seen.add(each)
            for name in _dependencies(each):
                if name in by_id:
                    visit(by_id[name])
            ordered.append(each)

    for each in extensions:
        visit(each)
    return ordered


def check_dependencies(extension: LoadedExtension, others: Iterable[LoadedExtension]) -> None:
    """Mark it as broken if a dependency is missing, broken or circular."""
    by_id = _by_id(others)
    for name in _dependencies(extension):
        other = by_id.get(name)
        if other is None:
            extension.waits_for = extension.waits_for if extension.broken else name
            remedy = f"add the extension {name}, or remove the line"
            extension.fail("depends_on", f"there is no extension {name}", remedy)
        elif cycle := _path(name, extension.id, by_id):
            shown = " → ".join([extension.id, *cycle])
            extension.fail("depends_on", f"goes in a circle: {shown}", "remove one of them")
        elif other.broken and not extension.broken:
            extension.waits_for = name
            extension.fail("depends_on", f"{name} is broken", f"mend {name}")


def _path(start: str, end: str, by_id: Mapping[str, LoadedExtension]) -> list[str] | None:
    """The shortest path of dependencies from `start` to `end`; None if there is none."""
    paths, seen = [[start]], {start}
    while paths:
        path = paths.pop(0)
        if path[-1] == end:
            return path
        for each in _dependencies(by_id[path[-1]]):
            if each in by_id and each not in seen:
                seen.add(each)
                paths.append([*path, each])
    return None


def _by_id(extensions: Iterable[LoadedExtension]) -> dict[str, LoadedExtension]:
    """By id; of two with one id, the first."""
    return {each.id: each for each in reversed([*extensions])}


def _dependencies(extension: LoadedExtension) -> list[str]:
    return extension.manifest.depends_on if extension.manifest else []


# -- code -------------------------------------------------------------------------------------------


class ImportedCode:
    """The modules of one extension, imported under a package name of its own.

    Every extension may have its `main.py`: its folder becomes a package with a unique name, so that
    its files import each other with a dot (`from .texts import GREETING`), and a changed extension
    is imported anew without affecting any other.
    """

    def __init__(self, folder: Path, extension_id: str) -> None:
        self.folder = folder
        self._home = folder.absolute()
        self._package = f"_ontologia_extension_{next(_package_numbers)}_{extension_id}"

    def entry_point(self, target: str) -> Any | Problem:
        """The object with the name `module:name`, or why it cannot be imported."""
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
            close = closest(name, public)
            helps = f"did you mean {module_name}:{close}?" if close else "write that class"
            what = f"{module_name} has no {name}"
            return Problem(self.folder / MANIFEST, "entry_point", what, helps)
        return getattr(module, name)

    def forget(self) -> None:
        """Remove the modules, so that the memory of a replaced extension can be freed."""
        for name in [*sys.modules]:
            if name == self._package or name.startswith(f"{self._package}."):
                del sys.modules[name]

    def line_of(self, error: BaseException) -> str:
        """Where in the extension's own files it was raised: ` (main.py, line 3)`, or ""."""
        if isinstance(error, SyntaxError):  # its message has the line
            return ""
        found, step = "", error.__traceback__
        while step is not None:
            file = Path(step.tb_frame.f_code.co_filename)
            if self._home in file.parents:
                found = f" ({file.relative_to(self._home)}, line {step.tb_lineno})"
            step = step.tb_next
        return found

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
        what = f"importing {module} raised {describe_exception(error)}{self.line_of(error)}"
        return Problem(manifest, "entry_point", what, "mend it")


def _drop_compiled(folder: Path) -> None:
    """Remove compiled files: Python matches them by second and size, and misses quick changes."""
    for file in folder.rglob("*.py"):
        try:
            Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
        except OSError:  # a read-only folder has no changes to miss
            continue
    importlib.invalidate_caches()


# -- new extensions ---------------------------------------------------------------------------------


def write_skeleton(extension_id: str, into: Path) -> Path:
    """Write a working extension with a manifest, code and a test; returns its folder.

    ExtensionError if the folder exists; nothing is overwritten.
    """
    folder = into / extension_id
    if folder.exists():
        raise ExtensionError(
            f"{folder} is there already; nothing was written", hint="Choose another name."
        )
    texts = {each.name: each.read_text("utf-8") for each in _SKELETON.iterdir() if each.is_file()}
    folder.mkdir(parents=True)
    upper = _SKELETON_NAME.upper()
    for name, text in texts.items():
        renamed = text.replace(_SKELETON_NAME, extension_id).replace(upper, extension_id.upper())
        (folder / name.replace(_SKELETON_NAME, extension_id)).write_text(renamed, "utf-8")
    return folder
