"""The pydantic decorators in the body of a class: which functions validate its objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator, WrapValidator

from ontologia.errors import DefinitionError

_MODES = {"before": BeforeValidator, "wrap": WrapValidator, "after": AfterValidator}
_INSTEAD = {
    "@computed_field": "Write a @property; it is no field, so it is neither stored nor dumped.",
    "@field_serializer": "Say how the value is serialized in its type: Field[Annotated[X, PlainSerializer(...)]].",
    "@model_serializer": "Serialize what model_dump() returns.",
    "@validator": "Write @field_validator.",
    "@root_validator": "Write @model_validator.",
}


class Validators(NamedTuple):
    """The validators of one class, its own and those it inherits."""

    fields: dict[str, Any]
    """Each @field_validator by the name of its function, bound to the class."""
    model: tuple[Any, ...]
    """Each @model_validator as an argument of Annotated, `before` first."""
    names: frozenset[str]
    """The fields that a @field_validator validates; `*` stands for all of them."""


def validators_of(cls: type, fields: Collection[str]) -> Validators:
    """The validators of a class with these fields.

    DefinitionError for a decorator of pydantic that would have no effect, and for one that names
    a field the class does not have.
    """
    of_fields: dict[str, Any] = {}
    of_model: list[tuple[str, Any]] = []
    names: set[str] = set()
    for name, decorated in _decorated(cls).items():
        info, bound = decorated.decorator_info, decorated.__get__(None, cls)
        match getattr(info, "decorator_repr", type(info).__name__):
            case "@field_validator":
                unknown = sorted({*info.fields} - {*fields, "*"})
                if unknown and info.check_fields is not False:
                    raise DefinitionError(
                        f"{cls.__name__}.{name}: @field_validator names {', '.join(unknown)}, "
                        f"which {cls.__name__} does not have",
                        hint=f"It has {', '.join(fields)}. In a base class for fields of its "
                        f"subclasses, write check_fields=False.",
                    )
                names.update(info.fields)
                # `cls` is the class that declares the fields, with all that it has.
                of_fields[name] = dataclasses.replace(decorated, wrapped=staticmethod(bound))
            case "@model_validator":
                of_model.append((info.mode, _MODES[info.mode](bound)))
            case other:
                raise DefinitionError(
                    f"{cls.__name__}.{name}: {other} has no effect here, so it is refused",
                    hint=_INSTEAD.get(other),
                )
    of_model.sort(key=lambda each: each[0] != "before")  # stable: as pydantic orders them
    return Validators(of_fields, tuple(each for _, each in of_model), frozenset(names))


def _decorated(cls: type) -> dict[str, Any]:
    """What pydantic's decorators left in the bodies of a class and its bases; the last one counts."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if "__root__" in base.__dict__ or base is object:
            continue
        for name, value in base.__dict__.items():
            found.pop(name, None)
            if type(value).__module__.startswith("pydantic.") and hasattr(value, "decorator_info"):
                found[name] = value
    return found
