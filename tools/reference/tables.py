"""The tables of a store, as the statements that make them on either database."""

from __future__ import annotations

import re

from ontologia.store.postgres.layout import PARTS, layout_statements
from ontologia.store.sqlite.layout import SQL
from tools.reference.between import with_made


def tables_page(page: str) -> str:
    """The page with its tables."""
    postgres = layout_statements("ontologia")
    parts = [_part(SQL[name], postgres[name]) for name in PARTS if name in SQL]
    return with_made(page, "\n\n".join(parts))


def names_in(statements: str) -> list[str]:
    """The tables and views that statements make."""
    made = re.findall(
        r"^CREATE.*? (?:TABLE|VIEW)(?: IF NOT EXISTS)? (\S+)", statements, re.MULTILINE
    )
    return [name.rpartition(".")[2] for name in made]


def _part(sqlite: str, postgres: str) -> str:
    names = names_in(sqlite)
    title = ", ".join(f"`{name}`" for name in names) or "Indexes of the history"
    return (
        f"## {title}\n\n```sql\n{sqlite}\n```\n\n"
        f"<details markdown>\n<summary>On PostgreSQL</summary>\n\n"
        f"```sql\n{postgres}\n```\n\n</details>"
    )
