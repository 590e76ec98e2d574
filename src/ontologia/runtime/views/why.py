"""Why an object is as it is, for those who have its type by name alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ontologia.errors import NotFoundError, QueryError
from ontologia.runtime.explain import Explanations, StoredKey, Why
from ontologia.runtime.session import core_of
from ontologia.runtime.stored import StoredTypes
from ontologia.schema.shape import Shape
from ontologia.schema.stored import plain

if TYPE_CHECKING:
    from ontologia.runtime.session import Session


def why_by_name(
    session: Session,
    type_name: str,
    key: str | StoredKey,
    field: str | None = None,
    *,
    kind: str | None = None,
    as_of: int | None = None,
) -> Why:
    """How an object, or one field of it, came to be what it is; see `Session.why`.

    With `as_of`, what it was after that commit. The type is an entity's or a relation's; values are as they are stored. NotFoundError if there
    never was such an object, or no such field.
    """
    problem: Exception | None = None
    core = core_of(session)
    explanations = Explanations(core.store, core.versions)
    for cls in StoredTypes.of(session).named(type_name):
        if kind not in (None, cls.__shape__.kind):
            continue
        if field is not None and not cls.__shape__.has(field):
            problem = problem or NotFoundError(
                f"{type_name} has no field {field!r}",
                hint=f"It has {', '.join(cls.__shape__.fields)}.",
            )
            continue
        try:
            return _plain(cls.__shape__, explanations.why(cls, key, field, as_of))
        except (NotFoundError, QueryError) as error:
            problem = problem or error
    raise problem or NotFoundError(f"there is no {type_name} {key}")


def _plain(shape: Shape, found: Why) -> Why:
    """With the value as it is stored."""
    if found.value is None:
        return found
    if found.field is None:
        return replace(found, value=plain(shape, found.value))
    return replace(found, value=plain(shape, {found.field: found.value})[found.field])
