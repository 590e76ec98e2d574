"""The parts of the reference that are made from the code, so that nobody types them twice.

`PAGES` are in `docs/`, for those who read them where the code is: `python -m tools.reference` writes
them, and a test compares them with the code. The API and the options of the command line are too
long for that: `tools/site.py` makes them when the site is built.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tools.reference.errors import errors_page
from tools.reference.settings import settings_page
from tools.reference.tables import tables_page

DOCS = Path(__file__).parents[2] / "docs"

PAGES: dict[str, Callable[[str], str]] = {
    "reference/errors.md": errors_page,
    "reference/settings.md": settings_page,
    "reference/tables.md": tables_page,
}
"""Pages by name, each with the function that makes it from what it was."""
