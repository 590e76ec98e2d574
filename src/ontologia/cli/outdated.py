"""Types that the store has otherwise than the program: what commands make of them that run code."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ontologia.cli.call import Call

if TYPE_CHECKING:
    from ontologia.errors import SchemaOutdatedError
    from ontologia.runtime.modules import Contents
    from ontologia.runtime.session import Session

log = logging.getLogger(__name__)


@contextmanager
def refused(call: Call, session: Session, found: Sequence[Contents]) -> Generator[None]:
    """SchemaOutdatedError before anything is claimed if the types of these modules do not fit.

    Events are not to blame for that, and must not be tried until they are dead letters. The error
    names the command that helps; so does one by which a run ends, since somebody migrated under it.
    """
    from ontologia.errors import SchemaOutdatedError

    try:
        try:
            session.validate()
        except SchemaOutdatedError as error:
            error.add_note("nothing was claimed, and no handler was called")
            raise
        yield
    except SchemaOutdatedError as error:
        if session.pending_migration() is not None:
            raise  # it has the better hint
        again = " and ".join(_migrations(call, error, found))
        error.hint = (
            f"If the store is newer, start the program that it was migrated for; if the program "
            f"is, migrate first: {again}"
        )
        raise


def warn_of_migration(session: Session, module: str) -> None:
    """Only a warning: who asks for something is told that it cannot be written."""
    from ontologia.errors import SchemaOutdatedError

    try:
        session.validate()
    except SchemaOutdatedError as error:
        log.warning(
            "%s; what writes them fails until they are migrated: ontologia migrate --models %s",
            *(error.args[0], module),
        )


def _migrations(call: Call, error: SchemaOutdatedError, found: Sequence[Contents]) -> list[str]:
    """The commands that migrate these types: for the modules that have them, if any has."""
    from ontologia.schema.diff import TypeDiff

    outdated = {(each.kind, each.name) for each in error.diffs if isinstance(each, TypeDiff)}
    having = [each for each in found if outdated & _types_of(each)]
    names = dict.fromkeys(each.name.partition(":")[0] for each in having or found)
    return [call.again("migrate", "--models", name) for name in names]


def _types_of(found: Contents) -> set[tuple[str, str]]:
    types = [*found.entity_types, *found.relation_types]
    return {(cls.__shape__.kind, cls.__shape__.name) for cls in types}
