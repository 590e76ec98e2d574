"""On what it was measured: figures mean nothing without it."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import apsw

import ontologia


def described() -> str:
    """The machine, in a line."""
    return f"{os.cpu_count()} cores, {_processor()}, {platform.system()}{load()}"


def load() -> str:
    """How busy the machine is: above the number of its cores, the ratios are mostly noise."""
    return f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Of Python, both copies of SQLite, ours, and those of these packages that are installed."""
    found = {
        "Python": platform.python_version(),
        "ontologia": ontologia.__version__,
        "SQLite of apsw": apsw.sqlite_lib_version(),
        "SQLite of Python": sqlite3.sqlite_version,
        "apsw": apsw.apsw_version(),
    }
    for package in packages:
        name = package.partition("[")[0]
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def in_words(named: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in named.items())


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
