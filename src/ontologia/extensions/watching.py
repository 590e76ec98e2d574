"""`--watch`: extensions are reloaded when their files change.

Files are polled: that works on every system and every kind of disk. Only code and manifests count,
since an extension may write other files into its folder.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TypeAlias

from ontologia.extensions.host import Host
from ontologia.extensions.loader import is_extension
from ontologia.extensions.manifest import MANIFEST

log = logging.getLogger(__name__)
_INTERVAL = 0.5  # seconds between two polls
_SUFFIXES = (".py", ".yaml", ".yml")
Stamps: TypeAlias = dict[Path, dict[str, tuple[int, int]]]
_OUTDATED = {"": (0, 0)}  # equals the stamps of no folder


async def watch(host: Host, seen: Stamps, *, interval: float = _INTERVAL) -> None:
    """Reload extensions that differ from `seen`, and those that change later, until cancelled."""
    while True:
        await asyncio.sleep(interval)
        now = await asyncio.to_thread(stamps, host.folder)
        for folder in sorted(seen.keys() | now.keys()):
            if seen.get(folder) != now.get(folder):
                log.info("%s changed", folder)
                try:
                    await host.reload(folder)
                except Exception as error:  # noqa: BLE001 - most likely an outage
                    log.error("%s was not reloaded, and will be tried again: %s", folder, error)
                    now[folder] = _OUTDATED
        seen = now


def stamps(folder: Path) -> Stamps:
    """Time and size of each file, by the folder of its extension."""
    if (folder / MANIFEST).exists():
        return {folder: _files(folder)}
    try:
        inside = sorted(folder.iterdir())
    except OSError:  # it is just being replaced
        return {}
    return {each: _files(each) for each in inside if is_extension(each)}


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for parent, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith((".", "__pycache__"))]
        for name in names:
            if name.endswith(_SUFFIXES):
                path = os.path.join(parent, name)
                try:
                    stat = os.stat(path)
                except OSError:  # it is just being replaced
                    continue
                found[path] = (stat.st_mtime_ns, stat.st_size)
    return found
