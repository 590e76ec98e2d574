"""`Field`: the declaration of one field, and its two faces.

On the class it is an expression to query by, on an instance the value itself. A type checker
sees the same: `Customer.tier` is `Expr[str]`, `customer.tier` is `str`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from ontologia.errors import DefinitionError
from ontologia.schema.expression import Expr

T = TypeVar("T")


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()
"""Stands for "no default"; None is a default like any other."""


class Field(Generic[T]):
    """One field of an entity, a relation or an event.

    `primary_key` marks the field that names an entity, `instance_key` the one that tells several
    relations between the same two entities apart. `index=True` makes a database index, so that
    filters on the field cost what they find and not what is stored. `unique=True` allows one
    current object of the type for each value but None, and makes an index, too.
    """

    @overload
    def __init__(
        self,
        *,
        primary_key: bool = ...,
        instance_key: bool = ...,
        index: bool = ...,
        unique: bool = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        default: T,
        primary_key: bool = ...,
        instance_key: bool = ...,
        index: bool = ...,
        unique: bool = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        default_factory: Callable[[], T],
        primary_key: bool = ...,
        instance_key: bool = ...,
        index: bool = ...,
        unique: bool = ...,
    ) -> None: ...
    def __init__(
        self,
        *,
        default: Any = MISSING,
        default_factory: Any = None,
        primary_key: bool = False,
        instance_key: bool = False,
        index: bool = False,
        unique: bool = False,
    ) -> None:
        if default is not MISSING and default_factory is not None:
            raise DefinitionError("a field has a default or a default_factory, not both")
        if default_factory is not None and not callable(default_factory):
            raise DefinitionError(f"default_factory must be callable, got {default_factory!r}")
        self.name = ""
        self.default = default
        self.default_factory: Callable[[], Any] | None = default_factory
        self.primary_key = primary_key
        self.instance_key = instance_key
        self.index = index or unique
        self.unique = unique

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def required(self) -> bool:
        """Whether the constructor needs a value for it."""
        return self.default is MISSING and self.default_factory is None

    def new_default(self) -> Any:
        """The default of a new instance: a copy each time, so that no two share a list."""
        if self.default_factory is not None:
            return self.default_factory()
        return copy.deepcopy(self.default)

    # There is no __set__ at run time: without it Python finds the value in the instance's
    # __dict__ first, and reading a field costs what reading any attribute costs. A type checker
    # needs it to type the constructor and assignments.
    if TYPE_CHECKING:

        @overload
        def __get__(self, obj: None, owner: type) -> Expr[T]: ...
        @overload
        def __get__(self, obj: object, owner: type) -> T: ...
        def __get__(self, obj: object | None, owner: type) -> Any: ...
        def __set__(self, obj: object, value: T) -> None: ...

    else:

        def __get__(self, obj: object | None, owner: Any) -> Any:
            if obj is None:
                return owner.__shape__.expression(self.name)
            raise AttributeError(obj._lacks(self.name))
