"""Why a store is not copied, in the same words on both databases."""

from __future__ import annotations

from collections.abc import Mapping

from ontologia.errors import CopyError, NotFoundError
from ontologia.store.copying.tables import Table


def same_store(shown: str) -> CopyError:
    """Both URIs mean one store."""
    return CopyError(
        f"{shown} is the source and the target; nothing was changed",
        hint="Name another file, database or ?schema= to copy into.",
    )


class NoStore(CopyError, NotFoundError):
    """There is nothing to copy."""

    def __init__(self, shown: str, why: str) -> None:
        self.shown, self.why = shown, why
        super().__init__(
            f"there is no store to copy at {shown}: {why}; nothing was created",
            hint="The source comes first: ontologia copy SOURCE TARGET.",
        )


class OldLayout(CopyError):
    """The tables are those of another version."""

    def __init__(self, shown: str, found: int | None, known: int) -> None:
        self.shown, self.found, self.known = shown, found, known
        super().__init__(
            f"{shown} has layout {found}, and layout {known} can be copied; nothing was changed",
            hint="Open it once with this version of Ontologia: Session(uri) brings it up to date.",
        )


no_store, old_layout = NoStore, OldLayout  # called as the other refusals are


def not_empty(shown: str, found: Mapping[str, int]) -> CopyError:
    """The target holds a store already."""
    listed = ", ".join(f"{rows:,} in {name}" for name, rows in found.items())
    return CopyError(
        f"{shown} is not empty, it has rows: {listed}; nothing was changed",
        hint="Copy into an empty place: another file, or another ?schema= of the database.",
    )


def long_key(shown: str, type_name: str, key: str, most: int) -> CopyError:
    """A key that the target's indexes may not hold."""
    return CopyError(
        f"the key of {type_name} {key[:40]!r}… has more than {most:,} bytes, and {shown} takes no "
        f"longer one; nothing was changed",
        hint="An earlier version stored it, now or in the past; history cannot be changed, so such "
        "a store stays on SQLite.",
    )


def other_writer(shown: str, table: Table) -> CopyError:
    """A key is taken, and not by this copy."""
    return CopyError(
        f"{shown} has rows in {table.name} that this copy did not write; the last portion was "
        f"taken back",
        hint="Close sessions that were opened on the target before, let one copy run at a time, "
        "and begin anew with restart=True (--restart).",
    )


def other_version(shown: str) -> CopyError:
    """An unfinished copy was begun by a program with another layout."""
    return CopyError(
        f"the unfinished copy in {shown} was begun by another version of Ontologia",
        hint="Begin anew with restart=True (--restart).",
    )
