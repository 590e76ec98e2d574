"""The types most tests use; the conformance suite has them."""

from __future__ import annotations

from ontologia.testing.conformance.shop import Customer, Product, Subscription

__all__ = ["Customer", "Product", "Subscription"]
