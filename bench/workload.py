"""The work, the same for everybody: what is in the events, and how they are handled.

It imports nothing of Ontologia: every contender has it, and memory is compared, too.
"""

from __future__ import annotations

from typing import Any

NAMESPACE = "default"
TYPE = "order.placed"
NOTHING, BOOKING = "bench:nothing", "bench:booking"
"""The names of the handlers."""
BATCH = 100
"""Events that those who claim several claim at once."""
NAP = 0.002
"""Seconds for which a handler sleeps that sleeps."""


def fields(number: int) -> dict[str, Any]:
    """The order of this number."""
    return {
        "order_id": f"o{number:06d}",
        "customer": f"c{number % 997:06d}",
        "total": number + 0.5,
        "items": ["apple", "pear"],
    }
