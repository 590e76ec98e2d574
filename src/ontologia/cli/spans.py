"""Spans of time as people type them: 45s, 30m, 12h, 7d."""

from __future__ import annotations

import re
from datetime import timedelta

import typer

_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(ms|s|m|h|d|w)?")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_WORDS = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week"}


def span(text: str) -> timedelta:
    """The span of time that is meant; a usage error if it cannot be read."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no span of time; write 45s, 30m, 12h or 7d")
    try:
        return timedelta(seconds=float(match[1]) * _SECONDS[match[2] or "s"])
    except OverflowError as error:
        raise typer.BadParameter(f"{text!r} is longer than any calendar") from error


def in_words(length: timedelta) -> str:
    """`7 days`, `12 hours`, `90 minutes`: in the largest unit that fits without a rest."""
    seconds = length.total_seconds()
    for unit in ("d", "h", "m", "s"):
        if seconds >= _SECONDS[unit] and seconds % _SECONDS[unit] == 0:
            number = int(seconds // _SECONDS[unit])
            return f"{number:,} {_WORDS[unit]}{'' if number == 1 else 's'}"
    return f"{seconds:g} seconds"
