"""Write the pages that are made from the code: python -m tools.reference"""

from __future__ import annotations

from tools.reference import DOCS, PAGES

for name, made in PAGES.items():
    page = DOCS / name
    before = page.read_text("utf-8") if page.exists() else ""
    after = made(before)
    if after != before:
        page.write_text(after, "utf-8")
        print("wrote", page)  # noqa: T201
