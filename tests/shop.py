"""The types most tests use; the conformance suite has them."""

from __future__ import annotations

from ontologia_conformance.shop import Customer, Product, Subscription

__all__ = ["Customer", "Product", "Subscription"]
