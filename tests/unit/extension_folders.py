"""Folders with extensions, for tests."""

from __future__ import annotations

import textwrap
from pathlib import Path


def extension(parent: Path, name: str, manifest: str = "", **files: str) -> Path:
    """A folder with a manifest, and files by name without `.py`; the id is the name."""
    folder = parent / name
    folder.mkdir(parents=True, exist_ok=True)
    text = textwrap.dedent(manifest)
    (folder / "manifest.yaml").write_text(text if "id:" in text else f"id: {name}\n{text}")
    for module, source in files.items():
        (folder / f"{module}.py").write_text(textwrap.dedent(source))
    return folder
