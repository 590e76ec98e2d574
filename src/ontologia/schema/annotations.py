"""Reading a class's annotations, also when they are text or name classes that come later."""

from __future__ import annotations

import inspect
import re
import sys
import typing
from typing import Any, ClassVar, get_args, get_origin

from ontologia.errors import DefinitionError
from ontologia.schema.field import Field

_FIELD_TEXT = re.compile(r"^\s*([\w]+\.)*Field\s*\[")
_CLASSVAR_TEXT = re.compile(r"^\s*(\w+\.)*ClassVar\b")


def own_annotations(cls: type) -> dict[str, Any]:
    """The annotations written in the body of `cls`, unresolved ones as text or forward reference."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(cls)


def is_field(annotation: Any) -> bool:
    """Whether this annotation declares a field."""
    if isinstance(annotation, str):
        return bool(_FIELD_TEXT.match(annotation))
    return annotation is Field or get_origin(annotation) is Field


def is_class_variable(annotation: Any) -> bool:
    """Whether this annotation is a ClassVar, which is no business of the store."""
    if isinstance(annotation, str):
        return bool(_CLASSVAR_TEXT.match(annotation))
    return annotation is ClassVar or get_origin(annotation) is ClassVar


def resolve_fields(cls: type, names: dict[str, Any]) -> dict[str, Any]:
    """The `X` of every `Field[X]` of `cls` and its bases. NameError while a name is unknown."""
    hints = typing.get_type_hints(cls, localns=names, include_extras=True)
    found: dict[str, Any] = {}
    for name, hint in hints.items():
        if is_field(hint):
            if hint is Field:
                raise DefinitionError(f"{cls.__name__}.{name}: write Field[...] with a type")
            found[name] = get_args(hint)[0]
    return found
