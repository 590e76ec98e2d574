"""A new extension: a folder with a manifest, code and a test, which works as it is."""

from __future__ import annotations

from pathlib import Path

from ontologia.errors import ExtensionError

_SKELETON = Path(__file__).parent / "skeleton"
_NAME = "my_extension"


def write_skeleton(extension_id: str, into: Path) -> Path:
    """Make the folder of a new extension; where it is. Nothing that is there is written over."""
    folder = into / extension_id
    if folder.exists():
        raise ExtensionError(
            f"{folder} is there already; nothing was written", hint="Choose another name."
        )
    texts = {each.name: each.read_text("utf-8") for each in _SKELETON.iterdir() if each.is_file()}
    folder.mkdir(parents=True)
    for name, text in texts.items():
        named = text.replace(_NAME, extension_id).replace(_NAME.upper(), extension_id.upper())
        (folder / name.replace(_NAME, extension_id)).write_text(named, "utf-8")
    return folder
