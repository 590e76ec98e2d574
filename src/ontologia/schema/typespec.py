"""A class as plain data: what is stored in `schema_registry`, hashed and compared."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from ontologia import codec
from ontologia.schema.describe import describe
from ontologia.schema.shape import Shape


@dataclass(frozen=True, slots=True)
class TypeSpec:
    """What of a class decides whether stored objects fit it.

    Names and types of the fields, which of them is the key and which are unique, the ends of a
    relation, and whether there may be more fields. Defaults and indexes are left out: changing them
    changes no stored object, and lets in no other.
    """

    kind: str
    name: str
    fields: dict[str, Any]
    key: str | None = None
    left: str | None = None
    right: str | None = None
    open: bool = False
    """Whether objects may have other fields as well; said in the JSON only where it is so."""

    def to_json(self) -> str:
        """Canonical JSON; equal specs give equal text whatever order the fields are written in."""
        return codec.encode(
            {
                "kind": self.kind,
                "name": self.name,
                "fields": self.fields,
                "key": self.key,
                "left": self.left,
                "right": self.right,
            }
            | ({"open": True} if self.open else {})
        )

    @classmethod
    def from_json(cls, text: str) -> TypeSpec:
        """The spec in stored text; text from elsewhere may lack what it did not know."""
        decoded = codec.decode_stored(text)
        data: dict[str, Any] = decoded if isinstance(decoded, dict) else {}
        fields = data.get("fields")
        return cls(
            data.get("kind", ""),
            data.get("name", ""),
            fields if isinstance(fields, dict) else {},
            data.get("key"),
            data.get("left"),
            data.get("right"),
            data.get("open") is True,
        )

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON."""
        return schema_hash(self.to_json())


def schema_hash(schema_json: str) -> str:
    """SHA-256 of a schema's canonical form, whatever form it comes in."""
    return hashlib.sha256(codec.encode(codec.decode_stored(schema_json)).encode()).hexdigest()


def spec_of(shape: Shape) -> TypeSpec:
    """The spec of a class; one that was made from a stored schema has that."""
    stored: TypeSpec | None = shape.cls.__dict__.get("__spec__")
    if stored is not None:
        return stored
    ends: dict[str, Shape | None] = shape.ends if shape.kind == "relation" else {}
    left, right = ends.get("left"), ends.get("right")
    return TypeSpec(
        kind=shape.kind,
        name=shape.name,
        fields={
            name: {"type": describe(shape.annotations[name])}
            | ({"unique": True} if field.unique else {})
            for name, field in shape.fields.items()
        },
        key=shape.key or shape.instance_key,
        left=left.name if left else None,
        right=right.name if right else None,
        open=shape.open,
    )
