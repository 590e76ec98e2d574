"""Finds chunks that have all the words that somebody is looking for, now or in the past."""

from __future__ import annotations

from typing import NamedTuple

from ontologia import Session

from .handlers import words_of
from .models import Document, Occurrence


class Hit(NamedTuple):
    """A chunk that was found."""

    score: int
    path: str
    text: str


def search(session: Session, text: str, *, as_of: int | None = None) -> list[Hit]:
    """The chunks with all these words, the one with the most of them first.

    With `as_of`, as the index was right after that commit.
    """
    words = set(words_of(text))
    documents = session.query().entities(Document)
    found = session.query().relations(Occurrence).where(Occurrence.left_key.in_(words))
    if as_of is not None:
        documents, found = documents.as_of(as_of), found.as_of(as_of)
    valid = {each.path: each.digest for each in documents.collect()}
    by_chunk: dict[str, list[Occurrence]] = {}
    for occurrence in found.collect():
        # Chunks of a text that is being indexed, or that is no more, do not count.
        if occurrence.digest == valid.get(occurrence.document):
            by_chunk.setdefault(occurrence.right_key, []).append(occurrence)
    hits = [
        Hit(sum(each.count for each in group), group[0].document, group[0].right.text)
        for group in by_chunk.values()
        if len(group) == len(words)
    ]
    return sorted(hits, key=lambda hit: (-hit.score, hit.path, hit.text))
