"""A store that a newer version wrote is not opened: what this one writes may break what that one knows."""

from __future__ import annotations

from ontologia.errors import StoreOpenError


class NewerLayout(StoreOpenError):
    """The tables are those of a newer version."""

    def __init__(self, shown: str, found: int, known: int) -> None:
        self.shown, self.found, self.known = shown, found, known
        super().__init__(
            f"{shown} has layout {found}, and this version of Ontologia knows layouts up to {known}; "
            f"nothing was changed",
            hint="Upgrade Ontologia to the version that wrote it, or a newer one.",
        )
