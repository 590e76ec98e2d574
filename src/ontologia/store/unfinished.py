"""A store that a copy has not finished is not opened: half of it is missing.

The mark is a table that exists only while a copy into the store is under way or was broken off.
"""

from __future__ import annotations

from ontologia.errors import StoreOpenError

MARK = "ontologia_copy"


def unfinished(shown: str, source: str) -> StoreOpenError:
    """Why this store cannot be opened; `source` is where its contents come from."""
    return StoreOpenError(
        f"{shown} holds an unfinished copy of {source}; nothing was changed",
        hint="Copy again: `ontologia copy SOURCE TARGET` goes on where it stopped, and "
        "--restart begins anew.",
    )
