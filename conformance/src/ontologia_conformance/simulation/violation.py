"""A promise that was not kept."""

from __future__ import annotations


class Violation(Exception):
    """An invariant does not hold: which, where, and after which step."""

    def __init__(self, rule: str, detail: str, step: int | None = None) -> None:
        when = "" if step is None else f", at step {step}"
        super().__init__(f"{rule}: {detail}{when}")
        self.rule = rule
        self.step = step


def demand(holds: object, rule: str, detail: str, step: int | None = None) -> None:
    """Violation unless it holds."""
    if not holds:
        raise Violation(rule, detail, step)
