"""What happens after an attempt that did not succeed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ontologia.errors import InvalidTypeError, InvalidValueError

if TYPE_CHECKING:
    from ontologia.config import OntologiaConfig

_LONGEST_ERROR = 10_000
_LONGEST_TRACEBACK = 8_000  # bytes
_CUT = "...\n"
LEASE_EXPIRED = "lease expired"
_LONGEST_WAIT_MS = 10 * 365 * 24 * 3600 * 1000


class Retry(Exception):
    """Raised by a handler: deliver this event again after `after` seconds (or a timedelta).

    It counts as an attempt, and nothing is logged as an error.
    """

    def __init__(self, reason: str = "", *, after: float | timedelta) -> None:
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
            numeric = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            raise (InvalidValueError if numeric else InvalidTypeError)(
                f"after takes seconds or a timedelta, not negative, got {after!r}"
            )
        self.after_ms = min(seconds * 1000, _LONGEST_WAIT_MS)
        super().__init__(reason or f"again after {seconds:g} s")


class Discard(Exception):
    """Raised by a handler: bury this event at once, with this reason; no retry would help."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait after the n-th failure: `base * 2^n`, at most `cap`, plus some chance."""

    base_ms: int
    cap_ms: int
    jitter_ms: int = 100
    first_exponent: int = 1

    def delay_ms(self, failures: int, draw: Callable[[int, int], int]) -> int:
        """The wait after this many failures; `draw(0, n)` is the chance."""
        exponent = failures - 1 + self.first_exponent
        # Nothing that fits a cap needs more than 63 doublings; 2^10000 would be a long number.
        grown = self.base_ms * (1 << max(0, min(exponent, 63)))
        return min(grown, self.cap_ms) + (draw(0, self.jitter_ms) if self.jitter_ms else 0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of an event after an attempt that did not succeed."""

    attempts: int
    buried: bool
    delay_ms: float = 0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a consumer is given an event.

    A failure is the handler's own word; a crash is an attempt that began and whose lease ran out
    without any. Both count in one number, and each is held against its own limit.
    """

    max_failures: int
    max_crashes: int
    backoff: Backoff

    def after_failure(
        self, attempts: int, draw: Callable[[int, int], int], *, after_ms: float | None = None
    ) -> Verdict:
        """The handler failed; `attempts` is how many there were before, `after_ms` its own wish."""
        attempts += 1
        if attempts >= self.max_failures:
            return Verdict(attempts, buried=True)
        if after_ms is None:
            after_ms = self.backoff.delay_ms(attempts, draw)
        return Verdict(attempts, buried=False, delay_ms=after_ms)

    def after_crash(self, attempts: int) -> Verdict:
        """A started attempt ended without a word: again at once, or never."""
        attempts += 1
        return Verdict(attempts, buried=attempts >= self.max_crashes)


def handler_policy(
    config: OntologiaConfig, max_attempts: int | None = None, backoff: Backoff | None = None
) -> RetryPolicy:
    """The policy of a typed handler; the settings have what the handler does not say itself."""
    limit = max_attempts or config.event_max_attempts
    backoff = backoff or Backoff(config.event_backoff_base_ms, config.event_backoff_max_ms)
    return RetryPolicy(limit, limit, backoff)


def describe_error(error: BaseException) -> str:
    """`ExceptionClass: message`, of a length that a row can hold and every database can keep."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide that the handler failed
        message = "(its message cannot be read)"
    return storable_text(f"{type(error).__name__}: {message}" if message else type(error).__name__)


def traceback_text(error: BaseException) -> str:
    """The traceback of an error, with its causes; of a long one the last 8 kB, as UTF-8."""
    from traceback import format_exception

    try:
        lines = format_exception(error)
    except Exception:  # noqa: BLE001 - an error that cannot be shown must not hide that it was one
        return describe_error(error)
    clean = _clean("".join(lines)).encode()
    if len(clean) <= _LONGEST_TRACEBACK:
        return clean.decode()
    end = clean[len(_CUT) - _LONGEST_TRACEBACK :].decode(errors="ignore")
    return _CUT + end


def storable_text(text: Any) -> str:
    """Text of any origin, without what a database refuses, cut to a sane length."""
    clean = _clean(str(text))
    return clean if len(clean) <= _LONGEST_ERROR else clean[:_LONGEST_ERROR] + " ..."


def _clean(text: str) -> str:
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
