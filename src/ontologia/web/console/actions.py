"""The verbs of an operator: a page that asks, and a POST that does it and records who and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

if TYPE_CHECKING:
    from ontologia.web.console.app import Console


def routes(console: Console) -> list[Route]:
    """The routes of every verb; there are none in a console that only reads."""
    return []
