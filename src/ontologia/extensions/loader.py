"""Extensions in a folder: found, read, put in order, and made.

An extension that is broken is kept with its reason, and so are those that depend on it; the others
never hear of it. Nothing here runs an extension: that is the host's part.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ontologia.errors import ConfigError, ManifestError, NotFoundError
from ontologia.extensions.agents import agent_of
from ontologia.extensions.contract import AgentProvider
from ontologia.extensions.manifest import MANIFEST, Manifest, read_manifest
from ontologia.extensions.modules import ImportedCode
from ontologia.extensions.problems import Problem, of_error
from ontologia.extensions.settings import settings_of

_DEFAULT_ENTRY = "main:Extension"


@dataclass(eq=False)
class Found:
    """A folder with a manifest, and what became of it."""

    folder: Path
    id: str
    """As the manifest says; the folder's name if it cannot be read."""
    manifest: Manifest | None = None
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    instance: Any = None
    """What the entry point made; None for one that has no code."""
    agent: AgentProvider | None = None
    code: ImportedCode | None = None
    reasons: list[str] = field(default_factory=list[str])
    """Why it cannot run, a line each."""
    waits_for: str | None = None
    """The extension that it depends on and that is not there or broken, if nothing else is wrong."""
    is_namesake: bool = False
    """Whether another extension has its id."""

    @property
    def broken(self) -> bool:
        """Whether it cannot run."""
        return bool(self.reasons)

    def fail(self, key: str, what: str, remedy: str) -> None:
        """It cannot run, and this is why."""
        self.reasons.append(str(Problem(self.folder / MANIFEST, key, what, remedy)))

    def discard(self) -> None:
        """Let go of its code."""
        if self.code is not None:
            self.code.forget()
        self.instance = self.agent = self.code = None


def load_all(folder: Path, environment: Mapping[str, str] = os.environ) -> list[Found]:
    """Every extension in a folder, those that others depend on first, made where that is possible.

    A folder that has a manifest itself is one extension. NotFoundError if there are none.
    """
    found = [read_one(each) for each in _folders(folder)]
    if not found:
        raise NotFoundError(
            f"there are no extensions in {folder}: no folder in it has a {MANIFEST}",
            hint=f"ontologia extensions new NAME --into {folder} writes one.",
        )
    _check_ids(found)
    ordered = in_order(found)
    for each in ordered:
        make(each, environment)
        check_dependencies(each, ordered)
        if each.broken:
            each.discard()
    return ordered


def read_one(folder: Path) -> Found:
    """The extension in a folder, as far as its manifest can be read."""
    found = Found(folder, folder.resolve().name)
    if not (folder / MANIFEST).exists():
        found.fail("", "is not there; there is a manifest.yml", f"rename that to {MANIFEST}")
        return found
    try:
        found.manifest = read_manifest(folder / MANIFEST)
        found.id = found.manifest.id
    except ManifestError as error:
        found.reasons += error.problems
    return found


def make(found: Found, environment: Mapping[str, str] = os.environ) -> None:
    """Import the code of an extension and make what its entry point names, unless it is broken."""
    manifest = found.manifest
    if found.broken or manifest is None:
        return
    try:
        found.settings = settings_of(manifest, found.folder, environment)
    except ManifestError as error:
        found.reasons += error.problems
        return
    _instantiate(found, manifest)
    _find_agent(found, manifest, environment)


def _instantiate(found: Found, manifest: Manifest) -> None:
    target = manifest.entry_point
    if target is None and (found.folder / "main.py").is_file():
        target = _DEFAULT_ENTRY
    if target is None:
        for number, each in enumerate(manifest.events.subscribes):
            if each.handler == "custom":
                key = f"events.subscribes[{number}].handler"
                found.fail(key, "custom needs code, and there is none", "write main.py")
        return
    found.code = ImportedCode(found.folder, found.id)
    made = found.code.entry_point(target)
    if isinstance(made, Problem):
        found.reasons.append(str(made))
        return
    if not callable(made):
        found.fail("entry_point", f"{target} is no class", "name a class")
        return
    try:
        found.instance = made()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - an extension may raise anything
        what = f"{target}() raised {of_error(error)}{found.code.place_of(error)}"
        found.fail("entry_point", what, "mend it")
        return
    _check_methods(found, target)


