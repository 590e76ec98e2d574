"""What a forked child makes anew.

Only the thread that forks is there in the child. A lock that another one had at that moment is
never given back, so the locks that a whole process shares are replaced. Sessions are not: a child
opens its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable


def in_forked_child(renew: Callable[[], None]) -> None:
    """Call it in every child, before anything else runs there; nothing, where nobody forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
