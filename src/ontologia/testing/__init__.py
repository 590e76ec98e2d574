"""For the tests of those who use Ontologia. Nothing in the package imports it."""

from ontologia.testing.clock import ManualClock

__all__ = ["ManualClock"]