def _check_methods(found: Found, target: str) -> None:
    if getattr(found.instance, "initialize", None) is None:
        helps = "write: async def initialize(self, context): ..."
        found.fail("entry_point", f"{target} has no method initialize", helps)
    for method in ("initialize", "start", "stop"):
        _check_async(found, method)
    if inspect.iscoroutinefunction(getattr(found.instance, "health", None)):
        found.fail("entry_point", f"{target} has an async method health", "write: def health(self)")


def _check_async(found: Found, method: str) -> None:
    written = getattr(found.instance, method, None)
    if written is not None and not inspect.iscoroutinefunction(written):
        name = type(found.instance).__name__
        found.fail("entry_point", f"{name}.{method} is not async", f"write: async def {method}")


def _find_agent(found: Found, manifest: Manifest, environment: Mapping[str, str]) -> None:
    if found.broken:
        return
    wanted = [
        number
        for number, each in enumerate(manifest.events.subscribes)
        if each.handler == "invoke_agent"
    ]
    try:
        if wanted:
            _check_async(found, "run")
            found.agent = agent_of(found.instance, manifest.agent, found.settings, environment)
    except ConfigError as error:
        found.fail("agent", error.args[0], error.hint or "mend it")
        return
    for number in wanted if found.agent is None else ():
        found.fail(
            f"events.subscribes[{number}].handler",
            f"{found.id} is no agent: it has neither an agent section nor async def run(event)",
            "write one of the two",
        )


# -- order ------------------------------------------------------------------------------------------


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise NotFoundError(f"there is no folder {folder}")
    if (folder / MANIFEST).exists():
        return [folder]
    return [each for each in sorted(folder.iterdir()) if is_extension(each)]


def is_extension(folder: Path) -> bool:
    """Whether somebody meant this folder to be one."""
    # os.path: what may not be looked into, as `lost+found`, is none, and no error either.
    return any(os.path.exists(folder / name) for name in (MANIFEST, "manifest.yml"))


def _check_ids(found: Iterable[Found]) -> None:
    first: dict[str, Found] = {}
    for each in found:
        if each.manifest is None:
            continue
        other = first.setdefault(each.id, each)
        if other is not each:
            what = f"{each.id} is also the id of {other.folder / MANIFEST}, which is taken"
            each.is_namesake = True
            each.fail("id", what, "give one of them another")


def in_order(found: list[Found]) -> list[Found]:
    """Those that others depend on first, else as they come."""
    by_id = _by_id(found)
    ordered: list[Found] = []
    seen: set[Found] = set()

    def visit(each: Found) -> None:
        if each not in seen:
            seen.add(each)
            for name in _dependencies(each):
                if name in by_id:
                    visit(by_id[name])
            ordered.append(each)

    for each in found:
        visit(each)
    return ordered


def check_dependencies(found: Found, others: Iterable[Found]) -> None:
    """Whether what it depends on is there, and can run."""
    by_id = _by_id(others)
    for name in _dependencies(found):
        other = by_id.get(name)
        if other is None:
            found.waits_for = found.waits_for if found.broken else name
            remedy = f"add the extension {name}, or remove the line"
            found.fail("depends_on", f"there is no extension {name}", remedy)
        elif cycle := _way_back(found.id, name, by_id):
            way = " → ".join([found.id, *cycle])
            found.fail("depends_on", f"goes in a circle: {way}", "remove one of them")
        elif other.broken and not found.broken:
            found.waits_for = name
            found.fail("depends_on", f"{name} is broken", f"mend {name}")


def _way_back(start: str, name: str, by_id: Mapping[str, Found]) -> list[str] | None:
    """How one comes from `name` to `start` along what extensions depend on."""
    ways, seen = [[name]], {name}
    while ways:
        way = ways.pop(0)
        if way[-1] == start:
            return way
        for each in _dependencies(by_id[way[-1]]):
            if each in by_id and each not in seen:
                seen.add(each)
                ways.append([*way, each])
    return None


def _by_id(found: Iterable[Found]) -> dict[str, Found]:
    """Of two with one id, the first."""
    return {each.id: each for each in reversed([*found])}


def _dependencies(found: Found) -> list[str]:
    return found.manifest.depends_on if found.manifest else []
