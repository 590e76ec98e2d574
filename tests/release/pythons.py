"""The Pythons of this machine that the package says it runs on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
_ASK = "import ensurepip, sys, venv; print(f'{sys.version_info[0]}.{sys.version_info[1]}')"


def pythons() -> dict[str, Path]:
    """One interpreter for each version that is found: on the path, or where pyenv and uv put them."""
    found = {}
    for version in VERSIONS:
        for place in _places():
            if (program := place / f"python{version}").exists() and _says(program, version):
                found[version] = program
                break
    return found


def _places() -> list[Path]:
    home = Path.home()
    return [
        *map(Path, os.environ.get("PATH", "").split(os.pathsep)),
        *sorted(home.glob(".pyenv/versions/*/bin"), reverse=True),
        *sorted(home.glob(".local/share/uv/python/*/bin"), reverse=True),
    ]


def _says(program: Path, version: str) -> bool:
    """Whether it runs, and can make environments; what is on the path may be a shim for nothing."""
    done = subprocess.run([program, "-c", _ASK], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version
