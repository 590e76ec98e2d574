"""`Entity`: something that exists and has a key."""

from __future__ import annotations

from typing import ClassVar, Literal

from ontologia.schema.base import Meta, SchemaObject


class Entity(SchemaObject):
    """Base of the things a store keeps, each named by its primary key.

    The key is the field marked `Field(primary_key=True)`, or a field called `id`. A base class
    that is never stored itself is declared `class Base(Entity, abstract=True)`.
    """

    __slots__ = ()
    __root__: ClassVar[bool] = True
    __kind__: ClassVar[Literal["entity"]] = "entity"

    def meta(self) -> Meta:
        """Where this object was read from; MetadataUnavailableError if it was not."""
        commit_id, deleted = self._read_from()[:2]
        shape = type(self).__shape__
        key = shape.key_text(self.__dict__[shape.key or ""])
        return Meta(shape.name, commit_id, key=key, deleted=bool(deleted))
