"""What an id is the id of."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ontologia.errors import NotFoundError, OntologiaError
from ontologia.runtime.explain import keys_of
from ontologia.runtime.session import core_of
from ontologia.runtime.stored import StoredTypes

if TYPE_CHECKING:
    from ontologia.runtime.session import Session

_LONGEST = 1_000


@dataclass(frozen=True, slots=True)
class Hit:
    """Something that has the id that was asked for."""

    kind: Literal["event", "deferred", "commit", "session", "handler", "type", "entity", "relation"]
    id: str
    """What its page is asked with; of an object its key as one text."""
    name: str
    """The type of an event or object; of others their id again."""


def search(session: Session, text: str) -> list[Hit]:
    """Everything that has this id: an event, a commit, a session, a handler, a type, an object.

    Ids as a whole, not parts of them. One read by key for each kind, and for each type of objects.
    """
    text = text.strip()
    if not text or len(text) > _LONGEST or "\0" in text:
        return []
    try:
        text.encode()
    except UnicodeEncodeError:
        return []
    core, store = core_of(session), session.event_store
    hits: list[Hit] = []
    with core.store.provenance.read() as trail:
        event = trail.event(text)
    if event is not None:
        hits.append(Hit("event", event.id, event.type))
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None
    deferred = store.listings.find_deferred(session.namespace, text, number)
    if deferred is not None:
        hits.append(Hit("deferred", str(deferred[0]), deferred[1]))
    if number is not None and session.get_commit(number) is not None:
        hits.append(Hit("commit", text, text))
    if store.listings.has_session(text):
        hits.append(Hit("session", text, text))
    if store.activity.types_of(session.namespace, text):
        hits.append(Hit("handler", text, text))
    return hits + _objects(session, text)


def _objects(session: Session, text: str) -> list[Hit]:
    core = core_of(session)
    stored = StoredTypes.of(session)
    hits: list[Hit] = []
    with suppress(NotFoundError):
        hits += [Hit("type", cls.__shape__.name, cls.__shape__.kind) for cls in stored.named(text)]
    with core.store.provenance.read() as trail:
        for cls in (*stored.entities(), *stored.relations()):
            shape = cls.__shape__
            try:
                ways = keys_of(shape, text)
            except OntologiaError:  # it cannot be a key of this type
                continue
            if any(next(trail.versions(shape.kind, shape.name, way), None) for way in ways):
                hits.append(Hit(shape.kind, text, shape.name))
    return hits
