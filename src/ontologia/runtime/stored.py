"""Types by their names, for programs that have no classes: made from what the store knows of them."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from ontologia import codec
from ontologia.errors import DefinitionError, NotFoundError
from ontologia.runtime.session import core_of
from ontologia.schema.registry import Registry
from ontologia.schema.stored import class_of, unknown_entity
from ontologia.schema.typespec import TypeSpec
from ontologia.store.protocol import Store
from ontologia.store.rows import StoredType, TypeKey

if TYPE_CHECKING:
    from ontologia.runtime.session import Session


class StoredTypes:
    """The classes of a session, and for every other type in the store one that is made for it.

    A type that was dropped is one of them: what was stored of it can be asked for.
    """

    def __init__(self, store: Store, registry: Registry) -> None:
        self._store = store
        self._registry = registry
        self._made: dict[TypeKey, type[Any]] = {}
        with store.inventory.read() as contents:
            self._stored: dict[TypeKey, StoredType] = {
                (each.kind, each.name): each for each in contents.types()
            }

    @classmethod
    def of(cls, session: Session) -> StoredTypes:
        """Those of a session's store, as they are now. One read; nothing is written."""
        core = core_of(session)
        core.check_open()
        return cls(core.store, core.registry)

    def entity(self, name: str) -> type[Any]:
        """The class of an entity type; NotFoundError if the store has none of that name."""
        return self._wanted(("entity", name))

    def relation(self, name: str) -> type[Any]:
        """The class of a relation type; NotFoundError if the store has none of that name."""
        return self._wanted(("relation", name))

    def entities(self) -> list[type[Any]]:
        """The classes of all entity types that the store has now, by name."""
        return [self.entity(name) for kind, name in sorted(self._stored) if kind == "entity"]

    def relations(self) -> list[type[Any]]:
        """The classes of all relation types that the store has now, by name."""
        return [self.relation(name) for kind, name in sorted(self._stored) if kind == "relation"]

    def named(self, name: str) -> list[type[Any]]:
        """The entity and the relation of this name; NotFoundError if there is neither."""
        kinds = [kind for kind in ("entity", "relation") if self._knows((kind, name))]
        if not kinds:
            raise self._unknown("type", name)
        return [self._wanted((kind, name)) for kind in kinds]

    def _knows(self, key: TypeKey) -> bool:
        if self._registry.find(*key) is not None:
            return True
        if key not in self._stored:
            codec.check(key[1], "a type's name")
            # One that was dropped has a past, which is asked for in its last version.
            before = [each for each in self._store.list_schema_versions(*key) if not each.dropped]
            if before:
                self._stored[key] = before[-1]
        return key in self._stored

    def _wanted(self, key: TypeKey) -> type[Any]:
        if not self._knows(key):
            raise self._unknown(*key)
        registered = self._registry.find(*key)
        if registered is not None:
            known: type[Any] = registered.cls
            return known
        if key not in self._made:
            self._made[key] = self._make(key)
        return self._made[key]

    def _make(self, key: TypeKey) -> type[Any]:
        stored = self._stored[key]
        spec = TypeSpec.from_json(stored.schema_json)
        if spec.hash != stored.schema_hash:
            raise DefinitionError(
                f"the schema of {' '.join(key)} was not written by Ontologia, and is not understood",
                hint="Ask with a program that has the class.",
            )
        return class_of(spec, self._end(spec.left), self._end(spec.right))

    def _end(self, name: str | None) -> type[Any] | None:
        if name is None:
            return None
        key = ("entity", name)
        if not self._knows(key):
            return self._made.setdefault(key, unknown_entity(name))
        return self._wanted(key)

    def _unknown(self, kind: str, name: str) -> NotFoundError:
        names = sorted({key[1] for key in self._stored if kind in ("type", key[0])})
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There is {', '.join(names)}."
        if not names:
            hint = f"Nothing is stored here as {'an' if kind == 'entity' else 'a'} {kind}."
        other = "relation" if kind == "entity" else "entity"
        if kind != "type" and self._knows((other, name)):
            hint = f"There is {'an' if other == 'entity' else 'a'} {other} of this name."
        return NotFoundError(f"the store knows no {kind} {name}", hint=hint)
