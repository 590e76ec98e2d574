"""The statements that make a file's tables, as text."""

from __future__ import annotations

from ontologia.store.sqlite.layout import LAYOUT, PARTS, SQL


def ddl() -> str:
    """Everything that opening a new file would run; afterwards opening it changes no table."""
    version = SQL["set_layout"].replace(":version", str(LAYOUT))
    parts = [*(SQL[name] for name in PARTS), version, SQL["statistics"]]
    return "BEGIN;\n\n" + "\n\n".join(parts) + "\n\nCOMMIT;\n"
