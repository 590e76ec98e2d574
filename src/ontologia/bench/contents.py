"""What is in the events. Known to every contender, so it needs nothing: memory is compared, too."""

from __future__ import annotations

from typing import Any

NAMESPACE = "default"
TYPE = "order.placed"
NOTHING, BOOKING = "bench:nothing", "bench:booking"
"""The names of the handlers."""


def fields(number: int) -> dict[str, Any]:
    """The order of this number."""
    return {
        "order_id": f"o{number:06d}",
        "customer": f"c{number % 997:06d}",
        "total": number + 0.5,
        "items": ["apple", "pear"],
    }
