"""For the tests of those who use Ontologia. Nothing in the package imports it."""

from typing import TYPE_CHECKING, Any

from ontologia.testing.clock import ManualClock

if TYPE_CHECKING:
    from ontologia.testing.idempotent import check_idempotent

__all__ = ["ManualClock", "check_idempotent"]


def __getattr__(name: str) -> Any:
    # Every run of pytest in this environment loads the plugin, and with it this module: what is
    # heavy waits until a test asks for it.
    if name != "check_idempotent":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ontologia.testing.idempotent import check_idempotent

    globals()[name] = check_idempotent
    return check_idempotent
