"""`Relation`: how one entity stands to another, with fields of its own."""

from __future__ import annotations

import sys
import typing
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from ontologia.errors import (
    DefinitionError,
    EndpointDeleted,
    MetadataUnavailableError,
    QueryTypeError,
)
from ontologia.schema.base import Meta, SchemaMeta, SchemaObject
from ontologia.schema.entity import Entity
from ontologia.schema.field import Field

L = TypeVar("L", bound=Entity)
R = TypeVar("R", bound=Entity)


class Ends(Protocol):
    """The entities at the ends of the relations of one result, made when somebody looks."""

    def get(self, side: str, key: str) -> Entity | None: ...


class Relation(SchemaObject, Generic[L, R]):
    """Base of what connects two entities, named by their keys: `class Owns(Relation[Person, Car])`.

    Between the same two entities there is one relation of a type, unless one of its fields is
    marked `Field(instance_key=True)`: then there is one for each value of it.
    """

    __slots__ = ()
    __root__: ClassVar[bool] = True
    __kind__: ClassVar[Literal["relation"]] = "relation"

    left_key: Field[str] = Field()
    right_key: Field[str] = Field()

    @property
    def left(self) -> L:
        """The entity at the left end, in the state the relation was read in."""
        return typing.cast(L, self._end("left"))

    @property
    def right(self) -> R:
        """The entity at the right end, in the state the relation was read in."""
        return typing.cast(R, self._end("right"))

    @property
    def instance_key(self) -> str:
        """The text of the field marked `instance_key=True`, as stored; '' if the class has none."""
        return instance_key_of(self)

    def meta(self) -> Meta:
        """Where this object was read from; MetadataUnavailableError if it was not."""
        commit_id, deleted = self._read_from()[:2]
        shape = type(self).__shape__
        return Meta(
            shape.name,
            commit_id,
            left_key=self.left_key,
            right_key=self.right_key,
            instance_key=instance_key_of(self),
            deleted=bool(deleted),
        )

    def _end(self, side: Literal["left", "right"]) -> Entity:
        version = self._version
        if version is None or len(version) < 4:
            raise MetadataUnavailableError(
                f"{self!r} was not read from a store, so its {side} end is not known",
                hint=f"{side}_key is; relations from session.query() carry the entities themselves.",
            )
        ends: Ends = version[3]
        key: str = self.__dict__[f"{side}_key"]
        shape = type(self).__shape__
        type_name = shape.end(side).name
        entity = ends.get(side, key)
        if entity is None:
            label = f"{shape.name}:{self.left_key}:{self.right_key}"
            raise EndpointDeleted(label, side, type_name, key)
        return entity

    @classmethod
    def __endpoints__(cls) -> tuple[type[Entity] | None, type[Entity] | None]:
        """The classes named in `Relation[Left, Right]`; None where they are left open."""
        for base in cls.__mro__:
            for origin in base.__dict__.get("__orig_bases__", ()):
                if typing.get_origin(origin) is Relation:
                    left, right = typing.get_args(origin)
                    return _entity(left, base), _entity(right, base)
        return None, None


def instance_key_of(relation: Relation[Any, Any]) -> str:
    """The text of a relation's instance key; '' for one that has none."""
    shape = type(relation).__shape__
    if shape.instance_key is None:
        return ""
    return shape.key_text(relation.__dict__[shape.instance_key])


def _entity(argument: Any, owner: type) -> type[Entity] | None:
    if isinstance(argument, TypeVar):
        return None
    if isinstance(argument, str | typing.ForwardRef):
        name = argument if isinstance(argument, str) else argument.__forward_arg__
        argument = _named(name, owner)
    if not (isinstance(argument, type) and issubclass(argument, Entity)):
        raise DefinitionError(f"{owner.__name__} connects entities, and {argument!r} is none")
    if argument is Entity or argument.__shape__.abstract:
        raise DefinitionError(
            f"{owner.__name__} connects {argument.__name__}, which is never stored itself",
            hint="Name the class of the entities that stand there.",
        )
    return argument


def _named(name: str, owner: type) -> Any:
    """A class that was named by text because it is defined after the relation.

    One in the same module, else one defined in the same function, else the only one there is.
    """
    found = getattr(sys.modules.get(owner.__module__), name, None)
    if found is not None:
        return found
    known = [cls for cls in _subclasses(Entity) if cls.__name__ == name]
    near = [cls for cls in known if _scope(cls) == _scope(owner)]
    if near:
        return near[-1]  # a function that ran again has defined it again
    if len(known) != 1:
        what = "is not defined" if not known else "is defined more than once"
        raise DefinitionError(f"{owner.__name__} names the entity {name!r}, which {what}")
    return known[0]


def _scope(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__.rpartition(".")[0]


def _subclasses(cls: type[Entity]) -> list[type[Entity]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _subclasses(sub))]


def left(relation: type[Relation[L, Any]]) -> type[L]:
    """The entity at the left end, to filter relations by: `left(Owns).name == "Ada"`."""
    return typing.cast("type[L]", _Endpoint(relation, "left"))


def right(relation: type[Relation[Any, R]]) -> type[R]:
    """The entity at the right end, to filter relations by: `right(Owns).price > 100`."""
    return typing.cast("type[R]", _Endpoint(relation, "right"))


class _Endpoint:
    """Stands in for the entity class at one end, so that its fields can be named."""

    def __init__(self, relation: Any, side: Literal["left", "right"]) -> None:
        known = isinstance(relation, SchemaMeta) and issubclass(relation, Relation)
        if not known or relation is Relation:
            raise QueryTypeError(f"{side}() takes a relation class, got {relation!r}")
        self._relation = relation.__shape__
        self._side: Literal["left", "right"] = side

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's own questions, which an open class would answer
            raise AttributeError(name)
        shape = self._relation.end(self._side)
        return shape.expression(name, self._side, self._relation.name)

    def __repr__(self) -> str:
        return f"{self._side}({self._relation.name})"
