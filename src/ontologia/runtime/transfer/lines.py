"""The lines of a file of state.

The first says what the file is: `{"format": "ontologia-state", "version": 1, "head": 17, "objects":
2, "types": [...]}`, each type with its kind, name, version and schema. Every other is one object:

    {"kind": "entity", "type": "Customer", "key": "c1", "fields": {"id": "c1", "name": "Ada"}}
    {"kind": "relation", "type": "Owns", "left": "c1", "right": "p1", "fields": {}}

with `instance` where a relation has an instance key. Fields are as they are stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

from ontologia import codec
from ontologia.errors import InvalidValueError
from ontologia.schema.typespec import TypeSpec
from ontologia.store.rows import ObjectKey

FORMAT = "ontologia-state"
VERSION = 1
LINE_LIMIT = 16 * 2**20
"""Maximum bytes of a line, without its newline."""
_PARTS = {"entity": ("key",), "relation": ("left", "right", "instance")}


class FileType(NamedTuple):
    """A type as a file has it."""

    version: int
    spec: TypeSpec


@dataclass(frozen=True, slots=True)
class Header:
    """What a file is of."""

    head: int
    """The commit whose state it is."""
    objects: int | None
    """How many lines follow; None if the file does not say."""
    types: list[FileType]

    def line(self) -> bytes:
        """The first line."""
        types = [
            {
                "kind": each.spec.kind,
                "name": each.spec.name,
                "version": each.version,
                "schema": codec.decode_stored(each.spec.to_json()),
            }
            for each in self.types
        ]
        facts: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "head": self.head,
            "objects": self.objects,
            "types": types,
        }
        # In this order, not the alphabet's: whoever opens the file reads what it is first.
        parts = (f"{codec.encode(name)}:{codec.encode(value)}" for name, value in facts.items())
        return f"{{{','.join(parts)}}}\n".encode()


class Line(NamedTuple):
    """One object of a file."""

    kind: str
    type_name: str
    key: ObjectKey
    fields: dict[str, Any]


def object_line(kind: str, type_name: str, key: ObjectKey, fields: str) -> str:
    """The line of an object whose fields are canonical text."""
    said = "".join(
        f'"{part}":{codec.encode_checked(text)},'
        for part, text in zip(_PARTS[kind], key, strict=True)
        if text
    )
    named = codec.encode_checked(type_name)
    return f'{{"kind":"{kind}","type":{named},{said}"fields":{fields}}}\n'


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file; of one that is too long, not much more than is needed to refuse it."""
    return iter(lambda: file.readline(LINE_LIMIT + 1), b"")


def read_header(line: bytes) -> Header:
    """The first line; InvalidValueError if no file of state begins like this."""
    data = _object(line) if line.strip() else {}
    if data.get("format") != FORMAT:
        raise InvalidValueError(
            f"this is no file of state: the first line does not say "
            f'"format": "{FORMAT}", as what ontologia export writes does'
        )
    if data.get("version") != VERSION:
        raise InvalidValueError(
            f"the file has version {data.get('version')!r} of the format, and version {VERSION} "
            f"can be read"
        )
    head, objects, types = data.get("head", 0), data.get("objects"), data.get("types")
    for name, value in (("head", head), ("objects", 0 if objects is None else objects)):
        if type(value) is not int or value < 0:
            raise InvalidValueError(f"{name} is a whole number from 0 on, got {value!r:.80}")
    if not isinstance(types, list):
        raise InvalidValueError(f"types is a list, got {types!r:.80}")
    return Header(head, objects, [_file_type(each) for each in types])


def _file_type(data: Any) -> FileType:
    if not isinstance(data, dict) or not isinstance(data.get("schema"), dict):
        raise InvalidValueError(f"a type has a schema, got {data!r:.80}")
    spec = TypeSpec.from_json(codec.encode(data["schema"]))
    names = (spec.name, spec.key or "", spec.left or "", spec.right or "")
    if spec.kind not in _PARTS or not all(isinstance(name, str) for name in names):
        raise InvalidValueError(f"a schema has kind, name and fields, got {data['schema']!r:.80}")
    version = data.get("version", 1)
    return FileType(version if type(version) is int else 1, spec)


def read_object(line: bytes) -> Line:
    """A line that is an object; InvalidValueError says what is wrong with it."""
    data = _object(line)
    kind, type_name = data.pop("kind", None), data.pop("type", None)
    fields = data.pop("fields", None)
    if kind not in _PARTS:
        raise InvalidValueError(f"kind is entity or relation, got {kind!r:.80}")
    if not isinstance(type_name, str):
        raise InvalidValueError(f"type is the name of a type, got {type_name!r:.80}")
    if not isinstance(fields, dict):
        raise InvalidValueError(f"fields is an object, got {fields!r:.80}")
    key = tuple(data.pop(part, "") for part in _PARTS[kind])
    for part, text in zip(_PARTS[kind], key, strict=True):
        if not isinstance(text, str) or not (text or part == "instance"):
            raise InvalidValueError(f"{part} is the text of a key, got {text!r:.80}")
    if data:
        raise InvalidValueError(f"a line of {kind} has no {', '.join(map(repr, data))}")
    return Line(kind, type_name, key, fields)


def _object(line: bytes) -> dict[str, Any]:
    if len(line) - line.endswith(b"\n") > LINE_LIMIT:
        raise InvalidValueError(f"a line has at most {LINE_LIMIT:,} bytes, and this one has more")
    data = codec.decode(line)
    if not isinstance(data, dict):
        raise InvalidValueError(f"a line is a JSON object, got {data!r:.80}")
    return data
