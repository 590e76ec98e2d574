"""A disk that can lose its power: what was written since the last sync of a file is forgotten.

In a process that has made it the default, every file that SQLite opens is written twice: for real,
so that the program goes on as ever, and in a book of what a disk holds for certain. A cut writes
the book to a folder, as the image that is found after the power is back, and ends the process.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw


class Disk:
    """The book: for each file its content as of its last sync, and what was written since."""

    def __init__(self, image: Path, keep: float, seed: int) -> None:
        self._image = image
        self._keep = keep
        self._chance = random.Random(seed)
        self._synced: dict[str, bytearray] = {}
        self._since: dict[str, list[tuple[int, bytes | None]]] = {}
        self._left: int | None = None
        self.changes = 0
        self.before_each: Callable[[int], None] = lambda _: None
        """Told the number of each change before it is made: a write, a sync, a file cut or removed."""
        self.lock = threading.RLock()

    def cut_after(self, writes: int) -> None:
        """Lose the power at this write from now on."""
        with self.lock:
            self._left = writes

    def opened(self, path: str) -> None:
        if path not in self._synced:
            self._synced[path] = bytearray(Path(path).read_bytes() if os.path.exists(path) else b"")
            self._since[path] = []

    def wrote(self, path: str, offset: int, data: bytes | None) -> None:
        """Note bytes at an offset, or with None that the file ends there."""
        self._about_to_change()
        self._since[path].append((offset, data))
        if self._left is not None and data is not None:
            self._left -= 1
            if self._left <= 0:
                self._cut()

    def synced(self, path: str) -> None:
        self._about_to_change()
        for offset, data in self._since[path]:
            _apply(self._synced[path], offset, data)
        self._since[path] = []

    def removed(self, path: str) -> None:
        self._about_to_change()
        self._synced.pop(path, None)
        self._since.pop(path, None)

    def _about_to_change(self) -> None:
        self.changes += 1
        self.before_each(self.changes)

    def _cut(self) -> None:
        """The end."""
        self.develop(self._image)
        os._exit(0)

    def develop(self, image: Path) -> None:
        """Write what is found after the power failed now to a folder.

        Of what was not synced a disk may have written some, in any order.
        """
        for path, synced in self._synced.items():
            content = bytearray(synced)
            for offset, data in self._since[path]:
                if self._chance.random() < self._keep:
                    _apply(content, offset, data)
            (image / os.path.basename(path)).write_bytes(content)


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class PowerVFS(apsw.VFS):
    """SQLite's own way to files, with the book kept beside it."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        super().__init__("power", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        return PowerFile(self.disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        with self.disk.lock:
            super().xDelete(filename, syncdir)
            self.disk.removed(filename)


class PowerFile(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        watched = flags[0] & (apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_WAL)
        self._path = path if watched else None
        if self._path:
            with disk.lock:
                disk.opened(self._path)
        super().__init__("unix", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:
        with self._disk.lock:
            if self._path:
                self._disk.wrote(self._path, offset, bytes(data))
            super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        with self._disk.lock:
            if self._path:
                self._disk.wrote(self._path, newsize, None)
            super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        with self._disk.lock:
            super().xSync(flags)
            if self._path:
                self._disk.synced(self._path)
